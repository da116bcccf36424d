package observe

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"

	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/rawjson"
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

// parseAudit reads the few members of an audit event (audit.k8s.io/v1) that an Event has, without
// decoding the others: a log has hundreds of megabytes.
func parseAudit(line []byte, system []string) (analyse.Event, bool, error) {
	var a struct {
		stage, verb                 string
		user, object, status, notes []byte
		received, done              string
	}
	err := rawjson.Members(line, func(m rawjson.Member) bool {
		value := line[m.From:m.End]
		switch string(m.Name) {
		case "stage":
			a.stage = text(value)
		case "verb":
			a.verb = text(value)
		case "user":
			a.user = value
		case "objectRef":
			a.object = value
		case "responseStatus":
			a.status = value
		case "annotations":
			a.notes = value
		case "requestReceivedTimestamp":
			a.received = text(value)
		case "stageTimestamp":
			a.done = text(value)
		}
		return true
	})
	if err != nil {
		return analyse.Event{}, false, fmt.Errorf("audit log: %w", err)
	}
	if a.object == nil || a.status == nil || a.stage != string(auditv1.StageResponseComplete) && a.stage != string(auditv1.StagePanic) {
		return analyse.Event{}, false, nil
	}
	e := analyse.Event{Verb: a.verb}
	switch a.verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return analyse.Event{}, false, nil
	}
	if e.Time, err = time.Parse(time.RFC3339Nano, a.done); err == nil {
		e.Received, err = time.Parse(time.RFC3339Nano, a.received)
	}
	e.Time, e.Received = e.Time.UTC(), e.Received.UTC()
	var user, group, cause, named, ended string
	var groups, code []byte
	err = errors.Join(err, fields(a.user, map[string]any{"username": &user, "groups": &groups}),
		fields(a.object, map[string]any{"resource": &e.Resource, "subresource": &e.Sub, "namespace": &e.Namespace, "name": &e.Name, "apiGroup": &group}),
		fields(a.status, map[string]any{"code": &code, "message": &cause}),
		fields(a.notes, map[string]any{localcluster.AuditNode: &e.Node, localcluster.AuditName: &named, localcluster.AuditEnded: &ended}))
	if err == nil && code != nil {
		e.Code, err = strconv.Atoi(string(code))
	}
	if err != nil {
		return analyse.Event{}, false, fmt.Errorf("audit log: %w", err)
	}
	if !e.OK() {
		e.Cause = clip.Text(cause, causeMax)
	}
	e.Actor = actor(user, bytes.Contains(groups, []byte(`"system:masters"`)))
	if slices.ContainsFunc(system, func(pattern string) bool { return matches(pattern, user) }) {
		e.Actor = System
	}
	if group != "" {
		e.Resource += "." + group
	}
	e.Name, e.Ended = cmp.Or(e.Name, named), ended != ""
	return e, true, nil
}

// fields reads members of an object, as text into a *string and as they are into a *[]byte. No
// object has no members.
func fields(object []byte, into map[string]any) error {
	if object == nil {
		return nil
	}
	return rawjson.Members(object, func(m rawjson.Member) bool {
		switch to := into[string(m.Name)].(type) {
		case *string:
			*to = text(object[m.From:m.End])
		case *[]byte:
			*to = object[m.From:m.End]
		}
		return true
	})
}

// text decodes a string; of other values it returns nothing.
func text(value []byte) string {
	if len(value) < 2 || value[0] != '"' {
		return ""
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1])
	}
	var s string
	if err := json.Unmarshal(value, &s); err != nil {
		return ""
	}
	return s
}

// causeMax bounds the length of an event's cause, in bytes.
const causeMax = 300

func matches(pattern, user string) bool {
	if prefix, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(user, prefix)
	}
	return user == pattern
}

func actor(user string, master bool) string {
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
	if master {
		return Client
	}
	return Other
}

// AuditLog follows an audit log as it grows, also when the API server begins a new file. It is not
// safe for concurrent use.
type AuditLog struct {
	// Users are the users whose actor is System; a * at the end stands for any rest.
	Users []string
	path  string
	file  *os.File
	// offset is how far the file has been read, and freed how far its blocks have been given back.
	offset, freed int64
	reader        *bufio.Reader
	// partial is the beginning of a line whose end has not been written yet.
	partial []byte
	// within is true until the end of the line in which the reader began.
	within bool
	// consume gives the disk back what has been read.
	consume bool
	lost    string
}

// FollowAudit opens an audit log at its present end: earlier events belong to another measurement.
func FollowAudit(path string) (*AuditLog, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("audit log: %w", err)
	}
	l := &AuditLog{path: path, file: f, offset: end, reader: bufio.NewReaderSize(f, readSize)}
	// The server may be writing: the end is then within a line.
	var last [1]byte
	if end > 0 {
		if _, err := f.ReadAt(last[:], end-1); err != nil {
			f.Close()
			return nil, fmt.Errorf("audit log: %w", err)
		}
		l.within = last[0] != '\n'
	}
	return l, nil
}

// ConsumeAudit is like FollowAudit for a log of which nobody else needs what has been read: its
// blocks are given back to the disk, so that a log takes a few megabytes however long it grows.
func ConsumeAudit(path string) (*AuditLog, error) {
	l, err := FollowAudit(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("audit log: %w", err), l.Close())
	}
	if _, err := f.Seek(l.offset, io.SeekStart); err != nil {
		return nil, errors.Join(fmt.Errorf("audit log: %w", err), f.Close(), l.Close())
	}
	err = l.file.Close()
	l.file, l.consume = f, true
	l.reader.Reset(f)
	return l, err
}

// readSize is the size of a read, and freeEvery how much is given back to the disk at a time.
const (
	readSize  = 1 << 20
	freeEvery = 4 << 20
)

// Next returns the events since the last call.
func (l *AuditLog) Next() ([]analyse.Event, error) {
	out, err := l.rest(nil)
	if err != nil {
		return out, err
	}
	now, err := os.Stat(l.path)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil // the next file is about to be created
	}
	if err != nil {
		return out, fmt.Errorf("audit log: %w", err)
	}
	own, err := l.file.Stat()
	if err != nil {
		return out, fmt.Errorf("audit log: %w", err)
	}
	if os.SameFile(now, own) {
		if own.Size() < l.offset {
			l.lost = "the audit log was truncated"
			l.offset, l.partial = own.Size(), nil
			if _, err := l.file.Seek(l.offset, io.SeekStart); err != nil {
				return out, fmt.Errorf("audit log: %w", err)
			}
			l.reader.Reset(l.file)
		}
		l.free()
		return out, nil
	}
	// The server writes to a new file. It has written the end of this one before.
	if out, err = l.rest(out); err != nil {
		return out, err
	}
	f, err := os.Open(l.path)
	if err != nil {
		return out, fmt.Errorf("audit log: %w", err)
	}
	err = l.file.Close()
	l.file, l.offset, l.freed, l.partial, l.consume = f, 0, 0, nil, false
	l.reader.Reset(f)
	if err != nil {
		return out, fmt.Errorf("audit log: %w", err)
	}
	return l.rest(out)
}

// rest adds the events until the present end of the file.
func (l *AuditLog) rest(out []analyse.Event) ([]analyse.Event, error) {
	for {
		line, err := l.reader.ReadSlice('\n')
		l.offset += int64(len(line))
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
		if l.within {
			l.within, l.partial = false, l.partial[:0]
			continue
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

// free gives the blocks that have been read back to the disk. The file keeps its length, so that
// the server's offset stays right. A file system that cannot do it keeps the blocks.
func (l *AuditLog) free() {
	if !l.consume || l.offset-l.freed < freeEvery {
		return
	}
	if err := punch(l.file, l.freed, l.offset-l.freed); err != nil {
		l.consume = false
		return
	}
	l.freed = l.offset
}

// Lost implements Source.
func (l *AuditLog) Lost() string { return l.lost }

// Close closes the log file.
func (l *AuditLog) Close() error { return l.file.Close() }
