package manager_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// TestOwnersSayThatTheirPodsAreAGang checks the annotation group-min-member on a Deployment and on a
// StatefulSet, whose pods name no PodGroup.
func TestOwnersSayThatTheirPodsAreAGang(t *testing.T) {
	e, restart := startEvicting(t)
	e.apply(jobYAML("rest", 6, "", "")) // leaves room for two pods
	e.runs("rest", 6)
	for kind, fields := range map[string]string{"Deployment": "", "StatefulSet": "serviceName: none\n  podManagementPolicy: Parallel"} {
		e.apply(fmt.Sprintf(`
apiVersion: apps/v1
kind: %[1]s
metadata:
  name: gang
  annotations: {scheduling.volcano.sh/group-min-member: "3"}
spec:
  %[2]s
  replicas: 3
  selector: {matchLabels: {app: gang, kind: %[1]s}}
  template:
    metadata: {labels: {app: gang, kind: %[1]s}}
    spec:
      schedulerName: volcano
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`, kind, fields))
	}
	pods := func(kind string) (bound, all int, group string) {
		t.Helper()
		list, err := e.core.CoreV1().Pods(e.ns).List(t.Context(), metav1.ListOptions{LabelSelector: "kind=" + kind})
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range list.Items {
			if p.Spec.NodeName != "" {
				bound++
				group = p.Annotations[scheduling.GroupNameAnnotation]
			}
		}
		return bound, len(list.Items), group
	}
	groups := func() map[string]string { // names of the PodGroups by the kind of their owner
		t.Helper()
		list, err := e.dyn.Resource(podGroupResource).Namespace(e.ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		names := map[string]string{}
		for _, g := range list.Items {
			names[g.GetOwnerReferences()[0].Kind] = g.GetName()
		}
		return names
	}
	e.eventually("both have PodGroups that wait", func() error {
		if names := groups(); len(names) != 2 {
			return fmt.Errorf("PodGroups: %v", names)
		}
		return nil
	})
	for _, name := range groups() {
		e.says(podGroupResource, name, "NotEnoughResources")
	}
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		if bound, all, _ := pods(kind); bound != 0 || all != 3 {
			t.Fatalf("%d of the %d pods of the %s have nodes", bound, all, kind)
		}
	}
	restart(func() {}) // the owners are asked for again
	e.deleteJob("rest")
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		e.eventually("the "+kind+" starts", func() error {
			if bound, _, _ := pods(kind); bound != 3 {
				return fmt.Errorf("%d pods have nodes", bound)
			}
			return nil
		})
		names, owner := groups(), kind
		if kind == "Deployment" {
			owner = "ReplicaSet"
		}
		if _, _, group := pods(kind); group == "" || group != names[owner] {
			t.Errorf("the pods of the %s are of group %q; the PodGroups are %v", kind, group, names)
		}
		e.says(podGroupResource, names[owner], `"phase":"Running"`)
	}
	// Pods that come later belong to the gang.
	patch := []byte(`{"spec":{"replicas":4}}`)
	if _, err := e.core.AppsV1().Deployments(e.ns).Patch(t.Context(), "gang", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the fourth pod runs", func() error {
		if bound, _, _ := pods("Deployment"); bound != 4 {
			return fmt.Errorf("%d pods have nodes", bound)
		}
		return nil
	})
	foreground := metav1.DeletePropagationForeground
	if err := e.core.AppsV1().Deployments(e.ns).Delete(t.Context(), "gang", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	if err := e.core.AppsV1().StatefulSets(e.ns).Delete(t.Context(), "gang", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the PodGroups are gone with their owners", func() error {
		if names := groups(); len(names) > 0 {
			return fmt.Errorf("PodGroups: %v", names)
		}
		return nil
	})
}

// TestPodsAskForANetwork checks the annotations of pods without a PodGroup: those of one owner are near
// each other, and a pod alone is where the network is.
func TestPodsAskForANetwork(t *testing.T) {
	e := startNetwork(t)
	e.apply(twoRacks)
	const deployment = `
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}, annotations: {%[3]s}}
    spec:
      schedulerName: volcano
      terminationGracePeriodSeconds: 0
      containers: [{name: main, image: busybox, resources: {requests: {cpu: "4"}}}]`
	bound := func(app string, want int) []corev1.Pod {
		t.Helper()
		var pods []corev1.Pod
		e.eventually(app+" has nodes", func() error {
			pods = nil
			for _, p := range e.pods() {
				if p.Labels["app"] == app && p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
					pods = append(pods, p)
				}
			}
			if len(pods) != want {
				return fmt.Errorf("%d pods", len(pods))
			}
			return nil
		})
		return pods
	}
	e.apply(fmt.Sprintf(deployment, "hard", 5, `volcano.sh/network-topology-mode: hard, volcano.sh/network-topology-highest-tier: "1"`))
	pods := bound("hard", 4) // as many as a rack holds
	if racks := racksOf(pods); len(racks) != 1 {
		t.Errorf("the pods are in %v", racks)
	}
	group := pods[0].Annotations[scheduling.GroupNameAnnotation]
	if !strings.HasPrefix(group, "podgroup-") {
		t.Errorf("the pods are in the group %q", group)
	}
	e.eventually("the fifth says why it waits", func() error {
		for _, p := range e.pods() {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodScheduled && strings.Contains(c.Message, "no domain of the network of tier 1 or below has room") {
					return nil
				}
			}
		}
		return fmt.Errorf("no pod does")
	})
	// A pod without an owner, and with a tier that the network does not have below it.
	e.apply(strings.Replace(fmt.Sprintf(plainPod, "alone"), "{name: alone}",
		`{name: alone, annotations: {volcano.sh/network-topology-highest-tier: "0"}}`, 1))
	e.eventually("the pod says why it waits", func() error {
		p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), "alone", metav1.GetOptions{})
		if err == nil && !strings.Contains(asJSON(p.Status.Conditions), "the network has no domain of tier 0 or below") {
			err = fmt.Errorf("%v", p.Status.Conditions)
		}
		return err
	})
	// What is not valid has no effect, and an event says so.
	e.apply(strings.Replace(fmt.Sprintf(plainPod, "bad"), "{name: bad}",
		`{name: bad, annotations: {volcano.sh/network-topology-mode: medium}}`, 1))
	e.podQueue("bad")
	e.eventually("an event", func() error {
		list, err := e.core.CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=bad,reason=AnnotationIgnored"})
		if err == nil && (len(list.Items) == 0 || !strings.Contains(list.Items[0].Message, "volcano.sh/network-topology-mode")) {
			err = fmt.Errorf("%d events", len(list.Items))
		}
		return err
	})
}
