package steps

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/render"
)

// Runner runs the workflows of Applications.
type Runner struct {
	*deploy.Planner
	Trackers *records.PackedCache[oam.ResourceTracker]
	Log      *slog.Logger
}

// Run is the in-memory state of one Application's workflow that neither its status nor its tracker
// holds, or that is derived from them.
type Run struct {
	run     string
	program *flow.Program
	input   plan.Input
	// policies has, by name, the Application's policies and the shared Policies that steps refer
	// to.
	policies map[string]*oam.AppPolicy
	rules    *plan.Policies // of the whole Application

	// parts are the units that steps deploy, in the order in which they started.
	parts []*deployedUnit
	// applied has the objects that steps have applied themselves.
	applied []plan.Resource
	tries   map[string]flow.Try
	// answers has, by step and key, the answers to actions that are not repeated in every turn.
	answers map[string]deploy.Answers
	// checks has, by step and key, since when conditions of metrics are met or missed.
	checks map[string]*measured
	wake   time.Time
	// status is the status as last decided, which may not be written yet.
	status *oam.WorkflowStatus
	// merged has the plans of parts that are merged into the Application's plan.
	merged map[*plan.Plan]bool
	// stale is set if parts or applied have changed since the plan was merged.
	stale bool
	// takeover is set if a step has taken over another step's object and the tracker does not
	// record that yet.
	takeover bool
}

// deployedUnit is a unit and its plan.
type deployedUnit struct {
	key  string
	unit plan.DeployUnit
	plan *plan.Plan
	// waits are the inputs that components still wait for. inputs is a hash of the components with
	// the inputs that are set.
	waits  []string
	inputs string
	// several is set if components with inputs are deployed to several placements.
	several bool
	err     error
}

// HasSteps reports whether an Application is deployed in steps. Other Applications are deployed at
// once, which costs less.
func HasSteps(spec *oam.ApplicationSpec) bool {
	if spec.Workflow != nil && (spec.Workflow.Ref != "" || len(spec.Workflow.Steps) > 0) {
		return true
	}
	for i := range spec.Policies {
		if t := spec.Policies[i].Type; t == plan.TypeOverride || t == plan.TypeReplication || t == plan.TypeEnvBinding {
			return true
		}
	}
	for i := range spec.Components {
		if c := &spec.Components[i]; len(c.Inputs) > 0 || len(c.Outputs) > 0 {
			return true
		}
	}
	return false
}

// workflowOf returns an Application's workflow: its own, the shared one that it refers to, or one
// generated from its policies or components.
func (c *Runner) workflowOf(in *plan.Input) (*oam.WorkflowSpec, error) {
	w := in.Spec.Workflow
	if w != nil && w.Ref != "" {
		shared, ok := c.Definitions.SharedWorkflows.Get(in.Namespace, w.Ref)
		if !ok {
			return nil, fmt.Errorf("workflow.ref: Workflow %s/%s: %w", in.Namespace, w.Ref, definitions.ErrNotFound)
		}
		return &oam.WorkflowSpec{Mode: shared.Mode, Steps: shared.Steps}, nil
	}
	if w != nil && len(w.Steps) > 0 {
		return w, nil
	}
	out := &oam.WorkflowSpec{Mode: &oam.WorkflowExecuteMode{Steps: oam.WorkflowModeDAG, SubSteps: oam.WorkflowModeDAG}}
	if w != nil && w.Mode != nil {
		out.Mode = w.Mode
	}
	var topologies, others []string
	for i := range in.Spec.Policies {
		switch p := &in.Spec.Policies[i]; p.Type {
		case plan.TypeTopology:
			topologies = append(topologies, policyName(p, i))
		case plan.TypeOverride, plan.TypeReplication:
			others = append(others, policyName(p, i))
		}
	}
	deploy := func(name string, policies []string) error {
		properties, err := json.Marshal(map[string]any{"policies": policies})
		out.Steps = append(out.Steps, oam.WorkflowStep{WorkflowStepBase: oam.WorkflowStepBase{
			Name: name, Type: stepDeploy, Properties: &runtime.RawExtension{Raw: properties},
		}})
		return err
	}
	switch {
	case len(topologies) > 0:
		for _, t := range topologies {
			if err := deploy("deploy-"+t, append([]string{t}, others...)); err != nil {
				return nil, err
			}
		}
		return out, nil
	case len(others) > 0:
		return out, deploy("deploy", others)
	}
	if steps, err := environmentSteps(in.Spec.Policies); len(steps) > 0 || err != nil {
		out.Steps = steps
		return out, err
	}
	for i := range in.Spec.Components {
		comp := &in.Spec.Components[i]
		properties, err := json.Marshal(map[string]any{"component": comp.Name})
		if err != nil {
			return nil, err
		}
		step := oam.WorkflowStepBase{Name: comp.Name, Type: stepApplyComponent, DependsOn: comp.DependsOn, Outputs: comp.Outputs, Properties: &runtime.RawExtension{Raw: properties}}
		for _, in := range comp.Inputs {
			// An input of the component, not of the step.
			step.Inputs = append(step.Inputs, oam.StepInput{From: in.From})
		}
		out.Steps = append(out.Steps, oam.WorkflowStep{WorkflowStepBase: step})
	}
	return out, nil
}

// environmentSteps returns a step for each environment of the env-binding policies.
func environmentSteps(policies []oam.AppPolicy) ([]oam.WorkflowStep, error) {
	var out []oam.WorkflowStep
	for i := range policies {
		p := &policies[i]
		if p.Type != plan.TypeEnvBinding {
			continue
		}
		envs, err := plan.EnvironmentNames(p)
		if err != nil {
			return nil, fmt.Errorf("spec.policies[%d] (%s): %w", i, p.Type, err)
		}
		for _, env := range envs {
			properties, err := json.Marshal(map[string]any{"policy": policyName(p, i), "env": env})
			if err != nil {
				return nil, err
			}
			out = append(out, oam.WorkflowStep{WorkflowStepBase: oam.WorkflowStepBase{
				Name: "deploy-" + env, Type: stepDeploy2Env, Properties: &runtime.RawExtension{Raw: properties},
			}})
		}
	}
	return out, nil
}

// policyName returns the name by which steps refer to a policy.
func policyName(p *oam.AppPolicy, i int) string {
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("%s-auto-gen-%d", p.Type, i)
}

// Prepare creates the run of an Application whose spec, or something that it refers to, has
// changed. It returns the run to continue with, and the plan of everything that is deployed so far.
// old is the previous run, or nil. status is the status of the run according to the Application, or
// nil.
func (c *Runner) Prepare(a *deploy.State, old *Run, status *oam.WorkflowStatus, in *plan.Input, run string) (*Run, *plan.Plan, error) {
	parse := func(err error) error { return &plan.Error{Stage: plan.Parse, Err: err} }
	spec, err := c.workflowOf(in)
	if err != nil {
		return old, nil, parse(err)
	}
	in.Whole = in.Spec
	w := &Run{input: *in, policies: map[string]*oam.AppPolicy{}, tries: map[string]flow.Try{}, answers: map[string]deploy.Answers{}}
	if w.program, err = flow.Compile(spec); err != nil {
		return old, nil, parse(err)
	}
	if w.rules, err = plan.RulesOf(in); err != nil {
		return old, nil, err
	}
	for i := range in.Spec.Policies {
		p := in.Spec.Policies[i]
		p.Name = policyName(&p, i)
		w.policies[p.Name] = &p
	}
	if err := c.checkTypes(a, in, w); err != nil {
		return old, nil, parse(err)
	}
	if f := a.Tracker.Flow; f == nil || f.Run != run {
		a.Tracker.Flow = &records.Flow{Run: run}
		if f != nil {
			// The last command is not carried out again.
			a.Tracker.Flow.Command = f.Command
		}
	}
	if old != nil && old.run == run {
		w.tries, w.answers, w.checks, w.status = old.tries, old.answers, old.checks, old.status
	} else {
		w.status = later(status, a.Tracker.Flow.Seen)
	}
	w.run = run
	if err := c.policiesPart(a, w); err != nil {
		return w, nil, err
	}
	c.resume(a, w)
	if err := w.unknown(); err != nil {
		return w, nil, err
	}
	return w, w.Merged(), nil
}

// policiesKey is the key of the part that policiesPart creates. No step has this key.
const policiesKey = "/policies"

// policiesPart plans the objects of policies with users' definitions. They are deployed before all
// steps.
func (c *Runner) policiesPart(a *deploy.State, w *Run) error {
	in := w.input
	in.Spec = &oam.ApplicationSpec{}
	for _, name := range slices.Sorted(maps.Keys(w.policies)) {
		if p := w.policies[name]; !plan.BuiltIn(p.Type) {
			in.Spec.Policies = append(in.Spec.Policies, *p)
		}
	}
	if len(in.Spec.Policies) == 0 {
		return nil
	}
	p, err := c.Make(a, &in)
	if err != nil {
		return err
	}
	w.parts = append(w.parts, &deployedUnit{key: policiesKey, plan: p, unit: plan.DeployUnit{Unwatched: true}})
	return nil
}

// checkTypes returns an error if a step, component or trait has a type without a definition, before
// anything is deployed.
func (c *Runner) checkTypes(a *deploy.State, in *plan.Input, w *Run) error {
	defs := definitions.Templates{Library: c.Definitions, Run: c.Evaluators.Of(a.Key)}
	check := func(s *flow.Step) error {
		if s.Type == flow.TypeGroup || s.Type == flow.TypeSuspend || nativeStep(s.Type) {
			return nil
		}
		if _, err := defs.Step(in.Namespace, s.Type); err != nil {
			return fmt.Errorf("workflow step %s: %w", s.Name, err)
		}
		return nil
	}
	for i := range w.program.Steps {
		s := &w.program.Steps[i]
		if err := check(s); err != nil {
			return err
		}
		for j := range s.Sub {
			if err := check(&s.Sub[j]); err != nil {
				return err
			}
		}
	}
	for i := range in.Spec.Components {
		comp := &in.Spec.Components[i]
		if _, err := defs.Component(in.Namespace, comp.Type); err != nil {
			return fmt.Errorf("component %s: %w", comp.Name, err)
		}
		for j := range comp.Traits {
			if _, err := defs.Trait(in.Namespace, comp.Traits[j].Type); err != nil {
				return fmt.Errorf("component %s: traits[%d]: %w", comp.Name, j, err)
			}
		}
	}
	return nil
}

// keepOrder records the order of parts if a part renders an object differently than an earlier
// part. It returns true if the order must be stored before the object is changed.
func (w *Run) keepOrder(f *records.Flow) (changed bool) {
	made, overlap := map[plan.Ref]string{}, false
	var keys []string
	for _, p := range w.parts {
		if p.plan == nil {
			continue
		}
		for i := range p.plan.Resources {
			r := &p.plan.Resources[i]
			hash, found := made[r.Ref]
			overlap = overlap || found && hash != r.Hash
			made[r.Ref] = r.Hash
		}
		if p.key != policiesKey {
			keys = append(keys, p.key)
		}
	}
	if !overlap || slices.Equal(keys, f.Parts) {
		return false
	}
	f.Parts = keys
	return true
}

// unknown returns the error that prevents planning a step that was deployed before, or nil. For a
// step that has succeeded this is any error. For other steps only plan.ErrNotYet counts: the
// workflow decides what becomes of a step with another error.
func (w *Run) unknown() error {
	for _, p := range w.parts {
		if p.plan != nil || p.err == nil {
			continue
		}
		st := stepOf(w.status, p.key)
		if errors.Is(p.err, plan.ErrNotYet) || st != nil && st.Phase == oam.StepSucceeded {
			return p.err
		}
	}
	return nil
}

// Whole reports whether every part has a plan, apart from parts of failed steps. Without all plans,
// the objects to remove are unknown.
func (w *Run) Whole() bool {
	return w == nil || !slices.ContainsFunc(w.parts, func(p *deployedUnit) bool {
		st := stepOf(w.status, p.key)
		return (p.plan == nil || len(p.plan.Broken()) > 0) && (st == nil || st.Phase != oam.StepFailed)
	})
}

// later returns the status in which more steps have ended, or nil if both are nil. Either status
// may be older than the other.
func later(status, seen *oam.WorkflowStatus) *oam.WorkflowStatus {
	ended := func(s *oam.WorkflowStatus) (n int) {
		for st := range flow.StepsOf(s) {
			if flow.Ended(st) {
				n++
			}
		}
		return n
	}
	if seen == nil || status != nil && ended(status) >= ended(seen) {
		return status
	}
	return seen.DeepCopy()
}

// Merged returns the plan of everything that is deployed so far.
func (w *Run) Merged() *plan.Plan {
	var parts []*plan.Plan
	for _, p := range w.parts {
		if p.plan != nil {
			parts = append(parts, p.plan)
		}
	}
	if len(w.applied) > 0 {
		parts = append(parts, &plan.Plan{Resources: w.applied})
	}
	w.stale, w.merged = false, map[*plan.Plan]bool{}
	for _, p := range parts {
		w.merged[p] = true
	}
	return plan.Merge(parts, w.rules)
}

// context returns the context that conditions, inputs and steps see.
func (w *Run) context() map[string]any {
	c := w.stepContext("", "")
	return c.Values()
}

// stepContext returns the context of a step. id is the step's ID.
func (w *Run) stepContext(step, id string) render.StepContext {
	in := &w.input
	return render.StepContext{
		Context: render.Context{
			Name: in.Name, Namespace: in.Namespace, AppName: in.Name, AppRevision: in.Revision, AppRevisionNum: in.RevisionNum,
			AppLabels: in.Labels, AppAnnotations: in.Annotations, PublishVersion: in.PublishVersion, WorkflowName: in.Name,
			Cluster: oam.LocalCluster, Components: in.Spec.Components,
		},
		StepName: step, SessionID: id,
	}
}
