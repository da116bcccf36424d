package localtest

import (
	"bufio"
	"encoding/json"
	"os"
	"path"
	"slices"
	"testing"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"lockstep.dev/lockstep/internal/localcluster"
)

// Call is a request that the API server has answered.
type Call struct {
	Verb string
	// Resource is the plural name, followed by a slash and the subresource if there is one.
	Resource        string
	Namespace, Name string
	Code            int // HTTP status
	// Received is when the server received the request, and Answered when it had answered it.
	Received, Answered time.Time
}

// Write reports whether the call changes something.
func (c *Call) Write() bool {
	return slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, c.Verb)
}

// ManagerCalls returns the manager's requests so far, in the order of the audit log.
func ManagerCalls(t testing.TB, c *localcluster.Cluster) []Call {
	t.Helper()
	f, err := os.Open(c.AuditLogPath())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []Call
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e auditv1.Event
		// The last line may be incomplete.
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Stage != auditv1.StageResponseComplete ||
			e.User.Username != localcluster.ManagerUser || e.ObjectRef == nil || e.ResponseStatus == nil {
			continue
		}
		ref := e.ObjectRef
		out = append(out, Call{Verb: e.Verb, Resource: path.Join(ref.Resource, ref.Subresource), Namespace: ref.Namespace,
			Name: ref.Name, Code: int(e.ResponseStatus.Code),
			Received: e.RequestReceivedTimestamp.Time, Answered: e.StageTimestamp.Time})
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
