package localcluster_test

import (
	"bufio"
	"encoding/json"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// auditEvents returns the log's events about a namespace, in order.
func auditEvents(t testing.TB, path, namespace string) (events []auditEvent) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e auditEvent
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatalf("%v in %q", err, lines.Text())
		}
		if e.ObjectRef.Namespace == namespace && e.ObjectRef.Resource == "pods" {
			events = append(events, e)
		}
	}
	return events
}

type auditEvent struct {
	Verb        string
	ObjectRef   struct{ Resource, Subresource, Namespace string }
	Annotations map[string]string
}

func TestAuditLogShowsPodsNamesNodesAndEnds(t *testing.T) {
	c := localtest.Shared(t)
	client := kubernetes.NewForConfigOrDie(c.RESTConfig())
	ns, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "audit-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := client.CoreV1().Pods(ns.Name)
	template := func(node string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-"},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
	}
	bound, err := pods.Create(t.Context(), template("elsewhere"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waiting, err := pods.Create(t.Context(), template(""), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: waiting.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "later"}}
	if err := pods.Bind(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := pods.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	// The last one changes a pod that has ended.
	for _, status := range []string{`{"phase":"Running"}`, `{"phase":"Succeeded"}`, `{"message":"well done"}`} {
		if _, err := pods.Patch(t.Context(), bound.Name, types.StrategicMergePatchType, []byte(`{"status":`+status+`}`), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
	}
	got := auditEvents(t, c.AuditLogPath(), ns.Name)
	for i := range got {
		got[i].Annotations = map[string]string{
			"name":  got[i].Annotations[localcluster.AuditName],
			"node":  got[i].Annotations[localcluster.AuditNode],
			"ended": got[i].Annotations[localcluster.AuditEnded],
		}
	}
	event := func(verb, subresource, name, node, ended string) auditEvent {
		e := auditEvent{Verb: verb, Annotations: map[string]string{"name": name, "node": node, "ended": ended}}
		e.ObjectRef.Resource, e.ObjectRef.Namespace, e.ObjectRef.Subresource = "pods", ns.Name, subresource
		return e
	}
	want := []auditEvent{
		event("create", "", bound.Name, "elsewhere", ""), event("create", "", waiting.Name, "", ""), event("create", "binding", waiting.Name, "later", ""),
		event("patch", "status", "", "", ""), event("patch", "status", "", "", "Succeeded"), event("patch", "status", "", "", ""),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}
