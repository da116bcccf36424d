package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/plan"
)

// progress is the state of an Application as one pass found it.
type progress struct {
	// planned is set if there is a plan. Without a plan the other fields mean nothing.
	planned bool
	// applied is the number of objects that are as the plan wants them. blocked is the number of
	// objects in clusters that cannot be reached.
	applied, blocked int
	// components holds the components' states, in the plan's order.
	components []componentState
	// finished is set once every component has been healthy since the spec last changed.
	finished bool
	// settled is like finished, but ignores objects in clusters that cannot be reached.
	settled bool
	// workflow is the workflow's status, for an Application that is deployed in steps.
	workflow *oam.WorkflowStatus
	// problems lists what prevents objects from reaching their desired state.
	problems []string
}

func (p *progress) problem(err error) {
	if text := err.Error(); !slices.Contains(p.problems, text) {
		p.problems = append(p.problems, text)
	}
}

// dispatch creates missing objects and patches those that differ from the plan.
func (c *Controller) dispatch(ctx context.Context, a *app, o *oam.Application) progress {
	p := progress{planned: true, components: make([]componentState, len(a.plan.Components))}
	blocked := map[int]bool{}
	finished := workflowFinished(o, a)
	for i := range a.plan.Resources {
		r := &a.plan.Resources[i]
		t, err := c.reach(r.Cluster)
		if err != nil {
			blocked[i] = true
			p.blocked++
			p.problem(err)
			continue
		}
		ready, err := t.live.ready(r.GVK, a.key)
		switch {
		case err != nil && !finished && bringsKinds(a.plan, r):
			blocked[i] = true
			c.queue.AddAfter(a.key, relearnInterval)
		case err != nil:
			blocked[i] = true
			p.problem(err)
		case !ready:
			return progress{} // the watch enqueues the key when it is
		}
	}
	healthy := map[string]bool{}
	for i := range a.plan.Components {
		comp := &a.plan.Components[i]
		p.components[i] = c.stateOf(ctx, a, i)
		if _, err := c.reach(comp.Cluster); err != nil {
			p.components[i].healthy, p.components[i].workloadHealthy, p.components[i].message = false, false, err.Error()
		}
		healthy[comp.Key()] = p.components[i].healthy
	}
	p.finished, p.settled = true, true
	for i := range a.plan.Components {
		comp := &a.plan.Components[i]
		state := &p.components[i]
		state.waits = !finished && waitsFor(comp, healthy)
		unreachable, held, wave := false, false, waveOf(a.plan, comp)
		for _, at := range comp.Resources {
			r := &a.plan.Resources[at]
			if r.Wave > wave && !finished {
				wave, held = r.Wave, held || !state.applied
			}
			if held {
				state.applied = false
				continue
			}
			if blocked[at] {
				state.applied, unreachable = false, true
				continue
			}
			if state.waits || !finished && r.Stage == oam.PostDispatch && !state.workloadHealthy {
				state.applied = false
				continue
			}
			done, err := c.apply(ctx, a, r)
			if err != nil {
				p.problem(err)
			}
			if done {
				p.applied++
			}
			if done && r.Wave != 0 && !finished {
				if done, err = c.completed(r); err != nil {
					p.problem(err)
				}
			}
			if !done {
				state.applied = false
			}
		}
		there := state.applied && state.healthy
		p.finished, p.settled = p.finished && there, p.settled && (there || unreachable)
	}
	for _, at := range a.plan.Loose {
		if blocked[at] {
			continue
		}
		done, err := c.apply(ctx, a, &a.plan.Resources[at])
		if err != nil {
			p.problem(err)
		}
		if done {
			p.applied++
		}
	}
	p.finished = p.finished || finished
	p.settled = p.settled || p.finished
	return p
}

// waveOf returns the first wave of a component.
func waveOf(p *plan.Plan, comp *plan.Component) int {
	if len(comp.Resources) == 0 {
		return 0
	}
	return p.Resources[comp.Resources[0]].Wave
}

// bringsKinds reports whether an object waits for CustomResourceDefinitions of its component.
func bringsKinds(p *plan.Plan, r *plan.Resource) bool {
	return slices.ContainsFunc(p.Resources, func(x plan.Resource) bool {
		return x.GVK.Kind == "CustomResourceDefinition" && x.Component == r.Component && x.Wave < r.Wave
	})
}

// completed reports whether an object that later waves wait for has done its work: a
// CustomResourceDefinition is established, a Job is complete, a Pod has succeeded. Any other object
// is complete when it exists.
func (c *Controller) completed(r *plan.Resource) (bool, error) {
	object := asMap(c.seen(r.Ref))
	if object == nil {
		return false, nil
	}
	condition := func(kind string) (is bool, message string) {
		list, _, _ := unstructured.NestedSlice(object, "status", "conditions")
		for _, x := range list {
			if m, ok := x.(map[string]any); ok && m["type"] == kind && m["status"] == "True" {
				return true, text(m, "message")
			}
		}
		return false, ""
	}
	switch r.GVK.Kind {
	case "CustomResourceDefinition":
		is, _ := condition("Established")
		return is, nil
	case "Job":
		if failed, why := condition("Failed"); failed {
			return false, fmt.Errorf("hook %s failed: %s", r.Ref, why)
		}
		is, _ := condition("Complete")
		return is, nil
	case "Pod":
		switch phase, _, _ := unstructured.NestedString(object, "status", "phase"); phase {
		case "Succeeded":
			return true, nil
		case "Failed":
			return false, fmt.Errorf("hook %s failed", r.Ref)
		}
		return false, nil
	}
	return true, nil
}

func waitsFor(comp *plan.Component, healthy map[string]bool) bool {
	for _, d := range comp.DependsOn {
		if other := (plan.Component{Name: d, Placement: comp.Placement}); !healthy[other.Key()] {
			return true
		}
	}
	return false
}

// apply compares one object with the plan and hands over the write that it needs, if any. It
// reports whether the object is as the plan wants it.
func (c *Controller) apply(ctx context.Context, a *app, r *plan.Resource) (bool, error) {
	there, err := c.bring(ctx, a, r)
	if there && err == nil {
		a.well(refKey(r.Ref))
	}
	return there, err
}

func (c *Controller) bring(ctx context.Context, a *app, r *plan.Resource) (bool, error) {
	ref := refKey(r.Ref)
	if a.flying(ref) {
		return false, nil
	}
	failure := a.failures()[ref]
	there := c.seen(r.Ref)
	switch {
	case there == nil && r.ReadOnly:
		return c.applyReadOnly(ctx, a, r)
	case there == nil && failure != "" && !c.mayRetry(a, ref):
		return false, errors.New(failure)
	case there == nil:
		return false, c.create(ctx, a, r)
	case there.deleting:
		return false, nil // created again when it is gone
	case there.owner != a.key:
		if r.ReadOnly {
			if t, err := c.reach(r.Cluster); err != nil {
				return false, err
			} else if err := c.mayRead(ctx, a, t, r.Ref); err != nil {
				return false, err
			}
		}
		if r.ReadOnly || r.Shared && sharedBy(there, a.key) {
			return true, nil
		}
		if r.Shared {
			return false, c.share(a, r, there)
		}
		return false, fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.owner)
	case r.ReadOnly:
		return true, nil
	}
	if a.checked[r.Ref] == (checked{there.content, r.Hash}) {
		return true, nil
	}
	update := there.renderHash != r.Hash
	if !update && c.asAccepted(a, ref, there) {
		return true, nil
	}
	patch, recreate, err := c.difference(a, r, there, update)
	if err != nil {
		return false, err
	}
	if patch == nil {
		a.checked[r.Ref] = checked{there.content, r.Hash}
		return true, nil
	}
	if failure != "" && !c.mayRetry(a, ref) {
		return false, errors.New(failure)
	}
	if recreate {
		c.recreate(a, r, there)
		return false, nil
	}
	return false, c.change(a, r, there, patch)
}

// mayRetry reports whether the backoff after a failed write has passed.
func (c *Controller) mayRetry(a *app, ref string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.retryAt[ref]
	return ok && !c.cfg.Now().Before(at)
}

// readOnlyInterval is the time between two checks for an object that another owner manages, when
// there are too many such objects to watch each one.
const readOnlyInterval = 10 * time.Second

// applyReadOnly reports whether an object exists that a read-only policy leaves to another owner.
// It returns an error if the object is known not to exist.
func (c *Controller) applyReadOnly(ctx context.Context, a *app, r *plan.Resource) (bool, error) {
	there, known, err := c.others(ctx, a, r)
	if errors.Is(err, errTooManySpies) {
		c.queue.AddAfter(a.key, readOnlyInterval)
	}
	if err == nil && known && there == nil {
		err = fmt.Errorf("%s does not exist, and a read-only policy keeps it from being made", r.Ref)
	}
	return there != nil && err == nil, err
}

// others returns an object that the Application only looks at, if the Application's author may read
// it. there is nil if the object does not exist; known is false until the watch has synced.
func (c *Controller) others(ctx context.Context, a *app, r *plan.Resource) (there *object, known bool, _ error) {
	t, err := c.reach(r.Cluster)
	if err != nil {
		return nil, false, err
	}
	if there, known, err = c.spies.look(t, r.Ref, a.key, true); there == nil || err != nil {
		return nil, known, err
	}
	if err := c.mayRead(ctx, a, t, r.Ref); err != nil {
		return nil, true, err
	}
	return there, true, nil
}

// labelled returns the object as it is written, with the revision's labels.
func labelled(a *app, r *plan.Resource) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(r.JSON); err != nil {
		return nil, err
	}
	label(a, r, u)
	return u, nil
}

// label puts the revision's labels on o, and the annotation of shared objects if r is shared.
func label(a *app, r *plan.Resource, o metav1.Object) {
	labels := maps.Clone(o.GetLabels())
	labels[oam.RenderHashLabel] = r.Hash
	if last := a.record.latest(); last != nil {
		labels[oam.AppRevisionLabel] = last.Name
	}
	for i := range a.plan.Components {
		if a.plan.Components[i].Name == r.Component {
			labels[oam.ComponentRevisionLabel] = a.plan.Components[i].Revision
		}
	}
	o.SetLabels(labels)
	if r.Shared {
		annotations := maps.Clone(o.GetAnnotations())
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations[oam.SharedByAnnotation] = a.key.String()
		o.SetAnnotations(annotations)
	}
}

// created returns the object in the form in which the writer creates it, including the fields that
// are set at creation only.
func created(a *app, r *plan.Resource) (apiwriter.Object, error) {
	if r.Once != nil {
		var object, once map[string]any
		if err := errors.Join(kjson.Unmarshal(r.JSON, &object), kjson.Unmarshal(r.Once, &once)); err != nil {
			return nil, fmt.Errorf("%s: %w", r.Ref, err)
		}
		data, err := json.Marshal(chart.MergeValues(object, once))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", r.Ref, err)
		}
		whole := *r
		whole.JSON, whole.Once = data, nil
		r = &whole
	}
	typed, err := scheme.Scheme.New(r.GVK)
	o, ok := typed.(apiwriter.Object)
	if runtime.IsNotRegisteredError(err) || err == nil && !ok {
		return labelled(a, r)
	}
	if err == nil {
		err = json.Unmarshal(r.JSON, o)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.Ref, err)
	}
	label(a, r, o)
	return o, nil
}

// asWritten returns the object in the form that the writer takes: typed if the scheme has the type.
func asWritten(u *unstructured.Unstructured) (apiwriter.Object, error) {
	typed, err := plan.Typed(u.Object)
	if err != nil {
		return nil, err
	}
	if typed == nil {
		return u, nil
	}
	o, ok := typed.(apiwriter.Object)
	if !ok {
		return nil, fmt.Errorf("%s %s is not an object", u.GetKind(), u.GetName())
	}
	return o, nil
}

// meta returns a write's metadata: the owner and the identity it is made for, the reason, and the
// resource.
func (c *Controller) meta(a *app, t *target, gvk schema.GroupVersionKind, reason string) apiwriter.Meta {
	m := apiwriter.Meta{Owner: a.owner, Reason: reason, As: a.as}
	if mapping, err := t.kinds.mapping(gvk); err == nil {
		m.Resource = mapping.Resource.Resource
	}
	return m
}

func (c *Controller) create(ctx context.Context, a *app, r *plan.Resource) error {
	o, err := created(a, r)
	if err != nil {
		return err
	}
	t, err := c.reach(r.Cluster)
	if err != nil {
		return err
	}
	ref := refKey(r.Ref)
	if !a.starts(ref) {
		return nil
	}
	resource := *r
	t.pulse.asked(c.cfg.Now())
	t.writer.Create(c.meta(a, t, r.GVK, "application-object"), o, func(got apiwriter.Object, err error) {
		t.pulse.answered(c.cfg.Now())
		if apierrors.IsAlreadyExists(err) {
			// This callback runs on a writer's goroutine, which must not block.
			go c.exists(ctx, a, t, &resource)
			return
		}
		c.answered(a, t, &resource, got, err)
	})
	return nil
}

// answered handles the answer to an object's creation or change.
func (c *Controller) answered(a *app, t *target, r *plan.Resource, got apiwriter.Object, err error) {
	ref := refKey(r.Ref)
	if err == nil && got != nil {
		t.live.wrote(r.GVK, got)
		if there := t.live.get(r.Ref); there != nil {
			c.accept(a, ref, r, there)
		}
	}
	c.settled(a, ref, err)
}

// settled records the outcome of a write and, if it failed, schedules the retry.
func (c *Controller) settled(a *app, ref string, err error) {
	now := c.cfg.Now()
	a.mu.Lock()
	a.lastAnswer = now
	a.mu.Unlock()
	a.ended(ref, err)
	if err != nil && !errors.Is(err, apiwriter.ErrStopped) {
		delay := a.setRetry(ref, now)
		c.queue.Add(a.key) // to report it
		c.queue.AddAfter(a.key, delay)
		return
	}
	a.clearRetry(ref)
	c.queue.Add(a.key)
}

// exists handles a creation that failed because the object exists: it finds out who owns the
// object.
func (c *Controller) exists(ctx context.Context, a *app, t *target, r *plan.Resource) {
	ref := refKey(r.Ref)
	there, err := t.live.read(ctx, r.Ref)
	if apierrors.IsNotFound(err) {
		err = nil // gone meanwhile: the next pass creates it
	}
	if err != nil || there == nil {
		c.settled(a, ref, err)
		return
	}
	t.live.alive(r.GVK, there.GetUID())
	owner := ownerOf(there.GetLabels())
	switch {
	case owner == a.key:
		// The object is this Application's, and the watch is late.
		t.live.wrote(r.GVK, there)
		c.settled(a, ref, nil)
	case owner.Name != "":
		t.live.wrote(r.GVK, there)
		c.settled(a, ref, nil)
	case r.TakeOver || c.wasOurs(a, there):
		c.adopt(a, r, there)
	default:
		c.settled(a, ref, fmt.Errorf("%s exists but not managed by any application now", r.Ref))
	}
}

// wasOurs reports whether an object without an owner's labels is one that this Application created
// or changed, and whose labels somebody removed.
func (c *Controller) wasOurs(a *app, there *unstructured.Unstructured) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.uids[there.GetUID()]
}

// adopt patches an object that has no owner so that it becomes the Application's.
func (c *Controller) adopt(a *app, r *plan.Resource, there *unstructured.Unstructured) {
	ref := refKey(r.Ref)
	o, err := newObject(there)
	if err != nil {
		c.settled(a, ref, err)
		return
	}
	a.mu.Lock()
	delete(a.flight, ref)
	a.mu.Unlock()
	patch, _, err := c.difference(a, r, o, true)
	if err == nil {
		err = c.change(a, r, o, patch)
	}
	if err != nil {
		c.settled(a, ref, err)
	}
}

// change patches an object.
func (c *Controller) change(a *app, r *plan.Resource, there *object, patch []byte) error {
	t, err := c.reach(r.Cluster)
	if err != nil {
		return err
	}
	ref := refKey(r.Ref)
	if !a.starts(ref) {
		return nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.GVK)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(there.uid)
	o, err := asWritten(u)
	if err != nil {
		a.ended(ref, err)
		return err
	}
	resource := *r
	t.pulse.asked(c.cfg.Now())
	t.writer.Patch(c.meta(a, t, r.GVK, "application-object"), o, patchType(r.GVK), patch, func(got apiwriter.Object, err error) {
		t.pulse.answered(c.cfg.Now())
		c.answered(a, t, &resource, got, err)
	})
	return nil
}

// recreate deletes an object that a patch cannot bring to its desired state. The next pass creates
// the object again.
func (c *Controller) recreate(a *app, r *plan.Resource, there *object) {
	ref := refKey(r.Ref)
	t, err := c.reach(r.Cluster)
	if err != nil || !a.starts(ref) {
		return
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.GVK)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(there.uid)
	target := r.Ref
	t.writer.Delete(c.meta(a, t, r.GVK, "application-recreate"), u, apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, func(err error) {
		if err == nil {
			t.live.deleted(target, there.uid)
		}
		c.settled(a, ref, err)
	})
}

// sharers returns the Applications (namespace/name) that share an object, the owner first.
func sharers(there *object) []string {
	var o struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal(there.json(), &o); err != nil {
		return nil
	}
	var out []string
	for s := range strings.SplitSeq(o.Metadata.Annotations[oam.SharedByAnnotation], ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

func sharedBy(there *object, k types.NamespacedName) bool {
	for _, s := range sharers(there) {
		if s == k.String() {
			return true
		}
	}
	return false
}

// share adds the Application to the annotation that lists who shares an object.
func (c *Controller) share(a *app, r *plan.Resource, there *object) error {
	list := sharers(there)
	if len(list) == 0 {
		return fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.owner)
	}
	value := strings.Join(append(list, a.key.String()), ",")
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{oam.SharedByAnnotation: value}}})
	if err != nil {
		return err
	}
	return c.change(a, r, there, patch)
}
