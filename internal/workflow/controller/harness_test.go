package controller_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// TestMain runs a manager process if the test binary is called as "TESTBINARY manager ...", for
// tests that kill it.
func TestMain(m *testing.M) {
	managertest.Main(m, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{
		Count: 8, CPU: "32", Memory: "64Gi", Pods: 500,
	}), localtest.WithInstall())
}

// env is a namespace of a cluster with a manager.
type env struct {
	testing.TB
	ns   string
	core kubernetes.Interface
	argo rest.Interface
	c    *localcluster.Cluster
}

// start returns a fresh namespace of the shared cluster, which one manager in this process manages.
func start(t testing.TB) *env {
	c := managertest.Shared(t)
	return newEnv(t, c)
}

func newEnv(t testing.TB, c *localcluster.Cluster) *env {
	argo, err := kubeclient.ForGroupVersion(c.RESTConfig(), nil, wf.GroupVersion, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	e := &env{TB: t, c: c, core: kubernetes.NewForConfigOrDie(c.RESTConfig()), argo: argo}
	e.ns = localtest.NamespaceForPods(t, e.core)
	return e
}

// eventually waits until f returns nil.
func (e *env) eventually(what string, f func() error) {
	e.Helper()
	localtest.Eventually(e, what, f)
}

// create creates an object of a workflow kind from its spec in YAML, or from a whole manifest if it
// has a kind.
func (e *env) create(resource, name, manifest string) *wf.Workflow {
	e.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		e.Fatalf("%v in\n%s", err, manifest)
	}
	kind := map[string]string{"workflows": "Workflow", "workflowtemplates": "WorkflowTemplate", "clusterworkflowtemplates": "ClusterWorkflowTemplate", "cronworkflows": "CronWorkflow"}[resource]
	u.SetAPIVersion(wf.GroupVersion.String())
	u.SetKind(kind)
	u.SetName(name)
	data, err := u.MarshalJSON()
	if err != nil {
		e.Fatal(err)
	}
	out := &wf.Workflow{}
	answer, err := e.argo.Post().Namespace(e.ns).Resource(resource).Param("fieldValidation", "Strict").SetHeader("Content-Type", "application/json").Body(data).Do(e.Context()).Raw()
	if err == nil {
		err = json.Unmarshal(answer, out)
	}
	if err != nil {
		e.Fatalf("creating %s %s: %v: %s", resource, name, err, answer)
	}
	return out
}

// submit creates a workflow from its spec.
func (e *env) submit(name, spec string) *wf.Workflow {
	e.Helper()
	return e.create("workflows", name, "spec:\n  "+strings.ReplaceAll(strings.TrimSpace(spec), "\n", "\n  "))
}

func (e *env) get(name string) (*wf.Workflow, error) {
	w := &wf.Workflow{}
	err := e.argo.Get().Namespace(e.ns).Resource("workflows").Name(name).Do(e.Context()).Into(w)
	if err == nil {
		w.Status.Nodes, err = compress.Nodes(&w.Status)
	}
	return w, err
}

// until waits until ok returns "" for the workflow; ok describes what is still missing.
func (e *env) until(name string, ok func(*wf.Workflow) error) *wf.Workflow {
	e.Helper()
	var w *wf.Workflow
	e.eventually("workflow "+name, func() error {
		var err error
		if w, err = e.get(name); err == nil {
			err = ok(w)
		}
		if err != nil {
			return fmt.Errorf("%w; %s %q\n%s", err, w.Status.Phase, w.Status.Message, table(w))
		}
		return nil
	})
	return w
}

func inPhase(p wf.WorkflowPhase) func(*wf.Workflow) error {
	return func(w *wf.Workflow) error {
		if w.Status.Phase != p {
			return fmt.Errorf("the phase is %q, not %q", w.Status.Phase, p)
		}
		return nil
	}
}

// table returns the nodes by name: type, phase and message.
func table(w *wf.Workflow) string {
	var lines []string
	for _, n := range w.Status.Nodes {
		line := fmt.Sprintf("%s %s %s", strings.Replace(n.Name, w.Name, "W", 1), n.Type, n.Phase)
		if n.Message != "" {
			line += ": " + n.Message
		}
		if n.Outputs != nil && n.Outputs.Result != nil {
			line += " result=" + *n.Outputs.Result
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// expect compares a workflow's nodes.
func (e *env) expect(w *wf.Workflow, want string) {
	e.Helper()
	want = strings.TrimSpace(strings.ReplaceAll(want, "\t", ""))
	if got := table(w); got != want {
		e.Errorf("the nodes of %s are\n%s\nwant\n%s", w.Name, got, want)
	}
}

// patch patches a workflow as a user would.
func (e *env) patch(name, merge string) {
	e.Helper()
	if err := e.argo.Patch(types.MergePatchType).Namespace(e.ns).Resource("workflows").Name(name).Body([]byte(merge)).Do(e.Context()).Error(); err != nil {
		e.Fatal(err)
	}
}

func (e *env) pods(workflow string) []corev1.Pod {
	e.Helper()
	list, err := e.core.CoreV1().Pods(e.ns).List(e.Context(), metav1.ListOptions{LabelSelector: wf.LabelWorkflow + "=" + workflow})
	if err != nil {
		e.Fatal(err)
	}
	return list.Items
}

// managerCalls counts the manager's requests about the namespace, by "resource verb".
func managerCalls(t testing.TB, c *localcluster.Cluster, ns string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, call := range localtest.ManagerCalls(t, c) {
		if call.Namespace == ns {
			out[call.Resource+" "+call.Verb]++
		}
	}
	return out
}

func sum(calls map[string]int, verbs ...string) int {
	n := 0
	for key, v := range calls {
		if _, verb, _ := strings.Cut(key, " "); slices.Contains(verbs, verb) {
			n += v
		}
	}
	return n
}

var writeVerbs = []string{"create", "update", "patch", "delete", "deletecollection"}
