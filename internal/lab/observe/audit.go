package observe

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/localcluster"
)

// The actors of events: groups of users of the API server.
const (
	Client            = "client"
	Manager           = "manager"
	ControllerManager = "controllerManager"
	Scheduler         = "scheduler"
	Nodes             = "nodes"
	APIServer         = "apiserver"
	// System are the users of AuditLog.Users.
	System = "system"
	Other  = "other"
)

// ParseAudit parses one line of an audit log. ok reports whether the line is a finished write of an
// object.
func ParseAudit(line []byte) (e analyse.Event, ok bool, err error) { return parseAudit(line, nil) }

func parseAudit(line []byte, system []string) (e analyse.Event, ok bool, err error) {
	var a auditv1.Event
	if err := json.Unmarshal(line, &a); err != nil {
		return analyse.Event{}, false, fmt.Errorf("audit log: %w", err)
	}
	if a.ObjectRef == nil || a.ResponseStatus == nil || (a.Stage != auditv1.StageResponseComplete && a.Stage != auditv1.StagePanic) {
		return analyse.Event{}, false, nil
	}
	switch a.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return analyse.Event{}, false, nil
	}
	ref := a.ObjectRef
	e = analyse.Event{
		Time: a.StageTimestamp.UTC(), Received: a.RequestReceivedTimestamp.UTC(),
		Actor: actor(a.User.Username, a.User.Groups), Verb: a.Verb,
		Resource: ref.Resource, Sub: ref.Subresource, Namespace: ref.Namespace, Name: ref.Name,
		Node: a.Annotations[localcluster.AuditNode], Code: int(a.ResponseStatus.Code),
	}
	if !e.OK() {
		e.Cause = clip.Text(a.ResponseStatus.Message, causeMax)
	}
	if slices.ContainsFunc(system, func(pattern string) bool { return matches(pattern, a.User.Username) }) {
		e.Actor = System
	}
	if ref.APIGroup != "" {
		e.Resource += "." + ref.APIGroup
	}
	if e.Name == "" {
		e.Name = a.Annotations[localcluster.AuditName]
	}
	return e, true, nil
}

// causeMax bounds the length of an event's cause, in bytes.
const causeMax = 300

func matches(pattern, user string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(user, prefix)
	}
	return user == pattern
}

func actor(user string, groups []string) string {
	switch user {
	case localcluster.ManagerUser:
		return Manager
	case localcluster.NodesUser:
		return Nodes
	case "system:kube-controller-manager":
		return ControllerManager
	case "system:kube-scheduler":
		return Scheduler
	case "system:apiserver":
		return APIServer
	}
	if strings.HasPrefix(user, "system:serviceaccount:kube-system:") {
		return ControllerManager // each controller of kube-controller-manager has its own account
	}
	if strings.HasPrefix(user, "system:node:") {
		return Nodes
	}
	if slices.Contains(groups, "system:masters") {
		return Client
	}
	return Other
}

// AuditLog follows an audit log as it grows. It is not safe for concurrent use.
type AuditLog struct {
	// Users are the users whose actor is System; a * at the end stands for any rest.
	Users  []string
	file   *os.File
	reader *bufio.Reader
	// partial is the beginning of a line whose end has not been written yet.
	partial []byte
}

// FollowAudit opens an audit log at its present end: earlier events belong to another measurement.
func FollowAudit(path string) (*AuditLog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	if _, err := f.Seek(0, io.SeekEnd); err != nil {
		f.Close()
		return nil, fmt.Errorf("audit log: %w", err)
	}
	return &AuditLog{file: f, reader: bufio.NewReaderSize(f, 1<<20)}, nil
}

// Next returns the events since the last call.
func (l *AuditLog) Next() ([]analyse.Event, error) {
	var out []analyse.Event
	for {
		line, err := l.reader.ReadSlice('\n')
		if len(l.partial) > 0 || err != nil {
			l.partial = append(l.partial, line...)
			line = l.partial
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return out, fmt.Errorf("audit log: %w", err)
		}
		e, ok, err := parseAudit(bytes.TrimSpace(line), l.Users)
		l.partial = l.partial[:0]
		if err != nil {
			return out, err
		}
		if ok {
			out = append(out, e)
		}
	}
}

// Close closes the log file.
func (l *AuditLog) Close() error { return l.file.Close() }
