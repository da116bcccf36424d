package manager_test

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// TestQueuesKeepToTheirNodeGroups checks affinity of queues: required, preferred and against groups,
// for the queues below, for Jobs and for pods of others, and after a change while a job waits.
func TestQueuesKeepToTheirNodeGroups(t *testing.T) {
	e, _ := startEvicting(t)
	list, err := e.core.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	group := map[string]string{} // by node
	label := func(node, value string) {
		t.Helper()
		data := fmt.Appendf(nil, `{"metadata":{"labels":{"volcano.sh/nodegroup-name":%s}}}`, value)
		if _, err := e.core.CoreV1().Nodes().Patch(context.Background(), node, types.MergePatchType, data, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	for i, n := range list.Items[:3] { // the fourth node is in no group
		group[n.Name] = []string{"blue", "red", "green"}[i]
		label(n.Name, `"`+group[n.Name]+`"`)
		t.Cleanup(func() { label(n.Name, "null") })
	}
	queue := func(name, spec string) string {
		t.Helper()
		name = e.ns + "-" + name
		e.apply(fmt.Sprintf("apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: %s}\nspec: %s", name, spec))
		t.Cleanup(func() { _ = e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{}) })
		return name
	}
	groupsOf := func(job string) (groups map[string]int) {
		t.Helper()
		groups = map[string]int{}
		for _, p := range e.podsOf(job) {
			groups[group[p.Spec.NodeName]]++
		}
		return groups
	}
	expect := func(job string, pods int32, want map[string]int) {
		t.Helper()
		e.runs(job, pods)
		got := groupsOf(job)
		for name := range got {
			if got[name] != want[name] {
				t.Fatalf("%s: pods by group of nodes: %v; want %v", job, got, want)
			}
		}
		e.deleteJob(job)
	}

	//   1. Required groups; a node holds two pods.
	blue := queue("blue", `{affinity: {nodeGroupAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [blue, red]}}}`)
	e.apply(jobYAML("required", 4, "queue: "+blue, ""))
	expect("required", 4, map[string]int{"blue": 2, "red": 2})

	//   2. A job that does not fit says why, and starts when the queue gets another group.
	e.apply(jobYAML("waits", 6, "queue: "+blue, ""))
	e.waits("waits", "cpu", "queue "+blue+" uses nodes of these groups: only blue, red")
	queue("blue", `{affinity: {nodeGroupAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [blue, red, green]}}}`)
	expect("waits", 6, map[string]int{"blue": 2, "red": 2, "green": 2})

	//   3. Against groups, also those of the queue above; nodes in no group are allowed.
	other := queue("other", `{affinity: {nodeGroupAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [blue, red]}}}`)
	below := queue("below", "{parent: "+other+"}")
	e.apply(jobYAML("against", 4, "queue: "+below, ""))
	expect("against", 4, map[string]int{"green": 2, "": 2})

	//   4. Preferred groups come first, and others are used when they are full.
	likes := queue("likes", `{affinity: {nodeGroupAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [red]}}}`)
	e.apply(jobYAML("preferred", 2, "queue: "+likes, ""))
	expect("preferred", 2, map[string]int{"red": 2})
	e.apply(jobYAML("more", 8, "queue: "+likes, ""))
	expect("more", 8, map[string]int{"red": 2, "blue": 2, "green": 2, "": 2})

	//   5. Affinity of the pods themselves counts, too: nothing is both.
	pod := func(name, node string) {
		t.Helper()
		e.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, annotations: {scheduling.volcano.sh/queue-name: %s}}
spec:
  schedulerName: lockstep
  terminationGracePeriodSeconds: 0
  affinity:
    nodeAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
        nodeSelectorTerms:
        - matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [%s]}]
  containers: [{name: main, image: busybox, resources: {requests: {cpu: "1"}}}]`, name, blue, node))
	}
	pod("inside", list.Items[1].Name)
	pod("outside", list.Items[3].Name)
	e.eventually("the pod inside of its queue's groups has its node", func() error {
		if node := e.pod("inside").Spec.NodeName; node != list.Items[1].Name {
			return fmt.Errorf("it is on %q", node)
		}
		return nil
	})
	e.says(corev1.SchemeGroupVersion.WithResource("pods"), "outside", "didn't match Pod's node affinity/selector", "only blue, red, green")
}

// TestDisruptionBudgetsOfJobs checks that pods of a job with a budget of its own are evicted only if
// there is no other way.
func TestDisruptionBudgetsOfJobs(t *testing.T) {
	e, _ := startEvicting(t)
	budget := func(name, annotation string) {
		t.Helper()
		text := jobYAML(name, 4, "minAvailable: 1", "")
		e.apply(`apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: ` + name + `, annotations: {` + annotation + `}}` + text[len("\napiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {name: "+name+"}"):])
		e.runs(name, 4)
	}
	budget("kept", `volcano.sh/jdb-min-available: "100%"`)
	e.says(jobs, "kept", "volcano.sh/jdb-min-available", "want one of them")
	e.deleteJob("kept")
	budget("free", "a: b")
	budget("kept", `volcano.sh/jdb-max-unavailable: "1"`)
	// Two pods must leave. Those of the younger job would lose less work, but it allows only one.
	e.apply(jobYAML("claimant", 2, "priorityClassName: urgent", ""))
	e.runs("claimant", 2)
	if kept := len(e.podsOf("kept")); kept < 3 {
		t.Errorf("%d pods of the job with a budget are left", kept)
	}
	// Three more: there is no other way than to go below the budget.
	e.apply(jobYAML("second", 4, "priorityClassName: urgent", ""))
	e.runs("second", 4)
}

// TestTasksOfHigherPriorityComeFirst checks that pods above the minimum are placed in the order of
// their tasks' priorities, and evicted in the reverse order.
func TestTasksOfHigherPriorityComeFirst(t *testing.T) {
	e, _ := startEvicting(t)
	e.apply(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: mixed}
spec:
  minAvailable: 1
  tasks:
  - name: worker
    replicas: 8
    template: {spec: {restartPolicy: Never, containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]}}
  - name: lead
    replicas: 3
    template: {spec: {priorityClassName: urgent, restartPolicy: Never, containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]}}
`)
	e.runs("mixed", 8)
	tasks := func() map[string]int {
		n := map[string]int{}
		for _, p := range e.podsOf("mixed") {
			if p.DeletionTimestamp == nil {
				n[p.Labels["volcano.sh/task-spec"]]++
			}
		}
		return n
	}
	if n := tasks(); n["lead"] != 3 || n["worker"] != 5 {
		t.Fatalf("pods by task: %v", n)
	}
	e.apply(jobYAML("claimant", 4, "priorityClassName: urgent", ""))
	e.runs("claimant", 4)
	if n := tasks(); n["lead"] != 3 || n["worker"] != 1 {
		t.Errorf("pods by task after an eviction: %v", n)
	}
}

// TestQueuesInAHierarchyOfAnnotations divides 8 places between a group of two queues, of weight 3, and
// a queue of weight 1. By the weights in their specs the third queue would get nearly all of them.
func TestQueuesInAHierarchyOfAnnotations(t *testing.T) {
	e, _ := startEvicting(t)
	queue := func(name, path, weights string, weight int) string {
		t.Helper()
		name = e.ns + "-" + name
		e.apply(fmt.Sprintf(`apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata:
  name: %s
  annotations: {volcano.sh/hierarchy: %s, volcano.sh/hierarchy-weights: %q}
spec: {weight: %d}`, name, path, weights, weight))
		t.Cleanup(func() { _ = e.dyn.Resource(queues).Delete(context.Background(), name, metav1.DeleteOptions{}) })
		return name
	}
	prod, dev, other := queue("prod", "root/science/prod", "1/3/2", 1), queue("dev", "root/science/dev", "1/3/1", 1), queue("other", "root/other", "1/1", 100)
	e.apply(jobYAML("before", 8, "", ""))
	e.runs("before", 8)
	for name, q := range map[string]string{"p": prod, "d": dev, "o": other} {
		e.apply(jobYAML(name, 8, "minAvailable: 1\n  queue: "+q, ""))
		e.waits(name, "cpu")
	}
	e.deleteJob("before")
	e.eventually("the places are divided", func() error {
		if p, d, o := len(e.podsOf("p")), len(e.podsOf("d")), len(e.podsOf("o")); p != 4 || d != 2 || o != 2 {
			return fmt.Errorf("%d, %d and %d pods; want 4, 2 and 2", p, d, o)
		}
		return nil
	})
}
