package manager_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/machines"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/localcluster"
)

// smallNUMA is a machine of 8 CPUs in two NUMA nodes, 0-3 and 4-7.
var smallNUMA = machines.Machine{Name: "small", Sockets: 2, NUMAPerSocket: 1, CoresPerSocket: 4, Threads: 1, CoresPerL3: 4,
	L3Bytes: 1 << 20, MemoryBytesPerNUMA: 8 << 30}

// publishTopology gives all nodes a NodeTopology until the end of the test.
func (e *env) publishTopology(m machines.Machine) {
	e.Helper()
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&topology.NodeTopology{Spec: m.MustTopology().Encode()})
	if err != nil {
		e.Fatal(err)
	}
	delete(fields, "status")
	list, err := e.core.CoreV1().Nodes().List(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	for _, node := range list.Items {
		object := (&unstructured.Unstructured{Object: fields}).DeepCopy()
		object.SetGroupVersionKind(topology.GroupVersion.WithKind("NodeTopology"))
		object.SetName(node.Name)
		object.SetLabels(map[string]string{localcluster.NodeTypeLabel: localcluster.NodeTypeSimulated})
		if _, err := e.dyn.Resource(topologies).Create(e.Context(), object, metav1.CreateOptions{}); err != nil {
			e.Fatal(err)
		}
		e.Cleanup(func() {
			if err := e.dyn.Resource(topologies).Delete(context.Background(), node.Name, metav1.DeleteOptions{}); err != nil {
				e.Error(err)
			}
		})
	}
}

// numaNodesOf returns on how many NUMA nodes of smallNUMA a pod has CPUs of its own, and how many CPUs.
func (e *env) numaNodesOf(p *corev1.Pod) (numas, cpus int) {
	e.Helper()
	r, err := request.ParseResult(p.Annotations[topology.ResultAnnotation])
	if err != nil {
		e.Fatalf("pod %s: %v", p.Name, err)
	}
	own := r.Exclusive()
	for _, numa := range []string{"0-3", "4-7"} {
		if own.Overlaps(cpuset.MustParse(numa)) {
			numas++
		}
	}
	return numas, own.Len()
}

// numaJob is a Job whose pods have CPUs and memory by limits; Burstable pods have no limit of memory.
func numaJob(name string, pods, cpus int, policy string, burstable bool) string {
	memory := ", memory: 1Mi"
	if burstable {
		memory = ""
	}
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  minAvailable: %d
  tasks:
  - name: main
    replicas: %d
    topologyPolicy: %s
    template:
      spec:
        restartPolicy: Never
        containers: [{name: main, image: busybox, resources: {requests: {cpu: %d}, limits: {cpu: %d%s}}}]
`, name, pods, pods, policy, cpus, cpus, memory)
}

// TestTopologyPolicies checks topologyPolicy of tasks, and the annotation of pods that it stands for, on
// four nodes of two NUMA nodes with four CPUs each.
func TestTopologyPolicies(t *testing.T) {
	e := startUnmanaged(t)
	e.run()

	// 1. Without a NodeTopology nobody can keep the policy, and the job says so. A policy of pods that are
	// not Guaranteed has no effect, as with Volcano; the job says that too.
	e.apply(numaJob("early", 1, 2, "single-numa-node", false))
	e.waits("early", "need nodes with a NodeTopology")
	e.apply(numaJob("burstable", 1, 2, "restricted", true))
	e.runs("burstable", 1)
	e.until("burstable", says(batch.JobSupported, batch.ReasonNotImplemented, "spec.tasks[].topologyPolicy", "Guaranteed"))
	e.deleteJob("burstable")
	e.apply(numaJob("none", 1, 2, "none", false))
	e.runs("none", 1)
	e.deleteJob("none")
	e.publishTopology(smallNUMA)
	e.runs("early", 1)
	e.deleteJob("early")

	// 2. Eight pods of three CPUs: one in each NUMA node.
	e.apply(numaJob("single", 8, 3, "single-numa-node", false))
	e.runs("single", 8)
	for _, p := range e.podsOf("single") {
		if numas, cpus := e.numaNodesOf(&p); numas != 1 || cpus != 3 {
			t.Errorf("pod %s has %d CPUs on %d NUMA nodes", p.Name, cpus, numas)
		}
		if got := p.Annotations[batch.NumaTopologyPolicyKey]; got != "single-numa-node" {
			t.Errorf("pod %s has the annotation %q", p.Name, got)
		}
	}

	// 3. Each NUMA node has one CPU left. Two of them are what a node has, and what best-effort takes.
	// The other policies want two CPUs of one NUMA node, since one has four.
	e.apply(numaJob("restricted", 1, 2, "restricted", false))
	e.waits("restricted", "2 free CPUs within the fewest NUMA nodes that have as many")
	e.apply(numaJob("one", 1, 2, "single-numa-node", false))
	e.waits("one", "2 free CPUs within one NUMA node")
	e.apply(numaJob("best", 1, 2, "best-effort", false))
	e.runs("best", 1)
	if numas, cpus := e.numaNodesOf(&e.podsOf("best")[0]); numas != 2 || cpus != 2 {
		t.Errorf("best-effort: %d CPUs on %d NUMA nodes", cpus, numas)
	}
	for _, name := range []string{"restricted", "one", "best"} {
		e.deleteJob(name)
	}
	e.deleteJob("single")

	// 4. More than a NUMA node has: two are the fewest, and one is never enough.
	e.apply(numaJob("large", 1, 6, "restricted", false))
	e.runs("large", 1)
	e.apply(numaJob("never", 1, 6, "single-numa-node", false))
	e.waits("never", "no node could ever give a pod 6 free CPUs within one NUMA node")
	e.deleteJob("large")
	e.deleteJob("never")

	// 5. The annotation on a pod of another owner means the same. A policy that is not known is refused by
	// name, and what has no effect is named.
	pod := func(name, policy, limits string) {
		t.Helper()
		e.apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {volcano.sh/numa-topology-policy: %s}}
spec:
  schedulerName: volcano
  containers: [{name: main, image: busybox, resources: {limits: {%s}}}]
`, name, policy, limits))
	}
	pod("own", "single-numa-node", "cpu: 4, memory: 1Mi")
	e.eventually("the pod has its CPUs", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), "own", metav1.GetOptions{})
		if err != nil || p.Spec.NodeName == "" {
			return fmt.Errorf("not bound: %v", err)
		}
		if numas, cpus := e.numaNodesOf(p); numas != 1 || cpus != 4 {
			t.Errorf("%d CPUs on %d NUMA nodes", cpus, numas)
		}
		return nil
	})
	pod("unknown", "strict", "cpu: 1, memory: 1Mi")
	e.podSays("unknown", corev1.PodScheduled, `"strict" is unknown; it is none, best-effort, restricted or single-numa-node`)
	pod("share", "restricted", "cpu: 500m, memory: 1Mi")
	e.podSays("share", topology.RequestRead, "volcano.sh/numa-topology-policy (no container has a whole limits.cpu)")
}

// podSays waits until a condition of a pod contains a text.
func (e *env) podSays(name string, condition corev1.PodConditionType, text string) {
	e.Helper()
	e.eventually("pod "+name+" says why", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(e.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range p.Status.Conditions {
			if c.Type == condition && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("conditions: %+v", p.Status.Conditions)
	})
}
