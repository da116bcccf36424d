package locks

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// Request is a request for several locks at once. Keys are results of MutexKey, SemaphoreKey and
// their counterparts for locks of the database.
type Request struct {
	Holder   string // a result of HolderKey
	Keys     []string
	Priority int32     // higher is served first
	Created  time.Time // creation of the workflow; older is served first
	Since    time.Time // time of the request; older is served first
}

// State is the state of a request.
type State struct {
	Holder  string
	Granted bool
	Waiting string   // the first key that has no free place, or whose queue has earlier requests
	Holders []string // holders of that key
	Message string   // for users
	Err     error    // the request cannot be granted and is not queued
}

// HolderKey returns the key of a workflow or, with a node ID, of one of its nodes as a holder.
func HolderKey(namespace, workflow, nodeID string) string {
	key := namespace + "/" + workflow
	if nodeID != "" {
		key += "/" + nodeID
	}
	return key
}

// WorkflowOf returns the namespace and name of a holder's workflow.
func WorkflowOf(holder string) (namespace, name string) {
	namespace, rest, _ := strings.Cut(holder, "/")
	name, _, _ = strings.Cut(rest, "/")
	return namespace, name
}

// SharedNamespace is the namespace of the locks that workflows of all namespaces may take.
const SharedNamespace = "lockstep-system"

// Reachable reports whether workflows of the namespace workflow may take locks of the namespace
// lock.
func Reachable(lock, workflow string) bool { return lock == workflow || lock == SharedNamespace }

// MutexKey returns the key of a mutex.
func MutexKey(namespace, name string) string { return namespace + "/Mutex/" + name }

// SemaphoreKey returns the key of a semaphore whose limit is in a ConfigMap.
func SemaphoreKey(namespace, configMap, key string) string {
	return namespace + "/ConfigMap/" + configMap + "/" + key
}

// ConfigMapOf returns the ConfigMap key that holds a semaphore's limit. found is false if lock is
// not the key of a semaphore.
func ConfigMapOf(lock string) (namespace, configMap, key string, found bool) {
	parts := strings.SplitN(lock, "/", 4)
	if len(parts) != 4 || parts[1] != "ConfigMap" {
		return "", "", "", false
	}
	return parts[0], parts[2], parts[3], true
}

// Table records the holders of locks and the requests that wait. It is safe for concurrent use.
type Table struct {
	limit func(namespace, configMap, key string) (int, error)

	mu       sync.Mutex
	locks    map[string]*lock
	requests map[string]*request // by holder
	seq      int
	database database
}

type lock struct {
	key     string
	limit   int
	holders map[string]bool
	queue   []*request // waiting requests, next first
	// elsewhere are the holders of other controllers, if key is a lock of the database.
	elsewhere []string
}

type request struct {
	Request
	seq     int
	granted bool
	// shared is true if some of the keys are locks of the database; asked is true while the database
	// is asked for them. Meanwhile the request occupies its places and is in no queue.
	shared, asked bool
}

// New returns an empty Table. limit returns the current limit of a semaphore. It is called with the
// Table's mutex held, so it must not call the Table or block.
func New(limit func(namespace, configMap, key string) (int, error)) *Table {
	return &Table{limit: limit, locks: map[string]*lock{}, requests: map[string]*request{}, database: database{leaving: map[string]map[string]bool{}}}
}

// Restore grants the locks that a workflow's status records as held.
func (t *Table) Restore(status *wf.SynchronizationStatus) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, holders := range Holding(status) {
		for _, holder := range holders {
			r := t.requests[holder]
			if r == nil {
				r = &request{Request: Request{Holder: holder}, granted: true}
				t.requests[holder] = r
			}
			if !slices.Contains(r.Keys, key) {
				r.Keys = append(r.Keys, key)
				r.shared = r.shared || InDatabase(key)
			}
			t.lock(key).holders[holder] = true
		}
	}
}

// HeldBy returns the part of a workflow's status that grants locks to the workflow itself: a user
// who can write a workflow can also write its status, and name any holder.
func HeldBy(namespace, name string, status *wf.SynchronizationStatus) *wf.SynchronizationStatus {
	out := &wf.SynchronizationStatus{Mutex: &wf.LockStatus{}, Semaphore: &wf.LockStatus{}}
	for key, holders := range Holding(status) {
		of, _, _ := strings.Cut(key, "/")
		for _, holder := range holders {
			if ns, n := WorkflowOf(holder); ns != namespace || n != name || !Reachable(of, namespace) {
				continue
			}
			if IsSemaphore(key) {
				out.Semaphore.Holding = append(out.Semaphore.Holding, wf.LockHolding{Semaphore: key, Holders: []string{holder}})
			} else {
				out.Mutex.Holding = append(out.Mutex.Holding, wf.LockHolding{Mutex: Shown(key), Holder: holder})
			}
		}
	}
	return out
}

// Holding returns the held locks of a status with their holders.
func Holding(status *wf.SynchronizationStatus) map[string][]string {
	held := map[string][]string{}
	if status == nil {
		return held
	}
	if m := status.Mutex; m != nil {
		for _, h := range m.Holding {
			if h.Holder != "" {
				key := mutexOf(h.Mutex)
				held[key] = append(held[key], h.Holder)
			}
		}
	}
	if s := status.Semaphore; s != nil {
		for _, h := range s.Holding {
			held[h.Semaphore] = append(held[h.Semaphore], h.Holders...)
		}
	}
	return held
}

// Acquire requests locks. A repeated request of the same holder changes nothing and returns the
// current state.
func (t *Table) Acquire(r Request) State {
	t.mu.Lock()
	defer t.mu.Unlock()
	if old := t.requests[r.Holder]; old != nil {
		if old.granted {
			return State{Holder: r.Holder, Granted: true}
		}
		return t.waiting(old)
	}
	for _, key := range r.Keys {
		if err := t.refresh(key); err != nil {
			for _, key := range r.Keys {
				t.tidy(key)
			}
			return State{Holder: r.Holder, Waiting: key, Err: err, Message: err.Error()}
		}
	}
	t.seq++
	q := &request{Request: r, seq: t.seq}
	q.Keys = slices.Compact(slices.Sorted(slices.Values(r.Keys)))
	q.shared = slices.ContainsFunc(q.Keys, InDatabase)
	t.requests[r.Holder] = q
	t.enqueue(q)
	if !q.shared && t.grantable(q) {
		t.grant(q)
		return State{Holder: r.Holder, Granted: true}
	}
	return t.waiting(q)
}

func (t *Table) enqueue(r *request) {
	for _, key := range r.Keys {
		l := t.lock(key)
		at, _ := slices.BinarySearchFunc(l.queue, r, before)
		l.queue = slices.Insert(l.queue, at, r)
	}
}

// Release drops the locks and the request of a holder, and returns the requests granted as a
// result.
func (t *Table) Release(holder string) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.release(holder)
}

// Forget releases all holders of a workflow, and returns the requests granted as a result.
func (t *Table) Forget(namespace, workflow string) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := HolderKey(namespace, workflow, "")
	var states []State
	for _, holder := range slices.Sorted(maps.Keys(t.requests)) {
		if holder == own || strings.HasPrefix(holder, own+"/") {
			states = append(states, t.release(holder)...)
		}
	}
	return states
}

// LimitChanged reads the limits in a changed ConfigMap again, and returns the requests granted as a
// result.
func (t *Table) LimitChanged(namespace, configMap string) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	var changed []string
	for _, key := range slices.Sorted(maps.Keys(t.locks)) {
		if ns, name, _, found := ConfigMapOf(key); found && ns == namespace && name == configMap && t.refresh(key) == nil {
			changed = append(changed, key)
		}
	}
	return t.grantNext(changed)
}

// ConfigMaps returns the ConfigMaps that hold the limits of semaphores that are held or waited for.
func (t *Table) ConfigMaps() map[types.NamespacedName]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	used := map[types.NamespacedName]bool{}
	for key := range t.locks {
		if namespace, name, _, found := ConfigMapOf(key); found {
			used[types.NamespacedName{Namespace: namespace, Name: name}] = true
		}
	}
	return used
}

func (t *Table) lock(key string) *lock {
	l := t.locks[key]
	if l == nil {
		l = &lock{key: key, limit: 1, holders: map[string]bool{}}
		t.locks[key] = l
	}
	return l
}

// refresh reads a semaphore's limit. On an error the earlier limit stays.
func (t *Table) refresh(key string) error {
	l := t.lock(key)
	namespace, configMap, field, found := ConfigMapOf(key)
	if !found {
		return nil
	}
	if t.limit == nil {
		return fmt.Errorf("semaphore %s: there are no limits", key)
	}
	limit, err := t.limit(namespace, configMap, field)
	if err == nil && limit < 0 {
		err = errors.New("its limit is negative")
	}
	if err != nil {
		return fmt.Errorf("semaphore %s: %w", key, err)
	}
	l.limit = limit
	return nil
}

// before compares requests: the request to serve first comes first.
func before(a, b *request) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created), a.Since.Compare(b.Since),
		cmp.Compare(a.seq, b.seq))
}

// grantable reports whether a request is first in all its queues and has a free place on all locks
// that are not in the database.
func (t *Table) grantable(r *request) bool {
	for _, key := range r.Keys {
		if l := t.locks[key]; l.queue[0] != r || !InDatabase(key) && len(l.holders) >= l.limit {
			return false
		}
	}
	return true
}

func (t *Table) grant(r *request) {
	r.granted = true
	t.occupy(r)
}

// occupy gives a request, which is first in all its queues, its places.
func (t *Table) occupy(r *request) {
	for _, key := range r.Keys {
		l := t.locks[key]
		l.queue = slices.Delete(l.queue, 0, 1)
		l.holders[r.Holder] = true
	}
}

func (t *Table) release(holder string) []State {
	r := t.requests[holder]
	if r == nil {
		return nil
	}
	delete(t.requests, holder)
	t.leave(holder, r.Keys...)
	for _, key := range r.Keys {
		l := t.locks[key]
		delete(l.holders, holder)
		if at := slices.Index(l.queue, r); at >= 0 {
			l.queue = slices.Delete(l.queue, at, at+1)
		}
	}
	states := t.grantNext(r.Keys)
	for _, key := range r.Keys {
		t.tidy(key)
	}
	return states
}

// tidy deletes a lock that has neither holders nor requests.
func (t *Table) tidy(key string) {
	if l := t.locks[key]; l != nil && len(l.holders)+len(l.queue) == 0 {
		delete(t.locks, key)
	}
}

// grantNext grants the requests that are due in the queues of keys. A grant may make another
// request the first in the queue of a further lock.
func (t *Table) grantNext(keys []string) []State {
	var states []State
	for todo := slices.Clone(keys); len(todo) > 0; {
		l := t.locks[todo[0]]
		if l == nil || len(l.queue) == 0 || l.queue[0].shared || !t.grantable(l.queue[0]) {
			todo = todo[1:]
			continue
		}
		next := l.queue[0]
		t.grant(next)
		states = append(states, State{Holder: next.Holder, Granted: true})
		todo = append(todo, next.Keys...)
	}
	return states
}

// waiting returns the state of a waiting request.
func (t *Table) waiting(r *request) State {
	s := State{Holder: r.Holder}
	taken := func(l *lock) int {
		if l.holders[r.Holder] { // it occupies its place while the database is asked
			return len(l.holders) + len(l.elsewhere) - 1
		}
		return len(l.holders) + len(l.elsewhere)
	}
	for _, key := range r.Keys {
		if l := t.locks[key]; s.Waiting == "" && taken(l) >= l.limit {
			s.Waiting = key
		}
	}
	if s.Waiting == "" { // places are free, but other requests come first
		for _, key := range r.Keys {
			if l := t.locks[key]; s.Waiting == "" && len(l.queue) > 0 && l.queue[0] != r {
				s.Waiting = key
			}
		}
	}
	if s.Waiting == "" || r.shared && t.database.trouble != "" { // the database decides
		s.Waiting = r.Keys[slices.IndexFunc(r.Keys, InDatabase)]
	}
	l := t.locks[s.Waiting]
	s.Holders = slices.Sorted(maps.Keys(l.holders))
	s.Holders = slices.DeleteFunc(append(s.Holders, l.elsewhere...), func(holder string) bool { return holder == r.Holder })
	s.Message = fmt.Sprintf("Waiting for %s lock. Lock status: %d/%d", Shown(s.Waiting), max(0, l.limit-taken(l)), l.limit)
	if r.shared && t.database.trouble != "" {
		s.Message = fmt.Sprintf("Waiting for %s lock: %s", Shown(s.Waiting), t.database.trouble)
	}
	return s
}
