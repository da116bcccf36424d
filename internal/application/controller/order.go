package controller

import (
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// order is the order in which components are removed, for an Application that asks for one. nil:
// all are removed at once.
type order struct {
	// dependents has, by component, the components that depend on it.
	dependents map[string][]string
	// there has the components that still have live objects.
	there map[string]bool
}

// orderOf returns the order of removal that spec asks for, or nil.
func (d *remover) orderOf(a *state, spec *oam.ApplicationSpec) *order {
	if spec == nil || !plan.RemovesInOrder(spec) {
		return nil
	}
	w := &order{dependents: map[string][]string{}, there: map[string]bool{}}
	seen := map[string]bool{}
	add := func(spec *oam.ApplicationSpec) {
		for name, on := range plan.Dependencies(spec) {
			if seen[name] {
				continue // a later revision has the component, and counts
			}
			seen[name] = true
			for _, d := range on {
				w.dependents[d] = append(w.dependents[d], name)
			}
		}
	}
	add(spec)
	for _, r := range slices.Backward(a.tracker.Revisions) {
		add(r.Spec)
	}
	for i := range a.tracker.resources {
		if m := &a.tracker.resources[i]; d.mayBeThere(a, m) {
			w.there[m.Component] = true
		}
	}
	return w
}

// mayBeThere reports whether an object of the Application exists or cannot be checked at present.
func (d *remover) mayBeThere(a *state, m *oam.ManagedResource) bool {
	ref := refOf(m)
	t := d.targets.get(ref.Cluster)
	if t == nil {
		return false // the cluster is no longer managed
	}
	if t.down() != nil {
		return true
	}
	if ready, err := t.live.ready(ref.GVK, a.key); err != nil || !ready {
		return err == nil
	}
	there := t.live.get(ref)
	return there != nil && there.owner == a.key
}

// holds reports whether an object stays for now because components that depend on its component
// still have live objects.
func (w *order) holds(m *oam.ManagedResource) bool {
	return w != nil && slices.ContainsFunc(w.dependents[m.Component], func(d string) bool { return w.there[d] })
}
