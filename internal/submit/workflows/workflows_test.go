package workflows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/workflow/compress"
	"lockstep.dev/lockstep/internal/workflow/nodeselect"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithInstall()) }

func newClient(t *testing.T) (*Client, string) {
	t.Helper()
	c, err := New(localtest.Shared(t).RESTConfig(), false)
	if err != nil {
		t.Fatal(err)
	}
	return c, localtest.Namespace(t, c.core)
}

// waiting creates a workflow with two suspended nodes, one of which waits for a value. packed puts
// the nodes into status.compressedNodes.
func waiting(t *testing.T, c *Client, namespace, name string, packed bool) {
	t.Helper()
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	w.Spec = wf.WorkflowSpec{Entrypoint: "main", Templates: []wf.Template{{Name: "main", Suspend: &wf.SuspendTemplate{}}}}
	w.Status = wf.WorkflowStatus{Phase: wf.WorkflowRunning, Nodes: wf.Nodes{
		"a": {ID: "a", Name: "a", DisplayName: "a", Type: wf.NodeSuspend, Phase: wf.PhaseRunning},
		"b": {ID: "b", Name: "b", DisplayName: "b", Type: wf.NodeSuspend, Phase: wf.PhaseRunning, Message: "old", Outputs: &wf.Outputs{
			Parameters: []wf.Parameter{{Name: "v", ValueFrom: &wf.ValueFrom{Supplied: &wf.SuppliedValueFrom{}}}}}},
		"c": {ID: "c", Name: "c", DisplayName: "c", Type: wf.NodePod, Phase: wf.PhaseRunning},
	}}
	if packed {
		data, err := json.Marshal(w.Status.Nodes)
		if err != nil {
			t.Fatal(err)
		}
		if w.Status.CompressedNodes, err = compress.Pack(data); err != nil {
			t.Fatal(err)
		}
		w.Status.Nodes = nil
	}
	if err := c.Create(t.Context(), Workflows, w, &wf.Workflow{}); err != nil {
		t.Fatal(err)
	}
}

func get(t *testing.T, c *Client, namespace, name string) *wf.Workflow {
	t.Helper()
	w, err := c.Get(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func only(t *testing.T, selector string) func(*wf.NodeStatus) bool {
	t.Helper()
	match, err := nodeselect.Parse(selector)
	if err != nil {
		t.Fatal(err)
	}
	return match
}

func TestChangesOfTheSpec(t *testing.T) {
	c, ns := newClient(t)
	waiting(t, c, ns, "w", false)
	if err := c.Suspend(t.Context(), ns, "w"); err != nil {
		t.Fatal(err)
	}
	if s := get(t, c, ns, "w").Spec.Suspend; s == nil || !*s {
		t.Error("not suspended")
	}
	if err := c.Stop(t.Context(), ns, "w"); err != nil {
		t.Fatal(err)
	}
	if s := get(t, c, ns, "w").Spec.Shutdown; s != wf.ShutdownStop {
		t.Errorf("shutdown is %q", s)
	}
	if err := c.Terminate(t.Context(), ns, "w"); err != nil {
		t.Fatal(err)
	}
	w := get(t, c, ns, "w")
	if w.Spec.Shutdown != wf.ShutdownTerminate {
		t.Errorf("shutdown is %q", w.Spec.Shutdown)
	}
	w.Status.Phase = wf.WorkflowFailed
	if err := c.Replace(t.Context(), w); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"suspend": c.Suspend(t.Context(), ns, "w"), "stop": c.Stop(t.Context(), ns, "w"), "resume": c.Resume(t.Context(), ns, "w", NodeChange{}),
	} {
		if !errors.Is(err, ErrCompleted) {
			t.Errorf("%s of a completed workflow: %v", what, err)
		}
	}
}

func TestChangesOfNodes(t *testing.T) {
	for name, packed := range map[string]bool{"plain": false, "packed": true} {
		t.Run(name, func(t *testing.T) {
			c, ns := newClient(t)
			c.Now = func() time.Time { return time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC) }
			waiting(t, c, ns, "w", packed)
			// A node that waits for a value cannot be resumed without it, and a failed change
			// changes nothing.
			if err := c.Resume(t.Context(), ns, "w", NodeChange{}); err == nil || !strings.Contains(err.Error(), `"v"`) {
				t.Errorf("resumed without a value: %v", err)
			}
			if n := get(t, c, ns, "w").Status.Nodes["a"]; n.Phase != wf.PhaseRunning {
				t.Errorf("a is %s", n.Phase)
			}
			if err := c.SetNode(t.Context(), ns, "w", NodeChange{Match: only(t, "displayName=b"), Outputs: map[string]string{"x": "1"}}); err == nil {
				t.Error("a value for a parameter that does not exist was taken")
			}
			if err := c.SetNode(t.Context(), ns, "w", NodeChange{Match: only(t, "displayName=b"), Outputs: map[string]string{"v": "yes"}, Message: "new"}); err != nil {
				t.Fatal(err)
			}
			n := get(t, c, ns, "w").Status.Nodes["b"]
			if n.Phase != wf.PhaseRunning || n.Message != "new; old" || n.Outputs.Parameters[0].Value == nil || *n.Outputs.Parameters[0].Value != "yes" {
				t.Errorf("b is %+v", n)
			}
			if err := c.Resume(t.Context(), ns, "w", NodeChange{Match: only(t, "displayName=b"), Message: "by me"}); err != nil {
				t.Fatal(err)
			}
			if err := c.FailNodes(t.Context(), ns, "w", NodeChange{Match: only(t, "displayName=a"), Message: "no"}); err != nil {
				t.Fatal(err)
			}
			w := get(t, c, ns, "w")
			if a, b := w.Status.Nodes["a"], w.Status.Nodes["b"]; a.Phase != wf.PhaseFailed || a.Message != "no" || b.Phase != wf.PhaseSucceeded || b.FinishedAt.IsZero() {
				t.Errorf("a is %+v, b is %+v", a, b)
			}
			if w.Status.Nodes["c"].Phase != wf.PhaseRunning {
				t.Error("a pod's node was changed")
			}
			if err := c.Resume(t.Context(), ns, "w", NodeChange{}); err == nil {
				t.Error("resumed where nothing waits")
			}
			raw := &wf.Workflow{}
			if err := c.Read(t.Context(), Workflows, ns, "w", raw); err != nil {
				t.Fatal(err)
			}
			if (raw.Status.CompressedNodes != "") != packed || (len(raw.Status.Nodes) > 0) == packed {
				t.Error("the nodes have moved")
			}
		})
	}
}

func TestListAndWatch(t *testing.T) {
	c, ns := newClient(t)
	for _, name := range []string{"a-1", "a-2", "b-1"} {
		waiting(t, c, ns, name, name == "a-2")
	}
	count := func(q Query) int {
		q.Namespace, q.PageSize = ns, 2
		n := 0
		if err := c.List(t.Context(), q, func(*wf.Workflow) error { n++; return nil }); err != nil {
			t.Fatal(err)
		}
		return n
	}
	if n := count(Query{}); n != 3 {
		t.Errorf("%d in all", n)
	}
	if n := count(Query{Prefix: "a-"}); n != 2 {
		t.Errorf("%d with the prefix", n)
	}
	if n := count(Query{Completed: true}); n != 0 {
		t.Errorf("%d completed", n)
	}
	if n := count(Query{OlderFor: time.Hour}); n != 0 {
		t.Errorf("%d that old", n)
	}
	go func() {
		w, err := c.Get(t.Context(), ns, "a-2")
		if err == nil {
			w.Status.Phase = wf.WorkflowSucceeded
			_ = c.Replace(t.Context(), w)
		}
	}()
	w, err := c.Wait(t.Context(), ns, "a-2")
	if err != nil || w.Status.Phase != wf.WorkflowSucceeded || len(w.Status.Nodes) != 3 {
		t.Errorf("%v, %v", w, err)
	}
	if _, err := c.Wait(t.Context(), ns, "none"); err == nil {
		t.Error("waited for what does not exist")
	}
}

// TestFollowingEndsAtAPodThatNeverStarted follows a workflow that has ended and of which one pod
// failed before its container started. A kubelet answers 400 for the log of such a container.
func TestFollowingEndsAtAPodThatNeverStarted(t *testing.T) {
	c, ns := newClient(t)
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, "container \"main\" in pod \"p\" is waiting to start: ContainerCreating", http.StatusBadRequest)
	}))
	t.Cleanup(kubelet.Close)
	at, err := net.ResolveTCPAddr("tcp", kubelet.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "n-"}}
	if node, err = c.core.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: at.IP.String()}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(at.Port)
	if _, err := c.core.CoreV1().Nodes().UpdateStatus(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: map[string]string{wf.LabelWorkflow: "w"}},
		Spec: corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "main", Image: "busybox"}}}}
	if pod, err = c.core.CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodFailed
	if _, err := c.core.CoreV1().Pods(ns).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "w"}, Status: wf.WorkflowStatus{Phase: wf.WorkflowFailed}}
	w.Spec = wf.WorkflowSpec{Entrypoint: "main", Templates: []wf.Template{{Name: "main", Suspend: &wf.SuspendTemplate{}}}}
	if err := c.Create(t.Context(), Workflows, w, &wf.Workflow{}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	err = c.Logs(ctx, ns, "w", LogOptions{Follow: true}, func(l Line) { t.Errorf("printed %q", l.Text) })
	if err != nil || ctx.Err() != nil {
		t.Errorf("error %v; the context: %v", err, ctx.Err())
	}
}

// TestQueryForMalformedWorkflows checks the two parts of a query. A malformed workflow has no phase
// label, or that of an earlier phase, so the server cannot select it.
func TestQueryForMalformedWorkflows(t *testing.T) {
	bad, whole := &wf.Workflow{}, &wf.Workflow{Status: wf.WorkflowStatus{Phase: wf.WorkflowRunning}}
	malformed.Mark(bad, "Workflow", "spec is no object")
	for _, statuses := range [][]string{{Malformed}, {"Failed", Malformed}} {
		q := Query{Statuses: statuses}
		if s := q.selector(); s != "" {
			t.Errorf("%v: the server selects by %q", statuses, s)
		}
		if !q.matches(bad, time.Now()) || q.matches(whole, time.Now()) {
			t.Errorf("%v: a malformed workflow matches: %v, another one: %v", statuses, q.matches(bad, time.Now()), q.matches(whole, time.Now()))
		}
	}
}

// TestFollowingEndsWhenItIsForbidden follows the logs of a workflow that goes on, as a user who may
// read workflows, but not the logs of pods or not the pods themselves, and waits for its end as one
// who may not watch it.
func TestFollowingEndsWhenItIsForbidden(t *testing.T) {
	c, namespace := newClient(t)
	waiting(t, c, namespace, "w", false)
	var pod corev1.Pod
	decode(t, `
metadata: {name: p, labels: {workflows.argoproj.io/workflow: w}}
spec: {nodeName: n, containers: [{name: main, image: i}]}`, &pod)
	if _, err := c.core.CoreV1().Pods(namespace).Create(t.Context(), &pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.core.CoreV1().Pods(namespace).Patch(t.Context(), "p", types.MergePatchType,
		[]byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	logs := func(ctx context.Context, as *Client) error {
		return as.Logs(ctx, namespace, "w", LogOptions{Follow: true}, func(Line) {})
	}
	wait := func(ctx context.Context, as *Client) error {
		_, err := as.Wait(ctx, namespace, "w")
		return err
	}
	for user, u := range map[string]struct {
		resources, verbs string
		follow           func(context.Context, *Client) error
	}{
		"without-logs":           {"[workflows, pods]", "[get, list, watch]", logs},
		"without-pods":           {"[workflows]", "[get, list, watch]", logs},
		"without-watch":          {"[workflows]", "[get, list]", wait},
		"without-list-and-watch": {"[workflows]", "[get]", wait},
	} {
		var role rbacv1.Role
		decode(t, fmt.Sprintf(`
metadata: {name: %s}
rules: [{apiGroups: ["", argoproj.io], resources: %s, verbs: %s}]`, user, u.resources, u.verbs), &role)
		var binding rbacv1.RoleBinding
		decode(t, fmt.Sprintf(`
metadata: {name: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: %[1]s}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: %[1]s}]`, user), &binding)
		if _, err := c.core.RbacV1().Roles(namespace).Create(t.Context(), &role, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.core.RbacV1().RoleBindings(namespace).Create(t.Context(), &binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		cfg := localtest.Shared(t).RESTConfig()
		cfg.Impersonate.UserName = user
		as, err := New(cfg, false)
		if err != nil {
			t.Fatal(err)
		}
		localtest.Eventually(t, "the rights of "+user, func() error {
			_, err := as.Get(t.Context(), namespace, "w")
			return err
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err = u.follow(ctx, as)
		cancel()
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", user, err)
		}
	}
}

func decode(t *testing.T, manifest string, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict([]byte(manifest), into); err != nil {
		t.Fatal(err)
	}
}
