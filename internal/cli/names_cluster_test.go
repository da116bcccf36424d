package cli_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/cli"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m) }

// run runs a command line against a cluster.
func run(c *localcluster.Cluster, args ...string) (code int, out, errOut string) {
	var o, e bytes.Buffer
	code = cli.Run(append(args, "--kubeconfig", c.Kubeconfig()), strings.NewReader(""), &o, &e)
	return code, o.String(), e.String()
}

// create creates the objects of manifests.
func create(t *testing.T, c *localcluster.Cluster, resources map[string]schema.GroupVersionResource, manifests string) {
	t.Helper()
	client := dynamic.NewForConfigOrDie(c.RESTConfig())
	for _, text := range strings.Split(manifests, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		var to dynamic.ResourceInterface = client.Resource(resources[o.GetKind()])
		if o.GetNamespace() != "" {
			to = client.Resource(resources[o.GetKind()]).Namespace(o.GetNamespace())
		}
		localtest.Eventually(t, "creating "+o.GetKind()+" "+o.GetName(), func() error {
			_, err := to.Create(t.Context(), o, metav1.CreateOptions{})
			return err
		})
	}
}

var (
	crds      = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	jobs      = schema.GroupVersionResource{Group: "batch.volcano.sh", Version: "v1alpha1", Resource: "jobs"}
	workflows = schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"}
)

func TestAKindBeforeANameIsNoName(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // for the cache of the cluster's discovery data
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	create(t, c, map[string]schema.GroupVersionResource{"CustomResourceDefinition": crds, "Job": jobs, "Workflow": workflows}, `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {kind: Widget, plural: widgets, singular: widget, listKind: WidgetList}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: hello, namespace: default}
spec:
  minAvailable: 1
  tasks: [{name: t, replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}]
---
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: hello, namespace: default}
spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}
---
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: job, namespace: default}
spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}`)
	there := func(resource schema.GroupVersionResource, name string) bool {
		_, err := dynamic.NewForConfigOrDie(c.RESTConfig()).Resource(resource).Namespace("default").Get(context.Background(), name, metav1.GetOptions{})
		return err == nil
	}
	localtest.Eventually(t, "the kind widget", func() error {
		_, err := dynamic.NewForConfigOrDie(c.RESTConfig()).Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).
			List(t.Context(), metav1.ListOptions{})
		return err
	})
	for _, args := range []string{"delete hello job", "delete job", "retry deploy hello", "resubmit job hello", "app delete job hello", "stop hello job/hello",
		"template delete wf hello", "cron delete wf/hello", "archive delete job/hello --archive=" + t.TempDir() + "/a.db", "suspend widget hello",
		"wait widget hello", "logs widget hello", "restart wf hello", "delete job hello --older=1h", "delete hello --cascade=orphan", "delete job hello --cascade=all"} {
		code, out, errOut := run(c, strings.Fields(args)...)
		if code == 0 || out != "" || !strings.Contains(errOut, "kind") && !strings.Contains(errOut, "this verb is for") && !strings.Contains(errOut, "workflows") &&
			!strings.Contains(errOut, "widget.example.com/hello") && !strings.Contains(errOut, "not found") && !strings.Contains(errOut, "--cascade") {
			t.Errorf("lockstep %s: exit code %d, %q, %q", args, code, out, errOut)
		}
		if !there(jobs, "hello") || !there(workflows, "hello") || !there(workflows, "job") {
			t.Fatalf("lockstep %s deleted something", args)
		}
	}
	// With their kind, objects of other kinds are taken.
	for _, verb := range []string{"suspend vcjob hello", "resume job/hello", "stop job/hello --dry-run", "restart jobs hello", "terminate Job hello"} {
		if code, out, errOut := run(c, strings.Fields(verb)...); code != 0 || !strings.HasPrefix(out, "job.batch.volcano.sh/hello ") {
			t.Errorf("%s: %d %q %q", verb, code, out, errOut)
		}
	}
	code, out, errOut := run(c, "get", "commands", "-o", "jsonpath={range .items[*]}{.action} {.target.kind}/{.target.name} {end}")
	for _, want := range []string{"AbortJob Job/hello ", "ResumeJob Job/hello ", "RestartJob Job/hello ", "TerminateJob Job/hello "} {
		if code != 0 || strings.Count(out, want) != 1 {
			t.Errorf("the commands: %d %q %q, want %q once", code, out, errOut, want)
		}
	}
	if code, out, errOut := run(c, "wait", "job/hello", "--timeout=10ms"); code != 3 || !strings.Contains(errOut, "the time is up") {
		t.Errorf("wait job/hello: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "wait", "job/hello", "--for=condition=Never", "--timeout=10ms"); code != 3 {
		t.Errorf("wait job/hello --for: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "wait", "wf/hello", "--for=jsonpath={.spec.entrypoint}=main", "--timeout=30s"); code != 0 || !strings.Contains(out, "condition met") {
		t.Errorf("wait wf/hello --for: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "logs", "job", "hello"); code != 1 || !strings.Contains(errOut, "job hello has no pods now") {
		t.Errorf("logs job hello: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "describe", "job", "hello"); code != 0 || !strings.Contains(out, "Min Available:") {
		t.Errorf("describe job hello: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "events", "job/hello"); code != 0 || !strings.Contains(errOut, "No events found") {
		t.Errorf("events job/hello: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "get", "jobs,wf", "--no-headers"); code != 0 || strings.Count(out, "hello") != 2 || strings.Contains(out, "NAME") {
		t.Errorf("get jobs,wf: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "get", "wf", "--sort-by=.metadata.name", "--no-headers"); code != 0 || strings.Index(out, "hello") > strings.Index(out, "job") {
		t.Errorf("get wf --sort-by: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "get", "wf", "-o", "custom-columns=N:.metadata.name"); code != 0 || !strings.HasPrefix(out, "N\n") ||
		!strings.Contains(out, "\nhello\n") || !strings.Contains(out, "\njob\n") {
		t.Errorf("get wf -o custom-columns: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "get", "wf", "-o", "name", "--status=Failed", "--sort-by=.metadata.name"); code != 2 || !strings.Contains(errOut, "do not go together") {
		t.Errorf("get wf with flags of both: %d %q %q", code, out, errOut)
	}
	for _, verb := range []string{"get jobs", "events"} {
		if code, out, errOut := run(c, append(strings.Fields(verb), "-o", "nonsense")...); code != 2 || !strings.Contains(errOut, "nonsense") {
			t.Errorf("%s -o nonsense: %d %q %q", verb, code, out, errOut)
		}
	}
	if code, out, errOut := run(c, "get", "Job", "hello", "-o", "name"); code != 0 || out != "job.batch.volcano.sh/hello\n" {
		t.Errorf("get Job hello: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "get", "workflow", "hello", "-o", "name"); code != 0 || out != "workflow.argoproj.io/hello\n" {
		t.Errorf("get workflow hello: %d %q %q", code, out, errOut)
	}
	// Queues are created, closed and opened by name.
	for _, step := range []struct {
		args, want string
		code       int
	}{
		{"queue create queue/research --weight 3 --capability cpu=8,memory=1Gi --deserved cpu=4 --guarantee cpu=2", "queue.scheduling.volcano.sh/research created", 0},
		{"queue create research", "already exists", 1},
		{"queue create other --capability cpu=lots", "--capability cpu=lots: want an amount", 2},
		{"queue create job/other", "this verb is for queues.scheduling.volcano.sh", 2},
		{"queue create other --dry-run", "created (dry run)", 0},
		{"queue close research other", `queues.scheduling.volcano.sh "other" not found`, 1},
		{"queue close research", "queue.scheduling.volcano.sh/research close requested", 0},
		{"queue open q research", "queue.scheduling.volcano.sh/research open requested", 0},
		{"get queue research -o jsonpath={.spec.weight}{.spec.capability.cpu}{.spec.guarantee.resource.cpu}", "382", 0},
		{"get commands -o jsonpath={.items[*].action}", "CloseQueue OpenQueue", 0},
	} {
		if code, out, errOut := run(c, strings.Fields(step.args)...); code != step.code || !strings.Contains(out+errOut, step.want) {
			t.Errorf("%s: %d %q %q", step.args, code, out, errOut)
		}
	}
	// Several objects are several documents.
	if code, out, errOut := run(c, "get", "wf", "hello", "job", "-o", "yaml"); code != 0 || strings.Count(out, "\n---\n") != 1 {
		t.Errorf("get wf hello job -o yaml: %d %q %q", code, out, errOut)
	}
	for _, name := range []string{"one", "two"} {
		create(t, c, map[string]schema.GroupVersionResource{"WorkflowTemplate": workflows.GroupVersion().WithResource("workflowtemplates")}, `
apiVersion: argoproj.io/v1alpha1
kind: WorkflowTemplate
metadata: {name: `+name+`, namespace: default}
spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}`)
	}
	if code, out, errOut := run(c, "template", "get", "one", "two", "-o", "yaml"); code != 0 || strings.Count(out, "\n---\n") != 1 {
		t.Errorf("template get one two -o yaml: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "delete", "job", "hello", "--dry-run=server"); code != 0 || !there(jobs, "hello") {
		t.Errorf("delete job hello --dry-run: %d %q %q", code, out, errOut)
	}
	if code, out, errOut := run(c, "delete", "wf", "hello", "job"); code != 0 || there(workflows, "hello") || there(workflows, "job") || !there(jobs, "hello") {
		t.Errorf("delete wf hello job: %d %q %q", code, out, errOut)
	}
}

// TestMessagesOfRunsDoNotControlTheTerminal waits for a job whose message has control characters.
func TestMessagesOfRunsDoNotControlTheTerminal(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // for the cache of the cluster's discovery data
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	manifest := filepath.Join(t.TempDir(), "job.yaml")
	if err := os.WriteFile(manifest, []byte(`
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: waited-for, namespace: default}
spec:
  minAvailable: 1
  tasks: [{name: t, replicas: 1, template: {spec: {containers: [{name: c, image: i}]}}}]`), 0o600); err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(c.RESTConfig()).Resource(jobs).Namespace("default")
	done := make(chan error, 1)
	go func() {
		done <- wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			_, err := client.Patch(ctx, "waited-for", types.MergePatchType,
				[]byte(`{"status":{"state":{"phase":"Failed","message":"a\u001b[2Jb\nc"}}}`), metav1.PatchOptions{}, "status")
			return err == nil, nil
		})
	}()
	code, _, errOut := run(c, "submit", manifest, "--wait", "--timeout", "1m")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if code != 1 || !strings.Contains(errOut, "waited-for: Failed: a[2Jb c\n") {
		t.Errorf("exit code %d, %q", code, errOut)
	}
}
