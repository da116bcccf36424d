package render

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// Placeholders holds the names in a request that differ between requests of one shape: the
// Application's name and the component's revision.
type Placeholders struct{ app, revision string }

// Fillings are the contents of open placeholders. In order, they come before or after all names: a
// result that is equal for both fillings does not depend on the order of names. Names never contain
// fillings, and requests with other strings that do are not cached.
const (
	firstApp, firstRevision = "\x02", "\x01"
	lastApp, lastRevision   = "\x7f", "\u0080"
	fillings                = firstApp + firstRevision + lastApp + lastRevision
)

// PlaceholdersOf returns the placeholders of requests for a component of an Application. ok is
// false if these names cannot be placeholders.
func PlaceholdersOf(app, revision string) (h Placeholders, ok bool) {
	for i := range len(app) {
		if app[i] < '-' || app[i] > 'z' {
			return Placeholders{}, false // not a name of an object
		}
	}
	return Placeholders{app, revision}, app != "" && revision != app && len(revision)%len(lastRevision) == 0
}

// Filled returns the same placeholders with a filling that comes last or first in order. The
// filling has as many bytes as the names.
func (h Placeholders) Filled(last bool) Placeholders {
	if last {
		return Placeholders{strings.Repeat(lastApp, len(h.app)),
			strings.Repeat(lastRevision, len(h.revision)/len(lastRevision))}
	}
	return Placeholders{strings.Repeat(firstApp, len(h.app)), strings.Repeat(firstRevision, len(h.revision))}
}

// Refill replaces the contents of the placeholders in a string. Contents that were cut in two are
// left as they are; Whole detects them.
func (h Placeholders) Refill(s string, with Placeholders) string {
	s = strings.ReplaceAll(s, h.app, with.app)
	if h.revision != "" {
		s = strings.ReplaceAll(s, h.revision, with.revision)
	}
	return s
}

// RefillJSON is Refill for JSON. h must have fillings as contents, because names need no escaping
// in JSON.
func (h Placeholders) RefillJSON(data []byte, with Placeholders) []byte {
	data = bytes.ReplaceAll(data, quoted(h.app), quoted(with.app))
	if h.revision != "" {
		data = bytes.ReplaceAll(data, quoted(h.revision), quoted(with.revision))
	}
	return data
}

// quoted returns a string as JSON writes it, without the quotation marks.
func quoted(s string) []byte {
	if !strings.ContainsAny(s, fillings) {
		return []byte(s)
	}
	data, err := json.Marshal(s)
	if err != nil {
		panic(err) // cannot happen: a string of valid UTF-8
	}
	return data[1 : len(data)-1]
}

// Whole reports whether every filling in a string is one that Refill replaces.
func (h Placeholders) Whole(s string) bool {
	return !strings.ContainsAny(h.Refill(s,
		Placeholders{strings.Repeat("x", len(h.app)), strings.Repeat("x", len(h.revision))}), fillings)
}

// In reports whether a string contains any part of a filling.
func (h Placeholders) In(s string) bool { return strings.ContainsAny(s, fillings) }

// Keys counts the field names that contain any part of a filling.
func (h Placeholders) Keys(v any) int {
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

// KeysOfJSON is like Keys for JSON.
func (h Placeholders) KeysOfJSON(data []byte) (int, error) {
	v, err := decode(data)
	return h.Keys(v), err
}

// Open returns the request with other contents in its placeholders, in the context and in the
// properties.
func (h Placeholders) Open(req *Request, with Placeholders) *Request {
	c := req.Context
	for _, text := range []*string{&c.Name, &c.Namespace, &c.AppName, &c.AppRevision, &c.PublishVersion, &c.WorkflowName,
		&c.Cluster, &c.ReplicaKey} {
		*text = strings.ReplaceAll(*text, h.app, with.app)
	}
	c.Revision = with.revision
	c.AppLabels, c.AppAnnotations = h.openMap(c.AppLabels, with), h.openMap(c.AppAnnotations, with)
	out := &Request{Context: c, Component: h.openUse(req.Component, with), Traits: make([]Use, len(req.Traits)),
		Run: req.Run}
	for i, use := range req.Traits {
		out.Traits[i] = h.openUse(use, with)
	}
	return out
}

// filledAlready reports whether the request contains characters of fillings.
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

func (h Placeholders) openUse(u Use, with Placeholders) Use {
	return Use{u.Template, bytes.ReplaceAll(u.Properties, quoted(h.app), quoted(with.app))}
}

func (h Placeholders) openMap(m map[string]string, with Placeholders) map[string]string {
	if len(m) == 0 {
		return nil
	}
	out := make(map[string]string, len(m))
	for k, v := range m {
		out[strings.ReplaceAll(k, h.app, with.app)] = strings.ReplaceAll(v, h.app, with.app)
	}
	return out
}

// Shape returns a key that is equal for requests that differ only in their placeholders, as far as
// their templates read, and the request with its placeholders filled. ok is false for requests that
// must be rendered one by one, because their templates may look into names, read the whole
// Application, or send requests.
func (req *Request) Shape(h Placeholders) (key [sha256.Size]byte, open *Request, ok bool) {
	uses := append([]Use{req.Component}, req.Traits...)
	var looks fieldUse
	for _, use := range uses {
		main := use.Template.main
		if main == nil || !main.Wording.Parametric || main.Processes || main.Reads.Context.atApplication() {
			return key, nil, false
		}
		looks.join(&main.Reads.Context)
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
