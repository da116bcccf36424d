package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// replan makes the plan again if its inputs have changed. It returns false if there is no plan;
// a.planErr says why.
func (c *Controller) replan(a *record, o *oam.Application) bool {
	clusters := c.targets.version()
	if len(a.planning.read) > 0 && c.planner.valuesChanged(a.state, a.planning.read) {
		a.planning.inputs, a.planning.objects = "", planInputs{}
	}
	if a.planning.inputs != "" && a.plan != nil && !a.follows && a.planning.objects.of(o, clusters) {
		return true
	}
	spec, publish := &o.Spec, o.Annotations[oam.PublishVersionAnnotation]
	data, err := json.Marshal(spec)
	if err != nil {
		a.planErr = err
		return false
	}
	hash := plan.Hash(data)
	last := a.tracker.latest()
	if last != nil && publish != "" && last.PublishVersion == publish && last.Hash != hash {
		// Pinned: the new spec takes effect with another publishVersion.
		spec, hash = last.Spec, last.Hash
	}
	autoUpdate := o.Annotations[oam.AutoUpdateAnnotation] == "true"
	annotations := withoutCommands(o.Annotations)
	input := hash + "/" + publish + "/" + hashOf(o.Labels) + "/" + hashOf(annotations)
	places := slices.ContainsFunc(spec.Policies, func(p oam.AppPolicy) bool { return p.Type == plan.TypeTopology })
	if a.planning.places = places; places {
		input += fmt.Sprintf("/%d", clusters)
	}
	a.planning.objects = planInputs{o.UID, o.Generation, o.Labels, o.Annotations, clusters}
	if a.planning.inputs == input && a.plan != nil && !autoUpdate {
		return true
	}
	if a.planning.inputs == input && a.planErr != nil && !a.follows {
		return false
	}
	number, name := int64(1), ""
	if last != nil {
		number = last.Number
		if last.Hash != hash || last.PublishVersion != publish {
			number++
		}
	}
	name = fmt.Sprintf("%s-v%d", o.Name, number)
	in := &plan.Input{
		Namespace: o.Namespace, Name: o.Name, Revision: name, RevisionNum: number, PublishVersion: publish,
		Labels: o.Labels, Annotations: annotations, Spec: spec, Clusters: c.targets, Memo: &c.planner.memo,
	}
	var charts *appCharts
	charts, in.Pinned = c.planner.chartsOf(a.state, name, autoUpdate || a.planning.again)
	in.Charts, in.Outside = charts, externalReads{&c.planner, a.state}
	if a.planning.asking != name+"/"+hash {
		a.planning.asking, a.planning.asked = name+"/"+hash, c.now()
		a.external = nil
		c.spies.leave(a.key, true)
	}
	in.Now = a.planning.asked
	var p *plan.Plan
	if hasSteps(spec) {
		if a.report.status == nil {
			a.report.status = o.Status.DeepCopy()
		}
		run := a.tracker.run(name, hash)
		a.run, p, err = c.steps.prepare(a.state, a.run, a.workflow(run), in, run)
	} else {
		a.run = nil
		p, err = c.planner.make(a.state, in)
	}
	a.planning.inputs, a.planErr = input, err
	a.follows = autoUpdate || errors.Is(err, errNoDefinition) || errors.Is(err, plan.ErrNotYet) || errors.Is(err, errChart) || errors.Is(err, errAsked)
	if err != nil {
		a.plan = nil
		return false
	}
	a.planning.read = charts.read
	if last == nil || last.Hash != hash || last.PublishVersion != publish {
		a.tracker.Revisions = append(a.tracker.Revisions, revision{
			Name: name, Number: number, Hash: hash, PublishVersion: publish, Created: metav1.NewTime(c.now()).Rfc3339Copy(),
			Spec: spec.DeepCopy(), Definitions: p.Definitions,
		})
		limit := c.cfg.RevisionLimit
		if p.Policies.RevisionLimit > 0 {
			limit = p.Policies.RevisionLimit
		}
		c.reporter.publish(a.state, o)
		if n := len(a.tracker.Revisions); n > limit {
			c.reporter.retract(a.state, a.tracker.Revisions[:n-limit])
			a.tracker.Revisions = slices.Clone(a.tracker.Revisions[n-limit:])
		}
		a.since, a.tracker.dirty = c.now(), true
	} else if a.planning.again {
		a.tracker.latest().Definitions, a.tracker.dirty = p.Definitions, true
	} else if !autoUpdate && (a.run == nil || workflowFinished(a.report.current(o), &a.tracker)) {
		keepAsApplied(p, &a.tracker)
	}
	a.planning.again = false
	a.mayRead = nil
	a.plan, a.health, a.verified = p, map[string]cachedHealth{}, map[plan.Ref]verifiedContent{}
	a.writes.forget()
	return true
}

// withoutCommands returns the annotations without those that request one action.
func withoutCommands(annotations map[string]string) map[string]string {
	_, command := annotations[oam.WorkflowCommandAnnotation]
	_, restart := annotations[oam.RestartWorkflowAnnotation]
	if !command && !restart {
		return annotations
	}
	out := maps.Clone(annotations)
	delete(out, oam.WorkflowCommandAnnotation)
	delete(out, oam.RestartWorkflowAnnotation)
	return out
}

// keepAsApplied replaces the objects of a plan by those last applied, if definitions have changed
// since: an Application changes only when its spec does.
func keepAsApplied(p *plan.Plan, r *trackerState) {
	last := r.latest()
	if last == nil || equalMaps(last.Definitions, p.Definitions) {
		return
	}
	for i := range p.Resources {
		if data, ok := r.Applied[refKey(p.Resources[i].Ref)]; ok {
			p.Resources[i].JSON, p.Resources[i].Hash = data, plan.Hash(data)
		}
	}
}

func hashOf(m map[string]string) string {
	if len(m) == 0 {
		return ""
	}
	data, _ := json.Marshal(m) // a map of strings
	return plan.Hash(data)
}
