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

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// course is the in-memory state of one Application's workflow: what neither its status nor its
// record holds, or what is derived from them.
type course struct {
	run     string
	program *flow.Program
	input   plan.Input
	// policies has, by name, the Application's policies and the shared Policies that steps refer
	// to.
	policies map[string]*oam.AppPolicy
	opened   *plan.Plan // the plan without components

	// parts are the units that steps deploy, in the order in which they started.
	parts []*part
	// made has the objects that steps have applied themselves.
	made  []plan.Resource
	tries map[string]flow.Try
	// answers has, by step and key, the answers to actions that are not repeated in every pass.
	answers map[string]map[string]kept
	wake    time.Time
	// status is the status as last decided, which may not be written yet.
	status *oam.WorkflowStatus
	// in has the plans of parts that are merged into the Application's plan.
	in map[*plan.Plan]bool
	// stale is set if parts or made have changed since the plan was merged.
	stale bool
	// taken is set if a step has taken over another step's object, and the record does not say so
	// yet.
	taken bool
}

// part is a unit and its plan.
type part struct {
	key  string
	unit plan.DeployUnit
	plan *plan.Plan
	// waits are the inputs that components still wait for. inputs is a hash of the components with
	// the inputs that are set.
	waits  []string
	inputs string
	err    error
}

// flowRecord is the part of a workflow's state that the tracker stores in addition to the status.
type flowRecord struct {
	// Run identifies one run of the workflow.
	Run string `json:"run"`
	// Restarts is the number of times that the revision's workflow has been run again.
	Restarts int `json:"restarts,omitempty"`
	// Outputs has the output values of steps and components.
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"`
	// Resumed has the suspended steps that were resumed.
	Resumed map[string]bool `json:"resumed,omitempty"`
	// Held is set while the whole workflow is suspended by a user.
	Held bool `json:"held,omitempty"`
	// Command is the last command that was carried out.
	Command string `json:"command,omitempty"`
	// Units has, by key, the units that steps of users' definitions deploy.
	Units map[string]plan.DeployUnit `json:"units,omitempty"`
	// Made has, for each object that a step applied, the step's name.
	Made map[string]string `json:"made,omitempty"`
	// Parts has the keys of parts in the order in which they started. It is set once a part renders
	// an object differently than an earlier part. Without Parts, a restarted manager would apply
	// only the earlier part at first, and so undo the later one.
	Parts []string `json:"parts,omitempty"`
	// Taken has the content of objects that a step took over from another step. Seen is the
	// workflow's status at that time. Without them, a restarted manager would have the first step
	// apply its object again.
	Taken map[string]json.RawMessage `json:"taken,omitempty"`
	Seen  *oam.WorkflowStatus        `json:"seen,omitempty"`
}

// coursed reports whether an Application is deployed in steps. Other Applications are deployed at
// once, which costs less.
func coursed(spec *oam.ApplicationSpec) bool {
	if spec.Workflow != nil && (spec.Workflow.Ref != "" || len(spec.Workflow.Steps) > 0) {
		return true
	}
	for i := range spec.Policies {
		if t := spec.Policies[i].Type; t == plan.TypeOverride || t == plan.TypeReplication {
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
func (c *Controller) workflowOf(in *plan.Input) (*oam.WorkflowSpec, error) {
	w := in.Spec.Workflow
	if w != nil && w.Ref != "" {
		shared, ok := c.defs.sharedWorkflows.Get(in.Namespace, w.Ref)
		if !ok {
			return nil, fmt.Errorf("workflow.ref: Workflow %s/%s: %w", in.Namespace, w.Ref, errNoDefinition)
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

// policyName returns the name by which steps refer to a policy.
func policyName(p *oam.AppPolicy, i int) string {
	if p.Name != "" {
		return p.Name
	}
	return fmt.Sprintf("%s-auto-gen-%d", p.Type, i)
}

// prepare creates the course of an Application whose spec, or something that it refers to, has
// changed. It returns the plan of what is deployed so far.
func (c *Controller) prepare(a *app, in *plan.Input, run string) (*plan.Plan, error) {
	parse := func(err error) error { return &plan.Error{Stage: plan.Parse, Err: err} }
	spec, err := c.workflowOf(in)
	if err != nil {
		return nil, parse(err)
	}
	in.Whole = in.Spec
	w := &course{input: *in, policies: map[string]*oam.AppPolicy{}, tries: map[string]flow.Try{}, answers: map[string]map[string]kept{}}
	if w.program, err = flow.Compile(spec); err != nil {
		return nil, parse(err)
	}
	if w.opened, err = plan.Open(in); err != nil {
		return nil, err
	}
	for i := range in.Spec.Policies {
		p := in.Spec.Policies[i]
		p.Name = policyName(&p, i)
		w.policies[p.Name] = &p
	}
	if err := c.checkTypes(a, in, w); err != nil {
		return nil, parse(err)
	}
	if f := a.record.Flow; f == nil || f.Run != run {
		a.record.Flow = &flowRecord{Run: run}
		if f != nil {
			// The last command is not carried out again.
			a.record.Flow.Command = f.Command
		}
	}
	if old := a.course; old != nil && old.run == run {
		w.tries, w.answers, w.status = old.tries, old.answers, old.status
	} else {
		w.status = later(a.workflow(run), a.record.Flow.Seen)
	}
	w.run = run
	a.course = w
	if err := c.policiesPart(a, w); err != nil {
		return nil, err
	}
	c.resume(a, w)
	if err := w.unknown(); err != nil {
		return nil, err
	}
	return c.merged(a, w), nil
}

// policiesKey is the key of the part that policiesPart creates. No step has this key.
const policiesKey = "/policies"

// policiesPart plans the objects of policies with users' definitions. They are deployed before all
// steps.
func (c *Controller) policiesPart(a *app, w *course) error {
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
	p, err := c.makePlan(a, &in)
	if err != nil {
		return err
	}
	w.parts = append(w.parts, &part{key: policiesKey, plan: p, unit: plan.DeployUnit{Unwatched: true}})
	return nil
}

// checkTypes returns an error if a step, component or trait has a type without a definition, before
// anything is deployed.
func (c *Controller) checkTypes(a *app, in *plan.Input, w *course) error {
	defs := appDefinitions{c.defs, c.evaluators.of(a.key)}
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

// resume restores the parts and objects that are deployed so far, after a restart of the manager.
func (c *Controller) resume(a *app, w *course) {
	f := a.record.Flow
	for _, key := range f.Parts {
		if unit, ok := f.Units[key]; ok {
			c.deploy(a, w, key, unit)
		} else if s := w.program.Step(key); s != nil {
			c.resumeStep(a, w, s, true)
		}
	}
	if status := w.status; status != nil {
		for i := range status.Steps {
			started := func(st *oam.StepStatus) {
				if s := w.program.Step(st.Name); s != nil && st.Phase != oam.StepPending && st.Phase != oam.StepSkipped {
					c.resumeStep(a, w, s, f.Resumed[s.Name] || flow.Ended(st))
				}
			}
			started(&status.Steps[i].StepStatus)
			for j := range status.Steps[i].SubSteps {
				started(&status.Steps[i].SubSteps[j])
			}
		}
	}
	for _, key := range slices.Sorted(maps.Keys(f.Units)) {
		c.deploy(a, w, key, f.Units[key])
	}
	for _, ref := range slices.Sorted(maps.Keys(f.Made)) {
		data, ok := f.Taken[ref]
		if !ok {
			data, ok = a.record.Applied[ref]
		}
		if ok {
			for i := range a.record.resources {
				if m := &a.record.resources[i]; refKey(refOf(m)) == ref {
					r := plan.Resource{Ref: refOf(m), JSON: data, Hash: plan.Hash(data), Step: f.Made[ref], TraitIndex: -1}
					w.opened.Policies.Treat(&r)
					w.made = append(w.made, r)
				}
			}
		}
	}
}

// resumeStep restores the unit that a step has deployed. consented means that the step does not
// wait for a user's consent any more.
func (c *Controller) resumeStep(a *app, w *course, s *flow.Step, consented bool) {
	if !nativeStep(s.Type) || slices.ContainsFunc(w.parts, func(p *part) bool { return p.key == s.Name }) {
		return
	}
	f := a.record.Flow
	properties, err := flow.WithInputs(rawOf(s.Properties), s.Inputs, func(from string) (any, bool) { return flow.Value(f.Outputs, from) })
	var unit plan.DeployUnit
	var pause *flow.Pause
	if err == nil {
		unit, pause, err = c.nativeUnit(w, s, properties)
	}
	switch {
	case err != nil: // what it has deployed is unknown
		w.parts = append(w.parts, &part{key: s.Name, err: err})
	case pause == nil || consented:
		c.deploy(a, w, s.Name, unit)
	}
}

// keepOrder records the order of parts if a part renders an object differently than an earlier
// part. It returns true if the order must be stored before the object is changed.
func (w *course) keepOrder(f *flowRecord) (changed bool) {
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
func (w *course) unknown() error {
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

// whole reports whether every part has a plan, apart from parts of failed steps. Without all plans
// it is not known what to remove.
func (w *course) whole() bool {
	return w == nil || !slices.ContainsFunc(w.parts, func(p *part) bool {
		st := stepOf(w.status, p.key)
		return p.plan == nil && (st == nil || st.Phase != oam.StepFailed)
	})
}

// workflow returns the status of a run, or nil if the run has no status yet.
func (a *app) workflow(run string) *oam.WorkflowStatus {
	if a.status == nil || a.status.Workflow == nil || a.status.Workflow.AppRevision != run {
		return nil
	}
	return a.status.Workflow
}

// later returns the status in which more steps have ended, or nil if both are nil. Either status
// may be older than the other.
func later(status, seen *oam.WorkflowStatus) *oam.WorkflowStatus {
	ended := func(s *oam.WorkflowStatus) (n int) {
		for i := range s.Steps {
			if flow.Ended(&s.Steps[i].StepStatus) {
				n++
			}
			for j := range s.Steps[i].SubSteps {
				if flow.Ended(&s.Steps[i].SubSteps[j]) {
					n++
				}
			}
		}
		return n
	}
	if seen == nil || status != nil && ended(status) >= ended(seen) {
		return status
	}
	return seen.DeepCopy()
}

// merged returns the plan of everything that is deployed so far.
func (c *Controller) merged(a *app, w *course) *plan.Plan {
	var parts []*plan.Plan
	for _, p := range w.parts {
		if p.plan != nil {
			parts = append(parts, p.plan)
		}
	}
	if len(w.made) > 0 {
		parts = append(parts, &plan.Plan{Resources: w.made})
	}
	out := plan.Merge(parts, w.opened.Policies)
	w.stale, w.in = false, map[*plan.Plan]bool{}
	for _, p := range parts {
		w.in[p] = true
	}
	return out
}

// deploy returns the part of a unit. It creates the part if there is none, and otherwise plans it
// again if needed.
func (c *Controller) deploy(a *app, w *course, key string, unit plan.DeployUnit) *part {
	for _, p := range w.parts {
		if p.key == key {
			if p.plan == nil {
				p.unit = unit // the unit may have been unknown before
			}
			c.replanPart(a, w, p)
			return p
		}
	}
	p := &part{key: key, unit: unit}
	w.parts = append(w.parts, p)
	c.replanPart(a, w, p)
	return p
}

// replanPart makes a part's plan if there is none, or if inputs that components wait for have
// arrived.
func (c *Controller) replanPart(a *app, w *course, p *part) {
	if p.plan != nil && len(p.waits) == 0 {
		return
	}
	spec, err := p.unit.Spec(w.input.Spec)
	if err != nil {
		p.err = &plan.Error{Stage: plan.Policy, Err: err}
		return
	}
	spec.Components, p.waits, err = withInputs(spec.Components, a.record.Flow.Outputs, w.context())
	if err != nil {
		p.err = &plan.Error{Stage: plan.Parse, Err: err}
		return
	}
	// Policies that make objects are deployed once (policiesPart), not with every step.
	spec.Policies = slices.DeleteFunc(spec.Policies, func(p oam.AppPolicy) bool { return !plan.BuiltIn(p.Type) })
	data, err := json.Marshal(spec.Components)
	if err != nil {
		p.err = err
		return
	}
	if hash := plan.Hash(data); p.plan == nil && p.err == nil || hash != p.inputs || retried(p.err) {
		p.inputs = hash
		in := w.input
		in.Spec = spec
		made, err := c.makePlan(a, &in)
		p.err = err
		if err == nil {
			p.plan, w.stale = made, true
		}
	}
}

// retried reports whether a planning error may go away without a change of the Application.
func retried(err error) bool {
	return errors.Is(err, errNoDefinition) || errors.Is(err, plan.ErrNoCluster) || errors.Is(err, plan.ErrNotYet) || errors.Is(err, errChart) || errors.Is(err, errAsked)
}

// withInputs returns the components whose inputs are all available, with the inputs filled in, and
// the inputs that the other components wait for. A component that depends on a waiting component
// waits, too.
func withInputs(components []oam.Component, outputs map[string]json.RawMessage, context map[string]any) (ready []oam.Component, waits []string, _ error) {
	value := func(from string) (any, bool) {
		if v, ok := flow.Value(outputs, from); ok {
			return v, true
		}
		if path, ok := strings.CutPrefix(from, "context."); ok {
			data, err := json.Marshal(context)
			if err != nil {
				return nil, false
			}
			return flow.Value(map[string]json.RawMessage{"context": data}, "context."+path)
		}
		return nil, false
	}
	waiting := map[string]bool{}
	for i := range components {
		for _, in := range components[i].Inputs {
			if _, ok := value(in.From); !ok {
				waiting[components[i].Name] = true
				waits = append(waits, in.From)
			}
		}
	}
	for again := true; again; {
		again = false
		for i := range components {
			name := components[i].Name
			if !waiting[name] && slices.ContainsFunc(components[i].DependsOn, func(d string) bool { return waiting[d] }) {
				waiting[name], again = true, true
			}
		}
	}
	for i := range components {
		comp := components[i]
		if waiting[comp.Name] {
			continue
		}
		if len(comp.Inputs) > 0 {
			properties, err := flow.WithInputs(rawOf(comp.Properties), comp.Inputs, value)
			if err != nil {
				return nil, nil, fmt.Errorf("component %s: %w", comp.Name, err)
			}
			comp.Properties, comp.Inputs = &runtime.RawExtension{Raw: properties}, nil
		}
		ready = append(ready, comp)
	}
	return ready, waits, nil
}

func rawOf(r *runtime.RawExtension) []byte {
	if r == nil {
		return nil
	}
	return r.Raw
}

// context returns the context that conditions, inputs and steps see.
func (w *course) context() map[string]any {
	c := w.stepContext("", "")
	return c.Values()
}

func (w *course) stepContext(step, id string) render.StepContext {
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

// stepsMax bounds the rounds of steps in one pass.
const stepsMax = 64

// advance runs the workflow as far as possible in this pass. more means that the plan has changed
// and must be dispatched. unsaved means that the record must be stored before the status may be
// written.
func (c *Controller) advance(ctx context.Context, a *app, o *oam.Application, p *progress) (more, unsaved bool) {
	w, f := a.course, a.record.Flow
	now := c.cfg.Now()
	if w.status == nil {
		w.status = &oam.WorkflowStatus{AppRevision: w.run, Mode: w.program.ModeText(), StartTime: metav1.NewTime(now).Rfc3339Copy()}
	}
	unsaved = c.obey(a, o, w)
	undecided := false
	decide := func(condition string, values map[string]any) (bool, error) {
		yes, err := render.Condition(c.evaluators.of(a.key), condition, values)
		undecided = undecided || errors.Is(err, plan.ErrNotYet)
		return yes, err
	}
	// look decides how the workflow continues. It returns nil while a condition is being evaluated;
	// the answer enqueues the Application.
	look := func(results map[string]flow.Result) *flow.Decision {
		d := flow.Advance(&flow.Look{
			Program: w.program, Status: w.status, Outputs: f.Outputs, Results: results, Tries: w.tries, Resumed: f.Resumed,
			Held: f.Held, Context: w.context(), Now: now, Decide: decide,
			ID: func(step string) string { return plan.Hash([]byte(a.key.String() + "/" + f.Run + "/" + step))[:10] },
		})
		if undecided {
			return nil
		}
		unsaved = unsaved || !sameOutputs(f.Outputs, d.Outputs) || !maps.Equal(f.Resumed, d.Resumed)
		w.status, f.Outputs, f.Resumed, w.tries, w.wake = d.Status, d.Outputs, d.Resumed, d.Tries, d.Wake
		return d
	}
	remembered := func() int { return len(f.Units) + len(f.Made) + len(f.Outputs) }
	before := remembered()
	d := look(nil)
	for range stepsMax {
		if d == nil || len(d.Run) == 0 {
			break
		}
		results, ended := map[string]flow.Result{}, false
		for _, call := range d.Run {
			r := c.runStep(ctx, a, o, p, call, idOf(w.status, call.Step.Name))
			results[call.Step.Name] = r
			ended = ended || r.Outcome == flow.Succeeded || r.Outcome == flow.Failed
		}
		if d = look(results); !ended {
			break
		}
	}
	if !w.wake.IsZero() {
		c.queue.AddAfter(a.key, max(0, w.wake.Sub(now)))
	}
	p.workflow = w.status
	p.finished = w.status.Finished && !w.status.Terminated
	p.settled = p.finished || w.status.Finished && a.plan.Policies.ContinueOnFailure
	if w.status.Finished {
		c.spies.leave(a.key, false)
	}
	unsaved = unsaved || before != remembered()
	if w.stale && w.keepOrder(f) {
		unsaved = true
	}
	if w.taken {
		w.taken, f.Seen, unsaved = false, w.status.DeepCopy(), true
	}
	return w.stale, unsaved
}

func idOf(s *oam.WorkflowStatus, step string) string {
	if st := stepOf(s, step); st != nil {
		return st.ID
	}
	return ""
}

// stepOf returns the status of a step or sub-step, or nil.
func stepOf(s *oam.WorkflowStatus, step string) *oam.StepStatus {
	if s == nil {
		return nil
	}
	for i := range s.Steps {
		if s.Steps[i].Name == step {
			return &s.Steps[i].StepStatus
		}
		for j := range s.Steps[i].SubSteps {
			if s.Steps[i].SubSteps[j].Name == step {
				return &s.Steps[i].SubSteps[j]
			}
		}
	}
	return nil
}

func sameOutputs(a, b map[string]json.RawMessage) bool {
	return maps.EqualFunc(a, b, sameJSON)
}
