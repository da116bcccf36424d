package observe

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

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
		"a status that ends a pod": {`{"stage":"ResponseComplete","verb":"patch","user":{"username":"system:node:n"},"objectRef":{"resource":"pods",` +
			`"namespace":"bench","name":"p","subresource":"status"},"responseStatus":{"code":200},"requestReceivedTimestamp":"2026-01-02T03:04:05.000001Z",` +
			`"stageTimestamp":"2026-01-02T03:04:05.002003Z","annotations":{"audit.lockstep.dev/ended":"Failed"}}`, &analyse.Event{
			Time: done, Received: received, Actor: Nodes, Verb: "patch", Resource: "pods", Sub: "status", Namespace: "bench", Name: "p", Ended: true, Code: 200}},
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
		if got := actor(user, false); got != want {
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

// following is an audit log that a test writes and an AuditLog follows.
type following struct {
	*testing.T
	path string
	file *os.File
	log  *AuditLog
}

func follow(t *testing.T, open func(string) (*AuditLog, error)) *following {
	t.Helper()
	f := &following{T: t, path: filepath.Join(t.TempDir(), "audit.log")}
	f.begin()
	var err error
	if f.log, err = open(f.path); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.log.Close() })
	return f
}

// begin begins a new file.
func (f *following) begin() {
	f.Helper()
	var err error
	if f.file, err = os.OpenFile(f.path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { f.file.Close() })
}

func (f *following) put(text string) {
	f.Helper()
	if _, err := f.file.WriteString(text); err != nil {
		f.Fatal(err)
	}
}

func (f *following) expect(events int, lost string) {
	f.Helper()
	got, err := f.log.Next()
	if err != nil || len(got) != events || f.log.Lost() != lost {
		f.Fatalf("%d events, lost %q, error %v; want %d, %q", len(got), f.log.Lost(), err, events, lost)
	}
}

// TestALogThatEndsWithinALineIsFollowed begins to follow while the server writes.
func TestALogThatEndsWithinALineIsFollowed(t *testing.T) {
	for _, open := range []func(string) (*AuditLog, error){FollowAudit, ConsumeAudit} {
		f := follow(t, func(path string) (*AuditLog, error) {
			if err := os.WriteFile(path, []byte(podLine+"\n"+podLine[:200]), 0o600); err != nil {
				t.Fatal(err)
			}
			return open(path)
		})
		f.put(podLine[200:300])
		f.expect(0, "")
		f.put(podLine[300:] + "\n" + podLine + "\n")
		f.expect(1, "")
	}
}

// TestALogThatIsRotatedIsFollowed begins a new file as the API server does: it renames the old one.
func TestALogThatIsRotatedIsFollowed(t *testing.T) {
	f := follow(t, FollowAudit)
	f.put(podLine + "\n")
	f.expect(1, "")
	f.put(podLine + "\n")
	if err := os.Rename(f.path, f.path+".1"); err != nil {
		t.Fatal(err)
	}
	f.expect(1, "") // the new file does not exist yet
	f.begin()
	f.put(podLine + "\n" + podLine + "\n")
	f.expect(2, "")
	f.put(podLine + "\n")
	f.expect(1, "")
}

// TestATruncatedLogHasLostEvents truncates a log, as some programs that rotate logs do.
func TestATruncatedLogHasLostEvents(t *testing.T) {
	f := follow(t, FollowAudit)
	f.put(podLine + "\n" + podLine + "\n")
	f.expect(2, "")
	if err := os.Truncate(f.path, 0); err != nil {
		t.Fatal(err)
	}
	f.expect(0, "the audit log was truncated")
	f.put(podLine + "\n")
	f.expect(1, "the audit log was truncated")
}

// TestAConsumedLogTakesLittleOfTheDisk writes 40 MB and reads them as it writes.
func TestAConsumedLogTakesLittleOfTheDisk(t *testing.T) {
	f := follow(t, ConsumeAudit)
	lines := strings.Repeat(podLine+"\n", 1000)
	const times = 40 << 20 / 1000 / len(podLine)
	for range times {
		f.put(lines)
		f.expect(1000, "")
	}
	info, err := f.file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	blocks := info.Sys().(*syscall.Stat_t).Blocks * 512
	if blocks > 2*freeEvery || info.Size() < 30<<20 {
		t.Errorf("a log of %d bytes takes %d bytes of the disk", info.Size(), blocks)
	}
}

// TestTextsAreDecoded has the characters that JSON escapes.
func TestTextsAreDecoded(t *testing.T) {
	line := strings.NewReplacer(`"system:serviceaccount:lockstep-system:lockstep-manager"`, `"system:node:n\u0031"`, `"code":201`,
		`"code":500,"message":"a \"quoted\" \u003creason\u003e"`).Replace(podLine)
	e, ok, err := ParseAudit([]byte(line))
	if err != nil || !ok || e.Actor != Nodes || e.Cause != `a "quoted" <reason>` || e.Code != 500 {
		t.Errorf("%+v, %v, %v", e, ok, err)
	}
}

// FuzzParseAudit compares the parser with one that decodes whole events.
func FuzzParseAudit(f *testing.F) {
	f.Add([]byte(podLine))
	f.Add([]byte(`{"stage":"ResponseComplete","verb":"create","objectRef":{},"responseStatus":{"code":1e2}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var a auditv1.Event
		e, ok, err := ParseAudit(line)
		if json.Unmarshal(line, &a) != nil || err != nil || !ok {
			return
		}
		if got, want := e.Verb, a.Verb; got != want {
			t.Errorf("verb %q, want %q", got, want)
		}
		if !utf8.Valid(line) {
			return
		}
		if a.ObjectRef != nil && e.Namespace != a.ObjectRef.Namespace {
			t.Errorf("namespace %q, want %q", e.Namespace, a.ObjectRef.Namespace)
		}
	})
}

// BenchmarkParseAudit reports the speed of the parser: docs/benchmarks.md promises 100 MB/s.
func BenchmarkParseAudit(b *testing.B) {
	line := []byte(podLine)
	b.SetBytes(int64(len(line)))
	for b.Loop() {
		if _, ok, err := ParseAudit(line); !ok || err != nil {
			b.Fatal(err)
		}
	}
}
