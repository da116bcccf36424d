package manager_test

import (
	"fmt"
	"maps"
	"os"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

var topologies = topology.GroupVersion.WithResource("nodetopologies")

// pinned makes a job's pods request as many CPUs for themselves as they request in total, by
// annotations KEY=VALUE.
func pinned(cpus int, annotations ...string) func(*batch.Job) {
	return func(j *batch.Job) {
		for _, a := range annotations {
			key, value, _ := strings.Cut(a, "=")
			annotated(key, value)(j)
		}
		r := &j.Spec.Tasks[0].Template.Spec.Containers[0].Resources
		q := *resource.NewQuantity(int64(cpus), resource.DecimalSI)
		r.Requests, r.Limits = corev1.ResourceList{corev1.ResourceCPU: q}, corev1.ResourceList{corev1.ResourceCPU: q}
	}
}

const (
	exclusive   = topology.RequestAnnotation + "=true"
	ack         = topology.ACKSchedulerAnnotation + "=true"
	staticBurst = topology.ACKPolicyAnnotation + "=static-burst"
)

// given returns the CPUs that the pods were assigned, by node. It checks that every requesting pod
// has an assignment of the right size, and that no exclusive CPU is assigned twice.
func (e *env) given() map[string][]reservation.Pod {
	e.Helper()
	out := map[string][]reservation.Pod{}
	taken := map[string]cpuset.Set{}
	for _, p := range e.pods() {
		if topology.RequestAnnotations(p.Annotations) == nil || p.Spec.NodeName == "" {
			continue
		}
		r, err := request.ParseResult(p.Annotations[topology.ResultAnnotation])
		if err != nil || r.Node != p.Spec.NodeName {
			e.Errorf("pod %s on %s was given %+v: %v", p.Name, p.Spec.NodeName, r, err)
			continue
		}
		for _, c := range p.Spec.Containers {
			if c.Resources.Limits.Cpu().IsZero() {
				continue
			}
			if got := int64(r.Containers[c.Name].CPUs.Len()); got != c.Resources.Limits.Cpu().Value() {
				e.Errorf("pod %s container %s was given %d CPUs for a limit of %s", p.Name, c.Name, got, c.Resources.Limits.Cpu())
			}
		}
		if both := r.Exclusive().Intersect(taken[r.Node]); !both.IsEmpty() {
			e.Errorf("CPUs %s of node %s are given out twice, the second time to %s", both, r.Node, p.Name)
		}
		taken[r.Node] = taken[r.Node].Union(r.Exclusive())
		out[r.Node] = append(out[r.Node], reservation.Pod{Key: p.Name, Created: p.CreationTimestamp.Time, Result: r})
	}
	return out
}

// TestPinnedPods runs on 12 simulated nodes of 256 CPUs, with a manager as a separate process.
func TestPinnedPods(t *testing.T) {
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall(), localtest.WithManager(self, "manager"),
		localtest.WithNodes(localcluster.Nodes{Count: 12, Topology: machines.AMD256NPS4.Name, Pods: 250}))
	e := newEnv(t, c)

	// 200 pods in 30 gangs, with three forms of request, 1,000 CPUs in total.
	submit := func(prefix string) (names []string) {
		for i := range 10 {
			for _, j := range []*batch.Job{
				newJob(fmt.Sprintf("%s-a%d", prefix, i), 8, "8", pinned(8, topology.RequestAnnotation+"={span: single-l3}")),
				newJob(fmt.Sprintf("%s-b%d", prefix, i), 6, "4", pinned(4, exclusive)),
				newJob(fmt.Sprintf("%s-c%d", prefix, i), 6, "2", pinned(2, ack)),
			} {
				e.create(j)
				names = append(names, j.Name)
			}
		}
		return names
	}
	run := func(names []string) {
		for _, name := range names {
			e.until(name, inPhase(batch.Running))
		}
	}
	count := func() (n int) {
		for _, pods := range e.given() {
			n += len(pods)
		}
		return n
	}

	t.Run("one write each, with their CPUs", func(t *testing.T) {
		run(submit("g"))
		if n := count(); n != 200 {
			t.Errorf("%d pods were given CPUs, want 200", n)
		}
		w := managerWrites(t, c, e.ns)
		if w["pods create"] != 200 || w["pods patch"]+w["pods update"]+w["pods/binding create"] > 0 {
			t.Errorf("wrote %v for 200 pods", w)
		}
		for _, p := range e.podsOf("g-c0") {
			if p.Annotations[topology.ACKResultAnnotation] == "" {
				t.Errorf("pod %s has no answer in ACK's form: %v", p.Name, p.Annotations)
			}
		}
	})

	t.Run("a restart at rest writes nothing", func(t *testing.T) { restartAtRest(t, e) })

	t.Run("the manager is killed in the middle", func(t *testing.T) {
		before := e.created()
		names := submit("k")
		e.eventually("50 pods more are created", func() error {
			if n := e.created() - before; n < 50 {
				return fmt.Errorf("%d are", n)
			}
			return nil
		})
		if err := c.Kill(localcluster.Manager); err != nil {
			t.Fatal(err)
		}
		e.restart(localcluster.Manager)
		run(names)
		if n := count(); n != 400 {
			t.Errorf("%d pods were given CPUs, want 400", n)
		}
	})

	t.Run("pods of a Deployment are told with their binding", func(t *testing.T) {
		before := managerWrites(t, c, e.ns)
		labels := map[string]string{"app": "web"}
		template := newJob("", 1, "2", pinned(2, exclusive)).Spec.Tasks[0].Template
		template.Labels, template.Spec.SchedulerName, template.Spec.RestartPolicy = labels, scheduling.SchedulerLockstep, ""
		_, err := e.core.AppsV1().Deployments(e.ns).Create(t.Context(), &appsv1.Deployment{
			ObjectMeta: metav1.ObjectMeta{Name: "web"},
			Spec:       appsv1.DeploymentSpec{Replicas: new(int32(5)), Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		e.eventually("the Deployment is there", func() error {
			d, err := e.core.AppsV1().Deployments(e.ns).Get(t.Context(), "web", metav1.GetOptions{})
			if err == nil && d.Status.ReadyReplicas != 5 {
				err = fmt.Errorf("%d of 5 are ready", d.Status.ReadyReplicas)
			}
			return err
		})
		if n := count(); n != 405 {
			t.Errorf("%d pods were given CPUs, want 405", n)
		}
		after := managerWrites(t, c, e.ns)
		if bound, other := after["pods/binding create"]-before["pods/binding create"], sum(after)-sum(before); bound != 5 || other != 5 {
			t.Errorf("bound 5 pods by %d bindings in %d writes", bound, other)
		}
	})

	t.Run("the pods of a workflow", func(t *testing.T) {
		workflow := &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "metadata": map[string]any{"name": "w"},
			"spec": map[string]any{"entrypoint": "main", "templates": []any{map[string]any{
				"name": "main", "metadata": map[string]any{"annotations": map[string]any{
					topology.RequestAnnotation: "{bind: full-core}", topology.ResultAnnotation: "spoofed", batch.SimDurationAnnotation: "1h"}},
				"container": map[string]any{"image": "busybox", "command": []any{"true"},
					"resources": map[string]any{"limits": map[string]any{"cpu": "2"}, "requests": map[string]any{"cpu": "2"}}},
			}}},
		}}
		before := managerWrites(t, c, e.ns)["pods create"]
		gvr := schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
		if _, err := e.dyn.Resource(gvr).Namespace(e.ns).Create(t.Context(), workflow, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.eventually("its pod runs", func() error {
			p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), "w", metav1.GetOptions{})
			if err == nil && p.Status.Phase != corev1.PodRunning {
				err = fmt.Errorf("it is %s: %v", p.Status.Phase, p.Annotations)
			}
			return err
		})
		if n := count(); n != 406 {
			t.Errorf("%d pods were given CPUs, want 406", n)
		}
		if n := managerWrites(t, c, e.ns)["pods create"] - before; n != 1 {
			t.Errorf("%d creates for one pod", n)
		}
	})

	t.Run("a NodeTopology that arrives late", func(t *testing.T) {
		node, cpus := "", 0 // the node with the most free CPUs
		for i := range 12 {
			used := 0
			for _, p := range e.given()[localcluster.NodeName(i)] {
				for _, c := range p.Result.Containers {
					used += c.CPUs.Len()
				}
			}
			if node == "" || used < cpus {
				node, cpus = localcluster.NodeName(i), used
			}
		}
		object, err := e.dyn.Resource(topologies).Get(t.Context(), node, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := e.dyn.Resource(topologies).Delete(t.Context(), node, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		late := newJob("late", 2, "4", pinned(4, exclusive))
		late.Spec.Tasks[0].Template.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node}
		e.create(late)
		e.until("late", waitsWith("NotEnoughResources", "need nodes with a NodeTopology"))
		object.SetResourceVersion("")
		object.SetUID("")
		if _, err := e.dyn.Resource(topologies).Create(t.Context(), object, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		e.until("late", inPhase(batch.Running))
		count()
	})

	t.Run("what no node can give", func(t *testing.T) {
		e.create(newJob("never", 1, "16", pinned(16, topology.RequestAnnotation+"={span: single-l3}")))
		e.until("never", waitsWith("Unschedulable", "no node could ever give a pod 16 free CPUs within one L3 domain"))
	})

	t.Run("static-burst widens as others allow", func(t *testing.T) {
		e.create(newJob("burst", 1, "4", pinned(4, ack, staticBurst)))
		e.until("burst", inPhase(batch.Running))
		pod := e.podsOf("burst")[0]
		u, err := e.dyn.Resource(topologies).Get(t.Context(), pod.Spec.NodeName, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var object topology.NodeTopology
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &object); err != nil {
			t.Fatal(err)
		}
		layout, err := reservation.Layout(&object)
		if err != nil {
			t.Fatal(err)
		}
		state := reservation.Replay(pod.Spec.NodeName, layout, nil, e.given()[pod.Spec.NodeName])
		containers, shared := state.Effective()
		if len(state.Problems) > 0 {
			t.Errorf("the node's state has problems: %v", state.Problems)
		}
		if wide := containers[pod.Name]["main"].Set; wide.Len() != 8 || !wide.SubsetOf(shared) {
			t.Errorf("widened to %s, want an L3 domain of 8 CPUs in the shared pool %s", wide, shared)
		}
	})
}

// waitsWith checks that a job waits for this reason.
func waitsWith(reason, message string) func(*batch.Job) error {
	return func(j *batch.Job) error {
		c := j.Status.Condition(batch.JobScheduled)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, message) {
			return fmt.Errorf("the condition is %+v, want %s: %s", c, reason, message)
		}
		return nil
	}
}

// restart restarts a component that was killed, as soon as its end has been noticed.
func (e *env) restart(name localcluster.Component) {
	e.Helper()
	e.eventually("start "+string(name), func() error { return e.c.StartComponent(e.Context(), name) })
}

// created returns the number of pod creates that the API server has received so far; moments of a
// run are defined by this number.
func (e *env) created() int { return managerWrites(e, e.c, e.ns)["pods create"] }

// atRest returns the manager's writes, without leases, when there has been none for a second.
func (e *env) atRest() map[string]int {
	e.Helper()
	var writes map[string]int
	since := time.Now()
	e.eventually("the manager is at rest", func() error {
		now := managerWrites(e, e.c, "")
		maps.DeleteFunc(now, func(what string, _ int) bool { return strings.HasPrefix(what, "leases ") })
		if !maps.Equal(now, writes) {
			writes, since = now, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("it writes: %v", writes)
		}
		return nil
	})
	return writes
}

// restartAtRest kills the manager when nothing is left to do: the next manager must find that out
// without a write, except for its lease.
func restartAtRest(t *testing.T, e *env) {
	t.Helper()
	before := e.atRest()
	if err := e.c.Kill(localcluster.Manager); err != nil {
		t.Fatal(err)
	}
	e.restart(localcluster.Manager)
	e.create(newJob("after", 1, "100m"))
	e.until("after", inPhase(batch.Running))
	// Its writes about other objects may come after those about the new job.
	after := e.atRest()
	before["pods create"]++
	before["jobs/status update"]++
	if !maps.Equal(before, after) {
		t.Errorf("a restart at rest wrote %v, want %v (with the two writes of a new job)", after, before)
	}
}
