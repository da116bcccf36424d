package report

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
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

// WorkflowFinished reports whether status says that the present revision has been deployed
// completely once.
func WorkflowFinished(status *oam.ApplicationStatus, t *records.Tracker) bool {
	last := t.Latest()
	return status.Workflow != nil && status.Workflow.Finished && !status.Workflow.Terminated && status.LatestRevision != nil && last != nil &&
		status.Workflow.AppRevision == t.Run(last.Name, last.Hash) &&
		status.LatestRevision.Name == last.Name && status.LatestRevision.RevisionHash == last.Hash
}

// Failing reports whether status says that a step of the present revision has failed, for good or
// until its next try.
func Failing(status *oam.ApplicationStatus, t *records.Tracker) bool {
	last := t.Latest()
	return status.Workflow != nil && last != nil && status.Workflow.AppRevision == t.Run(last.Name, last.Hash) &&
		slices.ContainsFunc(status.Workflow.Steps, func(s oam.WorkflowStepStatus) bool { return s.Phase == oam.StepFailed })
}

// State is the in-memory state of an Application's status.
type State struct {
	Status *oam.ApplicationStatus // as last handed to the writer
	// conflicted is the resourceVersion of the Application that the last status was made from, if
	// that write met a conflict.
	conflicted string
	// Version is the Application's resourceVersion after this manager's last status write, or after
	// another client's later change of the status that was obeyed. Writes is the number of status
	// writes under way.
	Version uint64
	Writes  int
	// RestartAt is when the workflow runs again.
	RestartAt metav1.Time
	// published is nil until the first status is reported.
	published *published
}

// Forget forgets what was reported of an earlier Application of the same name.
func (r *State) Forget() { r.Status, r.published = nil, nil }

// Reporter writes the statuses of Applications.
type Reporter struct {
	Writer apiwriter.Writer
	Log    *slog.Logger
	Now    func() time.Time
	// SettleAfter is Settle of the controller's Config.
	SettleAfter time.Duration
	// Definitions returns the definitions that a spec names, for ApplicationRevisions. If nil, they
	// have none.
	Definitions func(namespace string, spec *oam.ApplicationSpec) oam.Compression
}

// Current returns the status that was last handed to the writer, or o's status if there was none.
func (r *State) Current(o *oam.Application) *oam.ApplicationStatus {
	if r.Status != nil {
		return r.Status
	}
	return &o.Status
}

// Report writes the status if it has changed.
func (c *Reporter) Report(a *deploy.State, r *State, o *oam.Application, p deploy.Progress) {
	now := metav1.NewTime(c.Now()).Rfc3339Copy()
	before := r.Current(o)
	s := before.DeepCopy()
	s.ObservedGeneration = o.Generation
	if a.Plan == nil {
		failed := a.Erred("", c.Now()) || before.Phase == oam.PhaseWorkflowFailed && before.ObservedGeneration == o.Generation
		ReportNoPlan(s, a.PlanErr, failed, now)
	} else if !p.Planned {
		return
	} else {
		reportProgress(a, r, o, s, p, now)
	}
	conflicted := r.conflicted
	if conflicted == "" && Same(before, s) || conflicted == o.ResourceVersion {
		// Nothing new; or the watch has not shown the version that the last write conflicted with.
		return
	}
	settles := s.Phase == oam.PhaseRunningWorkflow && len(p.Problems) == 0 && len(a.Writes.Failed) == 0
	if settles {
		// The status may change again soon.
		if a.Writes.Any() {
			return
		}
		if wait := settlesAt(a, c.settle()).Sub(c.Now()); wait > 0 {
			a.WakeAfter(wait)
			return
		}
	}
	if !c.publish(a, r, o, before, s) {
		return
	}
	c.Write(a, r, o, s, !settles)
}

// settle returns how long a change may take before its progress is reported. The time grows with
// the writer's latency: a busy server should not write statuses that will be replaced soon.
func (c *Reporter) settle() time.Duration {
	return max(c.SettleAfter, min(settleLags*c.Writer.Latency(), settleMax))
}

const (
	settleLags = 20
	settleMax  = 30 * time.Second
)

// Write hands a status to the writer. The write fails if another client has changed the Application
// since o.
func (c *Reporter) Write(a *deploy.State, r *State, o *oam.Application, s *oam.ApplicationStatus, urgent bool) {
	r.Status = s
	if o.Annotations[oam.RestartWorkflowAnnotation] != "" {
		a.WakeAfter(0) // the time of the next run depends on the end of this one
	}
	from := o.ResourceVersion
	written := &oam.Application{ObjectMeta: metav1.ObjectMeta{
		Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion,
	}, Status: *s.DeepCopy()}
	r.Writes++
	r.conflicted = ""
	if seen, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && seen < r.Version {
		// The version after this manager's last write, which the watch has not shown yet.
		written.ResourceVersion = strconv.FormatUint(r.Version, 10)
	}
	c.Writer.Status(apiwriter.Meta{Owner: a.Name, Reason: "application-status", MetadataOnly: true}, written, urgent, func(o apiwriter.Object, err error) {
		a.Post(func() {
			r.Writes--
			if apierrors.IsConflict(err) && r.Writes == 0 { // a later write meets it, too
				r.conflicted = from
			}
			if err == nil && o != nil {
				if v, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64); err == nil {
					r.Version = max(r.Version, v)
				}
			}
		})
	})
}

// ReportNoPlan sets the conditions that say why there is no plan. failed is set if planning was tried
// as often as a step is.
func ReportNoPlan(s *oam.ApplicationStatus, why error, failed bool, now metav1.Time) {
	s.Phase = oam.PhaseRendering
	if failed {
		s.Phase = oam.PhaseWorkflowFailed
	}
	at := conditionOf(why)
	for _, t := range planning {
		if t == at {
			setCondition(s, t, why, now)
			break
		}
		setCondition(s, t, nil, now)
	}
	setCondition(s, oam.ConditionReady, why, now)
}

// planning has the conditions that say how planning went, in order.
var planning = []oam.ConditionType{oam.ConditionParsed, oam.ConditionRevision, oam.ConditionPolicy, oam.ConditionRender}

// conditionOf returns the condition that an error of planning belongs to.
func conditionOf(why error) oam.ConditionType {
	var e *plan.Error
	if errors.As(why, &e) {
		switch e.Stage {
		case plan.Policy:
			return oam.ConditionPolicy
		case plan.Render:
			return oam.ConditionRender
		}
	}
	return oam.ConditionParsed
}

// warningsMax bounds the number of warnings in an Application's status.
const warningsMax = 8

// reportProgress sets the status of an Application that has a plan.
func reportProgress(a *deploy.State, r *State, o *oam.Application, s *oam.ApplicationStatus, p deploy.Progress, now metav1.Time) {
	last := a.Tracker.Latest()
	if last != nil {
		s.LatestRevision = &oam.Revision{Name: last.Name, Revision: last.Number, RevisionHash: last.Hash}
	}
	broken := map[oam.ConditionType]error{}
	for _, err := range a.Plan.Broken() {
		at := conditionOf(err)
		if broken[at] == nil {
			broken[at] = err
		} else {
			broken[at] = fmt.Errorf("%w; %w", broken[at], err)
		}
	}
	for _, t := range planning {
		setCondition(s, t, broken[t], now)
	}
	for i := range s.Conditions {
		if s.Conditions[i].Type == oam.ConditionParsed && broken[oam.ConditionParsed] == nil {
			s.Conditions[i].Message = strings.Join(a.Plan.Warnings[:min(len(a.Plan.Warnings), warningsMax)], "; ")
		}
	}
	healthy := true
	s.Services = nil
	for i := range a.Plan.Components {
		comp, state := &a.Plan.Components[i], &p.Components[i]
		if comp.Policy {
			continue
		}
		service := oam.ComponentStatus{
			Name: comp.Name, Namespace: comp.Namespace, Cluster: comp.ClusterName(), Healthy: state.Healthy,
			WorkloadHealthy: state.WorkloadHealthy, Message: state.Message, Details: state.Details, Traits: slices.Clone(state.Traits),
		}
		if comp.Workload >= 0 {
			gvk := a.Plan.Resources[comp.Workload].GVK
			service.WorkloadDefinition.APIVersion, service.WorkloadDefinition.Kind = gvk.ToAPIVersionAndKind()
		}
		healthy = healthy && state.Healthy
		s.Services = append(s.Services, service)
	}
	s.AppliedResources = nil
	for i := range a.Tracker.Resources {
		ref := a.Tracker.Resources[i].ClusterObjectReference
		ref.Creator = "workflow"
		s.AppliedResources = append(s.AppliedResources, ref)
	}
	var problem error
	problems := slices.Clone(p.Problems)
	for _, f := range a.Writes.Failures() {
		if !slices.Contains(problems, f) {
			problems = append(problems, f)
		}
	}
	slices.Sort(problems)
	if len(problems) > 0 {
		problem = errors.New(strings.Join(problems, "; "))
	}
	if p.Workflow != nil {
		s.Workflow = p.Workflow.DeepCopy()
	} else {
		s.Workflow = workflowStatus(a, s.Workflow, p, now)
	}
	if problem != nil && !s.Workflow.Finished {
		s.Workflow.Message = problem.Error()
	}
	if s.WorkflowRestartScheduledAt = nil; !r.RestartAt.IsZero() && o.Annotations[oam.RestartWorkflowAnnotation] != "" {
		s.WorkflowRestartScheduledAt = &r.RestartAt
	}
	switch {
	case s.Workflow.Finished && s.Workflow.Phase == "terminated":
		s.Phase, problem = oam.PhaseWorkflowTerminated, errors.New("the workflow was terminated")
	case s.Workflow.Finished && s.Workflow.Terminated:
		s.Phase, problem = oam.PhaseWorkflowFailed, errors.New(s.Workflow.Message)
	case s.Workflow.Suspend:
		s.Phase = oam.PhaseWorkflowSuspending
	case !p.Finished:
		s.Phase = oam.PhaseRunningWorkflow
	case healthy:
		s.Phase = oam.PhaseRunning
	default:
		s.Phase = oam.PhaseUnhealthy
	}
	if p.Finished {
		setCondition(s, oam.ConditionWorkflow, nil, now)
	} else if problem != nil {
		setCondition(s, oam.ConditionWorkflow, problem, now)
	}
	if p.Finished || problem != nil {
		setCondition(s, oam.ConditionReady, problem, now)
	}
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

// Same reports whether two statuses are semantically equal.
func Same(a, b *oam.ApplicationStatus) bool { return apiequality.Semantic.DeepEqual(a, b) }

// ReportDeleting reports how many objects remain of an Application that is being deleted, if the
// deletion takes longer than twice the settle time.
func (c *Reporter) ReportDeleting(a *deploy.State, r *State, o *oam.Application, remaining int, why error) {
	if why == nil && a.Writes.Any() {
		return // the answers enqueue the Application
	}
	// An answer says that the object is being deleted; the watch shows later that it is deleted.
	since := a.Writes.Answered
	if since.Before(o.DeletionTimestamp.Time) {
		since = o.DeletionTimestamp.Time
	}
	if wait := since.Add(2 * c.settle()).Sub(c.Now()); wait > 0 {
		a.WakeAfter(wait)
		return
	}
	before := r.Current(o)
	s := before.DeepCopy()
	s.Phase = oam.PhaseDeleting
	problem := fmt.Errorf("%d objects remain", remaining)
	if why != nil && remaining == 0 {
		problem = why
	} else if why != nil {
		problem = fmt.Errorf("%w: %w", problem, why)
	}
	setCondition(s, oam.ConditionDeleting, problem, metav1.NewTime(c.Now()).Rfc3339Copy())
	if !Same(before, s) {
		c.Write(a, r, o, s, false)
	}
}

// settlesAt returns the time when progress may be reported: after has passed since the last answer
// or since the deployment began, whichever is later.
func settlesAt(a *deploy.State, after time.Duration) time.Time {
	if a.Writes.Answered.After(a.Since) {
		return a.Writes.Answered.Add(after)
	}
	return a.Since.Add(after)
}
