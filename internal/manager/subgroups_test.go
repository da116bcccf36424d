package manager_test

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// groupYAML returns a PodGroup.
func groupYAML(name, spec string) string {
	return fmt.Sprintf(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: %s}
spec: {%s}`, name, spec)
}

// replicaYAML returns a pod of 4 CPUs of a PodGroup, with a label that names its sub-group.
func replicaYAML(group, sub string, pod int) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]s-%[3]d, labels: {replica: "%[2]s"}, annotations: {scheduling.k8s.io/group-name: %[1]s}}
spec:
  schedulerName: volcano
  terminationGracePeriodSeconds: 0
  containers:
  - {name: main, image: busybox, resources: {requests: {cpu: "4"}}}`, group, sub, pod)
}

func (e *env) replica(group, sub string, pods int) {
	e.Helper()
	for i := range pods {
		e.apply(replicaYAML(group, sub, i))
	}
}

// subGroups returns the number of pods with nodes of each sub-group, and their racks.
func (e *env) subGroups(group string) map[string]string {
	e.Helper()
	pods := map[string][]corev1.Pod{}
	for _, p := range e.pods() {
		if strings.HasPrefix(p.Name, group+"-") && p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			pods[p.Labels["replica"]] = append(pods[p.Labels["replica"]], p)
		}
	}
	out := map[string]string{}
	for sub, list := range pods {
		out[sub] = fmt.Sprint(len(list), " in ", strings.Join(racksOf(list), " and "))
	}
	return out
}

// place waits until so many pods of each sub-group have nodes, and returns their racks.
func (e *env) place(group string, want map[string]int) map[string]string {
	e.Helper()
	var got map[string]string
	e.eventually("the sub-groups of "+group, func() error {
		got = e.subGroups(group)
		ok := len(got) == len(want)
		for sub, n := range want {
			ok = ok && strings.HasPrefix(got[sub], fmt.Sprint(n, " in "))
		}
		if !ok {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
	return got
}

func (e *env) deleteReplica(group, sub string, pod int) {
	e.Helper()
	if err := e.core.CoreV1().Pods(e.ns).Delete(e.Context(), fmt.Sprintf("%s-%s-%d", group, sub, pod), metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
}

func TestEachSubGroupStaysInOneRack(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	const policy = "minMember: %d, subGroupPolicy: [{name: replicas, subGroupSize: %d, matchLabelKeys: [replica], networkTopology: {%s}}]"
	e.apply(groupYAML("two", fmt.Sprintf(policy, 6, 3, "mode: hard, highestTierAllowed: 1")))
	e.replica("two", "a", 3)
	e.replica("two", "b", 3)
	got := e.place("two", map[string]int{"a": 3, "b": 3})
	if got["a"] == got["b"] || strings.Contains(got["a"]+got["b"], "and") {
		t.Errorf("the sub-groups are %v", got)
	}
	if text := e.says(podGroupResource, "two", `"phase":"Running"`, `"running":6`); strings.Contains(text, "Supported") {
		t.Error(text)
	}
	// Two places are free, one in each rack.
	e.apply(groupYAML("split", fmt.Sprintf(policy, 2, 2, "mode: hard, highestTierName: rack")))
	e.replica("split", "a", 2)
	e.says(podGroupResource, "split", "there is no room for 1 sub-group of 2 pods, each in one domain of the network of tier rack or below")
	e.apply(groupYAML("soft", fmt.Sprintf(policy, 2, 2, "mode: soft")))
	e.replica("soft", "a", 2)
	e.place("soft", map[string]int{"a": 2})
	// A pod is replaced in the rack of its sub-group.
	for _, group := range []string{"split", "soft"} {
		e.deleteReplica(group, "a", 0)
		e.deleteReplica(group, "a", 1)
	}
	for range 2 {
		e.deleteReplica("two", "a", 1)
		e.eventually("the pod is gone", func() error {
			if _, there := e.subGroups("two")["a"]; !there || strings.HasPrefix(e.subGroups("two")["a"], "3") {
				return fmt.Errorf("%v", e.subGroups("two"))
			}
			return nil
		})
		e.eventually("the pod is replaced", func() error { return e.try(replicaYAML("two", "a", 1)) })
		if now := e.place("two", map[string]int{"a": 3, "b": 3}); !maps.Equal(now, got) {
			t.Fatalf("the sub-groups are %v, and were %v", now, got)
		}
	}
}

// TestASubGroupKeepsItsSurplusNear has sub-groups of 4 pods that need 1.
func TestASubGroupKeepsItsSurplusNear(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	e.apply(jobYAML("one", 1, "", ""))
	e.runs("one", 1)
	taken := e.racks("one")[0]
	for i := range 4 {
		e.apply(replicaYAML("elastic", "a", i))
	}
	e.apply(groupYAML("elastic", "minMember: 1, subGroupPolicy: [{matchLabelKeys: [replica], networkTopology: {highestTierAllowed: 1}}]"))
	if got := e.place("elastic", map[string]int{"a": 4}); strings.Contains(got["a"], taken) || strings.Contains(got["a"], "and") {
		t.Errorf("4 pods are %v, and a pod is in %s", got, taken)
	}
}

func TestAsManySubGroupsAsNeeded(t *testing.T) {
	e, restart := startEvicting(t)
	// 8 pods fit.
	const policy = `subGroupPolicy: [{name: workers, subGroupSize: 3, minSubGroups: 2,
    labelSelector: {matchExpressions: [{key: replica, operator: NotIn, values: [driver]}]}, matchLabelKeys: [replica]}]`
	e.apply(groupYAML("g", "minMember: 1, "+policy))
	e.replica("g", "driver", 1)
	e.replica("g", "a", 3)
	e.replica("g", "b", 2)
	e.says(podGroupResource, "g", "fewer sub-groups of spec.subGroupPolicy[0] have all their pods than minSubGroups", "NotEnoughTasks")
	if got := e.subGroups("g"); len(got) != 0 {
		t.Errorf("pods have nodes before there are 2 sub-groups: %v", got)
	}
	// Whole sub-groups start, beside pods that are in none. There is room for one pod of the third.
	e.replica("g", "c", 3)
	got := e.place("g", map[string]int{"driver": 1, "a": 3, "c": 3})
	e.says(podGroupResource, "g", `"phase":"Running"`, `"running":7`)
	e.apply(jobYAML("one", 1, "", ""))
	e.runs("one", 1)
	// The next has no room, and says so.
	e.apply(groupYAML("late", policy))
	for _, sub := range []string{"a", "b"} {
		e.replica("late", sub, 3)
	}
	e.says(podGroupResource, "late", "there is no room for 2 sub-groups of 3 pods", "Unschedulable")
	// After a restart of the manager the group is as it was.
	restart(func() {})
	e.says(podGroupResource, "g", `"phase":"Running"`, `"running":7`)
	if now := e.subGroups("g"); !maps.Equal(now, got) {
		t.Errorf("after a restart %v, before %v", now, got)
	}
	// Without one of its sub-groups it has less than its minimum.
	e.deleteReplica("g", "a", 0)
	e.says(podGroupResource, "g", `"phase":"Unknown"`)
}

func TestBadSubGroupPolicies(t *testing.T) {
	e, _ := startEvicting(t)
	for policy, want := range map[string]string{
		"{subGroupSize: 0}":                 "spec.subGroupPolicy[0].subGroupSize",
		"{minSubGroups: -1}":                "spec.subGroupPolicy[0].minSubGroups",
		"{minSubGroups: 2}":                 "spec.subGroupPolicy[0].minSubGroups: Invalid value: more than one sub-group needs matchLabelKeys",
		`{matchLabelKeys: [""]}`:            "spec.subGroupPolicy[0].matchLabelKeys[0]",
		"{networkTopology: {mode: medium}}": "spec.subGroupPolicy[0].networkTopology.mode",
		"{networkTopology: {highestTierAllowed: 1, highestTierName: rack}}": "spec.subGroupPolicy[0].networkTopology.highestTierName",
	} {
		if err := e.try(groupYAML("bad", "subGroupPolicy: ["+policy+"]")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", policy, err, want)
		}
	}
	e.apply(groupYAML("selector", "subGroupPolicy: [{labelSelector: {matchExpressions: [{key: a, operator: Like}]}}]"))
	e.replica("selector", "a", 1)
	e.says(podGroupResource, "selector", "InvalidSubGroupPolicy", `spec.subGroupPolicy[0].labelSelector: "Like" is not a valid label selector operator`)
	e.apply(groupYAML("tasks", "minTaskMember: {a: 1}, subGroupPolicy: [{subGroupSize: 2}]"))
	e.says(podGroupResource, "tasks", `"type":"Supported"`, "spec.minTaskMember (for tasks whose pods are in sub-groups)")
	e.apply(groupYAML("apart", "topologyAffinity: {podGroupAntiAffinity: {required: [{podGroupSelector: {matchLabels: {app: a}}, topologyTierName: rack}]}}"))
	e.says(podGroupResource, "apart", `"type":"Supported"`, "spec.topologyAffinity")
}
