package plan

import (
	"crypto/sha256"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"lockstep.dev/lockstep/internal/application/render"
)

// memoMax bounds the number of shapes in a memo. memoBytesMax bounds the size of their objects, in
// bytes.
const (
	memoMax      = 1024
	memoBytesMax = 8 << 20
)

// Memo caches the objects of components that differ only in their Applications' names. For an
// Application of a known shape, the objects are copied and the names filled in, instead of being
// rendered. The result equals what rendering gives: see render.Spellings for the reason. The zero
// value is ready for use, and several goroutines may use one Memo.
type Memo struct {
	mu    sync.Mutex
	known map[memoKey]*cachedComponent
	bytes int

	filled uint64
}

type memoKey [sha256.Size]byte

// cachedComponent is the cached objects of one shape. A nil cachedComponent stands for a shape that
// was met once. One without spellings stands for a shape whose components must be rendered each
// time.
type cachedComponent struct {
	placeholders render.Placeholders // what fills the placeholders in resources
	spellings    *render.Spellings
	resources    []Resource
}

// resources returns the objects of a component, before policies are applied, and the indexes of the
// late traits without objects.
func (m *Memo) resources(in *Input, comp *Component, req *render.Request, kinds Kinds) ([]Resource, []int, error) {
	if slices.ContainsFunc(req.Traits, func(t render.Use) bool { return t.Template.MayBeLate() }) {
		return workLate(in, comp, req, kinds)
	}
	out, err := m.remembered(in, comp, req, kinds)
	return out, nil, err
}

// remembered is resources for a component without late traits.
func (m *Memo) remembered(in *Input, comp *Component, req *render.Request, kinds Kinds) ([]Resource, error) {
	placeholders, ok := render.PlaceholdersOf(in.Name, comp.Revision)
	if m == nil || !ok {
		return work(in, comp, req, kinds)
	}
	shape, open, ok := req.Shape(placeholders)
	if !ok {
		return work(in, comp, req, kinds)
	}
	last := placeholders.Filled(true)
	sum := sha256.New()
	sum.Write(shape[:])
	for _, s := range []string{in.Namespace, comp.Name, comp.Type, comp.Cluster, comp.Namespace, comp.Context.ReplicaKey} {
		fmt.Fprintf(sum, "%d %s ", len(s), placeholders.Refill(s, last))
	}
	key := memoKey(sum.Sum(nil))
	p, met := m.get(key)
	if p == nil {
		out, err := work(in, comp, req, kinds)
		switch {
		case err != nil: // another component of that shape may succeed
		case !met:
			m.put(key, nil) // most shapes are met once
		default:
			m.put(key, learn(in, comp, open, placeholders, kinds, out))
		}
		return out, err
	}
	if p.spellings == nil || p.spellings.Spell(placeholders) {
		return work(in, comp, req, kinds)
	}
	out := p.fill(placeholders)
	for i := range out {
		// Whether objects of a kind are namespaced depends on the cluster.
		if namespaced, err := kinds.Namespaced(out[i].GVK); err != nil || namespaced != (out[i].Namespace != "") {
			return work(in, comp, req, kinds)
		}
	}
	return out, nil
}

// work renders the objects of a component.
func work(in *Input, comp *Component, req *render.Request, kinds Kinds) ([]Resource, error) {
	out, _, err := workLate(in, comp, req, kinds)
	return out, err
}

// workLate renders the objects of a component that may have late traits.
func workLate(in *Input, comp *Component, req *render.Request, kinds Kinds) ([]Resource, []int, error) {
	made, err := render.Render(req)
	if err != nil {
		return nil, nil, err
	}
	out, err := complete(in, comp, made.Objects(), kinds)
	return out, made.Late, err
}

// complete turns rendered objects into resources.
func complete(in *Input, comp *Component, objects []render.Object, kinds Kinds) ([]Resource, error) {
	var out []Resource
	for i := range objects {
		r, err := newResource(in, comp, &objects[i], kinds)
		if err != nil {
			return nil, err
		}
		out = append(out, *r)
	}
	return out, nil
}

// learn makes the cachedComponent of a shape. known has the component's objects. The result has no
// spellings if rendering with other names in the placeholders changes more than these names.
func learn(in *Input, comp *Component, open *render.Request, placeholders render.Placeholders, kinds Kinds,
	known []Resource) *cachedComponent {
	none := &cachedComponent{}
	words, ok := render.SpellingsOf(open, placeholders)
	if !ok {
		return none
	}
	last, first := placeholders.Filled(true), placeholders.Filled(false)
	out, ok := workWith(in, comp, open, placeholders, last, kinds)
	if !ok {
		return none
	}
	p := &cachedComponent{placeholders: last, spellings: words, resources: out}
	for i := range out {
		if !p.whole(&out[i]) || elsewhere(&out[i], comp) { // its cluster may not have the kind
			return none
		}
	}
	other, ok := workWith(in, comp, last.Open(open, first), placeholders, first, kinds)
	if !ok || !reflect.DeepEqual((&cachedComponent{placeholders: first, resources: other}).fill(placeholders), known) ||
		!reflect.DeepEqual(p.fill(placeholders), known) {
		return none
	}
	return p
}

// workWith renders a component with other names in its placeholders.
func workWith(in *Input, comp *Component, req *render.Request, placeholders, with render.Placeholders,
	kinds Kinds) ([]Resource, bool) {
	inOpen, compOpen := *in, *comp
	inOpen.Name, inOpen.Namespace = placeholders.Refill(in.Name, with), placeholders.Refill(in.Namespace, with)
	compOpen.Name, compOpen.Namespace, compOpen.Cluster = placeholders.Refill(comp.Name, with),
		placeholders.Refill(comp.Namespace, with), placeholders.Refill(comp.Cluster, with)
	compOpen.Type, compOpen.Context = placeholders.Refill(comp.Type, with), req.Context
	made, err := render.Render(req)
	if err != nil {
		return nil, false
	}
	objects := made.Objects()
	names := 0
	for i := range objects {
		names += with.Keys(map[string]any(objects[i].Object))
	}
	out, err := complete(&inOpen, &compOpen, objects, kinds)
	if err != nil {
		return nil, false
	}
	// A field name that the type does not have is dropped; another name in its place might be a
	// field of the type.
	for i := range out {
		kept, err := with.KeysOfJSON(out[i].JSON)
		if err != nil {
			return nil, false
		}
		names -= kept
	}
	return out, names == 0
}

// fill returns the cached resources with the names of with in their placeholders.
func (p *cachedComponent) fill(with render.Placeholders) []Resource {
	out := slices.Clone(p.resources)
	for i := range out {
		r := &out[i]
		for _, s := range p.texts(r) {
			*s = p.placeholders.Refill(*s, with)
		}
		r.JSON = p.placeholders.RefillJSON(r.JSON, with)
		r.Hash = Hash(r.JSON)
	}
	return out
}

// texts returns the parts of a resource, except its JSON, that may contain placeholders.
func (p *cachedComponent) texts(r *Resource) []*string {
	return []*string{&r.Cluster, &r.Namespace, &r.Name, &r.Component, &r.ComponentType, &r.Trait, &r.Output, &r.Step}
}

// whole reports whether the names in a resource occur only where they can be replaced.
func (p *cachedComponent) whole(r *Resource) bool {
	return p.placeholders.Whole(string(r.JSON)) && !p.placeholders.In(r.GVK.String()) &&
		!p.placeholders.In(string(r.Stage)) &&
		!slices.ContainsFunc(p.texts(r), func(s *string) bool { return !p.placeholders.Whole(*s) })
}

// get returns what is cached for a shape, and whether the shape was met before.
func (m *Memo) get(key memoKey) (p *cachedComponent, met bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	p, met = m.known[key]
	if p != nil && p.spellings != nil {
		m.filled++
	}
	return p, met
}

// put caches p for a shape. If the memo is full, put empties it first.
func (m *Memo) put(key memoKey, p *cachedComponent) {
	size := 0
	if p != nil {
		for i := range p.resources {
			size += len(p.resources[i].JSON)
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.known == nil || len(m.known) >= memoMax || m.bytes+size > memoBytesMax {
		m.known, m.bytes = map[memoKey]*cachedComponent{}, 0
	}
	m.known[key] = p
	m.bytes += size
}

// Filled returns the number of components that were made by filling in names.
func (m *Memo) Filled() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.filled
}
