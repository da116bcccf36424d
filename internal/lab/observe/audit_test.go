package observe

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/localcluster"
)

const podLine = `{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Metadata","auditID":"1","stage":"ResponseComplete",` +
	`"requestURI":"/api/v1/namespaces/bench/pods","verb":"create","user":{"username":"system:serviceaccount:lockstep-system:lockstep-manager",` +
	`"groups":["system:authenticated"]},"sourceIPs":["127.0.0.1"],"objectRef":{"resource":"pods","namespace":"bench","apiVersion":"v1"},` +
	`"responseStatus":{"metadata":{},"code":201},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z","stageTimestamp":"2026-01-02T03:04:05.002003Z",` +
	`"annotations":{"audit.lockstep.dev/node":"node-0007","audit.lockstep.dev/name":"bench-00001-worker-3"}}`

func TestParseAudit(t *testing.T) {
	received := time.Date(2026, 1, 2, 3, 4, 5, 1000, time.UTC)
	done := time.Date(2026, 1, 2, 3, 4, 5, 2003000, time.UTC)
	cases := map[string]struct {
		line string
		want *analyse.Event
	}{
		"a bound pod's create has its name and node from the annotations": {podLine, &analyse.Event{
			Time: done, Received: received, Actor: Manager, Verb: "create", Resource: "pods", Namespace: "bench",
			Name: "bench-00001-worker-3", Node: "node-0007", Code: 201}},
		"a binding": {`{"stage":"ResponseComplete","verb":"create","user":{"username":"system:kube-scheduler"},"objectRef":{"resource":"pods",` +
			`"namespace":"bench","name":"p","subresource":"binding"},"responseStatus":{"code":409},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z",` +
			`"stageTimestamp":"2026-01-02T03:04:05.002003Z","annotations":{"audit.lockstep.dev/node":"n"}}`, &analyse.Event{
			Time: done, Received: received, Actor: Scheduler, Verb: "create", Resource: "pods", Sub: "binding", Namespace: "bench", Name: "p", Node: "n", Code: 409}},
		"a custom resource's status": {`{"stage":"ResponseComplete","verb":"update","user":{"username":"lockstep-admin","groups":["system:masters"]},"objectRef":` +
			`{"resource":"jobs","apiGroup":"batch.volcano.sh","namespace":"bench","name":"j","subresource":"status"},"responseStatus":{"code":200},` +
			`"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z","stageTimestamp":"2026-01-02T03:04:05.002003Z"}`, &analyse.Event{
			Time: done, Received: received, Actor: Client, Verb: "update", Resource: "jobs.batch.volcano.sh", Sub: "status", Namespace: "bench", Name: "j", Code: 200}},
		"a read":                       {`{"stage":"ResponseComplete","verb":"list","objectRef":{"resource":"pods"},"responseStatus":{"code":200}}`, nil},
		"a request that has not ended": {`{"stage":"RequestReceived","verb":"create","objectRef":{"resource":"pods"}}`, nil},
		"no object":                    {`{"stage":"ResponseComplete","verb":"create","responseStatus":{"code":200}}`, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, ok, err := ParseAudit([]byte(c.line))
			if err != nil || ok != (c.want != nil) {
				t.Fatalf("ok %v, error %v", ok, err)
			}
			if ok {
				if diff := cmp.Diff(*c.want, got); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
	if _, _, err := ParseAudit([]byte(`{"stage":`)); err == nil {
		t.Error("half a line was read without an error")
	}
}

func TestActors(t *testing.T) {
	for user, want := range map[string]string{
		localcluster.ManagerUser: Manager, localcluster.NodesUser: Nodes,
		"system:kube-controller-manager":                   ControllerManager,
		"system:serviceaccount:kube-system:job-controller": ControllerManager,
		"system:kube-scheduler":                            Scheduler,
		"system:apiserver":                                 APIServer,
		"system:node:n1":                                   Nodes,
		"somebody":                                         Other,
	} {
		if got := actor(user, nil); got != want {
			t.Errorf("actor(%q) = %s, want %s", user, got, want)
		}
	}
}

// TestFollowing appends to a log in pieces that end in the middle of lines, as a reader of a
// growing file sees them.
func TestFollowing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	put := func(s string) {
		t.Helper()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	put(podLine + "\n")
	log, err := FollowAudit(path)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	expect := func(n int) {
		t.Helper()
		events, err := log.Next()
		if err != nil {
			t.Fatal(err)
		}
		if len(events) != n {
			t.Fatalf("%d events, want %d", len(events), n)
		}
	}
	expect(0) // the log's lines from before FollowAudit
	put(podLine[:100])
	expect(0)
	put(podLine[100:200])
	expect(0)
	put(podLine[200:] + "\n" + podLine + "\n" + podLine[:7])
	expect(2)
	put(podLine[7:] + "\n")
	expect(1)
	expect(0)
}
