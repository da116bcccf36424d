package manager_test

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// TestWhatNoNodeAcceptsSaysWhy asks for what no node has, as a Job, as a pod, as a PodGroup and as a
// workflow. Each of them names the cause; the Job and the events count nodes, too.
func TestWhatNoNodeAcceptsSaysWhy(t *testing.T) {
	e := startUnmanaged(t)
	nodes := e.core.CoreV1().Nodes()
	list, err := nodes.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 4 {
		t.Fatalf("%d nodes: %v", len(list.Items), err)
	}
	tainted := list.Items[0].Name
	taint := func(taints string) {
		patch := []byte(`{"spec":{"taints":` + taints + `}}`)
		if _, err := nodes.Patch(e.Context(), tainted, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	taint(`[{"key":"example.com/reserved","effect":"NoSchedule"}]`)
	defer taint("null")
	e.run()
	e.deletesWorkflows()
	cases := map[string]struct{ spec, causes, counted string }{
		"claim": {
			"volumes: [{name: data, persistentVolumeClaim: {claimName: missing}}]",
			`node(s) had untolerated taint(s), persistentvolumeclaim "missing" not found`,
			`1 node(s) had untolerated taint(s), persistentvolumeclaim "missing" not found`,
		},
		"selector": {
			"tolerations: [{operator: Exists}], nodeSelector: {disk: fast}",
			"node(s) didn't match Pod's node affinity/selector", "4 node(s) didn't match Pod's node affinity/selector",
		},
		"taint": {
			"nodeSelector: {kubernetes.io/hostname: " + tainted + "}",
			"node(s) didn't match Pod's node affinity/selector, node(s) had untolerated taint(s)",
			"3 node(s) didn't match Pod's node affinity/selector, 1 node(s) had untolerated taint(s)",
		},
	}
	for name, c := range cases {
		e.apply(fmt.Sprintf(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: %[1]s}
spec: {tasks: [{name: w, replicas: 1, template: {spec: {%[2]s, restartPolicy: Never, containers: [{name: c, image: x}]}}}]}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-pod}
spec: {%[2]s, schedulerName: volcano, containers: [{name: c, image: x}]}
---
apiVersion: scheduling.volcano.sh/v1beta1
kind: PodGroup
metadata: {name: %[1]s}
spec: {minMember: 1}
---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s-member, annotations: {scheduling.k8s.io/group-name: %[1]s}}
spec: {%[2]s, schedulerName: volcano, containers: [{name: c, image: x}]}
---
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: %[1]s}
spec:
  entrypoint: main
  templates: [{name: main, %[3]s, container: {image: x, command: [x]}}]`, name, c.spec, c.spec))
	}
	for name, c := range cases {
		e.until(name, says(batch.JobScheduled, "Unschedulable", "no node accepts 1 pod: "+c.counted))
		e.says(podGroupResource, name, "no node accepts 1 pod: "+c.causes)
		e.says(workflowResource, name, "Unschedulable: no node accepts 1 pod: "+c.causes)
		for _, pod := range []string{name + "-pod", name + "-member"} {
			e.eventually(pod+" says why it waits", func() error {
				p, err := e.core.CoreV1().Pods(e.ns).Get(t.Context(), pod, metav1.GetOptions{})
				if err != nil {
					return err
				}
				for _, condition := range p.Status.Conditions {
					if condition.Type == corev1.PodScheduled && condition.Message == "no node accepts 1 pod: "+c.causes {
						return nil
					}
				}
				return fmt.Errorf("its conditions are %v", p.Status.Conditions)
			})
		}
		e.eventually("an event counts the nodes", func() error {
			events, err := e.core.CoreV1().Events(e.ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name + "-pod"})
			if err != nil {
				return err
			}
			for _, event := range events.Items {
				if event.Reason == "FailedScheduling" && strings.Contains(event.Message, c.counted) {
					return nil
				}
			}
			return fmt.Errorf("%d events, without %q", len(events.Items), c.counted)
		})
	}
}
