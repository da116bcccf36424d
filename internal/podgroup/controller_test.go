package podgroup_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/podgroup"
	"lockstep.dev/lockstep/internal/scheduler"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithControllerManager()) }

// counter counts the writes that pass through it, by verb, kind and name.
type counter struct {
	apiwriter.Writer
	mu     sync.Mutex
	writes map[string]int
}

func (c *counter) count(what string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writes[what]++
}

func (c *counter) of(what string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.writes[what]
}

func (c *counter) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Sprint(c.writes)
}

func (c *counter) Bind(m apiwriter.Meta, b apiwriter.Binding, done func(error)) {
	c.count("bind " + b.Pod.Name)
	c.Writer.Bind(m, b, done)
}

func (c *counter) Status(m apiwriter.Meta, obj apiwriter.Object, urgent bool, done func(apiwriter.Object, error)) {
	c.count(fmt.Sprintf("status %T %s", obj, obj.GetName()))
	c.Writer.Status(m, obj, urgent, done)
}

func (c *counter) Event(about apiwriter.Object, eventType, reason, message string) {
	c.count(fmt.Sprintf("event %T %s", about, about.GetName()))
	c.Writer.Event(about, eventType, reason, message)
}

// world is a cluster with the resources of one test: a namespace, and nodes that only the test's
// pods go to.
type world struct {
	t       *testing.T
	cfg     *rest.Config
	client  kubernetes.Interface
	groups  rest.Interface
	ns      string
	writes  *counter
	stopped func()
}

func newWorld(t *testing.T, ns string) *world {
	t.Helper()
	c := localtest.Shared(t)
	w := &world{t: t, cfg: c.ManagerRESTConfig(), ns: ns}
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.client, err = kubeclient.Clientset(c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	if w.groups, err = kubeclient.ForGroupVersion(c.RESTConfig(), nil, schedulingv1beta1.GroupVersion, scheme.Scheme); err != nil {
		t.Fatal(err)
	}
	_, err = w.client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.start()
	t.Cleanup(func() {
		w.stopped()
		// Remaining pods must not wait in the scheduler of the next test.
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		now := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}
		_ = w.client.AppsV1().Deployments(ns).DeleteCollection(ctx, now, metav1.ListOptions{})
		_ = w.client.AppsV1().ReplicaSets(ns).DeleteCollection(ctx, now, metav1.ListOptions{})
		_ = w.client.CoreV1().Pods(ns).DeleteCollection(ctx, now, metav1.ListOptions{})
	})
	return w
}

// start runs a scheduler and its dependencies, as the manager does.
func (w *world) start() {
	w.t.Helper()
	must := func(err error) {
		w.t.Helper()
		if err != nil {
			w.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	w.stopped = func() { cancel(); running.Wait() }
	informers, err := informer.NewSet(w.cfg)
	must(err)
	model := cluster.New(cluster.Config{Ours: podgroup.Foreign(podgroup.DefaultSchedulerNames)})
	model.Feed(informers)
	sched, err := scheduler.New(scheduler.Config{Cluster: model})
	must(err)
	writer, err := apiwriter.New(apiwriter.Config{REST: w.cfg, Scheme: scheme.Scheme})
	must(err)
	w.writes = &counter{Writer: writer, writes: map[string]int{}}
	groups, err := podgroup.New(podgroup.Config{
		Informers: informers, Cluster: model, Scheduler: sched, Writer: w.writes, ReportAfter: 500 * time.Millisecond,
	})
	must(err)
	running.Go(func() { _ = writer.Run(ctx) })
	informers.Start(ctx)
	synced, giveUp := context.WithTimeout(ctx, 30*time.Second)
	defer giveUp()
	must(informers.WaitForSync(synced))
	running.Go(func() { groups.Run(ctx) })
	running.Go(func() { sched.Run(ctx) })
	running.Go(informers.Wait)
}

// node adds a node for this test's pods.
func (w *world) node(name, cpu string) {
	w.t.Helper()
	resources := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("16Gi"),
		corev1.ResourcePods: resource.MustParse("110"),
	}
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: w.ns + "-" + name, Labels: map[string]string{"for": w.ns}},
		Status: corev1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now()}},
		},
	}
	if _, err := w.client.CoreV1().Nodes().Create(w.t.Context(), n, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

// spec returns the spec of a pod of one cpu on this test's nodes.
func (w *world) spec() corev1.PodSpec {
	return corev1.PodSpec{
		SchedulerName: "lockstep", NodeSelector: map[string]string{"for": w.ns},
		// No kubelet runs the nodes, so sooner or later they are marked unreachable.
		Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		Containers: []corev1.Container{{Name: "c", Image: "none", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
		}}},
	}
}

// pods creates n pods in the PodGroup group, or without a PodGroup if group is empty.
func (w *world) pods(name, group string, n int, change func(*corev1.Pod)) {
	w.t.Helper()
	for i := range n {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(name, "-", i), Labels: map[string]string{"app": name}}, Spec: w.spec()}
		if group != "" {
			p.Annotations = map[string]string{schedulingv1beta1.GroupNameAnnotation: group}
		}
		if change != nil {
			change(p)
		}
		if _, err := w.client.CoreV1().Pods(w.ns).Create(w.t.Context(), p, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *world) group(name string, minMember int32, owners ...metav1.OwnerReference) {
	w.t.Helper()
	g := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: name, OwnerReferences: owners},
		Spec:       schedulingv1beta1.PodGroupSpec{MinMember: minMember},
	}
	g.SetGroupVersionKind(schedulingv1beta1.GroupVersion.WithKind("PodGroup"))
	var created schedulingv1beta1.PodGroup
	if err := w.groups.Post().Namespace(w.ns).Resource("podgroups").Body(g).Do(w.t.Context()).Into(&created); err != nil {
		w.t.Fatal(err)
	}
	if created.Status.Phase != schedulingv1beta1.PodGroupPending {
		w.t.Errorf("a new PodGroup is %q, not Pending", created.Status.Phase)
	}
}

// bound returns how many pods with that app label have a node, and how many there are.
func (w *world) bound(app string) (bound, all int) {
	w.t.Helper()
	list, err := w.client.CoreV1().Pods(w.ns).List(w.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, p := range list.Items {
		if p.Spec.NodeName != "" {
			bound++
		}
	}
	return bound, len(list.Items)
}

// until waits until the wanted number of pods is bound.
func (w *world) until(app string, want int) {
	w.t.Helper()
	w.eventually(func() string {
		if n, all := w.bound(app); n != want {
			return fmt.Sprintf("%d of %d pods of %s are bound, not %d", n, all, app, want)
		}
		return ""
	})
}

// status waits until a PodGroup has this phase, and a condition with this reason.
func (w *world) status(name string, phase schedulingv1beta1.PodGroupPhase, condition schedulingv1beta1.PodGroupConditionType, reason string) {
	w.t.Helper()
	w.eventually(func() string {
		var g schedulingv1beta1.PodGroup
		if err := w.groups.Get().Namespace(w.ns).Resource("podgroups").Name(name).Do(w.t.Context()).Into(&g); err != nil {
			return err.Error()
		}
		if g.Status.Phase != phase || !slices.ContainsFunc(g.Status.Conditions, func(c schedulingv1beta1.PodGroupCondition) bool {
			return c.Type == condition && c.Status == corev1.ConditionTrue && c.Reason == reason
		}) {
			return fmt.Sprintf("PodGroup %s: %+v", name, g.Status)
		}
		return ""
	})
}

func (w *world) eventually(wrong func() string) {
	w.t.Helper()
	localtest.Eventually(w.t, "the world", func() error {
		if why := wrong(); why != "" {
			return fmt.Errorf("still: %s; writes: %s", why, w.writes)
		}
		return nil
	})
}

func TestADeploymentWithAPodGroupBindsAllOrNone(t *testing.T) {
	w := newWorld(t, "deployment")
	w.node("a", "3")
	w.group("g", 4)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "d"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](4), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "d"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{
					Labels: map[string]string{"app": "d"}, Annotations: map[string]string{schedulingv1beta1.GroupNameAnnotation: "g"},
				},
				Spec: w.spec(),
			},
		},
	}
	if _, err := w.client.AppsV1().Deployments(w.ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.status("g", schedulingv1beta1.PodGroupInqueue, schedulingv1beta1.PodGroupUnschedulable, schedulingv1beta1.ReasonNotEnoughResources)
	w.eventually(func() string {
		list, err := w.client.CoreV1().Pods(w.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err.Error()
		}
		told := 0
		for _, p := range list.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
					told++
				}
			}
		}
		if told != 4 {
			return fmt.Sprintf("%d pods say why they wait", told)
		}
		return ""
	})
	if n, _ := w.bound("d"); n != 0 {
		t.Fatalf("%d pods are bound, the gang needs 4 and 3 fit", n)
	}
	w.node("b", "1")
	w.until("d", 4)
	w.status("g", schedulingv1beta1.PodGroupRunning, schedulingv1beta1.PodGroupScheduled, "MinimumPlaced")
	if n := w.writes.of("status *v1beta1.PodGroup g"); n > 2 {
		t.Errorf("%d status writes until scheduled, 2 are allowed: %v", n, w.writes.writes)
	}

	// A running group grows by the pods that fit.
	if _, err := w.client.AppsV1().Deployments(w.ns).Patch(t.Context(), "d", types.MergePatchType, []byte(`{"spec":{"replicas":6}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.node("c", "1")
	w.until("d", 5)
}

// TestAGroupWhosePodsFollowItCostsTwoStatuses creates pods when their PodGroup is Inqueue, as
// operators do.
func TestAGroupWhosePodsFollowItCostsTwoStatuses(t *testing.T) {
	w := newWorld(t, "follow")
	w.node("a", "5")
	owner, err := w.client.CoreV1().ConfigMaps(w.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "training"}},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.group("g", 3, metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: owner.Name, UID: owner.UID})
	w.eventually(func() string {
		var g schedulingv1beta1.PodGroup
		if err := w.groups.Get().Namespace(w.ns).Resource("podgroups").Name("g").Do(t.Context()).Into(&g); err != nil {
			return err.Error()
		}
		if g.Status.Phase != schedulingv1beta1.PodGroupInqueue {
			return fmt.Sprintf("the phase is %q", g.Status.Phase)
		}
		return ""
	})
	w.pods("p", "g", 3, nil)
	w.until("p", 3)
	w.status("g", schedulingv1beta1.PodGroupRunning, schedulingv1beta1.PodGroupScheduled, "MinimumPlaced")
	if err := w.writes.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := w.writes.of("status *v1beta1.PodGroup g"); n != 2 {
		t.Errorf("%d statuses, want 2: %s", n, w.writes)
	}
}

func TestPlainPodsAreBoundOnceEach(t *testing.T) {
	w := newWorld(t, "plain")
	w.node("a", "20")
	w.pods("p", "", 20, nil)
	w.until("p", 20)
	for i := range 20 {
		if n := w.writes.of(fmt.Sprint("bind p-", i)); n != 1 {
			t.Errorf("pod %d was bound %d times", i, n)
		}
	}
}

func TestPodsThatWaitForTheirPodGroup(t *testing.T) {
	w := newWorld(t, "later")
	w.node("a", "10")
	w.pods("p", "g", 3, nil)
	w.pods("marker", "", 1, nil)
	w.until("marker", 1)
	if n, _ := w.bound("p"); n != 0 {
		t.Fatalf("%d pods were bound before their PodGroup said how many are needed", n)
	}
	w.group("g", 4)
	w.status("g", schedulingv1beta1.PodGroupInqueue, schedulingv1beta1.PodGroupUnschedulable, schedulingv1beta1.ReasonNotEnoughTasks)
	w.pods("q", "g", 1, nil)
	w.until("p", 3)
	w.until("q", 1)
}

func TestTwoGroupsThatFitAloneButNotTogether(t *testing.T) {
	w := newWorld(t, "two")
	w.node("a", "5")
	w.group("x", 4)
	w.group("y", 4)
	for i := range 4 { // alternating between the groups
		one := func(group string) func(*corev1.Pod) {
			return func(p *corev1.Pod) { p.Name = fmt.Sprint(group, "-", i) }
		}
		w.pods("x", "x", 1, one("x"))
		w.pods("y", "y", 1, one("y"))
	}
	var first, second string
	w.eventually(func() string {
		x, _ := w.bound("x")
		y, _ := w.bound("y")
		if x > 0 && y > 0 {
			t.Fatalf("x holds %d, y holds %d", x, y)
		}
		if first, second = "x", "y"; y == 4 {
			first, second = "y", "x"
		}
		if x+y != 4 {
			return fmt.Sprintf("%d and %d are bound", x, y)
		}
		return ""
	})
	w.status(second, schedulingv1beta1.PodGroupInqueue, schedulingv1beta1.PodGroupUnschedulable, schedulingv1beta1.ReasonNotEnoughResources)
	err := w.client.CoreV1().Pods(w.ns).DeleteCollection(t.Context(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}, metav1.ListOptions{LabelSelector: "app=" + first})
	if err != nil {
		t.Fatal(err)
	}
	w.until(second, 4)
}

func TestGatedPodsWait(t *testing.T) {
	w := newWorld(t, "gated")
	w.node("a", "10")
	w.pods("p", "", 1, func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/wait"}} })
	w.pods("marker", "", 1, nil)
	w.until("marker", 1)
	if n, _ := w.bound("p"); n != 0 {
		t.Fatal("a gated pod was bound")
	}
	if _, err := w.client.CoreV1().Pods(w.ns).Patch(t.Context(), "p-0", types.JSONPatchType, []byte(`[{"op":"remove","path":"/spec/schedulingGates"}]`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("p", 1)
}

func TestARestartAtRestWritesNothing(t *testing.T) {
	w := newWorld(t, "restart")
	w.node("a", "5")
	w.group("runs", 3)
	w.group("waits", 9)
	w.group("empty", 1)
	w.pods("r", "runs", 3, nil)
	w.pods("s", "waits", 9, nil)
	w.until("r", 3)
	w.status("runs", schedulingv1beta1.PodGroupRunning, schedulingv1beta1.PodGroupScheduled, "MinimumPlaced")
	w.status("waits", schedulingv1beta1.PodGroupInqueue, schedulingv1beta1.PodGroupUnschedulable, schedulingv1beta1.ReasonNotEnoughResources)
	w.status("empty", schedulingv1beta1.PodGroupInqueue, schedulingv1beta1.PodGroupUnschedulable, schedulingv1beta1.ReasonNotEnoughTasks)
	w.eventually(func() string {
		for i := range 9 {
			if w.writes.of(fmt.Sprintf("status *v1.Pod s-%d", i)) == 0 {
				return "not all that wait have been told"
			}
		}
		return ""
	})
	if err := w.writes.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.stopped()
	w.start()
	// When the marker is bound, and the reason why another pod waits is reported, every key has
	// been reconciled.
	w.pods("marker", "", 1, nil)
	w.until("marker", 1)
	w.pods("big", "", 1, func(p *corev1.Pod) {
		p.Spec.Containers[0].Resources.Requests[corev1.ResourceCPU] = resource.MustParse("50")
	})
	w.eventually(func() string {
		if w.writes.of("status *v1.Pod big-0") == 0 {
			return "big has not been told"
		}
		return ""
	})
	w.writes.mu.Lock()
	defer w.writes.mu.Unlock()
	for what, n := range w.writes.writes {
		if what != "bind marker-0" && what != "status *v1.Pod big-0" && what != "event *v1.Pod big-0" {
			t.Errorf("%d times: %s", n, what)
		}
	}
}
