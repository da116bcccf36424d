package controller

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/report"
	"lockstep.dev/lockstep/internal/application/steps"
)

// replan makes the plan again if its inputs have changed. It returns false if there is no plan;
// a.PlanErr says why.
func (c *reconciler) replan(a *record, o *oam.Application) bool {
	clusters := c.targets.Version()
	if len(a.planning.read) > 0 && c.planner.ValuesChanged(a.State, a.planning.read) {
		a.planning.inputs, a.planning.objects = "", planInputs{}
	}
	live := c.planner.Live(a.State)
	if a.Plan.LiveChanged(live) {
		a.planning.inputs, a.planning.objects = "", planInputs{}
	}
	failing := a.PlanErr != nil || len(a.Plan.Broken()) > 0 || a.run == nil && report.Failing(a.report.Current(o), &a.Tracker)
	changes := c.changes.Load()
	mended := failing && a.planning.changes != changes // a definition may be the reason
	a.planning.changes = changes
	if !mended && a.planning.inputs != "" && a.Plan != nil && !a.Follows && a.planning.objects.of(o, clusters) {
		return true
	}
	spec, publish := &o.Spec, o.Annotations[oam.PublishVersionAnnotation]
	data, err := json.Marshal(spec)
	if err != nil {
		a.PlanErr = err
		return false
	}
	hash := plan.Hash(data)
	last := a.Tracker.Latest()
	if last != nil && publish != "" && last.PublishVersion == publish && last.Hash != hash {
		// Pinned: the new spec takes effect with another publishVersion.
		spec, hash = last.Spec, last.Hash
	}
	autoUpdate := o.Annotations[oam.AutoUpdateAnnotation] == "true"
	annotations := records.WithoutCommands(o.Annotations)
	input := hash + "/" + publish + "/" + hashOf(o.Labels) + "/" + hashOf(annotations)
	places := slices.ContainsFunc(spec.Policies, func(p oam.AppPolicy) bool { return p.Type == plan.TypeTopology || p.Type == plan.TypeEnvBinding })
	if a.planning.places = places; places {
		input += fmt.Sprintf("/%d", clusters)
	}
	if a.planning.objects.generation != o.Generation {
		a.ForgetErrors()
	}
	a.planning.objects = planInputs{o.UID, o.Generation, o.Labels, o.Annotations, clusters}
	same := a.planning.inputs == input
	if same && !mended && a.Plan != nil && !autoUpdate && len(a.Plan.Broken()) == 0 {
		return true
	}
	if same && !mended && a.PlanErr != nil && !a.Follows {
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
		Labels: o.Labels, Annotations: annotations, Spec: spec, Clusters: c.targets, Memo: &c.planner.Memo,
	}
	var charts *deploy.AppCharts
	charts, in.Pinned = c.planner.ChartsOf(a.State, name, autoUpdate || a.planning.again)
	in.Charts, in.External = charts, c.planner.Reads(a.State)
	if a.planning.asking != name+"/"+hash {
		a.planning.asking, a.planning.asked = name+"/"+hash, c.now()
		a.External = nil
		c.watches.Release(a.Key, true)
	}
	in.Now, in.Live = a.planning.asked, live
	isNew := last == nil || last.Hash != hash || last.PublishVersion != publish
	var given *plan.Given
	if isNew || a.planning.again || autoUpdate {
		given, err = c.planner.Given(a.State, in)
	} else {
		given = last.Given
	}
	given.On(in)
	var p *plan.Plan
	if err != nil {
		a.run = nil
	} else if steps.HasSteps(spec) {
		if a.report.Status == nil {
			a.report.Status = o.Status.DeepCopy()
		}
		run := a.Tracker.Run(name, hash)
		a.run, p, err = c.steps.Prepare(a.State, a.run, a.workflow(run), in, run)
	} else {
		a.run = nil
		p, err = c.planner.Make(a.State, in)
	}
	a.planning.inputs, a.PlanErr = input, err
	a.Follows = autoUpdate || c.mayPass(a, err)
	if err == nil {
		for _, err := range p.Broken() {
			a.Follows = c.mayPass(a, err) || a.Follows
		}
	}
	if err != nil {
		a.Plan = nil
		return false
	}
	a.planning.read = charts.Read
	if isNew {
		a.Tracker.Revisions = append(a.Tracker.Revisions, records.Stored{
			Name: name, Number: number, Hash: hash, PublishVersion: publish, Created: metav1.NewTime(c.now()).Rfc3339Copy(),
			Spec: spec.DeepCopy(), Definitions: p.Definitions, Given: given, New: true,
		})
		keep := 1 + *cmp.Or(p.Policies.RevisionLimit, c.cfg.RevisionLimit) // the one in use, too
		if n := len(a.Tracker.Revisions); n > keep {
			c.reporter.Retract(a.State, a.Tracker.Revisions[:n-keep])
			a.Tracker.Revisions = slices.Clone(a.Tracker.Revisions[n-keep:])
		}
		a.Since, a.Tracker.Dirty = c.now(), true
	} else if a.planning.again || !given.Same(last.Given) {
		last.Definitions, last.Given, a.Tracker.Dirty = p.Definitions, given, true
	} else if !autoUpdate && !failing && (a.run == nil || report.WorkflowFinished(a.report.Current(o), &a.Tracker)) {
		keepAsApplied(p, &a.Tracker)
	}
	a.planning.again = false
	if a.Succeeded(""); !same || a.run != nil || !plan.Same(p, a.Plan) {
		a.SetPlan(p)
	}
	return true
}

// mayPass reports whether an error of planning may pass without a change of the Application.
func (c *reconciler) mayPass(a *record, err error) bool {
	if none := objects.ErrNoKind(""); errors.As(err, &none) { // nothing says when the kind exists
		a.planning.kinds.Min = objects.RelearnInterval
		a.planning.kinds.Failed(c.now())
		a.WakeAfter(a.planning.kinds.Left(c.now()))
		return true
	}
	return errors.Is(err, definitions.ErrNotFound) || errors.Is(err, plan.ErrNotYet) || errors.Is(err, deploy.ErrChart) || errors.Is(err, deploy.ErrAskedAgain)
}

// keepAsApplied replaces the objects of a plan by those last applied, if definitions have changed
// since. An Application changes only when its spec does.
func keepAsApplied(p *plan.Plan, r *records.Tracker) {
	last := r.Latest()
	if last == nil || maps.Equal(last.Definitions, p.Definitions) {
		return
	}
	for i := range p.Resources {
		if data, ok := r.Applied[records.RefKey(p.Resources[i].Ref)]; ok {
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
