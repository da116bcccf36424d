package controller

import (
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// order says what is removed before what, of an application that asks for it. nil: everything at the same time.
type order struct {
	// dependents are, by component, those that depend on it.
	dependents map[string][]string
	// there are the components of which something is there.
	there map[string]bool
}

// orderOf is the order of removal that spec asks for.
func (c *Controller) orderOf(a *app, spec *oam.ApplicationSpec) *order {
	if spec == nil || !plan.RemovesInOrder(spec) {
		return nil
	}
	w := &order{dependents: map[string][]string{}, there: map[string]bool{}}
	seen := map[string]bool{}
	add := func(spec *oam.ApplicationSpec) {
		for name, on := range plan.Dependencies(spec) {
			if seen[name] {
				continue // as the latest revision that has the component says
			}
			seen[name] = true
			for _, d := range on {
				w.dependents[d] = append(w.dependents[d], name)
			}
		}
	}
	add(spec)
	for _, r := range slices.Backward(a.record.Revisions) {
		add(r.Spec)
	}
	for i := range a.record.resources {
		if m := &a.record.resources[i]; c.mayBeThere(a, m) {
			w.there[m.Component] = true
		}
	}
	return w
}

// mayBeThere says whether an object of the application is there, or it is not known.
func (c *Controller) mayBeThere(a *app, m *oam.ManagedResource) bool {
	ref := refOf(m)
	t := c.targets.get(ref.Cluster)
	if t == nil {
		return false // its cluster is managed no longer
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

// holds says whether an object stays for now, because of what depends on its component.
func (w *order) holds(m *oam.ManagedResource) bool {
	return w != nil && slices.ContainsFunc(w.dependents[m.Component], func(d string) bool { return w.there[d] })
}
