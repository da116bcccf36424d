package render

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Holes are the names in a request that are its own: those of its application and of the component's revision. Other
// requests may be equal to it but for them.
type Holes struct{ app, revision string }

// What fills open holes, so that it is before, or behind, all names in their order: what is equal for both fillings does
// not hang on how names are ordered. It is not in names, and is refused where it is in other texts.
const (
	firstApp, firstRevision = "\x02", "\x01"
	lastApp, lastRevision   = "\x7f", "\u0080"
	fillings                = firstApp + firstRevision + lastApp + lastRevision
)

// HolesOf are the holes of requests for a component of an application. ok is false where there are none.
func HolesOf(app, revision string) (h Holes, ok bool) {
	for i := range len(app) {
		if app[i] < '-' || app[i] > 'z' {
			return Holes{}, false // not the name of an object
		}
	}
	return Holes{app, revision}, app != "" && revision != app && len(revision)%len(lastRevision) == 0
}

// Filled are the same holes with what stands for the first or the last of all names, as long in bytes as the names are.
func (h Holes) Filled(last bool) Holes {
	if last {
		return Holes{strings.Repeat(lastApp, len(h.app)), strings.Repeat(lastRevision, len(h.revision)/len(lastRevision))}
	}
	return Holes{strings.Repeat(firstApp, len(h.app)), strings.Repeat(firstRevision, len(h.revision))}
}

// Refill replaces what fills the holes in a text. There is no error: what is cut in two is left, and Unfilled says so.
func (h Holes) Refill(s string, with Holes) string {
	s = strings.ReplaceAll(s, h.app, with.app)
	if h.revision != "" {
		s = strings.ReplaceAll(s, h.revision, with.revision)
	}
	return s
}

// RefillJSON is Refill for JSON. It is made for holes with fillings: names are written in JSON as they are.
func (h Holes) RefillJSON(data []byte, with Holes) []byte {
	data = bytes.ReplaceAll(data, quoted(h.app), quoted(with.app))
	if h.revision != "" {
		data = bytes.ReplaceAll(data, quoted(h.revision), quoted(with.revision))
	}
	return data
}

// quoted is a text as JSON has it, without the quotation marks.
func quoted(s string) []byte {
	if !strings.ContainsAny(s, fillings) {
		return []byte(s)
	}
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // a text of ASCII
	}
	return data[1 : len(data)-1]
}

// Whole says whether a text has nothing of a filling but what Refill replaces.
func (h Holes) Whole(s string) bool {
	return !strings.ContainsAny(h.Refill(s, Holes{strings.Repeat("x", len(h.app)), strings.Repeat("x", len(h.revision))}), fillings)
}

// In says whether there is something of a filling in a text.
func (h Holes) In(s string) bool { return strings.ContainsAny(s, fillings) }

// Keys counts the names of fields in which there is something of a filling.
func (h Holes) Keys(v any) int {
	n := 0
	switch v := v.(type) {
	case map[string]any:
		for k, item := range v {
			if h.In(k) {
				n++
			}
			n += h.Keys(item)
		}
	case []any:
		for _, item := range v {
			n += h.Keys(item)
		}
	}
	return n
}

// KeysOfJSON is Keys of JSON.
func (h Holes) KeysOfJSON(data []byte) (int, error) {
	v, err := decode(data)
	return h.Keys(v), err
}

// Open is the request with its holes filled otherwise, in the context and in the properties.
func (h Holes) Open(req *Request, with Holes) *Request {
	c := req.Context
	for _, text := range []*string{&c.Name, &c.Namespace, &c.AppName, &c.AppRevision, &c.PublishVersion, &c.WorkflowName, &c.Cluster, &c.ReplicaKey} {
		*text = strings.ReplaceAll(*text, h.app, with.app)
	}
	c.Revision = with.revision
	c.AppLabels, c.AppAnnotations = h.openMap(c.AppLabels, with), h.openMap(c.AppAnnotations, with)
	out := &Request{Context: c, Component: h.openUse(req.Component, with), Traits: make([]Use, len(req.Traits)), Run: req.Run}
	for i, use := range req.Traits {
		out.Traits[i] = h.openUse(use, with)
	}
	return out
}

// filledAlready says whether there is something in the request that looks like a filling.
func filledAlready(req *Request) bool {
	c := &req.Context
	for _, text := range []string{c.Name, c.Namespace, c.AppRevision, c.PublishVersion, c.WorkflowName, c.ReplicaKey} {
		if strings.ContainsAny(text, fillings) {
			return true
		}
	}
	for _, m := range []map[string]string{c.AppLabels, c.AppAnnotations} {
		for k, v := range m {
			if strings.ContainsAny(k, fillings) || strings.ContainsAny(v, fillings) {
				return true
			}
		}
	}
	filled := func(u Use) bool {
		p := u.Properties
		return bytes.Contains(p, []byte(lastApp)) || bytes.Contains(p, []byte(lastRevision)) ||
			bytes.Contains(p, []byte(`\u000`)) || bytes.Contains(p, []byte(`\u007`)) || bytes.Contains(p, []byte(`\u008`))
	}
	return filled(req.Component) || slices.ContainsFunc(req.Traits, filled)
}

func (h Holes) openUse(u Use, with Holes) Use {
	return Use{u.Template, bytes.ReplaceAll(u.Properties, quoted(h.app), quoted(with.app))}
}

func (h Holes) openMap(m map[string]string, with Holes) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ReplaceAll(k, h.app, with.app)] = strings.ReplaceAll(v, h.app, with.app)
	}
	return out
}

// Shape is what requests have in common that differ in their holes only: with the holes filled in the same way, they are
// equal as far as their templates look. It says false for requests that are better looked at one by one: their templates
// may look into names, or look at the whole application.
func (req *Request) Shape(h Holes) (key [sha256.Size]byte, open *Request, ok bool) {
	uses := append([]Use{req.Component}, req.Traits...)
	var looks look
	for _, use := range uses {
		main := use.Template.main
		if main == nil || !main.wording.parametric || main.processes || main.reads.context.atApplication() {
			return key, nil, false
		}
		looks.join(&main.reads.context)
	}
	if req.Context.AppName != h.app || req.Context.Revision != h.revision || filledAlready(req) {
		return key, nil, false
	}
	open = h.Open(req, h.Filled(true))
	sum := sha256.New()
	context, err := json.Marshal(looks.of(open.Context.values(false)))
	if err != nil {
		return key, nil, false
	}
	fmt.Fprintf(sum, "%d %d %d %s", len(h.app), len(h.revision), len(context), context)
	for _, use := range append([]Use{open.Component}, open.Traits...) {
		d := use.Template.Definition
		fmt.Fprintf(sum, "\n%s %s %s %d ", d, d.Namespace, d.Hash, len(use.Properties))
		sum.Write(use.Properties)
	}
	return [sha256.Size]byte(sum.Sum(nil)), open, true
}
