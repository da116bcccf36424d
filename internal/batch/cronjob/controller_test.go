package cronjob

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithInstall()) }

// env is the test's view of the API server, and the controllers that the test runs. Nothing works
// on the Jobs but the test.
type env struct {
	*testing.T
	cfg            *rest.Config
	jobs, cronJobs dynamic.ResourceInterface
	events         func() []corev1.Event
	namespace      string
	clock          *clocktesting.FakeClock
}

func newEnv(t *testing.T) *env {
	t.Helper()
	cfg := localtest.Shared(t).RESTConfig()
	core, err := kubeclient.Clientset(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ns := localtest.Namespace(t, core)
	dyn := dynamic.NewForConfigOrDie(cfg)
	return &env{
		T: t, cfg: cfg, namespace: ns, clock: clocktesting.NewFakeClock(time.Now()),
		jobs:     dyn.Resource(api.GroupVersion.WithResource("jobs")).Namespace(ns),
		cronJobs: dyn.Resource(api.GroupVersion.WithResource("cronjobs")).Namespace(ns),
		events: func() []corev1.Event {
			list, err := core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return list.Items
		},
	}
}

// start runs a controller until stop is called.
func (e *env) start() (stop func()) {
	e.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	writer, err := apiwriter.New(apiwriter.Config{REST: e.cfg, Scheme: scheme.Scheme, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		e.Fatal(err)
	}
	informers, err := informer.NewSet(e.cfg)
	if err != nil {
		e.Fatal(err)
	}
	c, err := New(Config{Informers: informers, Writer: writer, Clock: e.clock, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		e.Fatal(err)
	}
	informers.Start(ctx)
	ended := make(chan struct{}, 2)
	go func() { _ = writer.Run(ctx); ended <- struct{}{} }()
	go func() { c.Run(ctx); ended <- struct{}{} }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-ended
			<-ended
			informers.Wait()
		}
	}
	e.Cleanup(stop)
	return stop
}

func (e *env) try(name, fields string) error {
	e.Helper()
	var u unstructured.Unstructured
	text := "apiVersion: batch.volcano.sh/v1alpha1\nkind: CronJob\nmetadata: {name: " + name + "}\nspec: " + fields
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		e.Fatal(err)
	}
	_, err := e.cronJobs.Create(e.Context(), &u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	return err
}

func (e *env) create(name, fields string) {
	e.Helper()
	if err := e.try(name, fields); err != nil {
		e.Fatal(err)
	}
}

func (e *env) cron(name string) *api.CronJob {
	e.Helper()
	u, err := e.cronJobs.Get(e.Context(), name, metav1.GetOptions{})
	var c api.CronJob
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c)
	}
	if err != nil {
		e.Fatal(err)
	}
	return &c
}

// state returns the names of the Jobs and the CronJob's status as text.
func (e *env) state(name string) string {
	e.Helper()
	list, err := e.jobs.List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	var jobs, active []string
	for _, j := range list.Items {
		if strings.HasPrefix(j.GetName(), name+"-") {
			jobs = append(jobs, j.GetName())
		}
	}
	slices.Sort(jobs)
	s := e.cron(name).Status
	for _, r := range s.Active {
		active = append(active, r.Name)
	}
	last := "never"
	if s.LastScheduleTime != nil {
		last = fmt.Sprintf("%s-%d", name, s.LastScheduleTime.Unix())
	}
	text := fmt.Sprintf("jobs %v active %v last %s", jobs, active, last)
	for _, c := range s.Conditions {
		text += fmt.Sprintf("; %s %s: %s", c.Type, c.Reason, c.Message)
	}
	return text
}

// await waits until the state is as wanted. It keeps advancing the controller's clock a little, so
// that a timer set meanwhile does not wait for ever.
func (e *env) await(name, want string) {
	e.Helper()
	localtest.Eventually(e, "CronJob "+name, func() error {
		e.clock.Step(time.Millisecond)
		if got := e.state(name); got != want && (!strings.HasSuffix(want, "...") || !strings.HasPrefix(got, strings.TrimSuffix(want, "..."))) {
			return fmt.Errorf("it is %s, want %s", got, want)
		}
		return nil
	})
}

func (e *env) end(job string, phase api.JobPhase) {
	e.Helper()
	data := fmt.Sprintf(`{"status":{"state":{"phase":%q,"lastTransitionTime":%q}}}`, phase, e.clock.Now().UTC().Format(time.RFC3339))
	if _, err := e.jobs.Patch(e.Context(), job, types.MergePatchType, []byte(data), metav1.PatchOptions{}, "status"); err != nil {
		e.Fatal(err)
	}
}

// hours returns the controller's next full hour, and the names of the CronJob's Jobs by hours from
// the present one.
func (e *env) hours(cron string) (hour time.Time, job func(n int) string) {
	hour = e.clock.Now().Truncate(time.Hour)
	return hour, func(n int) string { return fmt.Sprintf("%s-%d", cron, hour.Add(time.Duration(n)*time.Hour).Unix()) }
}

// TestJobsAreCreatedOnSchedule follows a CronJob over restarts of the manager: Jobs with labels,
// annotations and owner, the status, and the history.
func TestJobsAreCreatedOnSchedule(t *testing.T) {
	e := newEnv(t)
	stop := e.start()
	e.create("c", `{schedule: "0 * * * *", timeZone: Europe/Berlin, successfulJobsHistoryLimit: 1, failedJobsHistoryLimit: 0,`+
		` jobTemplate: {metadata: {labels: {team: a}, annotations: {note: b}}, spec: {tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: c, image: busybox}]}}}]}}}`)
	hour, job := e.hours("c")
	//   1. On time.
	e.clock.SetTime(hour.Add(time.Hour))
	e.await("c", fmt.Sprintf("jobs [%s] active [%[1]s] last %[1]s", job(1)))
	j, err := e.jobs.Get(t.Context(), job(1), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Fatal(err)
	}
	if owner := metav1.GetControllerOf(j); owner == nil || owner.Kind != "CronJob" || owner.Name != "c" || j.GetLabels()["team"] != "a" || j.GetAnnotations()["note"] != "b" ||
		j.GetAnnotations()[api.CronJobScheduledTimestampKey] != hour.Add(time.Hour).In(berlin).Format(time.RFC3339) {
		t.Errorf("the Job has the metadata %v", j.Object["metadata"])
	}
	e.end(job(1), api.Completed)
	e.await("c", fmt.Sprintf("jobs [%s] active [] last %[1]s", job(1)))
	if e.cron("c").Status.LastSuccessfulTime == nil {
		t.Error("there is no lastSuccessfulTime")
	}
	//   2. A manager that starts anew creates nothing twice, and the last of what it missed.
	stop()
	e.clock.SetTime(hour.Add(3*time.Hour + 10*time.Minute))
	stop = e.start()
	e.await("c", fmt.Sprintf("jobs [%s %s] active [%[2]s] last %[2]s", job(1), job(3)))
	//   3. The history: one that completed, none that failed.
	e.end(job(3), api.Failed)
	e.await("c", fmt.Sprintf("jobs [%s] active [] last %s", job(1), job(3)))
	//   4. Two managers at once, as over a change of leader.
	e.start()
	e.clock.SetTime(hour.Add(4 * time.Hour))
	e.await("c", fmt.Sprintf("jobs [%s %s] active [%[2]s] last %[2]s", job(1), job(4)))
	stop()
	e.end(job(4), api.Completed)
	e.await("c", fmt.Sprintf("jobs [%s] active [] last %[1]s", job(4)))
	//   5. Suspended.
	if _, err := e.cronJobs.Patch(t.Context(), "c", types.MergePatchType, []byte(`{"spec":{"suspend":true,"startingDeadlineSeconds":60}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	// The other one is created by the real clock, hours before: only its last time is due. The
	// controller has seen the change before it sees the other one.
	e.create("other", `{schedule: "0 * * * *", `+strings.TrimSpace(compact)+"}")
	_, other := e.hours("other")
	e.await("other", fmt.Sprintf("jobs [%s] active [%[1]s] last %[1]s", other(0)))
	e.clock.SetTime(hour.Add(5 * time.Hour))
	e.await("other", fmt.Sprintf("jobs [%s %s] active [%[1]s %[2]s] last %[2]s", other(0), other(1)))
	e.await("c", fmt.Sprintf("jobs [%s] active [] last %[1]s", job(4)))
}

const compact = `jobTemplate: {spec: {tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: c, image: busybox}]}}}]}}`

func TestConcurrencyPolicies(t *testing.T) {
	e := newEnv(t)
	for name, policy := range map[string]string{"allow": "Allow", "forbid": "Forbid", "replace": "Replace"} {
		e.create(name, `{schedule: "0 * * * *", concurrencyPolicy: `+policy+", "+compact+"}")
	}
	e.start()
	hour, _ := e.hours("")
	state := func(cron string, jobs, active []int, last int) string {
		names := func(n []int) (out []string) {
			for _, i := range n {
				out = append(out, fmt.Sprintf("%s-%d", cron, hour.Add(time.Duration(i)*time.Hour).Unix()))
			}
			return out
		}
		return fmt.Sprintf("jobs %v active %v last %s", names(jobs), names(active), names([]int{last})[0])
	}
	e.clock.SetTime(hour.Add(time.Hour))
	for _, cron := range []string{"allow", "forbid", "replace"} {
		e.await(cron, state(cron, []int{1}, []int{1}, 1))
	}
	e.clock.SetTime(hour.Add(2 * time.Hour))
	e.await("allow", state("allow", []int{1, 2}, []int{1, 2}, 2))
	e.await("replace", state("replace", []int{2}, []int{2}, 2))
	e.await("forbid", state("forbid", []int{1}, []int{1}, 1))
	// The time that was forbidden is still due.
	e.end(fmt.Sprintf("forbid-%d", hour.Add(time.Hour).Unix()), api.Completed)
	e.await("forbid", state("forbid", []int{1, 2}, []int{2}, 2))
}

// TestTheDeadlineOfAMissedTime lets two CronJobs miss a time by ten minutes.
func TestTheDeadlineOfAMissedTime(t *testing.T) {
	e := newEnv(t)
	e.create("short", `{schedule: "0 * * * *", startingDeadlineSeconds: 300, `+compact+"}")
	e.create("long", `{schedule: "0 * * * *", startingDeadlineSeconds: 900, `+compact+"}")
	hour, short := e.hours("short")
	_, long := e.hours("long")
	e.clock.SetTime(hour.Add(time.Hour + 10*time.Minute))
	e.start()
	e.await("long", fmt.Sprintf("jobs [%s] active [%[1]s] last %[1]s", long(1)))
	// The next time is the first of the other one.
	e.clock.SetTime(hour.Add(2 * time.Hour))
	e.await("short", fmt.Sprintf("jobs [%s] active [%[1]s] last %[1]s", short(2)))
}

// TestWhatIsWrongIsSaid checks that each mistake is refused, or named in a condition, with its path.
func TestWhatIsWrongIsSaid(t *testing.T) {
	e := newEnv(t)
	e.start()
	for name, c := range map[string]struct{ fields, want string }{
		"no-schedule": {"{" + compact + "}", "spec.schedule"}, "empty": {`{schedule: "", ` + compact + "}", "spec.schedule"},
		"zone": {`{schedule: "TZ=UTC 0 * * * *", ` + compact + "}", "spec.schedule"}, "bad": {`{schedule: "61 * * * *", ` + compact + "}", "spec.schedule"}, "mars": {`{schedule: "@daily", timeZone: Mars/Olympus, ` + compact + "}", "spec.timeZone"},
		"local":   {`{schedule: "@daily", timeZone: Local, ` + compact + "}", "spec.timeZone"},
		"no-zone": {`{schedule: "@daily", timeZone: "", ` + compact + "}", "spec.timeZone"}, "policy": {`{schedule: "@daily", concurrencyPolicy: Never, ` + compact + "}", "spec.concurrencyPolicy"},
		"limit": {`{schedule: "@daily", failedJobsHistoryLimit: -1, ` + compact + "}", "spec.failedJobsHistoryLimit"}, "deadline": {`{schedule: "@daily", startingDeadlineSeconds: -1, ` + compact + "}", "spec.startingDeadlineSeconds"},
		"template": {`{schedule: "@daily", jobTemplate: {spec: {tasks: []}}}`, "spec.jobTemplate.spec.tasks"}, strings.Repeat("n", 53): {`{schedule: "@daily", ` + compact + "}", "metadata.name"},
		"unknown": {`{schedule: "@daily", jobTemplat: {}, ` + compact + "}", "spec.jobTemplat"},
	} {
		if err := e.try(name, c.fields); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the answer is %v, want one that names %s", name, err, c.want)
		}
	}
	e.create("never", `{schedule: "0 0 31 2 *", `+compact+"}") // which the API server's rules do not see
	e.await("never", `jobs [] active [] last never; Valid InvalidSpec: spec.schedule: "0 0 31 2 *": ...`)
	if _, err := e.cronJobs.Patch(t.Context(), "never", types.MergePatchType, []byte(`{"spec":{"schedule":"@daily"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.await("never", "jobs [] active [] last never")
	// A Job that the server refuses is tried again, also after a mistake was mended.
	e.create("refused", `{schedule: "0 * * * *", jobTemplate: {spec: {minAvailable: 5, tasks: [{name: main, replicas: 1, template: {spec: {containers: [{name: c, image: busybox}]}}}]}}}`)
	hour, job := e.hours("refused")
	e.clock.SetTime(hour.Add(time.Hour))
	e.await("refused", "jobs [] active [] last never; Created Refused: ...")
	if message := e.cron("refused").Status.Conditions[0].Message; !strings.Contains(message, "minAvailable") {
		t.Errorf("the message is %s", message)
	}
	if _, err := e.cronJobs.Patch(t.Context(), "refused", types.MergePatchType, []byte(`{"spec":{"jobTemplate":{"spec":{"minAvailable":1}}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.await("refused", fmt.Sprintf("jobs [%s] active [%[1]s] last %[1]s", job(1)))
	localtest.Eventually(t, "an event about the refusal", func() error {
		if !slices.ContainsFunc(e.events(), func(ev corev1.Event) bool {
			return ev.Reason == "SubmissionFailed" && ev.InvolvedObject.Name == "refused"
		}) {
			return fmt.Errorf("there is none")
		}
		return nil
	})
}
