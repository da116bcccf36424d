package deploy

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
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/evaluation"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

// Deployer brings the objects of Applications to the state that their plans want.
type Deployer struct {
	Access
	Evaluators *evaluation.Cache
	Log        *slog.Logger
	Now        func() time.Time
}

// Dispatch creates missing objects and patches those that differ from the plan. finished is set if
// the revision has been deployed completely once.
func (d *Deployer) Dispatch(a *State, finished bool) Progress {
	p := Progress{Planned: true, Components: make([]ComponentState, len(a.Plan.Components))}
	blocked := map[int]bool{}
	refused := map[int]string{} // why, if a cluster or an API that cannot be reached is not the reason
	for i := range a.Plan.Resources {
		r := &a.Plan.Resources[i]
		t, err := d.Targets.Reach(r.Cluster)
		if err != nil {
			blocked[i] = true
			p.Blocked++
			p.problem(err)
			continue
		}
		ready, err := t.Objects.Ready(r.GVK, a.Key)
		switch {
		case err != nil && !finished && bringsKinds(a.Plan, r):
			blocked[i] = true
			a.WakeAfter(objects.RelearnInterval)
		case err != nil:
			blocked[i] = true
			p.problem(err)
			if !a.mayPass(err) {
				refused[i] = err.Error()
			}
		case !ready:
			return Progress{} // the watch enqueues the Application when it has synced
		}
	}
	healthy := map[string]bool{}
	for i := range a.Plan.Components {
		comp := &a.Plan.Components[i]
		p.Components[i] = d.stateOf(a, i)
		if _, err := d.Targets.Reach(comp.Cluster); err != nil {
			p.Components[i].Healthy, p.Components[i].WorkloadHealthy, p.Components[i].Message = false, false, err.Error()
		}
		healthy[comp.Key()] = p.Components[i].Healthy
	}
	p.Finished, p.Settled = true, true
	for i := range a.Plan.Components {
		comp := &a.Plan.Components[i]
		state := &p.Components[i]
		if comp.Err != nil {
			p.problem(comp.Err)
		}
		state.Waits = !finished && waitsFor(comp, healthy)
		unreachable, held, wave := false, false, waveOf(a.Plan, comp)
		for _, at := range comp.Resources {
			r := &a.Plan.Resources[at]
			if r.Wave > wave && !finished {
				wave, held = r.Wave, held || !state.Applied
			}
			if held {
				state.Applied = false
				continue
			}
			if blocked[at] {
				state.Applied, unreachable = false, true
				p.failed(state, r.Ref, refused[at])
				continue
			}
			if state.Waits || !finished && r.Stage == oam.PostDispatch && !state.WorkloadHealthy {
				state.Applied = false
				continue
			}
			if finished && d.deletedForGood(a, r) {
				p.Applied++
				state.Message = r.Ref.String() + " was deleted, and an apply-once policy keeps it from being made again"
				continue
			}
			done, err := d.apply(a, r)
			if done {
				p.Applied++
			}
			if done && r.Wave != 0 && !finished {
				done, err = objects.Completed(r.Ref, d.Targets.Seen(r.Ref))
			}
			if err != nil {
				p.problem(err)
				p.failed(state, r.Ref, err.Error())
			} else if !done { // the write that failed may be under way again
				p.failed(state, r.Ref, a.Writes.Failure(records.RefKey(r.Ref)))
			}
			if !done {
				state.Applied = false
			}
		}
		there := state.Applied && state.Healthy
		p.Finished, p.Settled = p.Finished && there, p.Settled && (there || unreachable)
	}
	for _, at := range a.Plan.Loose {
		r := &a.Plan.Resources[at]
		if blocked[at] {
			p.failed(nil, r.Ref, refused[at])
			continue
		}
		if finished && d.deletedForGood(a, r) {
			p.Applied++
			continue
		}
		done, err := d.apply(a, r)
		if err != nil {
			p.problem(err)
			p.failed(nil, r.Ref, err.Error())
		}
		if done {
			p.Applied++
		}
	}
	p.Finished = p.Finished || finished
	p.Settled = p.Settled || p.Finished
	return p
}

// waveOf returns the wave of a component's first object, or 0 if the component has no objects.
func waveOf(p *plan.Plan, comp *plan.Component) int {
	if len(comp.Resources) == 0 {
		return 0
	}
	return p.Resources[comp.Resources[0]].Wave
}

// bringsKinds reports whether r's component creates CustomResourceDefinitions in an earlier wave
// than r.
func bringsKinds(p *plan.Plan, r *plan.Resource) bool {
	return slices.ContainsFunc(p.Resources, func(x plan.Resource) bool {
		return x.GVK.Kind == "CustomResourceDefinition" && x.Component == r.Component && x.Wave < r.Wave
	})
}

// waitsFor reports whether a component depends on a component that is not healthy.
func waitsFor(comp *plan.Component, healthy map[string]bool) bool {
	for _, d := range comp.DependsOn {
		if other := (plan.Component{Name: d, Placement: comp.Placement}); !healthy[other.Key()] {
			return true
		}
	}
	return false
}

// deletedForGood reports whether an object of a revision that has been deployed was deleted by another
// client, and is not created again.
func (d *Deployer) deletedForGood(a *State, r *plan.Resource) bool {
	if r.ReadOnly || !r.AppliedOnce() {
		return false
	}
	ref := records.RefKey(r.Ref)
	if d.Targets.Seen(r.Ref) != nil {
		delete(a.Tracker.Unseen, ref)
		return false
	}
	return !a.Tracker.Unseen[ref] && !a.Writes.InFlight(ref)
}

// apply compares one object with the plan and hands over the write that it needs, if any. It
// reports whether the object is as the plan wants it.
func (d *Deployer) apply(a *State, r *plan.Resource) (bool, error) {
	there, err := d.bring(a, r)
	if there && err == nil {
		a.Writes.Forget(records.RefKey(r.Ref))
	}
	return there, err
}

func (d *Deployer) bring(a *State, r *plan.Resource) (bool, error) {
	ref := records.RefKey(r.Ref)
	if a.Writes.InFlight(ref) {
		return false, nil
	}
	failure := a.Writes.Failure(ref)
	there := d.Targets.Seen(r.Ref)
	switch {
	case there == nil && r.ReadOnly:
		return d.applyReadOnly(a, r)
	case there == nil && a.waitsToRetry(ref, d.Now()):
		return false, errors.New(failure)
	case there == nil:
		return false, d.create(a, r)
	case there.Deleting:
		return false, nil // the object is created again when it is deleted
	case there.Owner != a.Key:
		if r.ReadOnly {
			if t, err := d.Targets.Reach(r.Cluster); err != nil {
				return false, err
			} else if err := d.MayRead(a, t, r.Ref); err != nil {
				return false, err
			}
		}
		if r.ReadOnly || r.Shared && objects.SharedBy(there, a.Key) {
			return true, nil
		}
		if r.Shared {
			return false, d.share(a, r, there)
		}
		return false, fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.Owner)
	case r.ReadOnly:
		return true, nil
	}
	if a.verified[r.Ref] == (verifiedContent{there.Content, r.Hash}) {
		return true, nil
	}
	update := there.RenderHash != r.Hash
	if !update && a.asAccepted(ref, there) {
		return true, nil
	}
	patch, recreate, err := a.wants(r).Difference(there, update)
	if err != nil {
		return false, err
	}
	if patch == nil {
		a.verified[r.Ref] = verifiedContent{there.Content, r.Hash}
		return true, nil
	}
	if a.waitsToRetry(ref, d.Now()) {
		return false, errors.New(failure)
	}
	if recreate { // a patch cannot bring the object to its desired state; the next turn creates it again
		if t, err := d.Targets.Reach(r.Cluster); err == nil {
			d.delete(a, t, r.Ref, there.Uid, "application-recreate", metav1.DeletePropagationBackground, a.As)
		}
		return false, nil
	}
	return false, d.change(a, r, there, patch)
}

// readOnlyInterval is the time between two checks for an object of another owner, while there are
// too many such objects to watch each one.
const readOnlyInterval = 10 * time.Second

// applyReadOnly reports whether an object exists that a read-only policy leaves to another owner.
// It returns an error if the object is known not to exist.
func (d *Deployer) applyReadOnly(a *State, r *plan.Resource) (bool, error) {
	there, known, err := d.others(a, r)
	if errors.Is(err, objects.ErrTooManyWatches) {
		a.WakeAfter(readOnlyInterval)
	}
	if err == nil && known && there == nil {
		err = fmt.Errorf("%s does not exist, and a read-only policy keeps it from being made", r.Ref)
	}
	return there != nil && err == nil, err
}

func (d *Deployer) create(a *State, r *plan.Resource) error {
	o, err := a.wants(r).Created()
	if err != nil {
		return err
	}
	t, err := d.Targets.Reach(r.Cluster)
	if err != nil {
		return err
	}
	ref := records.RefKey(r.Ref)
	if !a.Writes.Start(ref) {
		return nil
	}
	resource := *r
	t.Answers.Sent(d.Now())
	t.Writer.Create(a.Meta(t, r.GVK, "application-object"), o, func(got apiwriter.Object, err error) {
		t.Answers.Answered(d.Now())
		// A manifest of a part of an object is invalid as a new object, but may be merged into one.
		if apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) {
			// This callback runs on a writer's goroutine, which must not block.
			go d.exists(a, t, &resource, err)
			return
		}
		d.answered(a, t, &resource, got, err)
	})
	return nil
}

// answered handles the answer to an object's creation or change.
func (d *Deployer) answered(a *State, t *objects.Target, r *plan.Resource, got apiwriter.Object, err error) {
	var there *objects.Object
	if err == nil && got != nil {
		t.Objects.Put(r.GVK, got)
		there = t.Objects.Get(r.Ref)
	}
	if there == nil {
		d.settle(a, records.RefKey(r.Ref), err)
		return
	}
	deviates, known := objects.Deviation(there, r.JSON)
	a.Post(func() {
		if known {
			a.accept(r, there, deviates)
		}
		d.settled(a, records.RefKey(r.Ref), nil)
	})
}

// settle posts the outcome of a write.
func (d *Deployer) settle(a *State, ref string, err error) {
	a.Post(func() { d.settled(a, ref, err) })
}

// settled records the outcome of a write and, if it failed, schedules the retry.
func (d *Deployer) settled(a *State, ref string, err error) {
	if errors.Is(err, apiwriter.ErrStopped) {
		a.Writes.End(ref, err)
	} else if delay := a.Writes.EndObject(ref, err, d.Now()); delay > 0 {
		a.WakeAfter(delay)
	}
}

// exists handles a creation that was refused: it reads the object, if it exists, to find its owner.
func (d *Deployer) exists(a *State, t *objects.Target, r *plan.Resource, refused error) {
	there, err := t.Objects.Read(d.Ctx(), r.Ref)
	if apierrors.IsNotFound(err) {
		err = nil // it was deleted meanwhile: the next turn creates it
		if apierrors.IsInvalid(refused) {
			err = refused
		}
	}
	if err != nil || there == nil {
		d.settle(a, records.RefKey(r.Ref), err)
		return
	}
	t.Objects.Unbury(r.GVK, there.GetUID())
	if owner := objects.OwnerOf(there.GetLabels()); owner.Name != "" {
		// The watch has not shown the object yet.
		t.Objects.Put(r.GVK, there)
		d.settle(a, records.RefKey(r.Ref), nil)
		return
	}
	o, err := objects.NewObject(there)
	a.Post(func() {
		if err == nil {
			err = d.adopt(a, r, o)
		}
		if err != nil {
			d.settled(a, records.RefKey(r.Ref), err)
		}
	})
}

// adopt patches an object that has no owner so that it becomes the Application's. It returns an
// error unless the Application may take the object over, or created or changed it before its labels
// were removed.
func (d *Deployer) adopt(a *State, r *plan.Resource, there *objects.Object) error {
	if !r.TakeOver && !a.UIDs[there.Uid] {
		return fmt.Errorf("%s exists but not managed by any application now", r.Ref)
	}
	a.Writes.Cancel(records.RefKey(r.Ref))
	if !slices.ContainsFunc(a.Resources(), func(x plan.Resource) bool { return x.Ref == r.Ref && x.Hash == r.Hash }) {
		return nil // the plan has changed meanwhile
	}
	patch, _, err := a.wants(r).Difference(there, true)
	if err != nil {
		return err
	}
	return d.change(a, r, there, patch)
}

// change patches an object.
func (d *Deployer) change(a *State, r *plan.Resource, there *objects.Object, patch []byte) error {
	t, err := d.Targets.Reach(r.Cluster)
	if err != nil {
		return err
	}
	ref := records.RefKey(r.Ref)
	if !a.Writes.Start(ref) {
		return nil
	}
	o, err := objects.AsWritten(r.Unstructured(there.Uid))
	if err != nil {
		a.Writes.End(ref, err)
		return err
	}
	resource := *r
	t.Answers.Sent(d.Now())
	t.Writer.Patch(a.Meta(t, r.GVK, "application-object"), o, objects.PatchType(r.GVK), patch, func(got apiwriter.Object, err error) {
		t.Answers.Answered(d.Now())
		d.answered(a, t, &resource, got, err)
	})
	return nil
}

// delete deletes an object with the rights of as, or with the manager's own if as is nil.
func (d *Deployer) delete(
	a *State, t *objects.Target, ref plan.Ref, uid types.UID, reason string, propagation metav1.DeletionPropagation, as *apiwriter.Identity,
) {
	name := records.RefKey(ref)
	if !a.Writes.Start(name) {
		return
	}
	meta := a.Meta(t, ref.GVK, reason)
	meta.As = as
	t.Writer.Delete(meta, ref.Unstructured(uid), apiwriter.DeleteOptions{Propagation: propagation}, func(err error) {
		if err == nil {
			t.Objects.MarkDeleted(ref, uid)
		}
		d.settle(a, name, err)
	})
}

// share adds the Application to the annotation that lists the Applications that share an object.
func (d *Deployer) share(a *State, r *plan.Resource, there *objects.Object) error {
	list := objects.Sharers(there)
	if len(list) == 0 {
		return fmt.Errorf("existing object %s is managed by other application %s", r.Ref, there.Owner)
	}
	value := strings.Join(append(list, a.Key.String()), ",")
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{oam.SharedByAnnotation: value}}})
	if err != nil {
		return err
	}
	return d.change(a, r, there, patch)
}
