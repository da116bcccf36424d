package manager_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// nodesOf returns the nodes of each task's pods, each once, in order, and the number of the pods.
func (e *env) nodesOf(job string) (nodes map[string][]string, pods map[string]int) {
	nodes, pods = map[string][]string{}, map[string]int{}
	for _, p := range e.podsOf(job) {
		task := p.Labels["volcano.sh/task-spec"]
		nodes[task], pods[task] = append(nodes[task], p.Spec.NodeName), pods[task]+1
	}
	for task := range nodes {
		slices.Sort(nodes[task])
		nodes[task] = slices.Compact(nodes[task])
	}
	return nodes, pods
}

// TestTasksOfAJobAttractAndAvoidEachOther places jobs with the annotations of Volcano's plugin
// task-topology on 4 nodes of 8 CPUs, one after another.
func TestTasksOfAJobAttractAndAvoidEachOther(t *testing.T) {
	e, _ := startEvicting(t)
	task := func(name string, replicas int, cpu string) string {
		return fmt.Sprintf("\n  - {name: %s, replicas: %d, template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox, resources: {requests: {cpu: %q}}}]}}}",
			name, replicas, cpu)
	}
	job := func(name, annotations, fields string, tasks ...string) {
		t.Helper()
		text := fmt.Sprintf("apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: %s, annotations: {%s}}\nspec:\n  %s\n  tasks:", name, annotations, fields)
		for _, each := range tasks {
			text += each
		}
		e.apply(text + "\n")
	}
	remove := func(name string) {
		t.Helper()
		e.deleteJob(name)
		// The garbage collector of a cluster that has just started does not know jobs.
		if err := e.core.CoreV1().Pods(e.ns).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		e.eventually("its pods are gone", func() error {
			if n := len(e.podsOf(name)); n > 0 {
				return fmt.Errorf("%d pods", n)
			}
			return nil
		})
	}

	// Parameter servers avoid each other, and workers are with them.
	job("train", `volcano.sh/task-topology-affinity: "ps,worker", volcano.sh/task-topology-anti-affinity: ps`, "minAvailable: 8",
		task("ps", 2, "1"), task("worker", 6, "1"))
	e.runs("train", 8)
	nodes, _ := e.nodesOf("train")
	if len(nodes["ps"]) != 2 || slices.ContainsFunc(nodes["worker"], func(node string) bool { return !slices.Contains(nodes["ps"], node) }) {
		t.Errorf("nodes: %v", nodes)
	}
	remove("train")

	// Pods of one task keep together, as far as a node has room.
	job("pack", `volcano.sh/task-topology-affinity: worker`, "minAvailable: 12", task("worker", 12, "1"))
	e.runs("pack", 12)
	if nodes, _ := e.nodesOf("pack"); len(nodes["worker"]) != 2 {
		t.Errorf("nodes: %v", nodes)
	}
	remove("pack")

	// The order of tasks decides who gets the room; a wrong name is said.
	job("ordered", `volcano.sh/task-topology-task-order: "lead,worker", volcano.sh/task-topology-affinity: "lead,nobody"`, "minAvailable: 1",
		task("worker", 10, "4"), task("lead", 3, "4"))
	e.runs("ordered", 8)
	if _, pods := e.nodesOf("ordered"); pods["lead"] != 3 || pods["worker"] != 5 {
		t.Errorf("pods: %v", pods)
	}
	supported := func(j *batch.Job) error {
		for _, c := range j.Status.Conditions {
			if c.Type == "Supported" && strings.Contains(c.Message, "metadata.annotations[volcano.sh/task-topology-affinity]") {
				return nil
			}
		}
		return fmt.Errorf("conditions: %v", j.Status.Conditions)
	}
	e.until("ordered", supported)

	// Preferences do not keep a job from taking the place of another.
	job("urgent", `volcano.sh/task-topology-affinity: worker`, "priorityClassName: urgent\n  minAvailable: 2", task("worker", 2, "4"))
	e.runs("urgent", 2)
}
