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

// Request asks for all of some locks. Keys name them as MutexKey and SemaphoreKey do.
type Request struct {
	Holder   string // as HolderKey returns it
	Keys     []string
	Priority int32     // higher goes first
	Created  time.Time // of the workflow; older goes first
	Since    time.Time // of the request; older goes first
}

// State tells how a request stands.
type State struct {
	Holder  string
	Granted bool
	Waiting string   // the first key that there is no room in
	Holders []string // who hold that key
	Message string   // for people
	Err     error    // the request can never be granted as it is: it does not wait
}

// HolderKey names a workflow, or with an id one of its nodes, as a holder.
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

// SharedNamespace has the locks that workflows of all namespaces may take.
const SharedNamespace = "lockstep-system"

// Reachable says whether a workflow of a namespace may take locks of another.
func Reachable(lock, workflow string) bool { return lock == workflow || lock == SharedNamespace }

// MutexKey names a mutex.
func MutexKey(namespace, name string) string { return namespace + "/Mutex/" + name }

// SemaphoreKey names a semaphore whose limit is in a ConfigMap.
func SemaphoreKey(namespace, configMap, key string) string {
	return namespace + "/ConfigMap/" + configMap + "/" + key
}

// ConfigMapOf returns where the limit of a semaphore is kept, if the key is a semaphore's.
func ConfigMapOf(lock string) (namespace, configMap, key string, found bool) {
	parts := strings.SplitN(lock, "/", 4)
	if len(parts) != 4 || parts[1] != "ConfigMap" {
		return "", "", "", false
	}
	return parts[0], parts[2], parts[3], true
}

// Table knows who holds and who waits. It is safe for concurrent use.
type Table struct {
	limit func(namespace, configMap, key string) (int, error)

	mu       sync.Mutex
	locks    map[string]*lock
	requests map[string]*request // by holder
	seq      int
}

type lock struct {
	key     string
	limit   int
	holders map[string]bool
	line    []*request // in the order of their turn
}

type request struct {
	Request
	seq     int
	granted bool
}

// New returns an empty Table. limit returns a semaphore's limit as it is now; it must not call the Table,
// nor wait for anything: the Table is locked meanwhile.
func New(limit func(namespace, configMap, key string) (int, error)) *Table {
	return &Table{limit: limit, locks: map[string]*lock{}, requests: map[string]*request{}}
}

// Restore takes over what a workflow's status says it holds.
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
			}
			t.lock(key).holders[holder] = true
		}
	}
}

// HeldBy returns of a workflow's status what that workflow may hold itself: whoever writes a workflow can write its status, too.
func HeldBy(namespace, name string, status *wf.SynchronizationStatus) *wf.SynchronizationStatus {
	out := &wf.SynchronizationStatus{Mutex: &wf.LockStatus{}}
	for key, holders := range Holding(status) {
		of, _, _ := strings.Cut(key, "/")
		for _, holder := range holders {
			if ns, n := WorkflowOf(holder); ns == namespace && n == name && Reachable(of, namespace) {
				out.Mutex.Holding = append(out.Mutex.Holding, wf.LockHolding{Mutex: key, Holder: holder})
			}
		}
	}
	return out
}

// Holding returns the locks that a status says are held, with their holders.
func Holding(status *wf.SynchronizationStatus) map[string][]string {
	held := map[string][]string{}
	if status == nil {
		return held
	}
	if m := status.Mutex; m != nil {
		for _, h := range m.Holding {
			if h.Holder != "" {
				held[h.Mutex] = append(held[h.Mutex], h.Holder)
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

// Acquire asks for locks. Asking again changes nothing and tells how the request stands now.
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
			t.tidy(key)
			return State{Holder: r.Holder, Waiting: key, Err: err, Message: err.Error()}
		}
	}
	t.seq++
	q := &request{Request: r, seq: t.seq}
	q.Keys = slices.Compact(slices.Sorted(slices.Values(r.Keys)))
	t.requests[r.Holder] = q
	for _, key := range q.Keys {
		l := t.lock(key)
		at, _ := slices.BinarySearchFunc(l.line, q, before)
		l.line = slices.Insert(l.line, at, q)
	}
	if t.due(q) {
		t.grant(q)
		return State{Holder: r.Holder, Granted: true}
	}
	return t.waiting(q)
}

// Release ends what a holder holds or waits for, and returns who is granted now.
func (t *Table) Release(holder string) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.release(holder)
}

// Forget releases everything of a workflow, and returns who is granted now.
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

// LimitChanged takes in that a ConfigMap with limits changed, and returns who is granted now.
func (t *Table) LimitChanged(namespace, configMap string) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	var changed []string
	for _, key := range slices.Sorted(maps.Keys(t.locks)) {
		if ns, name, _, found := ConfigMapOf(key); found && ns == namespace && name == configMap && t.refresh(key) == nil {
			changed = append(changed, key)
		}
	}
	return t.pass(changed)
}

// Position returns how many requests are before the holder's in the longest of its lines, and false if it does not wait.
func (t *Table) Position(holder string) (int, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.requests[holder]
	if r == nil || r.granted {
		return 0, false
	}
	longest := 0
	for _, key := range r.Keys {
		longest = max(longest, slices.Index(t.locks[key].line, r))
	}
	return longest, true
}

// Usage is how many hold a lock, and how many wait for it.
type Usage struct{ Held, Waiting, Limit int }

// Usage returns the locks that are held or waited for.
func (t *Table) Usage() map[string]Usage {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := map[string]Usage{}
	for key, l := range t.locks {
		all[key] = Usage{len(l.holders), len(l.line), l.limit}
	}
	return all
}

// ConfigMaps are those with the limits of semaphores that are held or waited for.
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

// refresh reads a semaphore's limit. One that cannot be read stays as it was.
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

// before orders requests by whose turn is first.
func before(a, b *request) int {
	return cmp.Or(cmp.Compare(b.Priority, a.Priority), a.Created.Compare(b.Created), a.Since.Compare(b.Since), cmp.Compare(a.seq, b.seq))
}

// due says that a request may be granted.
func (t *Table) due(r *request) bool {
	for _, key := range r.Keys {
		if l := t.locks[key]; l.line[0] != r || len(l.holders) >= l.limit {
			return false
		}
	}
	return true
}

func (t *Table) grant(r *request) {
	r.granted = true
	for _, key := range r.Keys {
		l := t.locks[key]
		l.line = slices.Delete(l.line, 0, 1)
		l.holders[r.Holder] = true
	}
}

func (t *Table) release(holder string) []State {
	r := t.requests[holder]
	if r == nil {
		return nil
	}
	delete(t.requests, holder)
	for _, key := range r.Keys {
		l := t.locks[key]
		delete(l.holders, holder)
		if at := slices.Index(l.line, r); at >= 0 {
			l.line = slices.Delete(l.line, at, at+1)
		}
	}
	states := t.pass(r.Keys)
	for _, key := range r.Keys {
		t.tidy(key)
	}
	return states
}

// tidy forgets a lock that nobody holds or wants.
func (t *Table) tidy(key string) {
	if l := t.locks[key]; l != nil && len(l.holders)+len(l.line) == 0 {
		delete(t.locks, key)
	}
}

// pass grants what is due in the lines of keys. Granting makes others first in line, also in the lines of other locks.
func (t *Table) pass(keys []string) []State {
	var states []State
	for todo := slices.Clone(keys); len(todo) > 0; {
		l := t.locks[todo[0]]
		if l == nil || len(l.line) == 0 || !t.due(l.line[0]) {
			todo = todo[1:]
			continue
		}
		next := l.line[0]
		t.grant(next)
		states = append(states, State{Holder: next.Holder, Granted: true})
		todo = append(todo, next.Keys...)
	}
	return states
}

// waiting describes a request that waits.
func (t *Table) waiting(r *request) State {
	s := State{Holder: r.Holder}
	for _, key := range r.Keys {
		if l := t.locks[key]; s.Waiting == "" && len(l.holders) >= l.limit {
			s.Waiting = key
		}
	}
	if s.Waiting == "" { // there is room, but others come first
		for _, key := range r.Keys {
			if l := t.locks[key]; s.Waiting == "" && l.line[0] != r {
				s.Waiting = key
			}
		}
	}
	l := t.locks[s.Waiting]
	s.Holders = slices.Sorted(maps.Keys(l.holders))
	s.Message = fmt.Sprintf("Waiting for %s lock. Lock status: %d/%d", s.Waiting, max(0, l.limit-len(l.holders)), l.limit)
	return s
}
