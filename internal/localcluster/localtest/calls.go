package localtest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path"
	"slices"
	"sync"
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

// calls is what has been read of a cluster's audit log.
type calls struct {
	mu   sync.Mutex
	all  []Call
	read int64 // offset in the log
}

// callsOf has the calls of each audit log, by path. Tests ask for the calls again and again until they
// are as expected, and decoding a log of thousands of requests each time took seconds.
var callsOf sync.Map

// ManagerCalls returns the manager's requests so far, in the order of the audit log.
func ManagerCalls(t testing.TB, c *localcluster.Cluster) []Call {
	t.Helper()
	known, _ := callsOf.LoadOrStore(c.AuditLogPath(), &calls{})
	out, err := known.(*calls).upTo(c.AuditLogPath())
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// upTo reads the rest of the log, and returns all calls.
func (c *calls) upTo(log string) ([]Call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if _, err := f.Seek(c.read, io.SeekStart); err != nil {
		return nil, err
	}
	lines := bufio.NewReader(f)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return slices.Clone(c.all), nil // the rest of an incomplete line is read the next time
		}
		if err != nil {
			return nil, err
		}
		c.read += int64(len(line))
		if !bytes.Contains(line, []byte(localcluster.ManagerUser)) {
			continue
		}
		var e auditv1.Event
		if json.Unmarshal(line, &e) != nil || e.Stage != auditv1.StageResponseComplete ||
			e.User.Username != localcluster.ManagerUser || e.ObjectRef == nil || e.ResponseStatus == nil {
			continue
		}
		ref := e.ObjectRef
		c.all = append(c.all, Call{Verb: e.Verb, Resource: path.Join(ref.Resource, ref.Subresource), Namespace: ref.Namespace,
			Name: ref.Name, Code: int(e.ResponseStatus.Code),
			Received: e.RequestReceivedTimestamp.Time, Answered: e.StageTimestamp.Time})
	}
}
