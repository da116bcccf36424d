package manager_test

import (
	"fmt"
	"testing"

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
