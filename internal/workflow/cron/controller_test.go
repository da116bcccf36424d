package cron

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/workflow/template"
)

func TestMain(m *testing.M) {
	table := sandbox.Table{}
	for name, f := range template.Evaluators() {
		table[name] = f
	}
	sandbox.Main(table)
	localtest.Main(m, localtest.WithInstall())
}

// testCluster is the test's view of the API server, and the controllers that the test runs.
type testCluster struct {
	*testing.T
	cfg       *rest.Config
	client    rest.Interface
	namespace string
	clock     *clocktesting.FakeClock
}

func newCluster(t *testing.T) *testCluster {
	t.Helper()
	cfg := localtest.Shared(t).RESTConfig()
	client, err := kubeclient.ForGroupVersion(cfg, nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	core, err := kubeclient.Clientset(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return &testCluster{T: t, cfg: cfg, client: client, namespace: localtest.Namespace(t, core), clock: clocktesting.NewFakeClock(time.Now())}
}

// start runs a controller until stop is called.
func (c *testCluster) start() (stop func()) {
	c.Helper()
	stop, _ = c.startOwning(func(string) bool { return true })
	return stop
}

// startOwning runs a controller that owns some of the crons; resync notifies it that its crons have
// changed.
func (c *testCluster) startOwning(owns func(name string) bool) (stop, resync func()) {
	c.Helper()
	return c.startAt(c.cfg, owns)
}

// startAt is startOwning for a controller that uses another address of the server.
func (c *testCluster) startAt(cfg *rest.Config, owns func(name string) bool) (stop, resync func()) {
	c.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	writer, err := apiwriter.New(apiwriter.Config{REST: cfg, Scheme: scheme.Scheme, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		c.Fatal(err)
	}
	pool, err := sandbox.New(sandbox.Config{})
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(pool.Close)
	controller, err := New(Config{REST: cfg, Writer: writer, Evaluators: pool, Clock: c.clock, Log: slog.New(slog.DiscardHandler),
		Owns: func(namespace, name string) bool { return namespace == c.namespace && owns(name) }})
	if err != nil {
		c.Fatal(err)
	}
	ended := make(chan struct{}, 2)
	go func() { _ = writer.Run(ctx); ended <- struct{}{} }()
	go func() { controller.Run(ctx); ended <- struct{}{} }()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			cancel()
			<-ended
			<-ended
		}
	}
	c.Cleanup(stop)
	return stop, controller.Resync
}

func (c *testCluster) create(cron *wf.CronWorkflow) {
	c.Helper()
	cron.Namespace = c.namespace
	cron.Spec.WorkflowSpec = wf.WorkflowSpec{Entrypoint: "main", Templates: []wf.Template{{Name: "main", Suspend: &wf.SuspendTemplate{}}}}
	if err := c.client.Post().Namespace(c.namespace).Resource("cronworkflows").Body(cron).Do(c.Context()).Error(); err != nil {
		c.Fatal(err)
	}
}

// state returns the workflows and the cron's status as text.
func (c *testCluster) state(name string) string {
	c.Helper()
	var list wf.WorkflowList
	if err := c.client.Get().Namespace(c.namespace).Resource("workflows").Do(c.Context()).Into(&list); err != nil {
		c.Fatal(err)
	}
	var out []string
	for i := range list.Items {
		w := &list.Items[i]
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %s", w.Name, w.Spec.Shutdown)))
	}
	var cron wf.CronWorkflow
	if err := c.client.Get().Namespace(c.namespace).Resource("cronworkflows").Name(name).Do(c.Context()).Into(&cron); err != nil {
		c.Fatal(err)
	}
	s := cron.Status
	return fmt.Sprintf("[%s] %d active %d succeeded %d failed %s", strings.Join(out, ", "), len(s.Active), s.Succeeded, s.Failed, s.Phase)
}

// await waits until the state is as wanted. It keeps advancing the controller's clock a little, so
// that a timer set meanwhile does not wait for ever.
func (c *testCluster) await(name, want string) {
	c.Helper()
	deadline := time.Now().Add(time.Minute)
	for {
		got := c.state(name)
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			c.Fatalf("state is %s, want %s", got, want)
		}
		c.clock.Step(time.Millisecond)
		time.Sleep(10 * time.Millisecond)
	}
}

func (c *testCluster) end(name string, phase wf.WorkflowPhase) {
	c.Helper()
	data, _ := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{wf.LabelCompleted: "true", wf.LabelPhase: string(phase)}},
		"status":   map[string]any{"phase": phase},
	})
	if err := c.client.Patch(types.MergePatchType).Namespace(c.namespace).Resource("workflows").Name(name).Body(data).Do(c.Context()).Error(); err != nil {
		c.Fatal(err)
	}
}

func TestController(t *testing.T) {
	c := newCluster(t)
	stop := c.start()
	//   1. A workflow is started when it is due, counted when it ends, and the oldest are deleted.
	none := int32(0)
	c.create(&wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: wf.CronWorkflowSpec{
		Schedules: []string{"0 * * * *"}, ConcurrencyPolicy: wf.ConcurrencyReplace, FailedJobsHistoryLimit: &none}})
	c.await("c", "[] 0 active 0 succeeded 0 failed Active")
	hour := c.clock.Now().Truncate(time.Hour)
	name := func(n int) string { return fmt.Sprintf("c-%d", hour.Add(time.Duration(n)*time.Hour).Unix()) }
	c.clock.SetTime(hour.Add(time.Hour))
	c.await("c", fmt.Sprintf("[%s] 1 active 0 succeeded 0 failed Active", name(1)))
	c.end(name(1), wf.WorkflowSucceeded)
	c.await("c", fmt.Sprintf("[%s] 0 active 1 succeeded 0 failed Active", name(1)))
	//   2. Another controller, after a stop, does not start it again, and continues.
	stop()
	stop = c.start()
	c.clock.SetTime(hour.Add(2 * time.Hour))
	c.await("c", fmt.Sprintf("[%s, %s] 1 active 1 succeeded 0 failed Active", name(1), name(2)))
	//   3. A workflow is replaced.
	c.clock.SetTime(hour.Add(3 * time.Hour))
	c.await("c", fmt.Sprintf("[%s, %s Terminate, %s] 2 active 1 succeeded 0 failed Active", name(1), name(2), name(3)))
	c.end(name(2), wf.WorkflowFailed)
	c.await("c", fmt.Sprintf("[%s, %s] 1 active 1 succeeded 1 failed Active", name(1), name(3)))
	//   4. A time at which no manager runs is missed.
	stop()
	c.clock.SetTime(hour.Add(4*time.Hour + time.Minute))
	c.start()
	c.clock.SetTime(hour.Add(5 * time.Hour))
	c.await("c", fmt.Sprintf("[%s, %s Terminate, %s] 2 active 1 succeeded 1 failed Active", name(1), name(3), name(5)))
}

// TestTwoManagersAtOnce checks that a time starts one workflow while two managers both believe that
// they own the cron.
func TestTwoManagersAtOnce(t *testing.T) {
	c := newCluster(t)
	c.create(&wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: wf.CronWorkflowSpec{Schedules: []string{"0 * * * *"}}})
	c.start()
	c.start()
	hour := c.clock.Now().Truncate(time.Hour)
	var names []string
	for n := 1; n <= 5; n++ {
		at := hour.Add(time.Duration(n) * time.Hour)
		c.clock.SetTime(at)
		names = append(names, fmt.Sprintf("c-%d", at.Unix()))
		c.await("c", fmt.Sprintf("[%s] %d active 0 succeeded 0 failed Active", strings.Join(names, ", "), n))
	}
}

// TestCronsAreShared checks that each manager runs its own crons, and that the crons of a manager
// that dies are taken over, and handed back, without a time that is missed or comes twice.
func TestCronsAreShared(t *testing.T) {
	c := newCluster(t)
	var dead, back atomic.Bool
	first := func(name string) bool { return (name == "a") == !back.Load() && !dead.Load() }
	stop, _ := c.startOwning(first)
	_, resync := c.startOwning(func(name string) bool { return !first(name) })
	for _, name := range []string{"a", "b"} {
		c.create(&wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: wf.CronWorkflowSpec{Schedules: []string{"0 * * * *"}}})
		c.await(name, "[] 0 active 0 succeeded 0 failed Active")
	}
	hour := c.clock.Now().Truncate(time.Hour)
	want := func(name string, n int) string {
		var all []string
		for _, cron := range []string{"a", "b"} {
			for i := 1; i <= n; i++ {
				all = append(all, fmt.Sprintf("%s-%d", cron, hour.Add(time.Duration(i)*time.Hour).Unix()))
			}
		}
		return fmt.Sprintf("[%s] %d active 0 succeeded 0 failed Active", strings.Join(all, ", "), n)
	}
	at := func(n int, late time.Duration) { c.clock.SetTime(hour.Add(time.Duration(n)*time.Hour + late)) }
	both := func(n int) {
		for _, name := range []string{"a", "b"} {
			c.await(name, want(name, n))
		}
	}
	//   1. Both run their crons.
	at(1, 0)
	both(1)
	//   2. One dies just before its time. The other has its crons 20 s later.
	stop()
	at(2, 20*time.Second)
	dead.Store(true)
	resync()
	both(2)
	//   3. Another one joins, and gets its share just after a due time.
	at(3, 0)
	both(3)
	dead.Store(false)
	back.Store(true)
	_, again := c.startOwning(first)
	resync()
	again()
	at(4, 0)
	both(4)
}

func TestWrongCronsSayWhy(t *testing.T) {
	c := newCluster(t)
	c.start()
	c.create(&wf.CronWorkflow{ObjectMeta: metav1.ObjectMeta{Name: "bad"}, Spec: wf.CronWorkflowSpec{Schedules: []string{"61 * * * *"}}})
	localtest.Eventually(t, "the condition", func() error {
		var cron wf.CronWorkflow
		if err := c.client.Get().Namespace(c.namespace).Resource("cronworkflows").Name("bad").Do(t.Context()).Into(&cron); err != nil {
			return err
		}
		if s := cron.Status.Conditions; len(s) != 1 || s[0].Type != wf.ConditionSpecError || !strings.Contains(s[0].Message, "61 * * * *") {
			return fmt.Errorf("conditions: %+v", s)
		}
		return nil
	})
}
