package cron

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

var midnight = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// hourly is a cron that was created at midnight and ran at one o'clock.
func hourly(change func(*wf.CronWorkflow)) *wf.CronWorkflow {
	c := &wf.CronWorkflow{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "c-uid", CreationTimestamp: metav1.NewTime(midnight), Labels: map[string]string{"team": "a"}},
		Spec:       wf.CronWorkflowSpec{Schedules: []string{"0 * * * *"}, WorkflowSpec: wf.WorkflowSpec{Entrypoint: "main"}},
		Status:     wf.CronWorkflowStatus{LastScheduledTime: ptr.To(metav1.NewTime(midnight.Add(time.Hour))), Phase: phaseActive},
	}
	if change != nil {
		change(c)
	}
	return c
}

// run is a workflow of hourly, scheduled hours after midnight.
func run(hours int, phase wf.WorkflowPhase) child {
	at := midnight.Add(time.Duration(hours) * time.Hour)
	labels := map[string]string{wf.LabelPhase: string(phase)}
	if phase.Completed() {
		labels[wf.LabelCompleted] = "true"
	}
	name := fmt.Sprintf("c-%d", at.Unix())
	return child{&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name + "-uid"),
		CreationTimestamp: metav1.NewTime(at), Labels: labels, Annotations: map[string]string{wf.AnnotationScheduledTime: at.Format(time.RFC3339)}}}}
}

// describe returns a plan as text.
func (p plan) describe() string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	names := func(list []child) string {
		var names []string
		for _, c := range list {
			names = append(names, c.Name)
		}
		return strings.Join(names, " ")
	}
	if len(p.terminate) > 0 {
		add("terminate %s", names(p.terminate))
	}
	if p.start != nil {
		add("start %s", p.start.Name)
	}
	if p.skipped != "" {
		add("skip: %s", p.skipped)
	}
	if len(p.remove) > 0 {
		add("remove %s", names(p.remove))
	}
	if p.status.Phase != phaseActive {
		add("%s", p.status.Phase)
	}
	if p.status.Succeeded+p.status.Failed > 0 {
		add("%d succeeded, %d failed", p.status.Succeeded, p.status.Failed)
	}
	if len(p.status.Active) > 0 {
		add("%d active", len(p.status.Active))
	}
	for _, c := range p.status.Conditions {
		add("%s: %s", c.Type, c.Message)
	}
	if !p.wake.IsZero() {
		add("wake at %s", p.wake.Format("15:04:05"))
	}
	return strings.Join(out, "; ")
}

func TestDecide(t *testing.T) {
	at := func(clock string) time.Time {
		d, err := time.Parse("15:04:05", clock)
		if err != nil {
			t.Fatal(err)
		}
		return midnight.Add(time.Duration(d.Hour())*time.Hour + time.Duration(d.Minute())*time.Minute + time.Duration(d.Second())*time.Second)
	}
	list := func(children ...child) []child { return children }
	running, ok, bad := wf.WorkflowRunning, wf.WorkflowSucceeded, wf.WorkflowFailed
	forbid := func(c *wf.CronWorkflow) { c.Spec.ConcurrencyPolicy = wf.ConcurrencyForbid }
	active := func(c *wf.CronWorkflow, children ...child) {
		for _, one := range children {
			c.Status.Active = append(c.Status.Active, one.ref())
		}
	}
	stop := func(expression string) func(*wf.CronWorkflow) {
		return func(c *wf.CronWorkflow) {
			c.Spec.StopStrategy = &wf.StopStrategy{Expression: expression}
			c.Status.Failed = 2
		}
	}
	for name, c := range map[string]struct {
		change   func(*wf.CronWorkflow)
		children []child
		now      string
		want     string
	}{
		"not yet":             {nil, nil, "01:59:59", "wake at 02:00:00"},
		"now":                 {nil, nil, "02:00:00", "start c-1893463200; wake at 03:00:00"},
		"a little late":       {nil, nil, "02:00:29", "start c-1893463200; wake at 03:00:00"},
		"too late":            {nil, nil, "02:00:31", "skip: missed; wake at 03:00:00"},
		"late but in time":    {func(c *wf.CronWorkflow) { c.Spec.StartingDeadlineSeconds = ptr.To(int64(600)) }, nil, "02:10:00", "start c-1893463200; wake at 03:00:00"},
		"after the deadline":  {func(c *wf.CronWorkflow) { c.Spec.StartingDeadlineSeconds = ptr.To(int64(600)) }, nil, "02:10:01", "skip: missed; wake at 03:00:00"},
		"only the last of it": {func(c *wf.CronWorkflow) { c.Spec.StartingDeadlineSeconds = ptr.To(int64(86400)) }, nil, "04:10:00", "start c-1893470400; wake at 05:00:00"},
		"a schedule that is new": {func(c *wf.CronWorkflow) {
			c.Spec.StartingDeadlineSeconds = ptr.To(int64(86400))
			c.Annotations = map[string]string{annotationSchedule: "5 * * * *;"}
		}, nil, "02:10:00", "skip: missed before the schedule was what it is; wake at 03:00:00"},
		"never before": {func(c *wf.CronWorkflow) { c.Status = wf.CronWorkflowStatus{} }, nil, "01:00:00", "start c-1893459600; wake at 02:00:00"},
		"suspended":    {func(c *wf.CronWorkflow) { c.Spec.Suspend = true }, list(run(1, ok)), "02:00:00", ""},
		"allow":        {nil, list(run(1, running)), "02:00:00", "start c-1893463200; 1 active; wake at 03:00:00"},
		"forbid": {forbid, list(run(1, running)), "02:00:00",
			"skip: c-1893459600 is active, and the concurrencyPolicy is Forbid; 1 active; wake at 03:00:00"},
		"forbid, and it is done": {func(c *wf.CronWorkflow) { forbid(c); active(c, run(1, ok)) }, list(run(1, ok)), "02:00:00",
			"start c-1893463200; 1 succeeded, 0 failed; wake at 03:00:00"},
		"replace": {func(c *wf.CronWorkflow) { c.Spec.ConcurrencyPolicy = wf.ConcurrencyReplace }, list(run(0, running), run(1, ok)), "02:00:00",
			"terminate c-1893456000; start c-1893463200; 1 active; wake at 03:00:00"},
		"counted when it ends": {func(c *wf.CronWorkflow) { active(c, run(0, ok), run(1, bad)); c.Status.Succeeded = 7 },
			list(run(0, ok), run(1, bad)), "01:30:00", "8 succeeded, 1 failed; wake at 02:00:00"},
		"not counted twice":            {func(c *wf.CronWorkflow) { c.Status.Succeeded = 7 }, list(run(0, ok), run(1, bad)), "01:30:00", "7 succeeded, 0 failed; wake at 02:00:00"},
		"active but deleted":           {func(c *wf.CronWorkflow) { active(c, run(1, running)) }, nil, "01:30:00", "wake at 02:00:00"},
		"created, then a manager died": {nil, list(run(2, running)), "02:00:10", "1 active; wake at 03:00:00"},
		"and it is done already":       {nil, list(run(2, bad)), "02:00:10", "0 succeeded, 1 failed; wake at 03:00:00"},
		"history": {func(c *wf.CronWorkflow) { c.Spec.SuccessfulJobsHistoryLimit = ptr.To(int32(1)) },
			list(run(-5, bad), run(-4, ok), run(-3, ok), run(-2, bad), run(-1, ok), run(0, running)), "01:30:00",
			"remove c-1893445200 c-1893441600 c-1893438000; 1 active; wake at 02:00:00"},
		"no history": {func(c *wf.CronWorkflow) { c.Spec.FailedJobsHistoryLimit = ptr.To(int32(0)) },
			list(run(-1, bad), run(0, ok)), "01:30:00", "remove c-1893452400; wake at 02:00:00"},
		"stopped":     {stop("cronworkflow.failed >= 2"), nil, "02:00:00", "Stopped; 0 succeeded, 2 failed"},
		"not stopped": {stop("cronworkflow.failed > 2"), nil, "02:00:00", "start c-1893463200; 0 succeeded, 2 failed; wake at 03:00:00"},
		"when is false": {func(c *wf.CronWorkflow) {
			c.Spec.When = "{{= cronworkflow.lastScheduledTime == nil || (now() - cronworkflow.lastScheduledTime).Seconds() > 7200 }}"
		}, nil, "02:00:00", "skip: when is false; wake at 03:00:00"},
		"when is true": {func(c *wf.CronWorkflow) {
			c.Spec.When = "{{cronworkflow.name}} == c && {{= cronworkflow.labels.team == 'a' }}"
		}, nil, "02:00:00", "start c-1893463200; wake at 03:00:00"},
		"when is wrong": {func(c *wf.CronWorkflow) { c.Spec.When = "{{cronworkflow.nonsense}}" }, nil, "02:00:00",
			"SpecError: when: failed to resolve {{cronworkflow.nonsense}}; wake at 03:00:00"},
		"the schedule of earlier versions": {func(c *wf.CronWorkflow) { c.Spec.Schedule, c.Spec.Schedules = "30 * * * *", nil }, nil, "01:30:00",
			"start c-1893461400; wake at 02:30:00"},
		"a wrong schedule":   {func(c *wf.CronWorkflow) { c.Spec.Schedules = []string{"x"} }, nil, "02:00:00", `SpecError: schedules: "x": expected exactly 5 fields, found 1: [x]`},
		"a wrong time zone":  {func(c *wf.CronWorkflow) { c.Spec.Timezone = "Mars" }, nil, "02:00:00", `SpecError: timezone: "Mars" is not known; it takes names such as Europe/Berlin`},
		"a wrong expression": {stop("1 +"), nil, "02:00:00", "0 succeeded, 2 failed; SpecError: stopStrategy.expression: unexpected token EOF (1:3)"},
		"a long name": {func(c *wf.CronWorkflow) { c.Name = strings.Repeat("c", 53) }, nil, "02:00:00",
			"SpecError: metadata.name: is longer than 52, and its workflows have names that are longer by 11"},
	} {
		t.Run(name, func(t *testing.T) {
			cron := hourly(c.change)
			before := cron.DeepCopy()
			p := decide(cron, c.children, time.Time{}, at(c.now), template.InProcess())
			if diff := cmp.Diff(c.want, p.describe()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, cron); diff != "" {
				t.Errorf("the cron was changed (-before +after)\n%s", diff)
			}
			// A decided time is not decided again.
			cron.Status = p.status
			if p.start != nil {
				p.started(child{&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "new", UID: "new"}}}, p.passed)
				cron.Status = p.status
			}
			again := decide(cron, c.children, p.passed, at(c.now), template.InProcess())
			if again.start != nil || again.skipped != "" || len(again.terminate) > 0 {
				t.Errorf("decided again: %s", again.describe())
			}
			if again.status.Succeeded != p.status.Succeeded || again.status.Failed != p.status.Failed {
				t.Errorf("counted again: %s", again.describe())
			}
		})
	}
}

func TestWorkflow(t *testing.T) {
	cron := hourly(func(c *wf.CronWorkflow) {
		c.Spec.WorkflowMetadata = &metav1.ObjectMeta{Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"x": "y"}}
	})
	w := Workflow(cron, "n", midnight)
	if w.Labels["a"] != "b" || w.Labels[wf.LabelCronWorkflow] != "c" || w.Annotations["x"] != "y" ||
		w.Annotations[wf.AnnotationScheduledTime] != "2030-01-01T00:00:00Z" || w.Spec.Entrypoint != "main" || !metav1.IsControlledBy(w, cron) {
		t.Errorf("%+v", w)
	}
	w = Workflow(cron, "", time.Time{})
	if w.GenerateName != "c-" || w.Annotations[wf.AnnotationScheduledTime] != "" {
		t.Errorf("%+v", w.ObjectMeta)
	}
}
