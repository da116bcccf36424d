package deploy

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"reflect"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/author"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

// Remover deletes the objects of Applications.
type Remover struct {
	*Deployer
	Applications *records.PackedCache[oam.Application]
	Authors      *author.Finder
}

// Collected is the outcome of Collect.
type Collected struct {
	// Dirty is set if the tracker must be written.
	Dirty bool
	// Pending is set if objects have yet to be deleted.
	Pending bool
	// Kept has, by RefKey, the objects that are kept because the policies keep all that leaves the
	// spec (keepLegacyResource), and not by a rule.
	Kept map[string]bool
}

// Collect deletes the objects that have left the plan. Those in condemned, by RefKey, are deleted
// although the policies keep what leaves the spec.
func (d *Remover) Collect(a *State, spec *oam.ApplicationSpec, condemned map[string]bool) (out Collected) {
	policies := a.Plan.Policies
	order := d.orderOf(a, spec, policies)
	wanted := map[plan.Ref]*plan.Resource{}
	for i := range a.Plan.Resources {
		wanted[a.Plan.Resources[i].Ref] = &a.Plan.Resources[i]
	}
	var kept []oam.ManagedResource
	onDelete := map[string]bool{}
	keep := func(m oam.ManagedResource, strategy plan.GCStrategy) {
		m.SkipGC = strategy == plan.GCNever
		if kept = append(kept, m); strategy == plan.GCOnAppDelete {
			onDelete[records.RefKey(records.RefOf(&m))] = true
		}
	}
	for i := range a.Tracker.Resources {
		m := &a.Tracker.Resources[i]
		if r := wanted[records.RefOf(m)]; r != nil {
			keep(*m, r.GC)
			continue
		}
		strategy, propagation := leaves(a, m, policies)
		key := records.RefKey(records.RefOf(m))
		legacy := strategy == "" && policies.KeepLegacy && !condemned[key]
		if legacy && !d.mayBeThere(a, m) {
			continue // somebody else has deleted it
		}
		onUpdate := strategy == "" && !legacy || strategy == plan.GCOnAppUpdate
		if wait := onUpdate && order.mustWait(m); wait || !onUpdate && strategy != plan.GCNever {
			keep(*m, strategy)
			out.Pending = out.Pending || wait
			if legacy {
				if out.Kept == nil {
					out.Kept = map[string]bool{}
				}
				out.Kept[key] = true
			}
			continue
		}
		gone, err := d.removeOne(a, m, strategy == plan.GCNever, propagation, a.As)
		if unreachable := (*objects.ErrDown)(nil); err != nil && !errors.As(err, &unreachable) {
			d.Log.Warn("an object cannot be removed", "application", a.Key, "object", records.RefOf(m).String(), "error", err)
		}
		if !gone {
			keep(*m, strategy)
			out.Pending = true
		}
	}
	dirty := a.Tracker.Dirty || !slices.Equal(kept, a.Tracker.Resources) || !maps.Equal(onDelete, a.Tracker.OnDelete)
	applied := map[string]json.RawMessage{}
	for i := range a.Plan.Resources {
		r := &a.Plan.Resources[i]
		if r.ReadOnly || records.IsSecret(r.GVK) {
			continue
		}
		ref := records.RefKey(r.Ref)
		if _, err := d.Targets.Reach(r.Cluster); err != nil {
			// What was last applied in the cluster stays the base of the merge for when the cluster
			// can be reached again.
			if before, ok := a.Tracker.Applied[ref]; ok {
				applied[ref] = before
			}
			continue
		}
		applied[ref] = r.JSON
		dirty = dirty || !records.SameJSON(a.Tracker.Applied[ref], r.JSON)
	}
	if !dirty {
		return out
	}
	if out.Pending = true; !a.Writes.InFlight(records.TrackerWrite) {
		a.Tracker.Resources, a.Tracker.Applied, a.Tracker.OnDelete, out.Dirty = kept, applied, onDelete, true
	}
	return out
}

// leaves returns the strategy and the propagation for deleting an object. A strategy by which the
// object was last applied holds unless the present policies have another rule for the object. It is
// empty if there is no rule.
func leaves(a *State, m *oam.ManagedResource, policies *plan.Policies) (plan.GCStrategy, metav1.DeletionPropagation) {
	strategy, propagation := policies.Leaves(m, a.Tracker.ComponentType(m.Component))
	if strategy == "" {
		strategy = a.Tracker.Strategy(m)
	}
	return strategy, propagation
}

// policiesOf returns the policies of spec or, if those are malformed, of the latest revision.
func policiesOf(a *State, spec *oam.ApplicationSpec) *plan.Policies {
	specs := []*oam.ApplicationSpec{spec}
	if last := a.Tracker.Latest(); last != nil {
		specs = append(specs, last.Spec)
	}
	for _, s := range specs {
		if s == nil {
			continue
		}
		if policies, err := plan.RulesOf(&plan.Input{Spec: s}); err == nil {
			return policies
		}
	}
	return &plan.Policies{}
}

// RemoveAll deletes the objects of an Application that is removed, as the policies of spec ask for.
// If orphan is set, all objects stay. RemoveAll returns how many objects remain to be dealt with, why
// one of them does, and whether RemoveAll is to be repeated later.
func (d *Remover) RemoveAll(a *State, spec *oam.ApplicationSpec, orphan bool) (remaining int, why error, failed bool) {
	policies := policiesOf(a, spec)
	order := d.orderOf(a, spec, policies)
	if !a.leaving {
		// From now on the manager deletes with its own rights, because the Application created the
		// objects. Deletions that the author was refused are retried at once.
		a.leaving = true
		a.Writes.Forget()
	}
	for i := range a.Tracker.Resources {
		m := &a.Tracker.Resources[i]
		strategy, propagation := leaves(a, m, policies)
		stays := orphan || strategy == plan.GCNever
		if !stays && order.mustWait(m) {
			remaining++
			continue
		}
		gone, err := d.removeOne(a, m, stays, propagation, nil)
		if unreachable := (*objects.ErrDown)(nil); errors.As(err, &unreachable) {
			why = unreachable // the Application is enqueued when the cluster can be reached again
		} else if err != nil {
			d.Log.Warn("an object cannot be removed", "application", a.Key, "object", records.RefOf(m).String(), "error", err)
			why, failed = cmp.Or(why, err), true
		}
		if !gone {
			remaining++
		}
	}
	return remaining, why, failed
}

// removeOne deletes one object with the rights of as, or with the manager's own if as is nil, and
// reports whether the object is deleted. If stays is set, the object is released instead. An object
// that was released, or that another Application owns by now, is left alone and counts as deleted.
func (d *Remover) removeOne(a *State, m *oam.ManagedResource, stays bool, propagation metav1.DeletionPropagation, as *apiwriter.Identity) (bool, error) {
	ref := records.RefOf(m)
	t, err := d.Targets.Reach(ref.Cluster)
	if left := objects.ErrLeft(""); errors.As(err, &left) {
		d.Log.Info("an object stays in a cluster that is no longer managed", "application", a.Key, "object", ref.String())
		return true, nil
	} else if err != nil {
		return d.unreleased(a, ref, stays, &objects.ErrDown{Err: err})
	}
	ready, err := t.Objects.Ready(ref.GVK, a.Key)
	if none := objects.ErrNoKind(""); errors.As(err, &none) {
		return true, nil // no kind, no objects
	}
	if stays && err != nil {
		return d.unreleased(a, ref, stays, err)
	}
	if a.mayPass(err) {
		return false, err
	}
	if noRight := (*objects.ErrNoRight)(nil); a.leaving && errors.As(err, &noRight) {
		return d.neverMade(a, t, ref, err)
	}
	if err != nil || !ready {
		return false, err
	}
	name := records.RefKey(ref)
	if a.Writes.InFlight(name) {
		return false, nil
	}
	there := t.Objects.Get(ref)
	switch {
	case there == nil:
		a.Writes.Forget(name)
		return true, nil
	case there.Owner != a.Key && !d.leftTo(a, there):
		return true, d.leave(a, ref, there)
	case there.Deleting:
		return stays, nil
	}
	if others := d.living(a, objects.Sharers(there)); len(others) > 1 {
		return d.handOver(a, ref, there, others)
	}
	failure := a.Writes.Failure(name)
	if stays && a.leaving && failure != "" {
		return d.unreleased(a, ref, stays, errors.New(failure))
	}
	if a.waitsToRetry(name, d.Now()) {
		return false, errors.New(failure)
	}
	if stays {
		return false, d.release(a, ref, there)
	}
	d.delete(a, t, ref, there.Uid, "application-delete", propagation, as)
	return false, nil
}

// neverMade reports whether an object of a kind that the manager may not watch is known not to exist,
// because the manager or the Application's author reads that. Otherwise it returns why.
func (d *Remover) neverMade(a *State, t *objects.Target, ref plan.Ref, why error) (bool, error) {
	ids := []*apiwriter.Identity{nil}
	if id, err := d.authorAt(a.Key); err == nil && id != nil {
		ids = append(ids, id)
	}
	for _, id := range ids {
		var err error
		d.Aside(func() { err = t.ReadAs(d.Ctx(), ref, id) })
		if apierrors.IsNotFound(err) {
			return true, nil
		}
	}
	return false, why
}

// unreleased reports that an object that cannot be reached or changed counts as deleted if it stays:
// nothing waits for its labels. Otherwise it returns err.
func (d *Remover) unreleased(a *State, ref plan.Ref, stays bool, err error) (bool, error) {
	if !stays {
		return false, err
	}
	d.Log.Warn("an object that stays keeps the labels of an application", "application", a.Key, "object", ref.String(), "error", err)
	return true, nil
}

// release removes the Application's labels from an object that stays. Then only a take-over policy
// makes the object an Application's again.
func (d *Remover) release(a *State, ref plan.Ref, there *objects.Object) error {
	delete(a.UIDs, there.Uid)
	d.actAsFor(a, a.Key.String())
	return d.relabel(a, ref, there, map[string]any{oam.AppNameLabel: nil, oam.AppNamespaceLabel: nil}, nil)
}

// leave removes the Application from the sharers of another Application's object.
func (d *Remover) leave(a *State, ref plan.Ref, there *objects.Object) error {
	if !objects.SharedBy(there, a.Key) {
		return nil
	}
	others := slices.DeleteFunc(objects.Sharers(there), func(s string) bool { return s == a.Key.String() })
	d.actAsFor(a, there.Owner.String())
	return d.relabel(a, ref, there, nil, others)
}

// leftTo reports whether a is the only remaining Application that shares an object whose labels
// name a deleted owner. handOver leaves such labels if no author may change them.
func (d *Remover) leftTo(a *State, there *objects.Object) bool {
	if !objects.SharedBy(there, a.Key) || len(d.living(a, append(objects.Sharers(there), there.Owner.String()))) > 1 {
		return false
	}
	_, exists := d.Applications.Get(there.Owner.Namespace, there.Owner.Name)
	return !exists
}

// living returns the Applications of list (namespace/name) that exist, and a itself, which is being
// deleted.
func (d *Remover) living(a *State, list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		namespace, name, _ := strings.Cut(s, "/")
		_, exists := d.Applications.Get(namespace, name)
		return !exists && s != a.Key.String()
	})
}

// handOver makes the next Application that shares an object its owner. A deletion does not wait for
// that: if neither Application's author may change the object, its labels stay, and the object is
// deleted together with the last Application that shares it.
func (d *Remover) handOver(a *State, ref plan.Ref, there *objects.Object, list []string) (gone bool, err error) {
	others := slices.DeleteFunc(list, func(s string) bool { return s == a.Key.String() })
	d.actAsFor(a, others[0])
	namespace, name, _ := strings.Cut(others[0], "/")
	if failure := a.Writes.Failure(records.RefKey(ref)); a.leaving && failure != "" {
		id, err := d.authorAt(types.NamespacedName{Namespace: namespace, Name: name})
		if err != nil || reflect.DeepEqual(id, a.As) {
			d.Log.Warn("a shared object keeps the labels of an application that is deleted", "application", a.Key, "object", ref.String(), "error", failure)
			return true, nil
		}
		a.As = id
	}
	return false, d.relabel(a, ref, there, map[string]any{oam.AppNameLabel: name, oam.AppNamespaceLabel: namespace, oam.RenderHashLabel: nil}, others)
}

// relabel sets labels on an object and replaces the list of Applications that share it, if any do.
func (d *Remover) relabel(a *State, ref plan.Ref, there *objects.Object, labels map[string]any, sharers []string) error {
	metadata := map[string]any{"annotations": map[string]any{oam.SharedByAnnotation: nil}}
	if len(sharers) > 0 {
		metadata["annotations"] = map[string]any{oam.SharedByAnnotation: strings.Join(sharers, ",")}
	}
	if labels != nil {
		metadata["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return d.change(a, &plan.Resource{Ref: ref}, there, patch)
}
