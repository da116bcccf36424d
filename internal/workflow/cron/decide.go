package cron

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cron"
	"lockstep.dev/lockstep/internal/cron/schedule"
	"lockstep.dev/lockstep/internal/workflow/template"
)

const (
	// Grace is how late a workflow may start without startingDeadlineSeconds: one manager takes
	// some seconds to take over from another.
	Grace                 = 30 * time.Second
	defaultSucceededLimit = 3
	defaultFailedLimit    = 1

	// labelCompleted marks crons that their stopStrategy has ended; annotationSchedule holds the
	// schedule that was last used.
	labelCompleted     = "cron-workflows.argoproj.io/completed"
	annotationSchedule = "cronworkflows.argoproj.io/last-used-schedule"

	phaseActive  = "Active"
	phaseStopped = "Stopped"

	conditionSpecError       = wf.ConditionSpecError
	conditionSubmissionError = wf.ConditionType("SubmissionError")
)

// child is the metadata of a workflow of a cron.
type child struct {
	*metav1.PartialObjectMetadata
}

func (c child) phase() wf.WorkflowPhase { return wf.WorkflowPhase(c.Labels[wf.LabelPhase]) }

// completed reports whether the workflow has ended. Its label is written together with the end of
// the workflow.
func (c child) completed() bool { return c.Labels[wf.LabelCompleted] == "true" }

// scheduled returns the time that the child was scheduled for, or zero if the child was not created
// on schedule.
func (c child) scheduled() time.Time {
	t, _ := time.Parse(time.RFC3339, c.Annotations[wf.AnnotationScheduledTime]) // zero if there is none
	return t
}

func (c child) ref() corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: wf.GroupVersion.String(), Kind: "Workflow", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

// plan is the result of decide: what to do about a cron.
type plan struct {
	// start is the workflow to create; terminate are the workflows that it replaces.
	start     *wf.Workflow
	terminate []child
	// remove are the finished workflows beyond the history limits.
	remove []child
	// status, completed and schedule are the values to write, without the workflow in start.
	status    wf.CronWorkflowStatus
	completed bool
	schedule  string
	// passed is the last due time that has been decided; skipped is the reason if no workflow is
	// started for it.
	passed  time.Time
	skipped string
	// wake is the time to decide again; zero if only a change requires that.
	wake time.Time
}

// decide returns the plan for a cron whose workflows are children. passed is the field of the
// previous plan, or zero. run evaluates expressions that are not cheap.
func decide(cw *wf.CronWorkflow, children []child, passed, now time.Time, run template.Run) plan {
	p := plan{status: *cw.Status.DeepCopy(), passed: passed, schedule: usedSchedule(cw)}
	s := &p.status
	s.Phase = cmp.Or(s.Phase, phaseActive)
	//   1. Account for the children: each is counted once, when it ends and leaves the list of
	//      active ones.
	p.account(children)
	p.remove = cron.BeyondLimits(children, outcome,
		ptr.Deref(cw.Spec.SuccessfulJobsHistoryLimit, defaultSucceededLimit), ptr.Deref(cw.Spec.FailedJobsHistoryLimit, defaultFailedLimit))
	//   2. An invalid cron starts nothing and says why.
	times, err := check(cw)
	if err != nil {
		setCondition(s, conditionSpecError, err.Error())
		return p
	}
	//   3. A cron that its stopStrategy has ended starts nothing.
	if stop := cw.Spec.StopStrategy; stop != nil {
		p.completed, err = evaluate(stop.Expression, variables(cw, s, now, run))
		if err != nil {
			setCondition(s, conditionSpecError, "stopStrategy.expression: "+err.Error())
			return p
		}
	}
	setCondition(s, conditionSpecError, "")
	s.Phase = phaseActive
	if p.completed {
		s.Phase = phaseStopped
		return p
	}
	if cw.Spec.Suspend {
		return p
	}
	p.wake = times.Next(now)
	//   4. Find the last due time.
	since := cron.Later(cron.Later(cw.CreationTimestamp.Time, lastOf(s)), passed)
	due := times.Due(since, now)
	if due.IsZero() {
		return p
	}
	late := Grace
	if d := cw.Spec.StartingDeadlineSeconds; d != nil {
		late = max(late, time.Duration(*d)*time.Second)
	}
	old := cw.Annotations[annotationSchedule]
	switch {
	case now.Sub(due) > late:
		p.passed, p.skipped = due, "missed"
		return p
	case now.Sub(due) > Grace && old != "" && old != p.schedule:
		p.passed, p.skipped = due, "missed before the schedule was what it is"
		return p
	}
	//   5. Check whether it may start.
	proceed, err := when(cw.Spec.When, variables(cw, s, now, run), run)
	switch {
	case err != nil:
		setCondition(s, conditionSpecError, "when: "+err.Error())
		p.passed = due
		return p
	case !proceed:
		p.passed, p.skipped = due, "when is false"
		return p
	case len(s.Active) > 0 && cw.Spec.ConcurrencyPolicy == wf.ConcurrencyForbid:
		p.passed, p.skipped = due, fmt.Sprintf("%s is active, and the concurrencyPolicy is Forbid", s.Active[0].Name)
		return p
	case cw.Spec.ConcurrencyPolicy == wf.ConcurrencyReplace:
		for _, c := range children {
			if !c.completed() && c.DeletionTimestamp == nil {
				p.terminate = append(p.terminate, c)
			}
		}
	}
	//   6. Start it.
	p.start = Workflow(cw, cron.Name(cw.Name, due), due)
	p.passed = due
	return p
}

// started updates the plan's status after its workflow has been created.
func (p *plan) started(created child, at time.Time) {
	if !slices.ContainsFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.UID == created.UID }) {
		p.status.Active = append(p.status.Active, created.ref())
	}
	p.status.LastScheduledTime = ptr.To(metav1.NewTime(at))
	setCondition(&p.status, conditionSubmissionError, "")
}

// account updates the list of active children and the counters.
func (p *plan) account(children []child) {
	s := &p.status
	last := lastOf(s)
	listed := map[string]bool{}
	for _, r := range s.Active {
		listed[string(r.UID)] = true
	}
	s.Active = nil
	cron.SortByAge(children)
	for _, c := range children {
		// If a child was scheduled after the last time in the status, a manager created it and
		// ended before it wrote the status.
		unknown := c.scheduled().After(last)
		if unknown {
			s.LastScheduledTime = ptr.To(metav1.NewTime(cron.Later(lastOf(s), c.scheduled())))
		}
		switch outcome := outcome(c); {
		case outcome == cron.Active:
			s.Active = append(s.Active, c.ref())
		case !listed[string(c.UID)] && !unknown:
		case outcome == cron.Succeeded:
			s.Succeeded++
		default:
			s.Failed++
		}
	}
}

// check validates a cron and returns its schedule.
func check(cw *wf.CronWorkflow) (*schedule.Schedule, error) {
	if len(cw.Name) > schedule.NameBytesMax {
		return nil, fmt.Errorf("metadata.name: is longer than %d, and its workflows have names that are longer by %d", schedule.NameBytesMax, 63-schedule.NameBytesMax)
	}
	switch cw.Spec.ConcurrencyPolicy {
	case "", wf.ConcurrencyAllow, wf.ConcurrencyForbid, wf.ConcurrencyReplace:
	default:
		return nil, fmt.Errorf("concurrencyPolicy: %q is not known; there are Allow, Forbid, Replace", cw.Spec.ConcurrencyPolicy)
	}
	return schedule.Parse(cw.Spec.AllSchedules(), cw.Spec.Timezone, cw.CreationTimestamp.Time)
}

// Workflow returns the workflow that a cron runs. If name is empty the server generates one.
// scheduled is zero for a run outside of the schedule.
func Workflow(cron *wf.CronWorkflow, name string, scheduled time.Time) *wf.Workflow {
	w := &wf.Workflow{
		TypeMeta: metav1.TypeMeta{APIVersion: wf.GroupVersion.String(), Kind: "Workflow"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cron.Namespace, Name: name, Labels: map[string]string{}, Annotations: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cron, wf.GroupVersion.WithKind("CronWorkflow"))},
		},
		Spec: *cron.Spec.WorkflowSpec.DeepCopy(),
	}
	if name == "" {
		w.GenerateName = cron.Name + "-"
	}
	if m := cron.Spec.WorkflowMetadata; m != nil {
		maps.Copy(w.Labels, m.Labels)
		maps.Copy(w.Annotations, m.Annotations)
		w.Finalizers = slices.Clone(m.Finalizers)
	}
	w.Labels[wf.LabelCronWorkflow] = cron.Name
	if id := cron.Labels[wf.LabelInstanceID]; id != "" {
		w.Labels[wf.LabelInstanceID] = id
	}
	if !scheduled.IsZero() {
		w.Annotations[wf.AnnotationScheduledTime] = scheduled.UTC().Format(time.RFC3339)
	}
	return w
}

// outcome returns how a child has ended.
func outcome(c child) cron.Outcome {
	switch {
	case !c.completed():
		return cron.Active
	case c.phase() == wf.WorkflowSucceeded:
		return cron.Succeeded
	}
	return cron.Failed
}

// variables returns the scope of a cron's expressions.
func variables(cron *wf.CronWorkflow, s *wf.CronWorkflowStatus, now time.Time, run template.Run) template.Scope {
	v := template.Typed{
		template.Clock: now, template.Runner: run, "cronworkflow.name": cron.Name, "cronworkflow.namespace": cron.Namespace,
		"cronworkflow.succeeded": s.Succeeded, "cronworkflow.failed": s.Failed, "cronworkflow.lastScheduledTime": nil,
		"cronworkflow.labels": anyMap(cron.Labels), "cronworkflow.annotations": anyMap(cron.Annotations),
	}
	if s.LastScheduledTime != nil {
		v["cronworkflow.lastScheduledTime"] = s.LastScheduledTime.Time
	}
	for key, value := range cron.Labels {
		v["cronworkflow.labels."+key] = value
	}
	for key, value := range cron.Annotations {
		v["cronworkflow.annotations."+key] = value
	}
	return v
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for key, value := range m {
		out[key] = value
	}
	return out
}

func evaluate(expression string, scope template.Scope) (bool, error) {
	e, err := template.CompileExpr(expression)
	if err != nil {
		return false, err
	}
	return e.Bool(scope)
}

func when(condition string, scope template.Scope, run template.Run) (bool, error) {
	text, err := template.Parse(condition)
	if err != nil {
		return false, err
	}
	resolved, err := text.Resolve([]template.Scope{scope}, "cronworkflow.")
	if err != nil {
		return false, err
	}
	return template.When(resolved, run)
}

// setCondition sets the condition to True with a message, or removes it if message is empty.
func setCondition(s *wf.CronWorkflowStatus, kind wf.ConditionType, message string) {
	i := slices.IndexFunc(s.Conditions, func(c wf.Condition) bool { return c.Type == kind })
	switch {
	case message == "" && i >= 0:
		s.Conditions = slices.Delete(s.Conditions, i, i+1)
	case message != "" && i >= 0:
		s.Conditions[i].Status, s.Conditions[i].Message = metav1.ConditionTrue, message
	case message != "":
		s.Conditions = append(s.Conditions, wf.Condition{Type: kind, Status: metav1.ConditionTrue, Message: message})
	}
}

// usedSchedule returns a text that changes whenever the cron's schedule does.
func usedSchedule(cron *wf.CronWorkflow) string {
	return strings.Join(append(slices.Clone(cron.Spec.AllSchedules()), cron.Spec.Timezone), ";")
}

// same reports whether the plan leaves the cron's status and label as they are.
func (p *plan) same(cron *wf.CronWorkflow) bool {
	old, now := cron.Status, p.status
	return old.LastScheduledTime.Equal(now.LastScheduledTime) && slices.Equal(old.Active, now.Active) &&
		slices.Equal(old.Conditions, now.Conditions) && old.Succeeded == now.Succeeded && old.Failed == now.Failed &&
		old.Phase == now.Phase && (cron.Labels[labelCompleted] == "true") == p.completed
}

func lastOf(s *wf.CronWorkflowStatus) time.Time {
	return ptr.Deref(s.LastScheduledTime, metav1.Time{}).Time
}
