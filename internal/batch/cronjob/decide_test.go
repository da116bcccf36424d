package cronjob

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
)

var midnight = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// hourly returns a CronJob that has run at 01:00.
func hourly(change func(*api.CronJob)) *api.CronJob {
	c := &api.CronJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "cron", CreationTimestamp: metav1.NewTime(midnight.Add(-24 * time.Hour))},
		Spec:       api.CronJobSpec{Schedule: "0 * * * *"},
		Status:     api.CronJobStatus{LastScheduleTime: ptr.To(metav1.NewTime(midnight.Add(time.Hour)))},
	}
	if change != nil {
		change(c)
	}
	return c
}

// run returns the Job that was scheduled for the hour.
func run(hour int, phase api.JobPhase) *api.Job {
	at := midnight.Add(time.Duration(hour) * time.Hour)
	name := fmt.Sprintf("c-%d", at.Unix())
	j := &api.Job{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(at),
		Annotations: map[string]string{api.CronJobScheduledTimestampKey: at.Format(time.RFC3339)},
	}}
	j.UID = types.UID(name)
	j.Status.State = api.JobState{Phase: phase, LastTransitionTime: metav1.NewTime(at.Add(10 * time.Minute))}
	return j
}

func (p plan) describe() string {
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	names := func(jobs []*api.Job) string {
		var all []string
		for _, j := range jobs {
			all = append(all, j.Name)
		}
		return strings.Join(all, " ")
	}
	if len(p.replace) > 0 {
		add("replace %s", names(p.replace))
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
	if len(p.status.Active) > 0 {
		add("%d active", len(p.status.Active))
	}
	if t := p.status.LastSuccessfulTime; t != nil {
		add("last success %s", t.UTC().Format("15:04"))
	}
	for _, c := range p.status.Conditions {
		add("%s %s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	if !p.wake.IsZero() {
		add("wake at %s", p.wake.Format("15:04:05"))
	}
	return strings.Join(out, "; ")
}

func TestDecide(t *testing.T) {
	list := func(jobs ...*api.Job) []*api.Job { return jobs }
	policy := func(p api.ConcurrencyPolicy) func(*api.CronJob) {
		return func(c *api.CronJob) { c.Spec.ConcurrencyPolicy = p }
	}
	deadline := func(seconds int64) func(*api.CronJob) {
		return func(c *api.CronJob) { c.Spec.StartingDeadlineSeconds = &seconds }
	}
	future := run(1, api.Running)
	future.Annotations[api.CronJobScheduledTimestampKey] = "2999-01-01T00:00:00Z"
	for name, c := range map[string]struct {
		change func(*api.CronJob)
		jobs   []*api.Job
		now    string
		want   string
	}{
		"not yet":                          {nil, nil, "01:59:59", "wake at 02:00:00"},
		"now":                              {nil, nil, "02:00:00", "start c-1893463200; wake at 03:00:00"},
		"without a deadline, however late": {nil, nil, "02:59:59", "start c-1893463200; wake at 03:00:00"},
		"only the last of it":              {nil, nil, "04:10:00", "start c-1893470400; wake at 05:00:00"},
		"late but in time":                 {deadline(600), nil, "02:10:00", "start c-1893463200; wake at 03:00:00"},
		"after the deadline":               {deadline(600), nil, "02:10:01", "skip: missed: it could not be created within startingDeadlineSeconds, 600; wake at 03:00:00"},
		"a deadline of nothing":            {deadline(0), nil, "02:00:01", "start c-1893463200; wake at 03:00:00"},
		"never before":                     {func(c *api.CronJob) { c.Status = api.CronJobStatus{} }, nil, "01:00:00", "start c-1893459600; wake at 02:00:00"},
		"created after the time": {func(c *api.CronJob) {
			c.Status = api.CronJobStatus{}
			c.CreationTimestamp.Time = midnight.Add(61 * time.Minute)
		}, nil, "01:30:00", "wake at 02:00:00"},
		"suspended":                         {func(c *api.CronJob) { c.Spec.Suspend = ptr.To(true) }, list(run(1, api.Running)), "02:00:00", "1 active"},
		"allow":                             {nil, list(run(1, api.Running)), "02:00:00", "start c-1893463200; 1 active; wake at 03:00:00"},
		"forbid: it stays due":              {policy(api.ForbidConcurrent), list(run(1, api.Running)), "02:00:00", "1 active; wake at 03:00:00"},
		"forbid: a suspended job is active": {policy(api.ForbidConcurrent), list(run(1, api.Aborted)), "02:00:00", "1 active; wake at 03:00:00"},
		"forbid: the active one has ended":  {policy(api.ForbidConcurrent), list(run(1, api.Completed)), "02:20:00", "start c-1893463200; last success 01:10; wake at 03:00:00"},
		"replace":                           {policy(api.ReplaceConcurrent), list(run(0, api.Running), run(1, api.Failed)), "02:00:00", "replace c-1893456000; start c-1893463200; 1 active; wake at 03:00:00"},
		"created, then a manager died":      {nil, list(run(2, api.Pending)), "02:00:10", "1 active; wake at 03:00:00"},
		"and it has ended already":          {nil, list(run(2, api.Completed)), "02:00:10", "last success 02:10; wake at 03:00:00"},
		"a job with a forged time":          {nil, list(future), "02:00:00", "start c-1893463200; 1 active; wake at 03:00:00"},
		"history": {func(c *api.CronJob) { c.Spec.SuccessfulJobsHistoryLimit = ptr.To[int32](1) },
			list(run(-5, api.Failed), run(-4, api.Completed), run(-3, api.Completed), run(-2, api.Terminated), run(-1, api.Completed), run(1, api.Running)), "01:30:00",
			"remove c-1893445200 c-1893441600 c-1893438000; 1 active; last success 23:10; wake at 02:00:00"},
		"no history": {func(c *api.CronJob) { c.Spec.FailedJobsHistoryLimit = ptr.To[int32](0) }, list(run(-1, api.Failed), run(1, api.Running)), "01:30:00",
			"remove c-1893452400; 1 active; wake at 02:00:00"},
		"a wrong schedule":  {func(c *api.CronJob) { c.Spec.Schedule = "61 * * * *" }, nil, "02:00:00", `Valid False InvalidSpec: spec.schedule: "61 * * * *": end of range (61) above maximum (59): 61`},
		"a time zone in it": {func(c *api.CronJob) { c.Spec.Schedule = "TZ=UTC 0 * * * *" }, nil, "02:00:00", `Valid False InvalidSpec: spec.schedule: "TZ=UTC 0 * * * *": must not contain a time zone`},
		"a wrong time zone": {func(c *api.CronJob) { c.Spec.TimeZone = ptr.To("Mars/Olympus") }, nil, "02:00:00", `Valid False InvalidSpec: spec.timeZone: "Mars/Olympus" is not known; it takes names such as Europe/Berlin`},
		"a wrong policy":    {policy("Never"), nil, "02:00:00", `Valid False InvalidSpec: spec.concurrencyPolicy: "Never" is not known; there are Allow, Forbid, Replace`},
		"a long name":       {func(c *api.CronJob) { c.Name = strings.Repeat("c", 53) }, nil, "02:00:00", "Valid False InvalidSpec: metadata.name: must be at most 52 characters: the names of its Jobs are longer by 11"},
		"mended": {func(c *api.CronJob) {
			c.Status.Conditions = []metav1.Condition{{Type: api.CronJobValid, Status: metav1.ConditionFalse}}
		}, nil, "01:30:00", "wake at 02:00:00"},
		"fields without effect": {func(c *api.CronJob) { c.Spec.JobTemplate.Name, c.Spec.JobTemplate.Finalizers = "x", []string{"a/b"} }, nil, "01:30:00",
			"Supported False NotImplemented: not acted on: spec.jobTemplate.metadata.name, spec.jobTemplate.metadata.finalizers; wake at 02:00:00"},
	} {
		t.Run(name, func(t *testing.T) {
			clock, err := time.Parse("15:04:05", c.now)
			if err != nil {
				t.Fatal(err)
			}
			now := midnight.Add(clock.Sub(clock.Truncate(24 * time.Hour)))
			cron := hourly(c.change)
			before := cron.DeepCopy()
			p := decide(cron, c.jobs, time.Time{}, now)
			if diff := cmp.Diff(c.want, p.describe()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(before, cron); diff != "" {
				t.Errorf("the CronJob was changed (-before +after)\n%s", diff)
			}
			// A decided time is not decided again, also not by a manager that starts anew.
			if p.start != nil {
				p.started("new")
			}
			cron.Status = p.status
			for _, passed := range []time.Time{p.passed, {}} {
				again := decide(cron, c.jobs, passed, now)
				if again.start != nil || len(again.replace) > 0 || again.skipped != "" && !passed.IsZero() {
					t.Errorf("decided again: %s", again.describe())
				}
			}
		})
	}
}

func TestJobFor(t *testing.T) {
	c := hourly(func(c *api.CronJob) {
		c.Spec.JobTemplate.Labels = map[string]string{"a": "b"}
		c.Spec.JobTemplate.Annotations = map[string]string{"x": "y"}
		c.Spec.JobTemplate.Spec.Queue = "q"
	})
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	j := jobFor(c, midnight, berlin)
	if j.Name != "c-1893456000" || j.Namespace != "ns" || j.Labels["a"] != "b" || j.Annotations["x"] != "y" || j.Spec.Queue != "q" ||
		j.Annotations[api.CronJobScheduledTimestampKey] != "2030-01-01T01:00:00+01:00" || !metav1.IsControlledBy(j, c) {
		t.Errorf("%+v", j)
	}
}
