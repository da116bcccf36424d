package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// deployer brings the objects of Applications to the state that their plans want.
type deployer struct {
	access
	evaluators *evaluators
	log        *slog.Logger
	now        func() time.Time
}

// dispatch creates missing objects and patches those that differ from the plan. finished is set if
// the revision has been deployed completely once.
func (d *deployer) dispatch(a *state, finished bool) progress {
	p := progress{planned: true, components: make([]componentState, len(a.plan.Components))}
	blocked := map[int]bool{}
	for i := range a.plan.Resources {
		r := &a.plan.Resources[i]
		t, err := d.targets.reach(r.Cluster)
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
			a.wakeAfter(relearnInterval)
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
		p.components[i] = d.stateOf(a, i)
		if _, err := d.targets.reach(comp.Cluster); err != nil {
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
			done, err := d.apply(a, r)
			if err != nil {
				p.problem(err)
			}
			if done {
				p.applied++
			}
			if done && r.Wave != 0 && !finished {
				if done, err = completed(r.Ref, d.targets.seen(r.Ref)); err != nil {
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
		done, err := d.apply(a, &a.plan.Resources[at])
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
func (d *deployer) apply(a *state, r *plan.Resource) (bool, error) {
	there, err := d.bring(a, r)
	if there && err == nil {
		a.writes.forget(refKey(r.Ref))
	}
	return there, err
}

func (d *deployer) bring(a *state, r *plan.Resource) (bool, error) {
	ref := refKey(r.Ref)
	if a.writes.inFlight(ref) {
		return false, nil
	}
	failure := a.writes.failure(ref)
	there := d.targets.seen(r.Ref)
	switch {
	case there == nil && r.ReadOnly:
		return d.applyReadOnly(a, r)
	case there == nil && failure != "" && !a.writes.mayRetry(ref, d.now()):
		return false, errors.New(failure)
	case there == nil:
		return false, d.create(a, r)
	case there.deleting:
		return false, nil // created again when it is gone
	case there.owner != a.key:
		if r.ReadOnly {
			if t, err := d.targets.reach(r.Cluster); err != nil {
				return false, err
			} else if err := d.mayRead(a, t, r.Ref); err != nil {
				return false, err
			}
		}
		if r.ReadOnly || r.Shared && sharedBy(there, a.key) {
			return true, nil
		}
		if r.Shared {
			return false, d.share(a, r, there)
		}
		return false, fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.owner)
	case r.ReadOnly:
		return true, nil
	}
	if a.verified[r.Ref] == (verifiedContent{there.content, r.Hash}) {
		return true, nil
	}
	update := there.renderHash != r.Hash
	if !update && a.asAccepted(ref, there) {
		return true, nil
	}
	patch, recreate, err := a.wants(r).difference(there, update)
	if err != nil {
		return false, err
	}
	if patch == nil {
		a.verified[r.Ref] = verifiedContent{there.content, r.Hash}
		return true, nil
	}
	if failure != "" && !a.writes.mayRetry(ref, d.now()) {
		return false, errors.New(failure)
	}
	if recreate {
		d.recreate(a, r, there)
		return false, nil
	}
	return false, d.change(a, r, there, patch)
}

// readOnlyInterval is the time between two checks for an object that another owner manages, when
// there are too many such objects to watch each one.
const readOnlyInterval = 10 * time.Second

// applyReadOnly reports whether an object exists that a read-only policy leaves to another owner.
// It returns an error if the object is known not to exist.
func (d *deployer) applyReadOnly(a *state, r *plan.Resource) (bool, error) {
	there, known, err := d.others(a, r)
	if errors.Is(err, errTooManySpies) {
		a.wakeAfter(readOnlyInterval)
	}
	if err == nil && known && there == nil {
		err = fmt.Errorf("%s does not exist, and a read-only policy keeps it from being made", r.Ref)
	}
	return there != nil && err == nil, err
}

func (d *deployer) create(a *state, r *plan.Resource) error {
	o, err := a.wants(r).created()
	if err != nil {
		return err
	}
	t, err := d.targets.reach(r.Cluster)
	if err != nil {
		return err
	}
	ref := refKey(r.Ref)
	if !a.writes.start(ref) {
		return nil
	}
	resource := *r
	t.pulse.asked(d.now())
	t.writer.Create(a.meta(t, r.GVK, "application-object"), o, func(got apiwriter.Object, err error) {
		t.pulse.answered(d.now())
		if apierrors.IsAlreadyExists(err) {
			// This callback runs on a writer's goroutine, which must not block.
			go d.exists(a, t, &resource)
			return
		}
		d.answered(a, t, &resource, got, err)
	})
	return nil
}

// answered handles the answer to an object's creation or change.
func (d *deployer) answered(a *state, t *target, r *plan.Resource, got apiwriter.Object, err error) {
	var there *object
	if err == nil && got != nil {
		t.live.wrote(r.GVK, got)
		there = t.live.get(r.Ref)
	}
	if there == nil {
		d.settle(a, refKey(r.Ref), err)
		return
	}
	deviates, known := deviation(there, r.JSON)
	a.post(func() {
		if known {
			a.accept(r, there, deviates)
		}
		d.settled(a, refKey(r.Ref), nil)
	})
}

// settle posts the outcome of a write.
func (d *deployer) settle(a *state, ref string, err error) {
	a.post(func() { d.settled(a, ref, err) })
}

// settled records the outcome of a write and, if it failed, schedules the retry.
func (d *deployer) settled(a *state, ref string, err error) {
	if errors.Is(err, apiwriter.ErrStopped) {
		a.writes.end(ref, err)
	} else if delay := a.writes.endObject(ref, err, d.now()); delay > 0 {
		a.wakeAfter(delay)
	}
}

// exists handles a creation that failed because the object exists: it finds out who owns the
// object.
func (d *deployer) exists(a *state, t *target, r *plan.Resource) {
	there, err := t.live.read(d.ctx(), r.Ref)
	if apierrors.IsNotFound(err) {
		err = nil // gone meanwhile: the next turn creates it
	}
	if err != nil || there == nil {
		d.settle(a, refKey(r.Ref), err)
		return
	}
	t.live.alive(r.GVK, there.GetUID())
	if owner := ownerOf(there.GetLabels()); owner.Name != "" {
		// The watch is late.
		t.live.wrote(r.GVK, there)
		d.settle(a, refKey(r.Ref), nil)
		return
	}
	o, err := newObject(there)
	a.post(func() {
		if err == nil {
			err = d.adopt(a, r, o)
		}
		if err != nil {
			d.settled(a, refKey(r.Ref), err)
		}
	})
}

// adopt patches an object that has no owner so that it becomes the Application's, if the
// Application may take it over or had created or changed it before somebody removed the labels.
func (d *deployer) adopt(a *state, r *plan.Resource, there *object) error {
	if !r.TakeOver && !a.uids[there.uid] {
		return fmt.Errorf("%s exists but not managed by any application now", r.Ref)
	}
	a.writes.cancel(refKey(r.Ref))
	if !slices.ContainsFunc(a.resources(), func(x plan.Resource) bool { return x.Ref == r.Ref && x.Hash == r.Hash }) {
		return nil // the plan has changed meanwhile
	}
	patch, _, err := a.wants(r).difference(there, true)
	if err != nil {
		return err
	}
	return d.change(a, r, there, patch)
}

// change patches an object.
func (d *deployer) change(a *state, r *plan.Resource, there *object, patch []byte) error {
	t, err := d.targets.reach(r.Cluster)
	if err != nil {
		return err
	}
	ref := refKey(r.Ref)
	if !a.writes.start(ref) {
		return nil
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.GVK)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(there.uid)
	o, err := asWritten(u)
	if err != nil {
		a.writes.end(ref, err)
		return err
	}
	resource := *r
	t.pulse.asked(d.now())
	t.writer.Patch(a.meta(t, r.GVK, "application-object"), o, patchType(r.GVK), patch, func(got apiwriter.Object, err error) {
		t.pulse.answered(d.now())
		d.answered(a, t, &resource, got, err)
	})
	return nil
}

// recreate deletes an object that a patch cannot bring to its desired state. The next pass creates
// the object again.
func (d *deployer) recreate(a *state, r *plan.Resource, there *object) {
	ref := refKey(r.Ref)
	t, err := d.targets.reach(r.Cluster)
	if err != nil || !a.writes.start(ref) {
		return
	}
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(r.GVK)
	u.SetNamespace(r.Namespace)
	u.SetName(r.Name)
	u.SetUID(there.uid)
	target := r.Ref
	t.writer.Delete(a.meta(t, r.GVK, "application-recreate"), u, apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, func(err error) {
		if err == nil {
			t.live.deleted(target, there.uid)
		}
		d.settle(a, ref, err)
	})
}

// share adds the Application to the annotation that lists who shares an object.
func (d *deployer) share(a *state, r *plan.Resource, there *object) error {
	list := sharers(there)
	if len(list) == 0 {
		return fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.owner)
	}
	value := strings.Join(append(list, a.key.String()), ",")
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{oam.SharedByAnnotation: value}}})
	if err != nil {
		return err
	}
	return d.change(a, r, there, patch)
}
