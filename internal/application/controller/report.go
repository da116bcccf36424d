package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
)

// componentState is the state of one component.
type componentState struct {
	// applied is set if the component's objects are as the plan wants them. waits is set if the
	// component waits for another component.
	applied, waits  bool
	healthy         bool
	workloadHealthy bool
	// unknown is set while the state is still being evaluated.
	unknown bool
	message string
	details map[string]string
	traits  []oam.TraitStatus
}

// states is a component's state and the versions of the objects that it was evaluated from.
type states struct {
	versions string
	state    componentState
}

// stateOf evaluates a component's state from its live objects.
func (c *Controller) stateOf(ctx context.Context, a *app, i int) componentState {
	comp := &a.plan.Components[i]
	var versions strings.Builder
	var workload *object
	complete := true
	outputs := map[string]*object{}
	for _, at := range comp.Resources {
		r := &a.plan.Resources[at]
		there := c.seen(r.Ref)
		if there == nil && r.ReadOnly {
			there, _, _ = c.others(ctx, a, r) // dispatch reports the error
		}
		if there == nil || there.renderHash != r.Hash && there.owner == a.key {
			// An object that is about to be updated says nothing about its new state.
			if r.Stage != oam.PostDispatch && !r.ReadOnly {
				complete = false
			}
			versions.WriteString("-")
		}
		if there != nil {
			fmt.Fprintf(&versions, "%d", there.version)
			if r.Output == "" {
				workload = there
			} else {
				outputs[r.Output] = there
			}
		}
		versions.WriteByte(',')
	}
	if known, ok := a.states[comp.Key()]; ok && known.versions == versions.String() {
		return known.state
	}
	state, busy := componentState{applied: true}, false
	live := &render.Live{Context: comp.Context, Properties: comp.Properties, Outputs: make(map[string][]byte, len(outputs))}
	if workload != nil {
		live.Output = workload.json()
	}
	for name, o := range outputs {
		live.Outputs[name] = o.json()
	}
	if complete {
		s, err := c.stateBy(a, comp.Template, *live)
		busy = errors.Is(err, errEvaluating)
		if err != nil {
			c.log.Debug("a component's state cannot be read", "application", a.key, "component", comp.Name, "error", err)
		}
		state.workloadHealthy, state.message, state.details = s.Healthy, s.Message, s.Details
		if len(comp.Notes) > 0 {
			state.details = map[string]string{"hooksNotRun": strings.Join(comp.Notes, ", ")}
			maps.Copy(state.details, s.Details)
		}
		if comp.Workload < 0 && slices.ContainsFunc(comp.Traits, func(t plan.Trait) bool { return t.Template.Definition.ManageWorkload }) {
			state.workloadHealthy = true // a trait manages the workload and reports its health
		}
	}
	state.healthy = state.workloadHealthy
	for n := range comp.Traits {
		t := &comp.Traits[n]
		live.Properties = t.Properties
		s, err := c.stateBy(a, t.Template, *live)
		busy = busy || errors.Is(err, errEvaluating)
		if err != nil {
			c.log.Debug("a trait's state cannot be read", "application", a.key, "component", comp.Name, "trait", t.Type, "error", err)
		}
		pending := t.Template.Definition.Stage == oam.PostDispatch && !state.workloadHealthy
		state.traits = append(state.traits, oam.TraitStatus{Type: t.Type, Healthy: s.Healthy && complete, Pending: pending, Message: s.Message, Details: s.Details})
		state.healthy = state.healthy && (s.Healthy || pending)
	}
	if busy {
		if known, ok := a.states[comp.Key()]; ok {
			return known.state // the last state, until the evaluation ends
		}
		state.unknown = true
		return state
	}
	a.states[comp.Key()] = states{versions.String(), state}
	return state
}

// stateBy evaluates a definition's status section.
func (c *Controller) stateBy(a *app, t *render.Template, live render.Live) (render.State, error) {
	live.Run = c.evaluators.of(a.key)
	s, err := t.State(&live)
	var exceeded *sandbox.Exceeded
	var crashed *sandbox.Crashed
	if errors.As(err, &exceeded) || errors.As(err, &crashed) {
		return render.State{Message: err.Error()}, err
	}
	return s, err
}

func asMap(o *object) map[string]any {
	if o == nil {
		return nil
	}
	var m map[string]any
	if err := kjson.Unmarshal(o.json(), &m); err != nil {
		return nil
	}
	return m
}

// workflowFinished reports whether the present revision has been deployed completely once.
func workflowFinished(o *oam.Application, a *app) bool {
	status := &o.Status
	if a.status != nil {
		status = a.status
	}
	last := a.record.latest()
	return status.Workflow != nil && status.Workflow.Finished && !status.Workflow.Terminated && status.LatestRevision != nil && last != nil &&
		status.Workflow.AppRevision == a.record.run(last.Name, last.Hash) &&
		status.LatestRevision.Name == last.Name && status.LatestRevision.RevisionHash == last.Hash
}

// report writes the status if it has changed.
func (c *Controller) report(a *app, o *oam.Application, p progress) {
	now := metav1.NewTime(c.cfg.Now()).Rfc3339Copy()
	before := &o.Status
	if a.status != nil {
		before = a.status
	}
	s := before.DeepCopy()
	s.ObservedGeneration = o.Generation
	if a.plan == nil {
		c.reportNoPlan(a, s, now)
	} else if !p.planned {
		return
	} else {
		c.reportProgress(a, o, s, p, now)
	}
	conflicted := a.conflict()
	if conflicted == "" && same(before, s) || conflicted == o.ResourceVersion {
		// Nothing new; or the watch has not shown the version that the last write conflicted with.
		return
	}
	settles := s.Phase == oam.PhaseRunningWorkflow && len(p.problems) == 0 && len(a.failures()) == 0
	if settles {
		// The status may change again soon.
		if a.writing() {
			return
		}
		if wait := a.settlesAt(c.settle()).Sub(c.cfg.Now()); wait > 0 {
			c.queue.AddAfter(a.key, wait)
			return
		}
	}
	if !c.publishOutcome(a, before, s) {
		return
	}
	c.writeStatus(a, o, s, !settles)
}

// settle returns how long a change may take before its progress is reported. The time grows with
// the writer's lag: a busy server should not write statuses that will be replaced soon.
func (c *Controller) settle() time.Duration {
	return max(c.cfg.Settle, min(settleLags*c.cfg.Writer.Latency(), settleMax))
}

const (
	settleLags = 20
	settleMax  = 30 * time.Second
)

// conflict returns the resourceVersion of the Application that the last status was made from, if
// that write met a conflict, or "".
func (a *app) conflict() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conflicted
}

func (c *Controller) writeStatus(a *app, o *oam.Application, s *oam.ApplicationStatus, urgent bool) {
	a.status = s
	if o.Annotations[oam.RestartWorkflowAnnotation] != "" {
		c.queue.Add(a.key) // the time of the next run depends on the end of this one
	}
	from := o.ResourceVersion
	written := &oam.Application{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}, Status: *s.DeepCopy()}
	a.mu.Lock()
	a.statusWrites++
	a.conflicted = ""
	if seen, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && seen < a.statusVersion {
		// This manager's last write, which the watch has not shown yet.
		written.ResourceVersion = strconv.FormatUint(a.statusVersion, 10)
	}
	a.mu.Unlock()
	c.cfg.Writer.Status(apiwriter.Meta{Owner: a.owner, Reason: "application-status", MetadataOnly: true}, written, urgent, func(o apiwriter.Object, err error) {
		a.mu.Lock()
		a.statusWrites--
		if apierrors.IsConflict(err) {
			a.conflicted = from
			c.queue.Add(a.key) // the watch may have shown the new version by now
		}
		if err == nil && o != nil {
			if v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64); err == nil {
				a.statusVersion = max(a.statusVersion, v)
			}
		}
		a.mu.Unlock()
		if raw, ok := c.applications.Get(a.key.Namespace, a.key.Name); ok && o != nil && raw.ResourceVersion == o.GetResourceVersion() {
			// The watch came first, so the last pass could not let the Application rest.
			c.queue.Add(a.key)
		}
	})
}

// reportNoPlan sets the conditions that say why there is no plan.
func (c *Controller) reportNoPlan(a *app, s *oam.ApplicationStatus, now metav1.Time) {
	failed := oam.ConditionParsed
	var e *plan.Error
	if errors.As(a.planErr, &e) {
		switch e.Stage {
		case plan.Policy:
			failed = oam.ConditionPolicy
		case plan.Render:
			failed = oam.ConditionRender
		}
	}
	s.Phase = oam.PhaseRendering
	for _, t := range []oam.ConditionType{oam.ConditionParsed, oam.ConditionRevision, oam.ConditionPolicy, oam.ConditionRender} {
		if t == failed {
			setCondition(s, t, a.planErr, now)
			break
		}
		setCondition(s, t, nil, now)
	}
	setCondition(s, oam.ConditionReady, a.planErr, now)
}

// warningsMax bounds the number of warnings in an Application's status.
const warningsMax = 8

func (c *Controller) reportProgress(a *app, o *oam.Application, s *oam.ApplicationStatus, p progress, now metav1.Time) {
	last := a.record.latest()
	if last != nil {
		s.LatestRevision = &oam.Revision{Name: last.Name, Revision: last.Number, RevisionHash: last.Hash}
	}
	for _, t := range []oam.ConditionType{oam.ConditionParsed, oam.ConditionRevision, oam.ConditionPolicy, oam.ConditionRender} {
		setCondition(s, t, nil, now)
	}
	for i := range s.Conditions {
		if s.Conditions[i].Type == oam.ConditionParsed {
			s.Conditions[i].Message = strings.Join(a.plan.Warnings[:min(len(a.plan.Warnings), warningsMax)], "; ")
		}
	}
	healthy := true
	s.Services = nil
	for i := range a.plan.Components {
		comp, state := &a.plan.Components[i], &p.components[i]
		if comp.Policy {
			continue
		}
		service := oam.ComponentStatus{
			Name: comp.Name, Namespace: comp.Namespace, Cluster: comp.ClusterName(), Healthy: state.healthy,
			WorkloadHealthy: state.workloadHealthy, Message: state.message, Details: state.details, Traits: slices.Clone(state.traits),
		}
		if comp.Workload >= 0 {
			gvk := a.plan.Resources[comp.Workload].GVK
			service.WorkloadDefinition.APIVersion, service.WorkloadDefinition.Kind = gvk.ToAPIVersionAndKind()
		}
		healthy = healthy && state.healthy
		s.Services = append(s.Services, service)
	}
	s.AppliedResources = nil
	for i := range a.record.resources {
		ref := a.record.resources[i].ClusterObjectReference
		ref.Creator = "workflow"
		s.AppliedResources = append(s.AppliedResources, ref)
	}
	var problem error
	problems := slices.Clone(p.problems)
	for _, f := range a.failures() {
		if !slices.Contains(problems, f) {
			problems = append(problems, f)
		}
	}
	slices.Sort(problems)
	if len(problems) > 0 {
		problem = errors.New(strings.Join(problems, "; "))
	}
	if p.workflow != nil {
		s.Workflow = p.workflow.DeepCopy()
	} else {
		s.Workflow = workflowStatus(a, s.Workflow, p, now)
		s.Workflow.Message = ""
	}
	if problem != nil && !s.Workflow.Finished {
		s.Workflow.Message = problem.Error()
	}
	if s.WorkflowRestartScheduledAt = nil; !a.restartAt.IsZero() && o.Annotations[oam.RestartWorkflowAnnotation] != "" {
		s.WorkflowRestartScheduledAt = &a.restartAt
	}
	switch {
	case s.Workflow.Finished && s.Workflow.Phase == "terminated":
		s.Phase, problem = oam.PhaseWorkflowTerminated, errors.New("the workflow was terminated")
	case s.Workflow.Finished && s.Workflow.Terminated:
		s.Phase, problem = oam.PhaseWorkflowFailed, errors.New(s.Workflow.Message)
	case s.Workflow.Suspend:
		s.Phase = oam.PhaseWorkflowSuspending
	case !p.finished:
		s.Phase = oam.PhaseRunningWorkflow
	case healthy:
		s.Phase = oam.PhaseRunning
	default:
		s.Phase = oam.PhaseUnhealthy
	}
	if p.finished {
		setCondition(s, oam.ConditionWorkflow, nil, now)
	} else if problem != nil {
		setCondition(s, oam.ConditionWorkflow, problem, now)
	}
	if p.finished || problem != nil {
		setCondition(s, oam.ConditionReady, problem, now)
	}
}

// workflowStatus returns the workflow status of an Application without steps of its own: one step
// for each component.
func workflowStatus(a *app, before *oam.WorkflowStatus, p progress, now metav1.Time) *oam.WorkflowStatus {
	last := a.record.latest()
	w := &oam.WorkflowStatus{Mode: "DAG-DAG", AppRevision: a.record.run(last.Name, last.Hash), StartTime: now, Phase: "executing"}
	if before != nil && before.AppRevision == w.AppRevision {
		w = before.DeepCopy()
	}
	known := map[string]oam.WorkflowStepStatus{}
	for _, s := range w.Steps {
		known[s.Name] = s
	}
	w.Steps = nil
	for i := range a.plan.Components {
		comp, state := &a.plan.Components[i], &p.components[i]
		if comp.Policy {
			continue
		}
		s, ok := known[comp.Name]
		if !ok {
			s.ID, s.Name, s.Type = plan.Hash([]byte(a.key.String() + "/" + comp.Name))[:10], comp.Name, "apply-component"
		}
		phase, reason := oam.StepRunning, oam.StepReasonWait
		switch {
		case p.finished:
			phase, reason = oam.StepSucceeded, ""
		case state.waits:
			phase, reason = oam.StepPending, ""
		case state.applied && state.healthy:
			phase, reason = oam.StepSucceeded, ""
		}
		if s.Phase != phase {
			s.Phase, s.Reason, s.LastExecuteTime = phase, reason, now
			if s.FirstExecuteTime.IsZero() && phase != oam.StepPending {
				s.FirstExecuteTime = now
			}
		}
		w.Steps = append(w.Steps, s)
	}
	if p.finished && !w.Finished {
		w.Finished, w.EndTime, w.Phase = true, now, "succeeded"
	}
	return w
}

// setCondition sets a condition to True, or to False with the message of err.
func setCondition(s *oam.ApplicationStatus, t oam.ConditionType, err error, now metav1.Time) {
	c := oam.Condition{Type: t, Status: metav1.ConditionTrue, Reason: oam.ReasonAvailable, LastTransitionTime: now}
	if t == oam.ConditionReady {
		c.Reason = oam.ReasonReconcileSuccess
	}
	if err != nil {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, oam.ReasonReconcileError, err.Error()
	}
	for i := range s.Conditions {
		if have := &s.Conditions[i]; have.Type == t {
			if have.Status == c.Status {
				c.LastTransitionTime = have.LastTransitionTime
			}
			*have = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// same reports whether two statuses are semantically equal.
func same(a, b *oam.ApplicationStatus) bool { return apiequality.Semantic.DeepEqual(a, b) }

// reportDeleting reports how many objects remain of an Application that is being deleted, if the
// deletion takes longer than twice the settle time.
func (c *Controller) reportDeleting(a *app, o *oam.Application, remaining int, why error) {
	if why == nil && a.writing() {
		return // their answers bring it back
	}
	// An answer says that the object is being deleted; the watch shows later that it is gone.
	a.mu.Lock()
	since := a.lastAnswer
	a.mu.Unlock()
	if since.Before(o.DeletionTimestamp.Time) {
		since = o.DeletionTimestamp.Time
	}
	if wait := since.Add(2 * c.settle()).Sub(c.cfg.Now()); wait > 0 {
		c.queue.AddAfter(a.key, wait)
		return
	}
	before := &o.Status
	if a.status != nil {
		before = a.status
	}
	s := before.DeepCopy()
	s.Phase = oam.PhaseDeleting
	problem := fmt.Errorf("%d objects remain", remaining)
	if why != nil && remaining == 0 {
		problem = why
	} else if why != nil {
		problem = fmt.Errorf("%w: %w", problem, why)
	}
	setCondition(s, oam.ConditionDeleting, problem, metav1.NewTime(c.cfg.Now()).Rfc3339Copy())
	if !same(before, s) {
		c.writeStatus(a, o, s, false)
	}
}
