package locks

import (
	"maps"
	"slices"
	"strings"
)

// A lock of the database has holders of several controllers, in several clusters. The table knows
// the requests of this controller; the database decides which of them get the lock:
//
//	Acquire ──▶ waiting ──Ask──▶ asked ──Decide──▶ granted ──Release──▶ leaving ──Departed──▶ (none)
//	               ▲                │
//	               └────────────────┘ Decide: no free place, or a request of another controller is first
//
// A request for locks of both kinds gets all of them or none: while the database is asked, the
// request occupies its places on the other locks.
type database struct {
	// leaving are the rows to remove, keys by holder.
	leaving map[string]map[string]bool
	// trouble says why the database does not answer; "" if it does.
	trouble string
}

// The kinds of locks in keys. In statuses and messages, both kinds of the database are Database.
const (
	databaseMutex     = "/DatabaseMutex/"
	databaseSemaphore = "/Database/"
)

// DatabaseMutexKey returns the key of a mutex in the database.
func DatabaseMutexKey(namespace, name string) string { return namespace + databaseMutex + name }

// DatabaseSemaphoreKey returns the key of a semaphore in the database, which has its limit, too.
func DatabaseSemaphoreKey(namespace, key string) string { return namespace + databaseSemaphore + key }

// kind returns the second part of a key with its slashes.
func kind(key string) string {
	_, rest, _ := strings.Cut(key, "/")
	name, _, _ := strings.Cut(rest, "/")
	return "/" + name + "/"
}

// InDatabase reports whether a key is that of a lock in the database.
func InDatabase(key string) bool {
	k := kind(key)
	return k == databaseMutex || k == databaseSemaphore
}

// IsSemaphore reports whether a key is that of a semaphore.
func IsSemaphore(key string) bool {
	_, _, _, found := ConfigMapOf(key)
	return found || kind(key) == databaseSemaphore
}

// Shown returns a key as statuses and messages name it.
func Shown(key string) string {
	if kind(key) == databaseMutex {
		return strings.Replace(key, databaseMutex, databaseSemaphore, 1)
	}
	return key
}

// mutexOf returns the key of a mutex that a status names.
func mutexOf(shown string) string {
	if kind(shown) == databaseSemaphore {
		return strings.Replace(shown, databaseSemaphore, databaseMutex, 1)
	}
	return shown
}

const mutexRow, semaphoreRow = "mtx/", "sem/"

// RowName returns the name under which a lock is in the database, and for a semaphore the name of
// its limit.
func RowName(key string) (name, limit string) {
	namespace, rest, _ := strings.Cut(key, "/")
	_, name, _ = strings.Cut(rest, "/")
	name = namespace + "/" + name
	if IsSemaphore(key) {
		return semaphoreRow + name, name
	}
	return mutexRow + name, ""
}

// KeyOfRow returns the key of a lock from its name in the database.
func KeyOfRow(name string) (key string, found bool) {
	rest, semaphore := strings.CutPrefix(name, semaphoreRow)
	if !semaphore {
		if rest, found = strings.CutPrefix(name, mutexRow); !found {
			return "", false
		}
	}
	namespace, lock, found := strings.Cut(rest, "/")
	if semaphore {
		return DatabaseSemaphoreKey(namespace, lock), found
	}
	return DatabaseMutexKey(namespace, lock), found
}

// Question is a request as the database sees it. Keys are the locks in the database.
type Question struct {
	Request
	seq int
}

// Answer is what the database says about a Question.
type Answer struct {
	Granted bool
	// Blocked is a lock without a free place for the request; Holders are those of all controllers.
	Blocked string
	Holders []string
	Limit   int
	Err     error // the request can never be granted
}

// Row is what the database has of a holder of this controller, or of a request that waits.
type Row struct {
	Holder, Key string
	Held        bool
}

// Departure names rows of a holder that are to be removed from the database.
type Departure struct {
	Holder string
	Keys   []string
}

func question(r *request) Question {
	q := Question{r.Request, r.seq}
	q.Keys = slices.DeleteFunc(slices.Clone(r.Keys), func(key string) bool { return !InDatabase(key) })
	return q
}

// Ask returns the requests for which the database has to be asked now, at most one for a lock. They
// stay asked until Decide or Trouble. Those with holders in done are left out, and those whose
// earlier rows are leaving: a removal that comes late would take the new ones.
func (t *Table) Ask(done map[string]bool) []Question {
	t.mu.Lock()
	defer t.mu.Unlock()
	var questions []Question
	busy := map[string]bool{}
	for _, holder := range slices.Sorted(maps.Keys(t.requests)) {
		r := t.requests[holder]
		if !r.shared || r.granted || r.asked || done[holder] || t.database.leaving[holder] != nil || slices.ContainsFunc(r.Keys, func(key string) bool { return busy[key] }) ||
			!t.grantable(r) {
			continue
		}
		for _, key := range r.Keys {
			busy[key] = true
		}
		r.asked = true
		t.occupy(r)
		questions = append(questions, question(r))
	}
	return questions
}

// Waiting returns the requests that wait for locks of the database.
func (t *Table) Waiting() []Question {
	return t.questions(func(r *request) bool { return !r.granted })
}

// Held returns the granted requests that have locks of the database.
func (t *Table) Held() []Question { return t.questions(func(r *request) bool { return r.granted }) }

func (t *Table) questions(of func(*request) bool) []Question {
	t.mu.Lock()
	defer t.mu.Unlock()
	var questions []Question
	for _, holder := range slices.Sorted(maps.Keys(t.requests)) {
		if r := t.requests[holder]; r.shared && of(r) {
			questions = append(questions, question(r))
		}
	}
	return questions
}

// Decide takes in the database's answer, and returns the states that it changes. The answer to a
// request that has been released meanwhile has no effect: its rows are leaving.
func (t *Table) Decide(q Question, a Answer) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.requests[q.Holder]
	if r == nil || r.seq != q.seq || !r.asked {
		return nil
	}
	switch {
	case a.Err != nil:
		states := t.release(q.Holder)
		return append(states, State{Holder: q.Holder, Waiting: a.Blocked, Err: a.Err, Message: a.Err.Error()})
	case a.Granted:
		r.asked, r.granted = false, true
		for _, key := range q.Keys {
			t.locks[key].elsewhere = nil
		}
		return []State{{Holder: q.Holder, Granted: true}}
	}
	t.queueAgain(r)
	if l := t.locks[a.Blocked]; l != nil {
		l.limit = a.Limit
		l.elsewhere = slices.DeleteFunc(slices.Clone(a.Holders), func(holder string) bool { return l.holders[holder] })
	}
	return append(t.grantNext(r.Keys), t.waiting(r))
}

// queueAgain takes the places of an asked request back.
func (t *Table) queueAgain(r *request) {
	r.asked = false
	for _, key := range r.Keys {
		delete(t.locks[key].holders, r.Holder)
	}
	t.enqueue(r)
}

// Trouble notes why the database does not answer; "" means that it answers again. If the reason has
// changed, it returns the states of all requests that wait for the database. It also returns requests
// that are granted now, because requests under way to the database give their places back.
func (t *Table) Trouble(reason string) []State {
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.database.trouble != reason
	t.database.trouble = reason
	var freed []string
	for _, r := range t.requests {
		if r.asked {
			t.queueAgain(r)
			freed = append(freed, r.Keys...)
		}
	}
	slices.Sort(freed)
	states := t.grantNext(freed)
	for _, holder := range slices.Sorted(maps.Keys(t.requests)) {
		if r := t.requests[holder]; changed && r.shared && !r.granted {
			states = append(states, t.waiting(r))
		}
	}
	return states
}

// Departures returns the rows to remove from the database.
func (t *Table) Departures() []Departure {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []Departure
	for _, holder := range slices.Sorted(maps.Keys(t.database.leaving)) {
		list = append(list, Departure{holder, slices.Sorted(maps.Keys(t.database.leaving[holder]))})
	}
	return list
}

// Departed takes in that rows have been removed.
func (t *Table) Departed(d Departure) {
	t.mu.Lock()
	defer t.mu.Unlock()
	keys := t.database.leaving[d.Holder]
	for _, key := range d.Keys {
		delete(keys, key)
	}
	if len(keys) == 0 {
		delete(t.database.leaving, d.Holder)
	}
}

// Stale notes that the database has a row of a holder that is none, or has not requested the lock
// now. It reports whether the row is to be removed.
func (t *Table) Stale(holder, key string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := t.requests[holder]; r != nil && slices.Contains(r.Keys, key) {
		return false
	}
	t.leave(holder, key)
	return true
}

// Knows reports whether a holder has or requests locks.
func (t *Table) Knows(holder string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.requests[holder] != nil
}

// leave notes that the rows of a holder are to be removed.
func (t *Table) leave(holder string, keys ...string) {
	for _, key := range keys {
		if !InDatabase(key) {
			continue
		}
		if t.database.leaving[holder] == nil {
			t.database.leaving[holder] = map[string]bool{}
		}
		t.database.leaving[holder][key] = true
	}
}
