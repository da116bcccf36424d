package realnodes

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	lockstepscheme "lockstep.dev/lockstep/api/scheme"
)

//go:embed testdata/workflows/*.yaml
var workflowFiles embed.FS

// workflowCase is a workflow. The leading comments of its file say what is expected of it:
//
//	# DISPLAYNAME: TEXT, TEXT ...   texts in the description of the node, or of the workflow by name
//	# pod DISPLAYNAME: init=N       the number of init containers of the node's pod
type workflowCase struct {
	workflow *wf.Workflow
	nodes    map[string][]string
	inits    map[string]string
}

func workflowCases(t *testing.T, namespace string) []*workflowCase {
	t.Helper()
	files, err := fs.Glob(workflowFiles, "testdata/workflows/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []*workflowCase
	for _, file := range files {
		data, err := workflowFiles.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Split(string(data), "\n---\n") {
			c := &workflowCase{workflow: &wf.Workflow{}, nodes: map[string][]string{}, inits: map[string]string{}}
			if err := yaml.UnmarshalStrict([]byte(text), c.workflow); err != nil {
				t.Fatalf("%s: %v\n%s", file, err, text)
			}
			c.workflow.APIVersion, c.workflow.Kind, c.workflow.Namespace = wf.GroupVersion.String(), "Workflow", namespace
			for line := range strings.Lines(text) {
				line, found := strings.CutPrefix(strings.TrimSpace(line), "# ")
				name, wants, ok := strings.Cut(line, ": ")
				if !found || !ok {
					continue
				}
				if pod, isPod := strings.CutPrefix(name, "pod "); isPod {
					c.inits[pod] = strings.TrimPrefix(wants, "init=")
					continue
				}
				c.nodes[name] = strings.Split(wants, ", ")
			}
			cases = append(cases, c)
		}
	}
	return cases
}

// describe returns a description of a node in one line.
func describe(n *wf.NodeStatus) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s message=%q", n.Type, n.Phase, n.Message)
	if n.Progress != "0/1" && n.Progress != "1/1" {
		fmt.Fprintf(&b, " progress=%s", n.Progress)
	}
	if o := n.Outputs; o != nil {
		if o.Result != nil {
			fmt.Fprintf(&b, " result=%q", *o.Result)
		}
		if o.ExitCode != nil {
			fmt.Fprintf(&b, " exit=%s", *o.ExitCode)
		}
		for _, p := range o.Parameters {
			if p.Value != nil {
				fmt.Fprintf(&b, " %s=%q", p.Name, string(*p.Value))
			}
		}
		for _, a := range o.Artifacts {
			fmt.Fprintf(&b, " artifact=%s", a.Name)
		}
	}
	return b.String()
}

// TestWorkflows runs all workflows of testdata in parallel with real containers: results,
// parameters, artifacts, scripts, exit codes, retries, daemons, sidecars, deadlines, container
// sets, requests, images without a shell.
func TestWorkflows(t *testing.T) {
	e := shared.get(t)
	namespace := e.namespace(t)
	store := e.workflowsNamespace(t, namespace)
	client := e.workflows(t)
	cases := workflowCases(t, namespace)
	if len(cases) < 25 {
		t.Fatalf("only %d workflows", len(cases))
	}
	for _, c := range cases {
		if err := client.Post().Namespace(namespace).Resource("workflows").Body(c.workflow).Do(t.Context()).Error(); err != nil {
			t.Fatalf("%s: %v", c.workflow.Name, err)
		}
	}
	for _, c := range cases {
		t.Run(c.workflow.Name, func(t *testing.T) {
			var now wf.Workflow
			eventually(t, "the end of "+c.workflow.Name, func(ctx context.Context) (bool, error) {
				now = wf.Workflow{}
				err := client.Get().Namespace(namespace).Resource("workflows").Name(c.workflow.Name).Do(ctx).Into(&now)
				return now.Status.Phase.Completed(), err
			})
			e.check(t, c, &now)
		})
	}
	if logs, err := filepath.Glob(filepath.Join(store, "logs", "*", "main.log")); err != nil || len(logs) != 1 {
		t.Errorf("archived logs: %v %v", logs, err)
	} else if text, err := os.ReadFile(logs[0]); err != nil || string(text) != "kept\n" {
		t.Errorf("archived log is %q, %v", text, err)
	}
}

// TestArtifactsOutOfTheBox checks that a cluster with real nodes has an artifact repository, and
// that artifacts are deleted when they should be.
func TestArtifactsOutOfTheBox(t *testing.T) {
	e := shared.get(t)
	namespace, client := e.namespace(t), e.workflows(t)
	store := filepath.Join(e.dir, "artifacts", namespace)
	spec := `
entrypoint: main
artifactGC: {strategy: %s}
templates:
- name: main
  steps:
  - - {name: a, template: make}
  - - {name: b, template: use, arguments: {artifacts: [{name: in, from: "{{steps.a.outputs.artifacts.out}}"}]}}
- name: make
  outputs: {artifacts: [{name: out, path: /tmp/out}, {name: kept, path: /tmp/out, archive: {none: {}}, volume: {key: "{{workflow.namespace}}/kept-{{workflow.name}}"}, artifactGC: {strategy: Never}}]}
  container: {image: "localhost/busybox:1", command: [sh, -c, "echo made > /tmp/out"]}
- name: use
  inputs: {artifacts: [{name: in, path: /tmp/in}]}
  container: {image: "localhost/busybox:1", command: [grep, made, /tmp/in]}
`
	for name, strategy := range map[string]string{"completion": wf.ArtifactGCOnCompletion, "deletion": wf.ArtifactGCOnDeletion} {
		w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
		w.SetGroupVersionKind(wf.GroupVersion.WithKind("Workflow"))
		if err := yaml.UnmarshalStrict(fmt.Appendf(nil, spec, strategy), &w.Spec); err != nil {
			t.Fatal(err)
		}
		if err := client.Post().Namespace(namespace).Resource("workflows").Body(w).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool {
		_, err := os.Stat(filepath.Join(store, name))
		return err == nil
	}
	for _, name := range []string{"completion", "deletion"} {
		eventually(t, name+" succeeds", func(ctx context.Context) (bool, error) {
			w := wf.Workflow{}
			err := client.Get().Namespace(namespace).Resource("workflows").Name(name).Do(ctx).Into(&w)
			if w.Status.Phase.Completed() && w.Status.Phase != wf.WorkflowSucceeded {
				t.Fatalf("%s is %s: %s", name, w.Status.Phase, w.Status.Message)
			}
			return w.Status.Phase == wf.WorkflowSucceeded, err
		})
	}
	eventually(t, "the artifacts of one are gone", func(context.Context) (bool, error) { return !there("completion"), nil })
	if !there("deletion") {
		t.Error("the artifacts of the other are gone too")
	}
	if err := client.Delete().Namespace(namespace).Resource("workflows").Name("deletion").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the artifacts of the other are gone", func(context.Context) (bool, error) { return !there("deletion"), nil })
	for _, name := range []string{"completion", "deletion"} {
		if !there("kept-" + name) {
			t.Errorf("what %s keeps is gone", name)
		}
	}
	eventually(t, "the workflow is gone", func(ctx context.Context) (bool, error) {
		err := client.Get().Namespace(namespace).Resource("workflows").Name("deletion").Do(ctx).Error()
		return apierrors.IsNotFound(err), nil
	})
}

// check compares a completed workflow with its expected result.
func (e *env) check(t *testing.T, c *workflowCase, now *wf.Workflow) {
	t.Helper()
	nodes := map[string]*wf.NodeStatus{}
	var all []string
	for _, id := range slices.Sorted(maps.Keys(now.Status.Nodes)) {
		n := now.Status.Nodes[id]
		nodes[n.DisplayName] = &n
		all = append(all, n.DisplayName+": "+describe(&n))
	}
	fail := func(format string, args ...any) {
		t.Errorf(format+"\nworkflow: %s %q\n%s", append(args, now.Status.Phase, now.Status.Message, strings.Join(all, "\n"))...)
	}
	for name, wants := range c.nodes {
		n := nodes[name]
		if n == nil {
			fail("there is no node %s", name)
			continue
		}
		for _, want := range wants {
			if !strings.Contains(describe(n), strings.TrimSpace(want)) {
				fail("node %s: %s\nwant %s", name, describe(n), want)
			}
		}
	}
	for name, want := range c.inits {
		pod, err := e.client.CoreV1().Pods(now.Namespace).Get(t.Context(), wf.PodName(now.Name, nodes[name].Name, nodes[name].TemplateName), metav1.GetOptions{})
		if err != nil {
			fail("pod of %s: %v", name, err)
		} else if got := fmt.Sprint(len(pod.Spec.InitContainers)); got != want {
			fail("pod of %s has %s init containers, want %s", name, got, want)
		}
	}
}

// workflows returns a client of the workflow API.
func (e *env) workflows(t *testing.T) rest.Interface {
	t.Helper()
	config := rest.CopyConfig(e.config)
	config.APIPath, config.GroupVersion = "/apis", &wf.GroupVersion
	config.NegotiatedSerializer = lockstepscheme.Codecs.WithoutConversion()
	client, err := rest.RESTClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// workflowsNamespace prepares a namespace for the workflows, and returns the directory of its
// artifacts.
func (e *env) workflowsNamespace(t *testing.T, namespace string) string {
	t.Helper()
	ctx := t.Context()
	store, err := os.MkdirTemp(e.dir, "artifacts-") // the nodes see the machine's files
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(store, 0o777); err != nil {
		t.Fatal(err)
	}
	must := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(e.client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: wf.RepositoriesConfigMap, Annotations: map[string]string{wf.AnnotationDefaultRepository: "volume"}},
		Data: map[string]string{
			"volume": "volume: {hostPath: " + store + "}",
			"logs":   "volume: {hostPath: " + store + ", keyFormat: \"logs/{{workflow.name}}\"}",
		},
	}, metav1.CreateOptions{}))
	must(e.client.CoreV1().Secrets(namespace).Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "api"}, StringData: map[string]string{"token": "hunter2"},
	}, metav1.CreateOptions{}))
	must(e.client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "weak"}}, metav1.CreateOptions{}))
	for _, role := range []string{"lockstep-workflow-executor", "edit"} {
		must(e.client.RbacV1().RoleBindings(namespace).Create(ctx, &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: namespace, Name: "default"}},
		}, metav1.CreateOptions{}))
	}
	// An image with one file and without a shell.
	root := t.TempDir()
	program, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "busybox"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := lockstep("image", "load", root, "--name", e.name, "--tag", "localhost/noshell:1", "--", "/busybox"); err != nil {
		t.Fatal(err)
	}
	return store
}
