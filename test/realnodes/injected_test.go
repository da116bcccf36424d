package realnodes

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// injecting adds two containers to every pod of a namespace, as service meshes and secret agents do:
// a container that runs for ever, and a native sidecar.
const injecting = `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: injecting}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration:
      expression: >
        Object{spec: Object.spec{
          containers: [Object.spec.containers{name: "mesh", image: "localhost/sleeper:1"}],
          initContainers: [Object.spec.initContainers{name: "agent", image: "localhost/sleeper:1", restartPolicy: "Always"}]}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: injecting}
spec:
  policyName: injecting
  matchResources: {namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: NAMESPACE}}}
`

// injectedWorkflows are run with injected containers. The texts are parts of the description of a
// node.
var injectedWorkflows = map[string]struct{ spec, node, want string }{
	"plain": {`
entrypoint: main
templates: [{name: main, container: {image: "localhost/busybox:1", command: [echo, hello]}}]`, "plain", `Pod Succeeded message="" exit=0`},
	"fails": {`
entrypoint: main
templates: [{name: main, container: {image: "localhost/busybox:1", command: [sh, -c, exit 3]}}]`, "fails", `Pod Failed message="main: Error (exit code 3)" exit=3`},
	"results": {`
entrypoint: main
templates:
- {name: main, steps: [[{name: a, template: gen}], [{name: b, template: use, arguments: {parameters: [{name: x, value: "{{steps.a.outputs.result}}"}]}}]]}
- {name: gen, script: {image: "localhost/busybox:1", command: [sh], source: echo made}}
- {name: use, inputs: {parameters: [{name: x}]}, container: {image: "localhost/busybox:1", command: [test, "{{inputs.parameters.x}}", "=", made]}}`, "a", `Pod Succeeded message="" result="made"`},
	"set": {`
entrypoint: main
templates:
- name: main
  containerSet:
    containers:
    - {name: a, image: "localhost/busybox:1", command: [sh, -c, sleep 1]}
    - {name: b, image: "localhost/busybox:1", command: [echo, b], dependencies: [a]}`, "set", `Pod Succeeded`},
	"sidecar": {`
entrypoint: main
templates:
- name: main
  container: {image: "localhost/busybox:1", command: [echo, hello]}
  sidecars: [{name: own, image: "localhost/busybox:1", command: [sleep, "10000"]}]`, "sidecar", `Pod Succeeded message="" exit=0`},
}

// TestInjectedContainers checks that containers that others inject end when those of the template
// have ended, and that the node's outcome is that of the template.
func TestInjectedContainers(t *testing.T) {
	e := shared.get(t)
	namespace, client := e.namespace(t), e.workflows(t)
	root, err := busyboxRoot()
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	if _, err := lockstep("image", "load", root, "--name", e.name, "--tag", "localhost/sleeper:1", "--",
		"/bin/sh", "-c", "trap 'exit 0' TERM; sleep 10000 & wait"); err != nil {
		t.Fatal(err)
	}
	policies := dynamic.NewForConfigOrDie(e.config)
	for text := range strings.SplitSeq(strings.ReplaceAll(injecting, "NAMESPACE", namespace), "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		of := policies.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: map[string]string{
			"MutatingAdmissionPolicy":        "mutatingadmissionpolicies",
			"MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
		}[o.GetKind()]})
		if _, err := of.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := of.Delete(context.WithoutCancel(t.Context()), o.GetName(), metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}()
	}
	eventually(t, "the policy is in force", func(ctx context.Context) (bool, error) {
		p, err := e.client.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "probe"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && len(p.Spec.Containers) == 2 && len(p.Spec.InitContainers) == 1, err
	})
	for name, c := range injectedWorkflows {
		w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		w.SetGroupVersionKind(wf.GroupVersion.WithKind("Workflow"))
		if err := yaml.UnmarshalStrict([]byte(c.spec), &w.Spec); err != nil {
			t.Fatal(err)
		}
		if err := client.Post().Namespace(namespace).Resource("workflows").Body(w).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range injectedWorkflows {
		w := &wf.Workflow{}
		eventually(t, "the end of "+name, func(ctx context.Context) (bool, error) {
			w = &wf.Workflow{}
			err := client.Get().Namespace(namespace).Resource("workflows").Name(name).Do(ctx).Into(w)
			return w.Status.Phase.Completed(), err
		})
		found := false
		for _, n := range w.Status.Nodes {
			if n.DisplayName == c.node {
				if found = true; !strings.Contains(describe(&n), c.want) {
					t.Errorf("%s: node %s is %s, want %s", name, c.node, describe(&n), c.want)
				}
			}
		}
		if !found {
			t.Errorf("%s has no node %s: %s", name, c.node, w.Status.Message)
		}
	}
	list, err := e.client.CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != 6 {
		t.Errorf("%d pods are left, want 6", len(list.Items))
	}
	for _, p := range list.Items {
		states := append(p.Status.ContainerStatuses, p.Status.InitContainerStatuses...)
		for _, s := range states {
			if s.State.Terminated == nil {
				t.Errorf("container %s of pod %s has not ended: %s", s.Name, p.Name, fmt.Sprint(s.State))
			}
		}
	}
}
