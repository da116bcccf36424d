package cron

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/cron/schedule"
	"lockstep.dev/lockstep/internal/workflow/template"
)

const (
	// Grace is how late a workflow may start without startingDeadlineSeconds: managers take some seconds to take over
	// from each other.
	Grace = 30 * time.Second
	// maxNameBytes leaves room for the time in the workflow's name, which is a label of its pods.
	maxNameBytes = 63 - len("-1893456000")

	defaultSucceededLimit = 3
	defaultFailedLimit    = 1

	// labelCompleted is on crons whose stopStrategy has ended them; annotationSchedule is what was scheduled by last.
	labelCompleted     = "cron-workflows.argoproj.io/completed"
	annotationSchedule = "cronworkflows.argoproj.io/last-used-schedule"

	phaseActive  = "Active"
	phaseStopped = "Stopped"

	conditionSpecError       = wf.ConditionSpecError
	conditionSubmissionError = wf.ConditionType("SubmissionError")
)

// child is a workflow of a cron, as far as its metadata tells.
type child struct {
	*metav1.PartialObjectMetadata
}

func (c child) phase() wf.WorkflowPhase { return wf.WorkflowPhase(c.Labels[wf.LabelPhase]) }

// completed needs both labels: they are written together with the end of the workflow.
func (c child) completed() bool { return c.Labels[wf.LabelCompleted] == "true" }

// scheduled is the time that the child was created for; zero for those that somebody else created.
func (c child) scheduled() time.Time {
	t, err := time.Parse(time.RFC3339, c.Annotations[wf.AnnotationScheduledTime])
	if err != nil {
		return time.Time{}
	}
	return t
}

func (c child) ref() corev1.ObjectReference {
	return corev1.ObjectReference{APIVersion: wf.GroupVersion.String(), Kind: "Workflow", Namespace: c.Namespace, Name: c.Name, UID: c.UID}
}

// plan is what to do about a cron.
type plan struct {
	// start is the workflow to create, terminate are those that make way for it.
	start     *wf.Workflow
	terminate []child
	// remove are finished workflows beyond the limits.
	remove []child
	// status and labels are as they should be, without start.
	status    wf.CronWorkflowStatus
	completed bool
	schedule  string
	// passed is the last time that needs no more looking at, skipped why it was not started, if it was not.
	passed  time.Time
	skipped string
	// wake is when to look again; zero for when something changes.
	wake time.Time
}

// decide says what to do about a cron whose workflows are children. passed is what the last plan said, or zero; run evaluates what is not
// cheap.
func decide(cron *wf.CronWorkflow, children []child, passed, now time.Time, run template.Run) plan {
	p := plan{status: *cron.Status.DeepCopy(), passed: passed, schedule: usedSchedule(cron)}
	s := &p.status
	s.Phase = cmp.Or(s.Phase, phaseActive)
	// 1. Account for the children: each that ends is counted once, when it leaves the list of active ones.
	p.account(cron, children)
	p.remove = beyondLimits(cron, children)
	// 2. A cron that is wrong starts nothing and says why.
	times, err := check(cron)
	if err != nil {
		setCondition(s, conditionSpecError, err.Error())
		return p
	}
	// 3. A cron that has reached its end starts nothing.
	if stop := cron.Spec.StopStrategy; stop != nil {
		p.completed, err = evaluate(stop.Expression, variables(cron, s, now, run))
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
	if cron.Spec.Suspend {
		return p
	}
	p.wake = times.Next(now)
	// 4. Is there a time that has come?
	since := later(later(cron.CreationTimestamp.Time, lastOf(s)), passed)
	due := times.Due(since, now)
	if due.IsZero() {
		return p
	}
	late := Grace
	if d := cron.Spec.StartingDeadlineSeconds; d != nil {
		late = max(late, time.Duration(*d)*time.Second)
	}
	old := cron.Annotations[annotationSchedule]
	switch {
	case now.Sub(due) > late:
		p.passed, p.skipped = due, "missed"
		return p
	case now.Sub(due) > Grace && old != "" && old != p.schedule:
		p.passed, p.skipped = due, "missed before the schedule was what it is"
		return p
	}
	// 5. May it start?
	proceed, err := when(cron.Spec.When, variables(cron, s, now, run), run)
	switch {
	case err != nil:
		setCondition(s, conditionSpecError, "when: "+err.Error())
		p.passed = due
		return p
	case !proceed:
		p.passed, p.skipped = due, "when is false"
		return p
	case len(s.Active) > 0 && cron.Spec.ConcurrencyPolicy == wf.ConcurrencyForbid:
		p.passed, p.skipped = due, fmt.Sprintf("%s is active, and the concurrencyPolicy is Forbid", s.Active[0].Name)
		return p
	case cron.Spec.ConcurrencyPolicy == wf.ConcurrencyReplace:
		for _, c := range children {
			if !c.completed() && c.DeletionTimestamp == nil {
				p.terminate = append(p.terminate, c)
			}
		}
	}
	// 6. Start it.
	p.start = Workflow(cron, fmt.Sprintf("%s-%d", cron.Name, due.Unix()), due)
	p.passed = due
	return p
}

// started is the status after the workflow of a plan was created.
func (p *plan) started(created child, at time.Time) {
	if !slices.ContainsFunc(p.status.Active, func(r corev1.ObjectReference) bool { return r.UID == created.UID }) {
		p.status.Active = append(p.status.Active, created.ref())
	}
	p.status.LastScheduledTime = ptr.To(metav1.NewTime(at))
	setCondition(&p.status, conditionSubmissionError, "")
}

// account brings the list of active children up to date, and the counters with it.
func (p *plan) account(cron *wf.CronWorkflow, children []child) {
	s := &p.status
	last := lastOf(s)
	listed := map[string]bool{}
	for _, r := range s.Active {
		listed[string(r.UID)] = true
	}
	s.Active = nil
	slices.SortFunc(children, func(a, b child) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	for _, c := range children {
		// A child of a later time than the status knows was created just before a manager ended.
		unknown := c.scheduled().After(last)
		if unknown {
			s.LastScheduledTime = ptr.To(metav1.NewTime(later(lastOf(s), c.scheduled())))
		}
		switch {
		case !c.completed():
			s.Active = append(s.Active, c.ref())
		case !listed[string(c.UID)] && !unknown:
		case c.phase() == wf.WorkflowSucceeded:
			s.Succeeded++
		default:
			s.Failed++
		}
	}
}

// check says what is wrong with a cron; what is right is its schedule.
func check(cron *wf.CronWorkflow) (*schedule.Schedule, error) {
	if len(cron.Name) > maxNameBytes {
		return nil, fmt.Errorf("metadata.name: is longer than %d, and its workflows have names that are longer by %d", maxNameBytes, 63-maxNameBytes)
	}
	switch cron.Spec.ConcurrencyPolicy {
	case "", wf.ConcurrencyAllow, wf.ConcurrencyForbid, wf.ConcurrencyReplace:
	default:
		return nil, fmt.Errorf("concurrencyPolicy: %q is not known; there are Allow, Forbid, Replace", cron.Spec.ConcurrencyPolicy)
	}
	return schedule.Parse(cron.Spec.AllSchedules(), cron.Spec.Timezone, cron.CreationTimestamp.Time)
}

// Workflow is what a cron runs, under a name; an empty one lets the server choose. scheduled is zero for a run that no
// schedule asked for.
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
	if !scheduled.IsZero() {
		w.Annotations[wf.AnnotationScheduledTime] = scheduled.UTC().Format(time.RFC3339)
	}
	return w
}

// beyondLimits are the oldest finished children beyond what the limits keep.
func beyondLimits(cron *wf.CronWorkflow, children []child) []child {
	var out []child
	for _, kind := range []struct {
		succeeded bool
		limit     int32
	}{
		{true, ptr.Deref(cron.Spec.SuccessfulJobsHistoryLimit, defaultSucceededLimit)},
		{false, ptr.Deref(cron.Spec.FailedJobsHistoryLimit, defaultFailedLimit)},
	} {
		kept := int32(0)
		for _, c := range slices.Backward(children) { // the latest first
			if !c.completed() || c.DeletionTimestamp != nil || (c.phase() == wf.WorkflowSucceeded) != kind.succeeded {
				continue
			}
			if kept++; kept > max(0, kind.limit) {
				out = append(out, c)
			}
		}
	}
	return out
}

// variables are what expressions of a cron may use.
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

// setCondition says what is wrong, or takes back that something was.
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

// usedSchedule is a cron's schedule as a text that changes when the schedule does.
func usedSchedule(cron *wf.CronWorkflow) string {
	return strings.Join(append(slices.Clone(cron.Spec.AllSchedules()), cron.Spec.Timezone), ";")
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// same says whether a plan leaves a cron as it is.
func (p *plan) same(cron *wf.CronWorkflow) bool {
	old, now := cron.Status, p.status
	if len(old.Conditions) == 0 {
		old.Conditions = nil
	}
	if len(now.Conditions) == 0 {
		now.Conditions = nil
	}
	if len(old.Active) == 0 {
		old.Active = nil
	}
	return old.LastScheduledTime.Equal(now.LastScheduledTime) && reflect.DeepEqual(old.Active, now.Active) &&
		reflect.DeepEqual(old.Conditions, now.Conditions) && old.Succeeded == now.Succeeded && old.Failed == now.Failed &&
		old.Phase == now.Phase && (cron.Labels[labelCompleted] == "true") == p.completed
}

func lastOf(s *wf.CronWorkflowStatus) time.Time {
	if s.LastScheduledTime == nil {
		return time.Time{}
	}
	return s.LastScheduledTime.Time
}
