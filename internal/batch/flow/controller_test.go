package flow

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithInstall()) }

var resources = map[string]schema.GroupVersionResource{
	"JobFlow": api.GroupVersion.WithResource("jobflows"), "JobTemplate": api.GroupVersion.WithResource("jobtemplates"),
	"Job": batch.GroupVersion.WithResource("jobs"),
}

// env is the test's view of the API server, and the controllers that the test runs. Nothing works
// on the Jobs but the test.
type env struct {
	*testing.T
	cfg  *rest.Config
	core kubernetes.Interface
	dyn  dynamic.Interface
	ns   string
	// writer is the writer of the controller started last.
	writer *apiwriter.W
}

func newEnv(t *testing.T) *env {
	t.Helper()
	cfg := localtest.Shared(t).RESTConfig()
	core, err := kubeclient.Clientset(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ns := localtest.Namespace(t, core)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // there is no controller manager
	if _, err := core.CoreV1().ServiceAccounts(ns).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &env{T: t, cfg: cfg, core: core, dyn: dynamic.NewForConfigOrDie(cfg), ns: ns}
}

// start runs a controller that may send requests to the addresses in allow, until stop is called.
func (e *env) start(allow ...string) (stop func()) {
	e.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var err error
	if e.writer, err = apiwriter.New(apiwriter.Config{REST: e.cfg, Scheme: scheme.Scheme, Logger: slog.New(slog.DiscardHandler)}); err != nil {
		e.Fatal(err)
	}
	writer := e.writer
	informers, err := informer.NewSet(e.cfg)
	if err != nil {
		e.Fatal(err)
	}
	guard, err := egress.New(egress.Config{Allow: allow, Proxy: func(*url.URL) (*url.URL, error) { return nil, nil }})
	if err != nil {
		e.Fatal(err)
	}
	c, err := New(Config{Informers: informers, Writer: writer, Requests: guard})
	if err != nil {
		e.Fatal(err)
	}
	ended := make(chan struct{}, 2)
	go func() { _ = writer.Run(ctx); ended <- struct{}{} }()
	informers.Start(ctx)
	if err := informers.WaitForSync(e.Context()); err != nil {
		e.Fatal(err)
	}
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

func (e *env) in(kind string) dynamic.ResourceInterface {
	return e.dyn.Resource(resources[kind]).Namespace(e.ns)
}

// try creates objects in YAML.
func (e *env) try(manifests string) error {
	e.Helper()
	for text := range strings.SplitSeq(manifests, "\n---\n") {
		var u unstructured.Unstructured
		if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
			e.Fatal(err)
		}
		if _, err := e.in(u.GetKind()).Create(e.Context(), &u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) apply(manifests string) {
	e.Helper()
	if err := e.try(manifests); err != nil {
		e.Fatalf("%v in\n%s", err, manifests)
	}
}

// flow returns the manifest of a JobFlow with a spec.
func flow(name, spec string) string {
	return "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobFlow\nmetadata: {name: " + name + "}\nspec: " + spec
}

// template returns the manifest of a JobTemplate with two pods of a task t.
func template(name string) string {
	return "apiVersion: flow.volcano.sh/v1alpha1\nkind: JobTemplate\nmetadata: {name: " + name + "}\n" +
		"spec: {tasks: [{name: t, replicas: 2, template: {spec: {containers: [{name: c, image: busybox}]}}}]}"
}

func (e *env) patch(kind, name, patch string, sub ...string) {
	e.Helper()
	if _, err := e.in(kind).Patch(e.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, sub...); err != nil {
		e.Fatal(err)
	}
}

// reaches sets the phase of a Job.
func (e *env) reaches(job string, phase batch.JobPhase) {
	e.Helper()
	e.patch("Job", job, fmt.Sprintf(`{"status":{"state":{"phase":%q,"lastTransitionTime":%q}}}`, phase, time.Now().UTC().Format(time.RFC3339)), "status")
}

func (e *env) flow(name string) *api.JobFlow {
	e.Helper()
	u, err := e.in("JobFlow").Get(e.Context(), name, metav1.GetOptions{})
	f := &api.JobFlow{}
	if err == nil {
		err = runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, f)
	}
	if err != nil {
		e.Fatal(err)
	}
	return f
}

// jobs returns the names of the Jobs, without those that are being deleted.
func (e *env) jobs() (names []string) {
	e.Helper()
	list, err := e.in("Job").List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, j := range list.Items {
		if j.GetDeletionTimestamp() == nil {
			names = append(names, j.GetName())
		}
	}
	slices.Sort(names)
	return names
}

// await waits until a JobFlow and the Jobs of the namespace are as wanted: the phase of the
// JobFlow, its message, the Jobs.
func (e *env) await(name string, phase api.Phase, message string, jobs ...string) {
	e.Helper()
	localtest.Eventually(e, "JobFlow "+name, func() error {
		s := e.flow(name).Status
		if s.State.Phase != phase || message == "" && s.State.Message != "" || !strings.Contains(s.State.Message, message) {
			return fmt.Errorf("it is %+v, want %s %s", s.State, phase, message)
		}
		if there := e.jobs(); !slices.Equal(there, jobs) {
			return fmt.Errorf("the Jobs are %v, want %v", there, jobs)
		}
		return nil
	})
}

// TestAFlowRunsInOrder follows a JobFlow over restarts of the manager at each step, while its
// templates change.
func TestAFlowRunsInOrder(t *testing.T) {
	e := newEnv(t)
	stop := e.start()
	again := func() { stop(); stop = e.start() }
	//   1. It waits for its templates.
	e.apply(flow("f", `{jobRetainPolicy: delete, flows: [{name: a}, {name: b, dependsOn: {targets: [a]}, patch: {jobSpec: {queue: research, tasks: [{name: t, replicas: 5}]}}}]}`))
	e.await("f", api.Pending, `spec.flows[0].name: there is no JobTemplate "a"`)
	//   2. The first Job.
	e.apply(template("a") + "\n---\n" + template("b"))
	e.await("f", api.Pending, "", "f-a")
	j, err := e.in("Job").Get(t.Context(), "f-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{api.CreatedByJobFlowKey: e.ns + ".f", api.CreatedByJobTemplateKey: e.ns + ".a"}
	if owner := metav1.GetControllerOf(j); owner == nil || owner.Kind != "JobFlow" || owner.Name != "f" {
		t.Errorf("the owner is %v", owner)
	}
	for key, value := range want {
		if j.GetLabels()[key] != value || j.GetAnnotations()[key] != value {
			t.Errorf("%s: the label is %s, the annotation %s", key, j.GetLabels()[key], j.GetAnnotations()[key])
		}
	}
	again()
	e.reaches("f-a", batch.Running)
	e.await("f", api.Running, "", "f-a")
	//   3. A template that changes is that of Jobs to come.
	for _, name := range []string{"a", "b"} {
		e.patch("JobTemplate", name, `{"spec":{"priorityClassName":"high"}}`)
	}
	e.reaches("f-a", batch.Completed)
	e.await("f", api.Running, "", "f-a", "f-b")
	for name, priority := range map[string]string{"f-a": "", "f-b": "high"} {
		u, err := e.in("Job").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got, _, _ := unstructured.NestedString(u.Object, "spec", "priorityClassName"); got != priority || u.GetUID() == j.GetUID() && name != "f-a" {
			t.Errorf("Job %s has the priority class %q", name, got)
		}
		if queue, _, _ := unstructured.NestedString(u.Object, "spec", "queue"); queue != map[string]string{"f-a": "default", "f-b": "research"}[name] {
			t.Errorf("Job %s has the queue %q", name, queue)
		}
		tasks, _, _ := unstructured.NestedSlice(u.Object, "spec", "tasks")
		if replicas := tasks[0].(map[string]any)["replicas"]; replicas != map[string]int64{"f-a": 2, "f-b": 5}[name] {
			t.Errorf("Job %s has %v replicas", name, replicas)
		}
	}
	//   4. A finished Job that is deleted is not created again.
	localtest.Eventually(t, "the template lists its Job", func() error {
		u, err := e.in("JobTemplate").Get(t.Context(), "a", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if list, _, _ := unstructured.NestedStringSlice(u.Object, "status", "jobDependsOnList"); !slices.Equal(list, []string{"f-a"}) {
			return fmt.Errorf("it lists %v", list)
		}
		return nil
	})
	if s := e.flow("f").Status; !slices.Equal(s.CompletedJobs, []string{"f-a"}) { // written with the second Job
		t.Errorf("the status has %+v", s)
	}
	if err := e.in("Job").Delete(t.Context(), "f-a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again()
	e.reaches("f-b", batch.Running)
	localtest.Eventually(t, "the status shows both", func() error {
		s := e.flow("f").Status
		if !slices.Equal(s.CompletedJobs, []string{"f-a"}) || !slices.Equal(s.RunningJobs, []string{"f-b"}) || s.Conditions["f-a"].Phase != batch.Completed {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
	e.await("f", api.Running, "", "f-b")
	//   5. The Jobs of a JobFlow that has succeeded are deleted.
	e.reaches("f-b", batch.Completed)
	e.await("f", api.Succeed, "")
	again()
	e.apply(flow("g", `{flows: [{name: a}]}`)) // the manager has begun
	e.await("g", api.Pending, "", "g-a")
	e.await("f", api.Succeed, "", "g-a")
}

// TestWhatIsWrongIsSaid checks that each mistake is refused, or named in the status, with its path.
func TestWhatIsWrongIsSaid(t *testing.T) {
	e := newEnv(t)
	e.start()
	probe := func(text string) string {
		return `{flows: [{name: a}, {name: b, dependsOn: {targets: [a], probe: {` + text + `}}}]}`
	}
	for name, c := range map[string]struct{ spec, want string }{
		"no-name": {`{flows: [{name: ""}]}`, "spec.flows[0].name"}, "retain": {`{jobRetainPolicy: keep, flows: []}`, "spec.jobRetainPolicy"},
		"port":   {probe(`tcpSocketList: [{taskName: t, port: 70000}]`), "spec.flows[1].dependsOn.probe.tcpSocketList[0].port"},
		"circle": {`{flows: [{name: a, dependsOn: {targets: [a]}}]}`, "spec.flows[*].dependsOn.targets"}, "target": {`{flows: [{name: a, dependsOn: {targets: [none]}}]}`, "spec.flows[0].dependsOn.targets"},
		"no-spec": {`{flows: [{name: a, patch: {}}]}`, "spec.flows[0].patch.jobSpec"}, "unknown": {`{flows: [{name: a, needs: b}]}`, "spec.flows[0].needs"},
	} {
		if err := e.try(flow(name, c.spec)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the answer is %v, want one that names %s", name, err, c.want)
		}
	}
	e.apply(template("ok"))
	more := func(n int) (text string) { // of many entries the API server does not look at what they wait for
		for i := range n {
			text += fmt.Sprintf(", {name: m%d}", i)
		}
		return text
	}
	for name, c := range map[string]struct{ spec, want string }{
		"circle":                   {`{flows: [{name: ok, dependsOn: {targets: [b]}}, {name: b, dependsOn: {targets: [ok]}}` + more(15) + `]}`, "spec.flows[0].dependsOn.targets: flows wait for each other: ok waits for b waits for ok"},
		"target":                   {`{flows: [{name: ok, dependsOn: {targets: [none]}}` + more(128) + `]}`, `spec.flows[0].dependsOn.targets[0]: there is no flow "none"`},
		"twice":                    {`{flows: [{name: ok}, {name: ok}]}`, `spec.flows[1].name: "ok" is also the name of spec.flows[0]`},
		"template":                 {`{flows: [{name: none}]}`, `spec.flows[0].name: there is no JobTemplate "none"`},
		"probe":                    {probe(`httpGetList: [{port: 80}]`), "spec.flows[1].dependsOn.probe.httpGetList[0].taskName: is required"},
		"patch":                    {`{flows: [{name: ok, patch: {jobSpec: {tasks: [{name: t, replica: 3}]}}}]}`, `spec.flows[0].patch.jobSpec: unknown field "tasks[0].replica"`},
		strings.Repeat("long", 15): {`{flows: [{name: ok}]}`, "which has more than 59 characters"},
	} {
		e.apply(flow(name, c.spec))
		e.await(name, api.Pending, c.want)
	}
	// A mistake that is mended.
	e.patch("JobFlow", "circle", `{"spec":{"flows":[{"name":"ok"}]}}`)
	e.await("circle", api.Pending, "", "circle-ok")
}

// TestAJobThatIsRefused checks that the server's answer is in the status, and that the JobFlow goes
// on when its cause has ended.
func TestAJobThatIsRefused(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.apply(strings.ReplaceAll(template("big"), "tasks:", "minAvailable: 9, tasks:"))
	e.apply(flow("f", `{flows: [{name: big}]}`))
	e.await("f", api.Pending, "spec.minAvailable")
	e.patch("JobTemplate", "big", `{"spec":{"minAvailable":1}}`)
	e.await("f", api.Pending, "", "f-big")
	// The name belongs to a Job of another JobFlow.
	e.apply(template("b") + "\n---\n" + template("a-b"))
	e.apply(flow("x-a", `{flows: [{name: b}]}`))
	e.await("x-a", api.Pending, "", "f-big", "x-a-b")
	e.apply(flow("x", `{flows: [{name: a-b}]}`))
	e.await("x", api.Pending, "already exists", "f-big", "x-a-b")
	if err := e.in("JobFlow").Delete(t.Context(), "x-a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := e.in("Job").Delete(t.Context(), "x-a-b", metav1.DeleteOptions{}); err != nil { // there is no garbage collector
		t.Fatal(err)
	}
	e.await("x", api.Pending, "", "f-big", "x-a-b")
}

// TestJobsThatFailOrAreDeleted checks that a JobFlow fails with a reason, and creates nothing more.
func TestJobsThatFailOrAreDeleted(t *testing.T) {
	e := newEnv(t)
	stop := e.start()
	e.apply(template("a") + "\n---\n" + template("b"))
	for _, name := range []string{"f", "g", "h"} {
		e.apply(flow(name, `{flows: [{name: a}, {name: b, dependsOn: {targets: [a]}}]}`))
	}
	for _, name := range []string{"f", "g", "h"} {
		e.await(name, api.Pending, "", "f-a", "g-a", "h-a")
	}
	e.reaches("f-a", batch.Failed)
	e.await("f", api.Failed, "Job f-a is Failed", "f-a", "g-a", "h-a")
	if err := e.in("Job").Delete(t.Context(), "g-a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.await("g", api.Failed, "Job g-a was deleted before its end was seen", "f-a", "h-a")
	// While no manager runs.
	stop()
	if err := e.in("Job").Delete(t.Context(), "h-a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.start()
	e.await("h", api.Failed, "Job h-a was deleted before its end was seen", "f-a")
}

// TestTwoManagersAtOnce checks that a Job is created once while two managers work on a JobFlow.
func TestTwoManagersAtOnce(t *testing.T) {
	e := newEnv(t)
	e.start()
	e.start()
	e.apply(template("a") + "\n---\n" + template("b"))
	e.apply(flow("f", `{flows: [{name: a}, {name: b, dependsOn: {targets: [a]}}]}`))
	e.await("f", api.Pending, "", "f-a")
	uid := func() types.UID {
		u, err := e.in("Job").Get(t.Context(), "f-a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return u.GetUID()
	}
	first := uid()
	e.reaches("f-a", batch.Completed)
	e.await("f", api.Running, "", "f-a", "f-b")
	e.reaches("f-b", batch.Completed)
	e.await("f", api.Succeed, "", "f-a", "f-b")
	if uid() != first {
		t.Error("f-a was created twice")
	}
}

// TestWrites counts the writes of a JobFlow of 20 Jobs: one for each Job, and few statuses. At the
// end it is idle.
func TestWrites(t *testing.T) {
	e := newEnv(t)
	e.start()
	var flows, jobs []string
	for i := range 20 {
		name := fmt.Sprintf("t%02d", i)
		e.apply(template(name))
		flows, jobs = append(flows, "{name: "+name+"}"), append(jobs, "f-"+name)
	}
	counts := func() (creates, statuses, all int) {
		for c, n := range e.writer.Counts() {
			switch c.Reason {
			case "jobflow-job":
				creates += n
			case "jobflow-status":
				statuses += n
			}
			all += n
		}
		return creates, statuses, all
	}
	e.apply(flow("f", "{flows: ["+strings.Join(flows, ", ")+"]}"))
	e.await("f", api.Pending, "", jobs...)
	if creates, statuses, _ := counts(); creates != 20 || statuses > 2 {
		t.Errorf("%d creates and %d statuses until the Jobs were there", creates, statuses)
	}
	started := time.Now()
	for _, phase := range []batch.JobPhase{batch.Running, batch.Completed} {
		for _, j := range jobs {
			e.reaches(j, phase)
		}
	}
	e.await("f", api.Succeed, "", jobs...)
	creates, statuses, _ := counts()
	if most := 4 + int(time.Since(started)/statusSoon); creates != 20 || statuses > most {
		t.Errorf("%d creates and %d statuses, want 20 and at most %d", creates, statuses, most)
	}
	t.Logf("20 Jobs: %d creates, %d statuses", creates, statuses)
	// Another JobFlow has its turn: this one writes nothing more but for the templates' statuses.
	localtest.Eventually(t, "the templates' statuses are written", func() error {
		n := 0
		for c, count := range e.writer.Counts() {
			if c.Reason == "jobtemplate-status" {
				n += count
			}
		}
		if n < 20 {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	_, _, before := counts()
	e.apply(template("z") + "\n---\n" + flow("z", "{flows: [{name: z}]}"))
	e.await("z", api.Pending, "", append(slices.Clone(jobs), "z-z")...)
	if _, _, after := counts(); after-before > 3 { // a create, a status, perhaps the status of the template
		t.Errorf("%d writes beside an idle JobFlow", after-before)
	}
}

// pod creates a running pod of a Job at an address, as a kubelet would report it.
func (e *env) pod(job string, index int, ip string) {
	e.Helper()
	u, err := e.in("Job").Get(e.Context(), job, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-t-%d", job, index), Labels: map[string]string{batch.JobNameKey: job, batch.TaskSpecKey: "t"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(u, batch.GroupVersion.WithKind("Job"))}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "busybox"}}},
	}
	if _, err := e.core.CoreV1().Pods(e.ns).Create(e.Context(), p, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	data, _ := json.Marshal(map[string]any{"status": corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}}})
	if _, err := e.core.CoreV1().Pods(e.ns).Patch(e.Context(), p.Name, types.MergePatchType, data, metav1.PatchOptions{}, "status"); err != nil {
		e.Fatal(err)
	}
}

// TestProbes checks that probes start a Job while its target runs, and that probes by HTTP and TCP
// reach only addresses that the manager's operator allows.
func TestProbes(t *testing.T) {
	e := newEnv(t)
	var ready atomic.Bool
	var header atomic.Value
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		header.Store(r.Header.Get("X-Probe") + " " + r.URL.String())
		if !ready.Load() {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(server.Close)
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	e.apply(template("a") + "\n---\n" + template("b"))
	stop := e.start()
	spec := func(probe string) string {
		return `{flows: [{name: a}, {name: b, dependsOn: {targets: [a], probe: {` + probe + `}}}]}`
	}
	e.apply(flow("status", spec("taskStatusList: [{taskName: t, phase: Running}]")))
	e.apply(flow("http", spec(fmt.Sprintf("httpGetList: [{taskName: t, port: %d, path: '/ready?a=b', httpHeader: {name: X-Probe, value: here}}]", at.Port()))))
	e.apply(flow("tcp", spec(fmt.Sprintf("tcpSocketList: [{taskName: t, port: %d}]", at.Port()))))
	targets := []string{"http-a", "status-a", "tcp-a"}
	for _, name := range []string{"status", "http", "tcp"} {
		e.await(name, api.Pending, "spec.flows[1].dependsOn.probe.", targets...)
		e.reaches(name+"-a", batch.Running)
	}
	//   1. A status: as many pods as the task's minAvailable.
	e.patch("Job", "status-a", `{"status":{"taskStatusCount":{"t":{"phase":{"Running":1}}}}}`, "status")
	e.await("status", api.Running, "spec.flows[1].dependsOn.probe.taskStatusList[0]: task t of Job status-a: 1 of 2 pods are Running", targets...)
	e.patch("Job", "status-a", `{"status":{"taskStatusCount":{"t":{"phase":{"Running":2}}}}}`, "status")
	targets = []string{"http-a", "status-a", "status-b", "tcp-a"}
	e.await("status", api.Running, "", targets...)
	//   2. An address that is not allowed is not asked, and the message says what to do.
	for _, job := range []string{"http-a", "tcp-a"} {
		e.pod(job, 0, at.Addr().String())
		e.pod(job, 1, at.Addr().String())
	}
	e.await("http", api.Running, egress.Flag, targets...)
	e.await("tcp", api.Running, egress.Flag, targets...)
	if header.Load() != nil {
		t.Fatal("the server was asked")
	}
	//   3. An address that is.
	stop()
	e.start(at.Addr().String())
	targets = []string{"http-a", "status-a", "status-b", "tcp-a", "tcp-b"}
	e.await("tcp", api.Running, "", targets...)
	e.await("http", api.Running, "the answer is 503", targets...)
	if got := header.Load(); got != "here /ready?a=b" {
		t.Errorf("the request has the header and path %q", got)
	}
	ready.Store(true)
	e.await("http", api.Running, "", "http-a", "http-b", "status-a", "status-b", "tcp-a", "tcp-b")
}
