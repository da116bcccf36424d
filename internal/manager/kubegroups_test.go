package manager_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

var kubeGroups = schedulingv1alpha2.SchemeGroupVersion.WithResource("podgroups")

// kubeGroupYAML returns a PodGroup of scheduling.k8s.io.
func kubeGroupYAML(name, spec string) string {
	return fmt.Sprintf(`
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: %s}
spec: {%s}`, name, spec)
}

// inKubeGroup returns pods of 4 CPUs, for eight of which the nodes have places, of a PodGroup of scheduling.k8s.io.
func inKubeGroup(group string, from, to int, more string) string {
	var b strings.Builder
	for i := from; i < to; i++ {
		fmt.Fprintf(&b, `---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-%[2]d, labels: {group: %[1]s}}
spec:
  schedulerName: lockstep
  terminationGracePeriodSeconds: 0
  schedulingGroup: {podGroupName: %[1]s}
  %[3]s
  containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]
`, group, i, more)
	}
	return b.String()
}

// boundOf returns the number of pods of a group that have nodes.
func (e *env) boundOf(group string) (n int) {
	e.Helper()
	for _, p := range e.pods() {
		if p.Labels["group"] == group && p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			n++
		}
	}
	return n
}

func (e *env) untilBound(group string, want int) {
	e.Helper()
	e.eventually("the pods of "+group, func() error {
		if n := e.boundOf(group); n != want {
			return fmt.Errorf("%d have nodes, not %d", n, want)
		}
		return nil
	})
}

// untilPodSays waits until a pod's condition PodScheduled has a message with text.
func (e *env) untilPodSays(name, text string) {
	e.Helper()
	e.eventually("the condition of "+name, func() error {
		p := e.pod(name)
		for _, c := range p.Status.Conditions {
			if c.Type == corev1.PodScheduled && strings.Contains(c.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("the conditions are %v", p.Status.Conditions)
	})
}

func (e *env) removePods(selector string) {
	e.Helper()
	err := e.core.CoreV1().Pods(e.ns).DeleteCollection(context.Background(), metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)},
		metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		e.Error(err)
	}
}

// TestKubernetesPodGroups checks gangs of Kubernetes' own API: pods that name a PodGroup of
// scheduling.k8s.io in spec.schedulingGroup.
func TestKubernetesPodGroups(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(func() { e.removePods("") })
	e.run(frugal)

	// Pods may be there before their group. They are not placed one by one.
	e.apply(inKubeGroup("gang", 0, 3, ""))
	for i := range 3 {
		e.untilPodSays(fmt.Sprint("gang-", i), `PodGroup "gang" of scheduling.k8s.io/v1alpha2 in spec.schedulingGroup does not exist`)
	}
	// The group of a workload, as a controller makes it of the template.
	e.apply(`
apiVersion: scheduling.k8s.io/v1alpha2
kind: Workload
metadata: {name: training}
spec: {podGroupTemplates: [{name: workers, schedulingPolicy: {gang: {minCount: 4}}}]}
---` + kubeGroupYAML("gang", `podGroupTemplateRef: {workload: {workloadName: training, podGroupTemplateName: workers}},
  schedulingPolicy: {gang: {minCount: 4}}`))
	e.says(kubeGroups, "gang", `"reason":"Unschedulable"`, "fewer pods exist than spec.schedulingPolicy.gang.minCount")
	if n := e.boundOf("gang"); n != 0 {
		t.Fatalf("%d pods have nodes, of 3 pods of a gang of 4", n)
	}
	e.apply(inKubeGroup("gang", 3, 4, ""))
	e.untilBound("gang", 4)
	e.says(kubeGroups, "gang", `"type":"PodGroupScheduled"`, `"status":"True"`, `"reason":"Scheduled"`)

	// A pod that is replaced gets a node, and a group that was scheduled stays so.
	e.removePods("group=gang")
	e.untilBound("gang", 0)
	e.apply(inKubeGroup("gang", 0, 4, ""))
	e.untilBound("gang", 4)
	e.says(kubeGroups, "gang", `"status":"True"`)
	writes := managerWrites(t, e.c, e.ns)
	if writes["podgroups/status patch"] > 2 || writes["pods/binding create"] != 8 {
		t.Errorf("the manager wrote %v; want at most 2 statuses of the group, and one binding for each of 8 pods", writes)
	}

	// A gang that does not fit gets no node at all: 4 of 8 places are free.
	e.apply(kubeGroupYAML("large", "schedulingPolicy: {gang: {minCount: 5}}") + "\n" + inKubeGroup("large", 0, 5, ""))
	e.says(kubeGroups, "large", `"status":"False"`, `"reason":"Unschedulable"`)
	e.untilPodSays("large-4", "")
	// Pods of a group with the basic policy are placed as they fit.
	e.removePods("group=gang")
	e.untilBound("large", 5)
	e.apply(kubeGroupYAML("any", "schedulingPolicy: {basic: {}}") + "\n" + inKubeGroup("any", 0, 4, ""))
	e.untilBound("any", 3)
	e.says(kubeGroups, "any", `"status":"True"`)
	e.removePods("group=large")
	e.untilBound("any", 4)
}

// TestFieldsOfKubernetesPodGroups checks the fields besides the policy, those that have no effect, and
// pods that are in two groups.
func TestFieldsOfKubernetesPodGroups(t *testing.T) {
	e := startUnmanaged(t)
	t.Cleanup(func() { e.removePods("") })
	e.run()

	e.apply(kubeGroupYAML("claims", "schedulingPolicy: {gang: {minCount: 1}}, resourceClaims: [{name: one, resourceClaimName: gpu}]") +
		"\n" + inKubeGroup("claims", 0, 1, ""))
	e.says(kubeGroups, "claims", "spec.resourceClaims of the PodGroup is not supported")

	e.apply(kubeGroupYAML("racked", "schedulingPolicy: {gang: {minCount: 2}}, schedulingConstraints: {topology: [{key: example.com/rack}]}") +
		"\n" + inKubeGroup("racked", 0, 2, ""))
	e.says(kubeGroups, "racked", `"reason":"Unschedulable"`, "example.com/rack")
	for _, group := range []string{"claims", "racked"} {
		if n := e.boundOf(group); n != 0 {
			t.Errorf("%d pods of %s have nodes", n, group)
		}
	}
	e.removePods("")

	// A queue is named by an annotation of the group.
	e.queue(e.ns, func(*scheduling.QueueSpec) {})
	e.apply(strings.Replace(kubeGroupYAML("queued", "schedulingPolicy: {gang: {minCount: 2}}"), "{name: queued}",
		"{name: queued, annotations: {scheduling.volcano.sh/queue-name: "+e.ns+"}}", 1) + "\n" + inKubeGroup("queued", 0, 2, ""))
	e.untilBound("queued", 2)
	if queue := e.podQueue("queued-0"); queue != e.ns {
		t.Errorf("the pods are in queue %q", queue)
	}
	e.removePods("")

	// The annotation counts, if a pod is in two groups.
	e.apply(`
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: both}
spec: {minMember: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: both, annotations: {scheduling.k8s.io/group-name: both}}
spec:
  schedulerName: lockstep
  schedulingGroup: {podGroupName: both}
  containers: [{name: main, image: busybox}]`)
	e.says(podGroupResource, "both", `"phase":"Running"`)
	e.eventually("an event about spec.schedulingGroup", func() error {
		list, err := e.core.CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=both"})
		if err == nil && !slices.ContainsFunc(list.Items, func(x corev1.Event) bool {
			return x.Reason == "SchedulingGroupIgnored" && strings.Contains(x.Message, "PodGroup both of scheduling.volcano.sh/v1beta1")
		}) {
			err = fmt.Errorf("the events are %+v", list.Items)
		}
		return err
	})
}

// TestKubernetesPodGroupsAreDisruptedAsTheySay checks priorities and disruption modes: a gang of higher
// priority needs one of eight places, which another group has.
func TestKubernetesPodGroupsAreDisruptedAsTheySay(t *testing.T) {
	e := startUnmanaged(t)
	e.run()
	for _, p := range []struct {
		name  string
		value int
	}{{"low", 1}, {"high", 1000}} {
		name := e.ns + "-" + p.name
		e.apply(fmt.Sprintf("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: %s}\nvalue: %d", name, p.value))
		e.Cleanup(func() {
			_ = e.core.SchedulingV1().PriorityClasses().Delete(context.Background(), name, metav1.DeleteOptions{})
		})
	}
	t.Cleanup(func() { e.removePods("") })
	for mode, stay := range map[string]int{"Pod": 7, "PodGroup": 0} {
		victim, claimant := strings.ToLower(mode)+"-victim", strings.ToLower(mode)+"-claimant"
		grouped := func(group string) {
			t.Helper()
			e.eventually("the priority class is admitted", func() error { return e.try(group) })
		}
		grouped(kubeGroupYAML(victim, fmt.Sprintf("schedulingPolicy: {gang: {minCount: 8}}, priorityClassName: %s-low, disruptionMode: %s", e.ns, mode)))
		e.apply(inKubeGroup(victim, 0, 8, ""))
		e.untilBound(victim, 8)
		grouped(kubeGroupYAML(claimant, "schedulingPolicy: {gang: {minCount: 1}}, priorityClassName: "+e.ns+"-high"))
		e.apply(inKubeGroup(claimant, 0, 1, ""))
		e.untilBound(claimant, 1)
		e.untilBound(victim, stay)
		e.removePods("")
		e.eventually("all pods are gone", func() error {
			if n := len(e.pods()); n > 0 {
				return fmt.Errorf("%d are there", n)
			}
			return nil
		})
	}
}
