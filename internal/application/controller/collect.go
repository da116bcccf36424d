package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// remover deletes the objects of Applications.
type remover struct {
	*deployer
	applications *held[oam.Application]
	authors      *authors
}

// collect deletes the objects that left the Application. It returns true if the tracker must be
// written.
func (d *remover) collect(a *state, spec *oam.ApplicationSpec) (dirty bool) {
	order := d.orderOf(a, spec)
	wanted := map[plan.Ref]bool{}
	for i := range a.plan.Resources {
		wanted[a.plan.Resources[i].Ref] = true
	}
	var kept []oam.ManagedResource
	for i := range a.tracker.resources {
		m := &a.tracker.resources[i]
		if wanted[refOf(m)] {
			kept = append(kept, *m)
			continue
		}
		strategy, propagation := a.plan.Policies.Leaves(m, a.tracker.componentType(m.Component))
		if strategy == plan.GCNever {
			continue
		}
		if strategy == plan.GCOnAppDelete || order.holds(m) {
			kept = append(kept, *m)
			continue
		}
		gone, err := d.removeOne(a, m, propagation, a.as)
		if unreachable := (*errDown)(nil); err != nil && !errors.As(err, &unreachable) {
			d.log.Warn("an object cannot be removed", "application", a.key, "object", refOf(m).String(), "error", err)
		}
		if !gone {
			kept = append(kept, *m)
		}
	}
	dirty = a.tracker.dirty || len(kept) != len(a.tracker.resources)
	applied := map[string]json.RawMessage{}
	for i := range a.plan.Resources {
		r := &a.plan.Resources[i]
		if r.ReadOnly || isSecret(r.GVK) {
			continue
		}
		ref := refKey(r.Ref)
		if _, err := d.targets.reach(r.Cluster); err != nil {
			// What was last applied there stays the base of the merge when the cluster can be
			// reached again.
			if before, ok := a.tracker.Applied[ref]; ok {
				applied[ref] = before
			}
			continue
		}
		applied[ref] = r.JSON
		dirty = dirty || !sameJSON(a.tracker.Applied[ref], r.JSON)
	}
	if !dirty || a.writes.inFlight(trackerWrite) {
		return false
	}
	a.tracker.resources, a.tracker.Applied = kept, applied
	return true
}

// removeAll deletes the objects of an Application that is removed, in the order that spec asks for.
// It returns how many remain, why some cannot be reached, and whether others could not be removed.
func (d *remover) removeAll(a *state, spec *oam.ApplicationSpec) (remaining int, why error, failed bool) {
	order := d.orderOf(a, spec)
	if !a.leaving {
		// From now on the manager deletes with its own rights, because the Application created the
		// objects. Deletions that the author was refused are retried at once.
		a.leaving = true
		a.writes.forget()
	}
	for i := range a.tracker.resources {
		m := &a.tracker.resources[i]
		if order.holds(m) {
			remaining++
			continue
		}
		gone, err := d.removeOne(a, m, metav1.DeletePropagationBackground, nil)
		if unreachable := (*errDown)(nil); errors.As(err, &unreachable) {
			why = unreachable // the Application is enqueued when the cluster can be reached again
		} else if err != nil {
			d.log.Warn("an object cannot be removed", "application", a.key, "object", refOf(m).String(), "error", err)
			failed = true
		}
		if !gone {
			remaining++
		}
	}
	return remaining, why, failed
}

// removeOne deletes one object with the rights of as, or with the manager's own if as is nil, and
// reports whether the object is gone. An object that another Application owns by now is left alone
// and counts as gone.
func (d *remover) removeOne(a *state, m *oam.ManagedResource, propagation metav1.DeletionPropagation, as *apiwriter.Identity) (bool, error) {
	ref := refOf(m)
	t, err := d.targets.reach(ref.Cluster)
	if left := errLeft(""); errors.As(err, &left) {
		d.log.Info("an object stays in a cluster that is no longer managed", "application", a.key, "object", ref.String())
		return true, nil
	} else if err != nil {
		return false, &errDown{err}
	}
	ready, err := t.live.ready(ref.GVK, a.key)
	if err != nil {
		return strings.Contains(err.Error(), "has no kind"), nil // no kind, no objects
	}
	if !ready {
		return false, nil
	}
	name := refKey(ref)
	if a.writes.inFlight(name) {
		return false, nil
	}
	there := t.live.get(ref)
	switch {
	case there == nil:
		a.writes.forget(name)
		return true, nil
	case there.owner != a.key && !d.leftTo(a, there):
		return true, d.leave(a, ref, there)
	case there.deleting:
		return false, nil
	}
	if others := d.living(a, sharers(there)); len(others) > 1 {
		return d.handOver(a, ref, there, others)
	}
	if failure := a.writes.failure(name); failure != "" && !a.writes.mayRetry(name, d.now()) {
		return false, fmt.Errorf("%s", failure)
	}
	if !a.writes.start(name) {
		return false, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(ref.GVK)
	u.SetNamespace(ref.Namespace)
	u.SetName(ref.Name)
	u.SetUID(there.uid)
	meta := a.meta(t, ref.GVK, "application-delete")
	meta.As = as
	t.writer.Delete(meta, u, apiwriter.DeleteOptions{Propagation: propagation}, func(err error) {
		if err == nil {
			t.live.deleted(ref, there.uid)
		}
		d.settle(a, name, err)
	})
	return false, nil
}

// leave removes the Application from the sharers of another Application's object.
func (d *remover) leave(a *state, ref plan.Ref, there *object) error {
	if !sharedBy(there, a.key) {
		return nil
	}
	var others []string
	for _, s := range sharers(there) {
		if s != a.key.String() {
			others = append(others, s)
		}
	}
	d.actAsFor(a, there.owner.String())
	return d.relabel(a, ref, there, nil, others)
}

// leftTo reports whether a is the only remaining Application that shares an object whose labels
// name a deleted owner. handOver leaves such labels if nobody may change them.
func (d *remover) leftTo(a *state, there *object) bool {
	if !sharedBy(there, a.key) || len(d.living(a, append(sharers(there), there.owner.String()))) > 1 {
		return false
	}
	_, exists := d.applications.Get(there.owner.Namespace, there.owner.Name)
	return !exists
}

// living returns the Applications of a list (namespace/name) that exist, and a itself, which is
// being deleted.
func (d *remover) living(a *state, list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		namespace, name, _ := strings.Cut(s, "/")
		_, exists := d.applications.Get(namespace, name)
		return !exists && s != a.key.String()
	})
}

// handOver makes the next Application that shares an object its owner. A deletion does not wait for
// that: if neither Application's author may change the object, its labels stay, and the object is
// deleted together with the last Application that shares it.
func (d *remover) handOver(a *state, ref plan.Ref, there *object, list []string) (gone bool, err error) {
	var others []string
	for _, s := range list {
		if s != a.key.String() {
			others = append(others, s)
		}
	}
	d.actAsFor(a, others[0])
	namespace, name, _ := strings.Cut(others[0], "/")
	if failure := a.writes.failure(refKey(ref)); a.leaving && failure != "" {
		id, err := d.authorAt(types.NamespacedName{Namespace: namespace, Name: name})
		if err != nil || reflect.DeepEqual(id, a.as) {
			d.log.Warn("a shared object keeps the labels of an application that is deleted", "application", a.key, "object", ref.String(), "error", failure)
			return true, nil
		}
		a.as = id
	}
	return false, d.relabel(a, ref, there, map[string]any{oam.AppNameLabel: name, oam.AppNamespaceLabel: namespace, oam.RenderHashLabel: nil}, others)
}

func (d *remover) relabel(a *state, ref plan.Ref, there *object, labels map[string]any, sharers []string) error {
	metadata := map[string]any{"annotations": map[string]any{oam.SharedByAnnotation: strings.Join(sharers, ",")}}
	if labels != nil {
		metadata["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return d.change(a, &plan.Resource{Ref: ref}, there, patch)
}
