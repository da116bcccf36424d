package manager_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// jobOn is a Job of one pod for a node.
func jobOn(node, name, cpu string) string {
	return fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  tasks:
  - name: main
    replicas: 1
    template:
      spec:
        restartPolicy: Never
        nodeSelector: {kubernetes.io/hostname: %s}
        containers: [{name: main, image: busybox, resources: {requests: {cpu: %q}}}]
`, name, node, cpu)
}

// TestResizesCountAtOnce resizes a pod in place, and plays its kubelet: what the pod requests counts as
// soon as it is more, what the kubelet has given it counts until it is taken away, and whoever waits for
// that room gets it then.
func TestResizesCountAtOnce(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	nodes, err := e.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node := nodes.Items[0].Name // of 8 CPUs
	e.apply(jobOn(node, "big", "6"))
	e.runs("big", 1)
	pod := e.podsOf("big")[0].Name
	patch := func(data, subresource string) {
		t.Helper()
		_, err := e.core.CoreV1().Pods(e.ns).Patch(t.Context(), pod, types.StrategicMergePatchType, []byte(data), metav1.PatchOptions{}, subresource)
		if err != nil {
			t.Fatal(err)
		}
	}
	kubeletGives := func(cpu int) {
		t.Helper()
		patch(fmt.Sprintf(`{"status":{"containerStatuses":[{"name":"main","allocatedResources":{"cpu":"%d"},"resources":{"requests":{"cpu":"%d"}}}]}}`,
			cpu, cpu), "status")
	}
	resize := func(cpu int) {
		t.Helper()
		patch(fmt.Sprintf(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"%d"}}}]}}`, cpu), "resize")
	}
	kubeletGives(6)

	// 1. It shrinks. Until its kubelet has done so, there is no room for another one.
	resize(2)
	e.apply(jobOn(node, "next", "4"))
	e.waits("next", "cpu")
	kubeletGives(2)
	e.runs("next", 1)
	e.deleteJob("next")

	// 2. It grows, which counts before its kubelet has done anything.
	resize(7)
	e.apply(jobOn(node, "late", "2"))
	e.waits("late", "cpu")
	e.apply(jobOn(node, "small", "1"))
	e.runs("small", 1)
}

// TestResourcesOfPods checks that requests of a whole pod (spec.resources) count as the API server counts
// them: on nodes, in the limits of queues and in their status.
func TestResourcesOfPods(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	queue := e.ns + "-pods"
	job := func(name string, pods, cpu int) {
		t.Helper()
		e.apply(fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %s}
spec:
  queue: %s
  minAvailable: %d
  tasks:
  - name: main
    replicas: %d
    template:
      spec:
        restartPolicy: Never
        resources: {requests: {cpu: %d}}
        containers: [{name: a, image: busybox, resources: {requests: {cpu: "1"}}}, {name: b, image: busybox}]
`, name, queue, pods, pods, cpu))
	}
	e.apply(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: ` + queue + `}
spec: {capability: {cpu: 27}}
`)
	// 1. Four nodes of 8 CPUs take one pod of 6 each, which are 24 CPUs of the queue.
	job("first", 4, 6)
	e.runs("first", 4)
	on := map[string]int{}
	for _, p := range e.podsOf("first") {
		on[p.Spec.NodeName]++
	}
	if len(on) != 4 {
		t.Errorf("pods by node: %v", on)
	}
	e.eventually("the queue counts them", func() error {
		q, err := e.dyn.Resource(queues).Get(t.Context(), queue, metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _ := q.Object["status"].(map[string]any)
		allocated, _ := status["allocated"].(map[string]any)
		if allocated[string(corev1.ResourceCPU)] != "24" {
			return fmt.Errorf("allocated: %v", allocated)
		}
		return nil
	})
	// 2. The queue has 3 CPUs left, and each node has 2.
	job("wide", 2, 2)
	e.until("wide", waitsWith("QueueOverCapability", "cpu"))
	job("large", 1, 3)
	e.until("large", says(batch.JobScheduled, "NotEnoughResources", "cpu"))
	job("small", 1, 2)
	e.runs("small", 1)
}
