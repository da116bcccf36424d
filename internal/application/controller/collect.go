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

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// collect deletes the objects that left the Application, and updates the tracker.
func (c *Controller) collect(a *app, o *oam.Application) {
	order := c.orderOf(a, &o.Spec)
	wanted := map[plan.Ref]bool{}
	for i := range a.plan.Resources {
		wanted[a.plan.Resources[i].Ref] = true
	}
	var kept []oam.ManagedResource
	for i := range a.record.resources {
		m := &a.record.resources[i]
		if wanted[refOf(m)] {
			kept = append(kept, *m)
			continue
		}
		strategy, propagation := a.plan.Policies.Leaves(m, a.record.componentType(m.Component))
		if strategy == plan.GCNever {
			continue
		}
		if strategy == plan.GCOnAppDelete || order.holds(m) {
			kept = append(kept, *m)
			continue
		}
		gone, err := c.removeOne(a, m, propagation, a.as)
		if unreachable := (*errDown)(nil); err != nil && !errors.As(err, &unreachable) {
			c.log.Warn("an object cannot be removed", "application", a.key, "object", refOf(m).String(), "error", err)
		}
		if !gone {
			kept = append(kept, *m)
		}
	}
	dirty := a.dirty || len(kept) != len(a.record.resources)
	applied := map[string]json.RawMessage{}
	for i := range a.plan.Resources {
		r := &a.plan.Resources[i]
		if r.ReadOnly || isSecret(r.GVK) {
			continue
		}
		ref := refKey(r.Ref)
		if _, err := c.reach(r.Cluster); err != nil {
			// What was last applied there stays the base of the merge when the cluster can be
			// reached again.
			if before, ok := a.record.Applied[ref]; ok {
				applied[ref] = before
			}
			continue
		}
		applied[ref] = r.JSON
		dirty = dirty || !sameJSON(a.record.Applied[ref], r.JSON)
	}
	if !dirty || a.flying("tracker") {
		return
	}
	a.record.resources, a.record.Applied = kept, applied
	c.writeTracker(a, "", a.record.object.Spec.ApplicationGeneration)
}

// removeOne deletes one object with the rights of as, or with the manager's own if as is nil, and
// reports whether the object is gone. An object that another Application owns by now is left alone
// and counts as gone.
func (c *Controller) removeOne(a *app, m *oam.ManagedResource, propagation metav1.DeletionPropagation, as *apiwriter.Identity) (bool, error) {
	ref := refOf(m)
	t, err := c.reach(ref.Cluster)
	if left := errLeft(""); errors.As(err, &left) {
		c.log.Info("an object stays in a cluster that is no longer managed", "application", a.key, "object", ref.String())
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
	if a.flying(name) {
		return false, nil
	}
	there := t.live.get(ref)
	switch {
	case there == nil:
		a.well(name)
		return true, nil
	case there.owner != a.key && !c.leftTo(a, there):
		return true, c.leave(a, ref, there)
	case there.deleting:
		return false, nil
	}
	if others := c.living(a, sharers(there)); len(others) > 1 {
		return c.handOver(a, ref, there, others)
	}
	if failure := a.failures()[name]; failure != "" && !c.mayRetry(a, name) {
		return false, fmt.Errorf("%s", failure)
	}
	if !a.starts(name) {
		return false, nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(ref.GVK)
	u.SetNamespace(ref.Namespace)
	u.SetName(ref.Name)
	u.SetUID(there.uid)
	meta := c.meta(a, t, ref.GVK, "application-delete")
	meta.As = as
	t.writer.Delete(meta, u, apiwriter.DeleteOptions{Propagation: propagation}, func(err error) {
		if err == nil {
			t.live.deleted(ref, there.uid)
		}
		c.settled(a, name, err)
	})
	return false, nil
}

// leaves records that an Application is being removed. From now on the manager deletes with its own
// rights the objects that the record names, because the Application created them; deletions that
// the author was refused are retried at once.
func (c *Controller) leaves(a *app) {
	if a.leaving {
		return
	}
	a.leaving = true
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.failed)
	clear(a.retryAt)
	clear(a.retries)
}

// leave removes the Application from the sharers of another Application's object.
func (c *Controller) leave(a *app, ref plan.Ref, there *object) error {
	if !sharedBy(there, a.key) {
		return nil
	}
	var others []string
	for _, s := range sharers(there) {
		if s != a.key.String() {
			others = append(others, s)
		}
	}
	c.actAsFor(a, there.owner.String())
	return c.relabel(a, ref, there, nil, others)
}

// leftTo reports whether a is the only remaining Application that shares an object whose labels
// name a deleted owner. handOver leaves such labels if nobody may change them.
func (c *Controller) leftTo(a *app, there *object) bool {
	if !sharedBy(there, a.key) || len(c.living(a, append(sharers(there), there.owner.String()))) > 1 {
		return false
	}
	_, exists := c.applications.Get(there.owner.Namespace, there.owner.Name)
	return !exists
}

// living returns the Applications of a list (namespace/name) that exist, and a itself, which is
// being deleted.
func (c *Controller) living(a *app, list []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool {
		namespace, name, _ := strings.Cut(s, "/")
		_, exists := c.applications.Get(namespace, name)
		return !exists && s != a.key.String()
	})
}

// handOver makes the next Application that shares an object its owner. A deletion does not wait for
// that: if neither Application's author may change the object, its labels stay, and the object is
// deleted together with the last Application that shares it.
func (c *Controller) handOver(a *app, ref plan.Ref, there *object, list []string) (gone bool, err error) {
	var others []string
	for _, s := range list {
		if s != a.key.String() {
			others = append(others, s)
		}
	}
	c.actAsFor(a, others[0])
	namespace, name, _ := strings.Cut(others[0], "/")
	if failure := a.failures()[refKey(ref)]; a.leaving && failure != "" {
		id, err := c.authorAt(key(namespace, name))
		if err != nil || reflect.DeepEqual(id, a.as) {
			c.log.Warn("a shared object keeps the labels of an application that is deleted", "application", a.key, "object", ref.String(), "error", failure)
			return true, nil
		}
		a.as = id
	}
	return false, c.relabel(a, ref, there, map[string]any{oam.AppNameLabel: name, oam.AppNamespaceLabel: namespace, oam.RenderHashLabel: nil}, others)
}

func (c *Controller) relabel(a *app, ref plan.Ref, there *object, labels map[string]any, sharers []string) error {
	metadata := map[string]any{"annotations": map[string]any{oam.SharedByAnnotation: strings.Join(sharers, ",")}}
	if labels != nil {
		metadata["labels"] = labels
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return err
	}
	return c.change(a, &plan.Resource{Ref: ref}, there, patch)
}
