package manager_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// TestMain sets up the shared cluster: 8 nodes of 4 CPUs and 8 GiB, 32 CPUs in total.
//
// When run as "TESTBINARY manager ...", the test binary is the manager, for tests that kill it.
func TestMain(m *testing.M) {
	managertest.Main(m, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{
		Count: 8, CPU: "4", Memory: "8Gi",
	}), localtest.WithInstall())
}

var (
	jobs     = batch.GroupVersion.WithResource("jobs")
	queues   = scheduling.GroupVersion.WithResource("queues")
	commands = bus.GroupVersion.WithResource("commands")
)

// env is a namespace of a cluster with a manager.
type env struct {
	testing.TB
	ns   string
	core kubernetes.Interface
	dyn  dynamic.Interface
	c    *localcluster.Cluster
}

// start returns a new namespace of the shared cluster, which one manager in this process manages.
// At the end of the test its jobs are deleted, and start waits for the end of their pods, so that
// the nodes are free again.
func start(t *testing.T) *env {
	c := managertest.Shared(t)
	e := newEnv(t, c)
	t.Cleanup(e.clean)
	return e
}

// unmanaged is a cluster for tests that start and stop managers themselves, one test at a time.
var unmanaged struct {
	mu      sync.Mutex
	cluster *localcluster.Cluster
}

// startUnmanaged returns a new namespace of a cluster with 4 nodes of 8 CPUs whose only managers
// are those that run starts, and whose API server serves Kubernetes' own PodGroups. No other test uses
// the cluster until this one ends.
func startUnmanaged(t *testing.T) *env {
	unmanaged.mu.Lock()
	t.Cleanup(unmanaged.mu.Unlock)
	if unmanaged.cluster == nil {
		unmanaged.cluster = localtest.Beside(t, localtest.WithControllerManager(), localtest.WithInstall(),
			localtest.WithNodes(localcluster.Nodes{Count: 4, CPU: "8", Memory: "16Gi"}),
			localtest.WithConfig(func(c *localcluster.Config) { c.PodGroups = true }))
	}
	e := newEnv(t, unmanaged.cluster)
	t.Cleanup(func() {
		// The garbage collector of a cluster that has just started does not know jobs.
		if err := e.core.CoreV1().Pods(e.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
		e.clean()
	})
	return e
}

// run runs a manager until stop is called or the test ends. Without the option frugal it tells sooner than
// in production what queues hold, and why PodGroups wait: within a second.
func (e *env) run(options ...managertest.Option) (stop func()) {
	e.Helper()
	soon := func(c *manager.Config) { c.QueueInterval, c.ReportAfter = time.Second, 200*time.Millisecond }
	end, err := managertest.Run(e.c, append([]managertest.Option{soon}, options...)...)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() { _ = end() })
	return func() {
		e.Helper()
		if err := end(); err != nil {
			e.Fatal(err)
		}
	}
}

// frugal has a manager write statuses as seldom as in production, for tests that count its writes.
func frugal(c *manager.Config) { c.QueueInterval, c.ReportAfter = 0, 0 }

func newEnv(t testing.TB, c *localcluster.Cluster) *env {
	e := &env{
		TB: t, c: c,
		core: kubernetes.NewForConfigOrDie(c.RESTConfig()),
		dyn:  dynamic.NewForConfigOrDie(c.RESTConfig()),
	}
	e.ns = localtest.NamespaceForPods(t, e.core)
	return e
}

func (e *env) clean() {
	ctx := context.Background()
	for _, kind := range []schema.GroupVersionResource{jobs, podGroupResource} {
		if err := e.dyn.Resource(kind).Namespace(e.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			e.Error(err)
		}
	}
	// The garbage collector of a cluster that has just started learns about Lockstep's kinds within
	// half a minute.
	err := localtest.Await(ctx, 2*time.Minute, func() error {
		pods, err := e.core.CoreV1().Pods(e.ns).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods, %s among them", len(pods.Items), pods.Items[0].Name)
		}
		return err
	})
	if err != nil {
		e.Errorf("pods remain after the test: %v", err)
	}
}

// eventually waits until f returns nil.
func (e *env) eventually(what string, f func() error) {
	e.Helper()
	localtest.Eventually(e, what, f)
}

func toUnstructured(o runtime.Object, gvk schema.GroupVersionKind) (*unstructured.Unstructured, error) {
	m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		return nil, err
	}
	delete(m, "status")
	u := &unstructured.Unstructured{Object: m}
	u.SetGroupVersionKind(gvk)
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	return u, nil
}

func (e *env) create(j *batch.Job) *batch.Job {
	e.Helper()
	j.Namespace = e.ns
	u, err := toUnstructured(j, batch.GroupVersion.WithKind("Job"))
	if err != nil {
		e.Fatal(err)
	}
	if u, err = e.dyn.Resource(jobs).Namespace(e.ns).Create(e.Context(), u, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
	return e.asJob(u)
}

func (e *env) asJob(u *unstructured.Unstructured) *batch.Job {
	e.Helper()
	var j batch.Job
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &j); err != nil {
		e.Fatal(err)
	}
	return &j
}

func (e *env) job(name string) *batch.Job {
	e.Helper()
	u, err := e.dyn.Resource(jobs).Namespace(e.ns).Get(e.Context(), name, metav1.GetOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return e.asJob(u)
}

// until waits until ok returns nil for the job; ok returns an error that says what is missing.
func (e *env) until(name string, ok func(*batch.Job) error) *batch.Job {
	e.Helper()
	var j *batch.Job
	e.eventually("job "+name, func() error {
		j = e.job(name)
		if err := ok(j); err != nil {
			return fmt.Errorf("%w; status %s", err, asJSON(j.Status))
		}
		return nil
	})
	return j
}

func asJSON(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

func inPhase(p batch.JobPhase) func(*batch.Job) error {
	return func(j *batch.Job) error {
		if j.Status.State.Phase != p {
			return fmt.Errorf("the phase is %q, not %q", j.Status.State.Phase, p)
		}
		return nil
	}
}

func (e *env) pods() []corev1.Pod {
	e.Helper()
	list, err := e.core.CoreV1().Pods(e.ns).List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// podsOf returns the job's pods that are not being deleted.
func (e *env) podsOf(job string) []corev1.Pod {
	e.Helper()
	var out []corev1.Pod
	for _, p := range e.pods() {
		if p.Labels[batch.JobNameKey] == job && p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

func (e *env) command(action bus.Action, kind, name string) {
	e.Helper()
	cmd := &bus.Command{
		ObjectMeta:   metav1.ObjectMeta{Namespace: e.ns, GenerateName: "c-"},
		Action:       action,
		TargetObject: &metav1.OwnerReference{Kind: kind, Name: name},
	}
	u, err := toUnstructured(cmd, bus.GroupVersion.WithKind("Command"))
	if err == nil {
		_, err = e.dyn.Resource(commands).Namespace(e.ns).Create(e.Context(), u, metav1.CreateOptions{})
	}
	if err != nil {
		e.Fatal(err)
	}
}

func (e *env) queue(name string, change func(*scheduling.QueueSpec)) {
	e.Helper()
	q := &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: scheduling.QueueSpec{Weight: 1}}
	change(&q.Spec)
	u, err := toUnstructured(q, scheduling.GroupVersion.WithKind("Queue"))
	if err == nil {
		_, err = e.dyn.Resource(queues).Create(e.Context(), u, metav1.CreateOptions{})
	}
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(func() {
		if err := e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			e.Error(err)
		}
	})
}

// newJob returns a job with one task "main". Without a duration its pods run until they are
// deleted.
func newJob(name string, replicas int32, cpu string, options ...func(*batch.Job)) *batch.Job {
	j := &batch.Job{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: batch.JobSpec{Tasks: []batch.TaskSpec{{
		Name: "main", Replicas: replicas, Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{Name: "main", Image: "busybox", Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)},
			}}},
		}},
	}}}}
	for _, o := range options {
		o(j)
	}
	return j
}

func endsAfter(duration string) func(*batch.Job) {
	return annotated(batch.SimDurationAnnotation, duration)
}

func annotated(key, value string) func(*batch.Job) {
	return func(j *batch.Job) {
		t := &j.Spec.Tasks[0].Template
		if t.Annotations == nil {
			t.Annotations = map[string]string{}
		}
		t.Annotations[key] = value
	}
}

func minAvailable(n int32) func(*batch.Job) {
	return func(j *batch.Job) { j.Spec.MinAvailable = n }
}

// managerWrites counts the manager's writes, by "resource/subresource verb", in the namespace (all
// if empty).
func managerWrites(t testing.TB, c *localcluster.Cluster, ns string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, call := range localtest.ManagerCalls(t, c) {
		if call.Write() && (ns == "" || call.Namespace == ns) {
			out[call.Resource+" "+call.Verb]++
		}
	}
	return out
}

func sum(writes map[string]int) int {
	n := 0
	for _, v := range writes {
		n += v
	}
	return n
}
