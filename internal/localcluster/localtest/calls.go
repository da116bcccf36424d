package localtest

import (
	"bufio"
	"encoding/json"
	"os"
	"slices"
	"testing"

	"lockstep.dev/lockstep/internal/localcluster"
)

// Call is a request that the API server has answered.
type Call struct {
	Verb string
	// Resource is the plural name, followed by a slash and the subresource if there is one.
	Resource        string
	Namespace, Name string
	Code            int // HTTP status
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
		var e struct {
			Stage, Verb    string
			User           struct{ Username string }
			ObjectRef      struct{ Resource, Subresource, Namespace, Name string }
			ResponseStatus struct{ Code int }
		}
		// The last line may be incomplete.
		if json.Unmarshal(lines.Bytes(), &e) != nil || e.Stage != "ResponseComplete" ||
			e.User.Username != localcluster.ManagerUser {
			continue
		}
		call := Call{Verb: e.Verb, Resource: e.ObjectRef.Resource, Namespace: e.ObjectRef.Namespace, Name: e.ObjectRef.Name,
			Code: e.ResponseStatus.Code}
		if e.ObjectRef.Subresource != "" {
			call.Resource += "/" + e.ObjectRef.Subresource
		}
		out = append(out, call)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
