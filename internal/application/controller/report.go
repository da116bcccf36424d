package controller

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// workflowFinished reports whether the present revision has been deployed completely once,
// according to a status.
func workflowFinished(status *oam.ApplicationStatus, t *trackerState) bool {
	last := t.latest()
	return status.Workflow != nil && status.Workflow.Finished && !status.Workflow.Terminated && status.LatestRevision != nil && last != nil &&
		status.Workflow.AppRevision == t.run(last.Name, last.Hash) &&
		status.LatestRevision.Name == last.Name && status.LatestRevision.RevisionHash == last.Hash
}

// reported is what is known of the Application's status.
type reported struct {
	status *oam.ApplicationStatus // as last handed to the writer
	// conflicted is the resourceVersion of the Application that the last status was made from, if
	// that write met a conflict.
	conflicted string
	// version is the Application's resourceVersion after this manager's last status write, or with
	// another client's change of the status that was obeyed since. writes is the number of status
	// writes under way.
	version uint64
	writes  int
	// restartAt is when the workflow runs again.
	restartAt metav1.Time
}

// reporter writes the statuses of Applications.
type reporter struct {
	writer apiwriter.Writer
	log    *slog.Logger
	now    func() time.Time
	// settleAfter is Config.Settle, everyRevision Config.ApplicationRevisions.
	settleAfter   time.Duration
	everyRevision bool
}

// current returns the status as last handed to the writer, or else that of o.
func (r *reported) current(o *oam.Application) *oam.ApplicationStatus {
	if r.status != nil {
		return r.status
	}
	return &o.Status
}

// report writes the status if it has changed.
func (c *reporter) report(a *state, r *reported, o *oam.Application, p progress) {
	now := metav1.NewTime(c.now()).Rfc3339Copy()
	before := r.current(o)
	s := before.DeepCopy()
	s.ObservedGeneration = o.Generation
	if a.plan == nil {
		reportNoPlan(s, a.planErr, now)
	} else if !p.planned {
		return
	} else {
		reportProgress(a, r, o, s, p, now)
	}
	conflicted := r.conflicted
	if conflicted == "" && same(before, s) || conflicted == o.ResourceVersion {
		// Nothing new; or the watch has not shown the version that the last write conflicted with.
		return
	}
	settles := s.Phase == oam.PhaseRunningWorkflow && len(p.problems) == 0 && len(a.writes.failed) == 0
	if settles {
		// The status may change again soon.
		if a.writes.any() {
			return
		}
		if wait := settlesAt(a, c.settle()).Sub(c.now()); wait > 0 {
			a.wakeAfter(wait)
			return
		}
	}
	if !c.publishOutcome(a, before, s) {
		return
	}
	c.write(a, r, o, s, !settles)
}

// settle returns how long a change may take before its progress is reported. The time grows with
// the writer's lag: a busy server should not write statuses that will be replaced soon.
func (c *reporter) settle() time.Duration {
	return max(c.settleAfter, min(settleLags*c.writer.Lag(), settleMax))
}

const (
	settleLags = 20
	settleMax  = 30 * time.Second
)

func (c *reporter) write(a *state, r *reported, o *oam.Application, s *oam.ApplicationStatus, urgent bool) {
	r.status = s
	if o.Annotations[oam.RestartWorkflowAnnotation] != "" {
		a.wakeAfter(0) // the time of the next run depends on the end of this one
	}
	from := o.ResourceVersion
	written := &oam.Application{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}, Status: *s.DeepCopy()}
	r.writes++
	r.conflicted = ""
	if seen, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && seen < r.version {
		// This manager's last write, which the watch has not shown yet.
		written.ResourceVersion = strconv.FormatUint(r.version, 10)
	}
	c.writer.Status(apiwriter.Meta{Owner: a.name, Reason: "application-status", Brief: true}, written, urgent, func(o apiwriter.Object, err error) {
		a.post(func() {
			r.writes--
			if apierrors.IsConflict(err) {
				r.conflicted = from
			}
			if err == nil && o != nil {
				if v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64); err == nil {
					r.version = max(r.version, v)
				}
			}
		})
	})
}

// reportNoPlan sets the conditions that say why there is no plan.
func reportNoPlan(s *oam.ApplicationStatus, why error, now metav1.Time) {
	failed := oam.ConditionParsed
	var e *plan.Error
	if errors.As(why, &e) {
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
			setCondition(s, t, why, now)
			break
		}
		setCondition(s, t, nil, now)
	}
	setCondition(s, oam.ConditionReady, why, now)
}

// warningsMax bounds the number of warnings in an Application's status.
const warningsMax = 8

func reportProgress(a *state, r *reported, o *oam.Application, s *oam.ApplicationStatus, p progress, now metav1.Time) {
	last := a.tracker.latest()
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
	for i := range a.tracker.resources {
		ref := a.tracker.resources[i].ClusterObjectReference
		ref.Creator = "workflow"
		s.AppliedResources = append(s.AppliedResources, ref)
	}
	var problem error
	problems := slices.Clone(p.problems)
	for _, f := range a.writes.failures() {
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
	if s.WorkflowRestartScheduledAt = nil; !r.restartAt.IsZero() && o.Annotations[oam.RestartWorkflowAnnotation] != "" {
		s.WorkflowRestartScheduledAt = &r.restartAt
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
func workflowStatus(a *state, before *oam.WorkflowStatus, p progress, now metav1.Time) *oam.WorkflowStatus {
	last := a.tracker.latest()
	w := &oam.WorkflowStatus{Mode: "DAG-DAG", AppRevision: a.tracker.run(last.Name, last.Hash), StartTime: now, Phase: "executing"}
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
func (c *reporter) reportDeleting(a *state, r *reported, o *oam.Application, remaining int, why error) {
	if why == nil && a.writes.any() {
		return // their answers bring it back
	}
	// An answer says that the object is being deleted; the watch shows later that it is gone.
	since := a.writes.answered
	if since.Before(o.DeletionTimestamp.Time) {
		since = o.DeletionTimestamp.Time
	}
	if wait := since.Add(2 * c.settle()).Sub(c.now()); wait > 0 {
		a.wakeAfter(wait)
		return
	}
	before := r.current(o)
	s := before.DeepCopy()
	s.Phase = oam.PhaseDeleting
	problem := fmt.Errorf("%d objects remain", remaining)
	if why != nil && remaining == 0 {
		problem = why
	} else if why != nil {
		problem = fmt.Errorf("%w: %w", problem, why)
	}
	setCondition(s, oam.ConditionDeleting, problem, metav1.NewTime(c.now()).Rfc3339Copy())
	if !same(before, s) {
		c.write(a, r, o, s, false)
	}
}

// settlesAt returns the time when progress may be reported: after has passed since the last answer
// or since the deployment began, whichever is later.
func settlesAt(a *state, after time.Duration) time.Time {
	if a.writes.answered.After(a.since) {
		return a.writes.answered.Add(after)
	}
	return a.since.Add(after)
}
