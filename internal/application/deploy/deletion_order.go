package deploy

import (
	"errors"
	"slices"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

// deletionOrder is the order in which an Application's components are removed. A nil order means
// that all are removed at once.
type deletionOrder struct {
	// dependents has, by component, the components that depend on it.
	dependents map[string][]string
	// existing has the components that still have live objects.
	existing map[string]bool
}

// orderOf returns the order of removal that the policies ask for, or nil if they ask for none.
func (d *Remover) orderOf(a *State, spec *oam.ApplicationSpec, policies *plan.Policies) *deletionOrder {
	if spec == nil || !policies.DependencyOrder {
		return nil
	}
	w := &deletionOrder{dependents: map[string][]string{}, existing: map[string]bool{}}
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
	for _, r := range slices.Backward(a.Tracker.Revisions) {
		add(r.Spec)
	}
	for i := range a.Tracker.Resources {
		m := &a.Tracker.Resources[i]
		if strategy, _ := leaves(a, m, policies); strategy != plan.GCNever && d.mayBeThere(a, m) {
			w.existing[m.Component] = true
		}
	}
	return w
}

// mayBeThere reports whether an object of the Application exists or cannot be checked at present.
func (d *Remover) mayBeThere(a *State, m *oam.ManagedResource) bool {
	ref := records.RefOf(m)
	t := d.Targets.Get(ref.Cluster)
	if t == nil {
		return false // the cluster is no longer managed
	}
	if t.Down() != nil {
		return true
	}
	ready, err := t.Objects.Ready(ref.GVK, a.Key)
	if none := objects.ErrNoKind(""); errors.As(err, &none) {
		return false
	}
	if err != nil || !ready {
		return true
	}
	there := t.Objects.Get(ref)
	return there != nil && there.Owner == a.Key
}

// mustWait reports whether an object stays for now because components that depend on its component
// still have live objects.
func (w *deletionOrder) mustWait(m *oam.ManagedResource) bool {
	return w != nil && slices.ContainsFunc(w.dependents[m.Component], func(d string) bool { return w.existing[d] })
}
