package controller_test

import (
	"crypto/rand"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// ours selects the objects of a server without an instance ID.
const ours = "!workflows.argoproj.io/controller-instanceid"

// argoServer asks an API server what Argo's server asks.
type argoServer struct {
	*env
	client dynamic.Interface
}

func (s *argoServer) resource(resource string) dynamic.NamespaceableResourceInterface {
	return s.client.Resource(schema.GroupVersionResource{Group: "argoproj.io", Version: "v1alpha1", Resource: resource})
}

// names returns the names of the objects of all namespaces that a query finds.
func (s *argoServer) names(resource string, o metav1.ListOptions) (names []string) {
	s.Helper()
	list, err := s.resource(resource).List(s.Context(), o)
	if err != nil {
		s.Fatalf("list %s %+v: %v", resource, o, err)
	}
	for _, u := range list.Items {
		names = append(names, u.GetName())
	}
	return names
}

// live returns the workflows of its list "Workflows": of what it watches, it leaves out those that it
// reads from its archive.
func (s *argoServer) live() (names []string) {
	s.Helper()
	list, err := s.resource("workflows").List(s.Context(), metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		s.Fatal(err)
	}
	for _, u := range list.Items {
		if u.GetLabels()["workflows.argoproj.io/workflow-archiving-status"] != "Archived" {
			names = append(names, u.GetName())
		}
	}
	return names
}

// TestWhatArgosServerAsks makes the lists and watches of Argo's server, while the manager archives
// finished workflows in its own tables: they stay in the server's lists.
func TestWhatArgosServerAsks(t *testing.T) {
	cluster := localtest.Start(t, localtest.WithControllerManager(), localtest.WithInstall(),
		localtest.WithNodes(localcluster.Nodes{Count: 2, CPU: "32", Pods: 200}))
	managertest.Start(t, cluster, func(cfg *manager.Config) { cfg.Archive = filepath.Join(t.TempDir(), "archive.db") })
	s := &argoServer{newEnv(t, cluster), dynamic.NewForConfigOrDie(cluster.RESTConfig())}

	before, err := s.resource("workflows").List(t.Context(), metav1.ListOptions{LabelSelector: ours})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := s.resource("workflows").Watch(t.Context(), metav1.ListOptions{
		LabelSelector: ours, ResourceVersion: before.GetResourceVersion(), AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()

	s.create("workflowtemplates", "library", "spec:\n  "+strings.ReplaceAll(strings.TrimSpace(quick), "\n", "\n  "))
	s.submit("done", "workflowTemplateRef: {name: library}")
	s.submit("paused", pause)
	w := s.until("done", func(w *wf.Workflow) error {
		if w.Status.Phase != wf.WorkflowSucceeded || w.Annotations[wf.AnnotationArchived] == "" {
			return fmt.Errorf("phase %q, annotations %v", w.Status.Phase, w.Annotations)
		}
		return nil
	})
	s.until("paused", inPhase(wf.WorkflowRunning))

	// Its watch shows the end.
	for ended := false; !ended; {
		select {
		case e, open := <-watch.ResultChan():
			u, isObject := e.Object.(*unstructured.Unstructured)
			if !open || !isObject {
				t.Fatalf("the watch ended: %v", e)
			}
			ended = u.GetName() == "done" && u.GetLabels()["workflows.argoproj.io/completed"] == "true"
		case <-t.Context().Done():
			t.Fatal("the watch does not show the end")
		}
	}
	if live := s.live(); !slices.Contains(live, "done") || !slices.Contains(live, "paused") {
		t.Errorf("its live list has %q", live)
	}

	// Its filters, the page of one workflow, and the estimate of durations.
	const prefix = "workflows.argoproj.io/"
	for selector, want := range map[string]string{
		prefix + "phase in (Succeeded,Failed)," + ours:                            "done",
		prefix + "completed=true," + ours:                                         "done",
		prefix + "completed!=true," + ours:                                        "paused",
		prefix + "phase in (Running),!" + prefix + "controller-instanceid":        "paused",
		prefix + "phase=Succeeded," + prefix + "workflow-template=library":        "done",
		prefix + "controller-instanceid=other":                                    "",
		prefix + "workflow-archiving-status in (Pending,Archived,Persisted)":      "",
		prefix + "completed=true," + prefix + "workflow-archiving-status=Pending": "",
	} {
		if got := strings.Join(s.names("workflows", metav1.ListOptions{LabelSelector: selector, Limit: 500}), " "); got != want {
			t.Errorf("%s finds %q, want %q", selector, got, want)
		}
	}
	if got := s.names("workflows", metav1.ListOptions{FieldSelector: "metadata.name=done"}); !slices.Equal(got, []string{"done"}) {
		t.Errorf("by name: %q", got)
	}
	pods, err := s.core.CoreV1().Pods(s.ns).List(t.Context(), metav1.ListOptions{LabelSelector: prefix + "workflow=done"})
	if err != nil || len(pods.Items) != 1 {
		t.Errorf("%d pods for its logs, %v", len(pods.Items), err)
	}
	if _, err := s.core.CoreV1().Events(s.ns).List(t.Context(), metav1.ListOptions{
		FieldSelector: "involvedObject.kind=Workflow,involvedObject.uid=" + string(w.UID)}); err != nil {
		t.Errorf("events: %v", err)
	}

	// Its other kinds.
	binding := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(`
apiVersion: argoproj.io/v1alpha1
kind: WorkflowEventBinding
metadata: {name: on-push}
spec:
  event: {selector: payload.ref != ""}
  submit:
    workflowTemplateRef: {name: library}
    metadata: {generateName: push-, labels: {from: event}, annotations: {a: b}}
    arguments: {parameters: [{name: ref, valueFrom: {event: payload.ref}}]}
`), &binding.Object); err != nil {
		t.Fatal(err)
	}
	stored, err := s.resource("workfloweventbindings").Namespace(s.ns).Create(t.Context(), binding, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatal(err)
	}
	if labels, _, _ := unstructured.NestedStringMap(stored.Object, "spec", "submit", "metadata", "labels"); labels["from"] != "event" {
		t.Errorf("the stored binding is %v", stored.Object["spec"])
	}
	for resource, want := range map[string]string{
		"workfloweventbindings": "on-push", "workflowtemplates": "library", "cronworkflows": "", "clusterworkflowtemplates": "",
	} {
		if got := strings.Join(s.names(resource, metav1.ListOptions{LabelSelector: ours, Limit: 500}), " "); got != want {
			t.Errorf("%s: %q, want %q", resource, got, want)
		}
	}
}

// TestTheArchiveOfTheConfiguration archives in the database that the configuration names, and reads it
// as Argo's server does.
func TestTheArchiveOfTheConfiguration(t *testing.T) {
	source := localtest.Postgres(t)
	if source == "" {
		t.Skip(localtest.NoPostgres)
	}
	u, err := url.Parse(source)
	if err != nil {
		t.Fatal(err)
	}
	c := unmanaged(t, "")
	stop := c.manage()
	password, _ := u.User.Password()
	if _, err := c.core.CoreV1().Secrets("argo").Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "db"}, StringData: map[string]string{"user": u.User.Username(), "password": password},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &argoServer{c.env, dynamic.NewForConfigOrDie(c.c.RESTConfig())}

	// One that ended before there was an archive is archived, too.
	c.submit("early", quick)
	c.until("early", inPhase(wf.WorkflowSucceeded))
	c.configure(fmt.Sprintf(`
persistence: |
  archive: true
  nodeStatusOffLoad: true
  clusterName: cluster-of-%s
  archiveTTL: 30d
  postgresql:
    host: %s
    port: %s
    database: %s
    userNameSecret: {name: db, key: user}
    passwordSecret: {name: db, key: password}
`, c.ns, u.Hostname(), u.Port(), strings.TrimPrefix(u.Path, "/")))
	c.submit("late", quick+"ttlStrategy: {secondsAfterCompletion: 0}")
	c.until("early", func(w *wf.Workflow) error {
		if w.Labels[wf.LabelArchivingStatus] != "Archived" {
			return fmt.Errorf("labels %v", w.Labels)
		}
		return nil
	})

	db, err := sql.Open("pgx", source)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c.eventually("both in the database", func() error {
		rows, err := db.QueryContext(t.Context(), `
			select name, phase, coalesce(workflow->'metadata'->'labels'->>'workflows.argoproj.io/workflow-archiving-status', ''),
				(select count(*) from jsonb_object_keys(workflow->'status'->'nodes'))
			from argo_archived_workflows where clustername = $1 and instanceid = '' and exists (
				select 1 from argo_archived_workflows_labels l where l.clustername = argo_archived_workflows.clustername
				and l.uid = argo_archived_workflows.uid and l.name = 'workflows.argoproj.io/completed' and l.value = 'true')
			order by name`, "cluster-of-"+c.ns)
		if err != nil {
			return err
		}
		defer rows.Close()
		var got []string
		for rows.Next() {
			var name, phase, label string
			var nodes int
			if err := rows.Scan(&name, &phase, &label, &nodes); err != nil {
				return err
			}
			got = append(got, fmt.Sprint(name, " ", phase, " ", label, " ", nodes))
		}
		if want := []string{"early Succeeded Persisted 1", "late Succeeded Persisted 1"}; !slices.Equal(got, want) {
			return fmt.Errorf("%q, want %q: %w", got, want, rows.Err())
		}
		return nil
	})
	// The row is written before the label, so that a workflow is always in one of its lists.
	c.eventually("its live list to be without what it reads from the archive", func() error {
		if live := s.live(); len(live) != 0 {
			return fmt.Errorf("it still has %q", live)
		}
		return nil
	})
	c.takeOverNodes(db, stop)
}

// manage starts a manager in this process.
func (c *configuredCluster) manage(options ...managertest.Option) (stop func()) {
	c.Helper()
	end, err := managertest.Run(c.c, append(options, func(cfg *manager.Config) { cfg.WorkflowConfigMap = "argo/settings" })...)
	if err != nil {
		c.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		if err := end(); err != nil {
			c.Error(err)
		}
	})
	c.Cleanup(stop)
	return stop
}

// takeOverNodes has the manager carry on with workflows whose nodes Argo's controller, or its server
// on a user's edit, has moved to the database.
func (c *configuredCluster) takeOverNodes(db *sql.DB, stop func()) {
	c.Helper()
	client := dynamic.NewForConfigOrDie(c.c.RESTConfig()).Resource(wf.GroupVersion.WithResource("workflows")).Namespace(c.ns)
	move := func(uid types.UID, version string, nodes wf.Nodes) {
		c.Helper()
		data, err := json.Marshal(nodes)
		if err == nil {
			_, err = db.ExecContext(c.Context(), "insert into argo_workflows (uid, namespace, clustername, version, nodes) values ($1, $2, $3, $4, $5)",
				string(uid), c.ns, "cluster-of-"+c.ns, version, string(data))
		}
		if err != nil {
			c.Fatal(err)
		}
	}
	// The label of another instance keeps the manager away until the row is written.
	begun := func(name string) types.UID {
		c.Helper()
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: `+name+`, labels: {workflows.argoproj.io/controller-instanceid: other, workflows.argoproj.io/phase: Running}}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: a, template: say}
    - - {name: b, template: say, when: "'{{steps.a.outputs.result}}' == 'one'"}
  - {name: say, metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}, container: {image: a, command: [c]}}
status: {phase: Running, startedAt: "2026-01-01T00:00:00Z", offloadNodeStatusVersion: "fnv:123"}
`), &u.Object); err != nil {
			c.Fatal(err)
		}
		made, err := client.Create(c.Context(), u, metav1.CreateOptions{})
		if err != nil {
			c.Fatal(err)
		}
		return made.GetUID()
	}
	adopt := `{"metadata": {"labels": {"workflows.argoproj.io/controller-instanceid": null}}}`

	//   1. A workflow that its controller began: the first step is not run again.
	uid := begun("taken-over")
	root, group, a := "taken-over", wf.NodeID("taken-over", "taken-over[0]"), wf.NodeID("taken-over", "taken-over[0].a")
	started := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 1, 0, time.UTC))
	one := "one"
	move(uid, "fnv:123", wf.Nodes{
		root:  {ID: root, Name: root, DisplayName: root, Type: wf.NodeSteps, TemplateName: "main", TemplateScope: "local/taken-over", Phase: wf.PhaseRunning, StartedAt: started, Children: []string{group}},
		group: {ID: group, Name: root + "[0]", DisplayName: "[0]", Type: wf.NodeStepGroup, TemplateScope: "local/taken-over", Phase: wf.PhaseSucceeded, BoundaryID: root, StartedAt: started, FinishedAt: started, Children: []string{a}},
		a: {ID: a, Name: root + "[0].a", DisplayName: "a", Type: wf.NodePod, TemplateName: "say", TemplateScope: "local/taken-over", Phase: wf.PhaseSucceeded, BoundaryID: root, StartedAt: started, FinishedAt: started,
			Outputs: &wf.Outputs{Result: &one}},
	})
	c.patch("taken-over", adopt)
	w := c.until("taken-over", inPhase(wf.WorkflowSucceeded))
	c.expect(w, `
		W Steps Succeeded
		W[0] StepGroup Succeeded
		W[0].a Pod Succeeded result=one
		W[1] StepGroup Succeeded
		W[1].b Pod Succeeded`)
	if v := w.Status.OffloadNodeStatusVersion; v != "" {
		c.Errorf("the status has nodes and the version %s", v)
	}
	for _, p := range c.pods("taken-over") {
		if p.Annotations[wf.AnnotationNodeID] == a {
			c.Errorf("step a was run again: %s", p.Name)
		}
	}

	//   2. One whose row is not there.
	begun("without-row")
	c.patch("without-row", adopt)
	c.eventually("a workflow whose row is not there ends and says why", func() error {
		u, err := client.Get(c.Context(), "without-row", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		if message := fmt.Sprint(status["message"]); status["phase"] != "Error" || !strings.Contains(message, "the database does not have them") ||
			status["offloadNodeStatusVersion"] != "fnv:123" {
			return fmt.Errorf("%v %q, version %v", status["phase"], message, status["offloadNodeStatusVersion"])
		}
		return nil
	})

	//   3. Its server, which moves nodes to the database, ends a pause.
	c.submit("resumed", pause)
	w = c.until("resumed", func(w *wf.Workflow) error {
		if w.Status.Nodes["resumed"].Phase != wf.PhaseRunning {
			return errors.New("it does not pause yet")
		}
		return nil
	})
	n := w.Status.Nodes["resumed"]
	n.Phase, n.Message, n.FinishedAt = wf.PhaseSucceeded, "by its server", metav1.Now()
	move(w.UID, "fnv:7", wf.Nodes{"resumed": n})
	c.patch("resumed", `{"status": {"nodes": null, "compressedNodes": null, "offloadNodeStatusVersion": "fnv:7"}}`)
	w = c.until("resumed", inPhase(wf.WorkflowSucceeded))
	if v := w.Status.OffloadNodeStatusVersion; v != "" {
		c.Errorf("the status has nodes and the version %s", v)
	}

	//   4. A workflow that is too large: its nodes go to the database and come back from there.
	uid = begun("large")
	root, group, a = "large", wf.NodeID("large", "large[0]"), wf.NodeID("large", "large[0].a")
	random := make([]byte, 1<<20)
	if _, err := rand.Read(random); err != nil {
		c.Fatal(err)
	}
	text := wf.AnyString(base64.StdEncoding.EncodeToString(random))
	move(uid, "fnv:123", wf.Nodes{
		root:  {ID: root, Name: root, DisplayName: root, Type: wf.NodeSteps, TemplateName: "main", TemplateScope: "local/large", Phase: wf.PhaseRunning, StartedAt: started, Children: []string{group}},
		group: {ID: group, Name: root + "[0]", DisplayName: "[0]", Type: wf.NodeStepGroup, TemplateScope: "local/large", Phase: wf.PhaseSucceeded, BoundaryID: root, StartedAt: started, FinishedAt: started, Children: []string{a}},
		a: {ID: a, Name: root + "[0].a", DisplayName: "a", Type: wf.NodePod, TemplateName: "say", TemplateScope: "local/large", Phase: wf.PhaseSucceeded, BoundaryID: root, StartedAt: started, FinishedAt: started,
			Outputs: &wf.Outputs{Result: &one, Parameters: []wf.Parameter{{Name: "text", Value: &text}}}},
	})
	c.patch("large", adopt)
	c.eventually("the nodes of a large workflow are in the database, and in the archive", func() error {
		u, err := client.Get(c.Context(), "large", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		version := fmt.Sprint(status["offloadNodeStatusVersion"])
		if status["phase"] != "Succeeded" || status["nodes"] != nil || status["compressedNodes"] != nil || !strings.HasPrefix(version, "sha256:") {
			return fmt.Errorf("%v %v, version %s", status["phase"], status["message"], version)
		}
		var moved, archived int
		return errors.Join(
			db.QueryRowContext(c.Context(), `select (select count(*) from json_object_keys(nodes)) from argo_workflows where uid = $1 and version = $2
				and length(nodes::text) > 1300000`, string(uid), version).Scan(&moved),
			db.QueryRowContext(c.Context(), `select (select count(*) from jsonb_object_keys(workflow->'status'->'nodes')) from argo_archived_workflows
				where uid = $1`, string(uid)).Scan(&archived),
			func() error {
				if moved != 5 || archived != 5 {
					return fmt.Errorf("%d nodes are in the database, %d in the archive", moved, archived)
				}
				return nil
			}())
	})

	//   5. The same for all workflows, with a manager that starts again in between, and without the
	//      database for a while.
	always := func(cfg *manager.Config) { cfg.AlwaysMoveNodes = true }
	stop()
	stop = c.manage(always)
	c.submit("moved", "entrypoint: main\ntemplates:\n- name: main\n  steps:\n  - - {name: a, template: say}\n  - - {name: b, template: wait}\n"+
		"  - - {name: c, template: say}\n- name: say\n  metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}\n  container: {image: a, command: [c]}\n- {name: wait, suspend: {}}\n")
	named := func(phase string) string {
		c.Helper()
		version := ""
		c.eventually("the version of moved", func() error {
			u, err := client.Get(c.Context(), "moved", metav1.GetOptions{})
			if err != nil {
				return err
			}
			status, _, _ := unstructured.NestedMap(u.Object, "status")
			version = fmt.Sprint(status["offloadNodeStatusVersion"])
			var waits bool
			err = db.QueryRowContext(c.Context(), "select nodes::text like '%Suspend%' from argo_workflows where uid = $1 and version = $2", string(u.GetUID()), version).Scan(&waits)
			if status["phase"] != phase || status["nodes"] != nil || !waits || err != nil {
				return fmt.Errorf("%v %v, version %s, waits %t: %w", status["phase"], status["message"], version, waits, err)
			}
			uid = u.GetUID()
			return nil
		})
		return version
	}
	version := named("Running")
	stop()
	c.manage(always)
	var data string
	if err := db.QueryRowContext(c.Context(), "select nodes from argo_workflows where uid = $1 and version = $2", string(uid), version).Scan(&data); err != nil {
		c.Fatal(err)
	}
	nodes := wf.Nodes{}
	if err := json.Unmarshal([]byte(data), &nodes); err != nil {
		c.Fatal(err)
	}
	for id, n := range nodes {
		if n.Type == wf.NodeSuspend {
			n.Phase, n.FinishedAt = wf.PhaseSucceeded, metav1.Now()
			nodes[id] = n
		}
	}
	move(uid, "fnv:8", nodes)
	if _, err := db.ExecContext(c.Context(), "alter table argo_workflows rename to argo_workflows_away"); err != nil {
		c.Fatal(err)
	}
	c.patch("moved", `{"status": {"offloadNodeStatusVersion": "fnv:8"}}`)
	c.eventually("an event says that the nodes cannot be read", func() error {
		list, err := c.core.CoreV1().Events(c.ns).List(c.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=moved,reason=NodesNotRead"})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	c.submit("moving", "entrypoint: main\ntemplates:\n- {name: main, metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}, container: {image: a, command: [c]}}\n")
	c.eventually("an event says that the nodes cannot be written", func() error {
		list, err := c.core.CoreV1().Events(c.ns).List(c.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=moving,reason=NodesNotMoved"})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	if _, err := db.ExecContext(c.Context(), "alter table argo_workflows_away rename to argo_workflows"); err != nil {
		c.Fatal(err)
	}
	named("Succeeded")
	c.eventually("the nodes are written then", func() error {
		u, err := client.Get(c.Context(), "moving", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		if status["phase"] != "Succeeded" || status["nodes"] != nil || status["offloadNodeStatusVersion"] == nil {
			return fmt.Errorf("%v %v, version %v", status["phase"], status["message"], status["offloadNodeStatusVersion"])
		}
		return nil
	})

	//   6. Artifacts whose locations are in these nodes are deleted.
	c.submit("collected", "artifactGC: {strategy: OnWorkflowCompletion, podMetadata: {annotations: {lockstep.dev/sim-duration: 50ms}}}\n"+
		"entrypoint: main\ntemplates:"+makers)
	c.eventually("a pod has deleted the artifacts", func() error {
		u, err := client.Get(c.Context(), "collected", metav1.GetOptions{})
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		done, _, _ := unstructured.NestedBool(status, "artifactGCStatus", "strategiesProcessed", string(wf.ArtifactGCOnCompletion))
		by, _, _ := unstructured.NestedMap(status, "artifactGCStatus", "podsRecouped")
		if !done || len(by) != 1 || status["offloadNodeStatusVersion"] == nil || status["nodes"] != nil {
			return fmt.Errorf("%v, by %v", status["phase"], status["artifactGCStatus"])
		}
		return nil
	})
}

// TestNodesInADatabase checks that a workflow whose nodes another controller moved to a database ends
// with a reason, and that nothing of it is run again.
func TestNodesInADatabase(t *testing.T) {
	e := start(t)
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(`
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: moved, labels: {workflows.argoproj.io/phase: Running}}
spec:
  entrypoint: main
  templates: [{name: main, container: {image: a, command: [c]}}]
status: {phase: Running, startedAt: "2026-01-01T00:00:00Z", offloadNodeStatusVersion: "fnv:123"}
`), &u.Object); err != nil {
		t.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(e.c.RESTConfig())
	if _, err := client.Resource(wf.GroupVersion.WithResource("workflows")).Namespace(e.ns).Create(t.Context(), u, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("the workflow ends and says why", func() error {
		if pods := e.pods("moved"); len(pods) != 0 {
			t.Fatalf("%d pods were created", len(pods))
		}
		w := &wf.Workflow{}
		if err := e.argo.Get().Namespace(e.ns).Resource("workflows").Name("moved").Do(t.Context()).Into(w); err != nil {
			return err
		}
		if w.Status.Phase != wf.WorkflowError || !strings.Contains(w.Status.Message, "status.offloadNodeStatusVersion: the nodes are in a database, which only a manager reads whose configuration") {
			return fmt.Errorf("%s %q", w.Status.Phase, w.Status.Message)
		}
		return nil
	})
}

// TestResourceClaims checks what becomes of pods with claims of dynamic resource allocation: another
// scheduler gets them with their claims; Lockstep's own says that the claim does not exist.
func TestResourceClaims(t *testing.T) {
	e := start(t)
	const claims = `
entrypoint: main
resourceClaims: [{name: gpu, resourceClaimName: one-gpu}]
templates:
- name: main
  container: {image: a, command: [c], resources: {claims: [{name: gpu}]}}
`
	e.submit("passed-on", claims+"schedulerName: default-scheduler")
	e.submit("patched", quick+`podSpecPatch: '{"schedulerName": "default-scheduler", "resourceClaims": [{"name": "gpu", "resourceClaimName": "one-gpu"}]}'`)
	for _, name := range []string{"passed-on", "patched"} {
		e.eventually("the pod of "+name, func() error {
			pods := e.pods(name)
			if len(pods) != 1 {
				return fmt.Errorf("%d pods", len(pods))
			}
			p := pods[0].Spec
			if p.SchedulerName != "default-scheduler" || p.NodeName != "" || len(p.ResourceClaims) != 1 || *p.ResourceClaims[0].ResourceClaimName != "one-gpu" {
				return fmt.Errorf("scheduler %s, node %q, claims %+v", p.SchedulerName, p.NodeName, p.ResourceClaims)
			}
			return nil
		})
	}
	e.submit("own", claims)
	e.until("own", func(w *wf.Workflow) error {
		if n := w.Status.Nodes["own"]; n.Phase != wf.PhasePending || !strings.Contains(n.Message, `could not find ResourceClaim "`) {
			return fmt.Errorf("the node is %s: %q", n.Phase, n.Message)
		}
		return nil
	})
}
