package controlloop

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
)

// Config configures a Loop. Turn is required.
type Config[K comparable] struct {
	// Name is the name of the queue in client-go's metrics.
	Name string
	// Workers is the number of keys worked on at a time. Default 4.
	Workers int
	// Turn works on a key that was woken, whether or not it has a record.
	Turn func(K)
	// Guard, if set, recovers from panics of turns. Panicked is then called in the same turn, to
	// release what the key's record holds, as far as that is known, and to prevent further useless
	// turns of the key. Then the record is dropped.
	Guard    *panics.Guard
	Panicked func(K, *panics.Panic)
	// Sweep, if set, is called every SweepEvery, never twice at once.
	Sweep      func()
	SweepEvery time.Duration
	// RetryMin and RetryMax are the bounds of the backoff of Retry. Default: those of Backoff.
	RetryMin, RetryMax time.Duration
	// Clock is used for the queue, WakeAfter, Retry and Sweep. Default: the real clock.
	Clock clock.WithTicker
}

// Loop is a table of records by key, with workers that run turns of the keys. Its methods may be
// called at any time and from any goroutine, unless they say otherwise.
type Loop[K comparable, R any] struct {
	cfg     Config[K]
	queue   workqueue.TypedDelayingInterface[K]
	workers workerPool[K]
	ctx     context.Context // the context of Run

	mu      sync.RWMutex
	entries map[K]*entry[R]
	failed  map[K]*Backoff // the backoffs of Retry
}

// Anyone addresses a function to the record of a key, whichever object the record belongs to.
const Anyone types.UID = ""

type entry[R any] struct {
	record *R

	mu       sync.Mutex
	messages []message[R]
	latest   map[string]int // index in messages of the last message about a subject
}

type message[R any] struct {
	to types.UID
	do func(*R)
}

// New prepares a loop. Keys can be woken at once; their turns begin with Run.
func New[K comparable, R any](cfg Config[K]) *Loop[K, R] {
	cfg.Workers = cmp.Or(max(cfg.Workers, 0), 4)
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	l := &Loop[K, R]{
		cfg: cfg,
		queue: workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[K]{
			Name: cfg.Name, Clock: cfg.Clock,
		}),
		entries: map[K]*entry[R]{},
		failed:  map[K]*Backoff{},
		ctx:     context.Background(),
	}
	l.workers.size, l.workers.get = cfg.Workers, l.queue.Get
	l.workers.turn = func(key K) {
		l.Take(key)
		l.queue.Done(key)
	}
	return l
}

// Run works until ctx is done, and returns when the keys still in the queue have had their turn.
func (l *Loop[K, R]) Run(ctx context.Context) {
	l.ctx = ctx
	var workers sync.WaitGroup
	workers.Go(l.workers.run)
	l.sweep(ctx)
	l.queue.ShutDown()
	workers.Wait()
}

// Context returns the context of Run, for the requests of a turn.
func (l *Loop[K, R]) Context() context.Context { return l.ctx }

// Yield runs wait, which waits for an answer from outside this process, while another key takes the
// place of this turn. The key's own next turn still follows this one. Yield may be called only in a
// turn started by Run.
func (l *Loop[K, R]) Yield(wait func()) { l.workers.yield(wait) }

// Take runs a turn of the key at once. The caller must know that the loop is not running.
func (l *Loop[K, R]) Take(key K) {
	if l.cfg.Guard == nil {
		l.cfg.Turn(key)
		return
	}
	about := named[K]{key}
	p := l.cfg.Guard.Try(l.cfg.Name, about, func() {
		failpoint.Hit(l.cfg.Name, key)
		l.cfg.Turn(key)
	})
	if p == nil {
		return
	}
	if l.cfg.Panicked != nil {
		l.cfg.Guard.Try(l.cfg.Name, about, func() { l.cfg.Panicked(key, p) })
	}
	l.cfg.Guard.Try(l.cfg.Name, about, func() { l.Drop(key) })
}

// named makes a key a fmt.Stringer.
type named[K any] struct{ key K }

// String implements fmt.Stringer.
func (n named[K]) String() string { return fmt.Sprint(n.key) }

func (l *Loop[K, R]) sweep(ctx context.Context) {
	if l.cfg.Sweep == nil {
		<-ctx.Done()
		return
	}
	tick := l.cfg.Clock.NewTicker(l.cfg.SweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C():
			l.cfg.Sweep()
		}
	}
}

// Wake queues the key for a turn.
func (l *Loop[K, R]) Wake(key K) { l.queue.Add(key) }

// WakeAfter queues the key for a turn after d, or at once if d is not positive. Only the earliest
// of several calls counts, so a turn that comes too early for its purpose calls WakeAfter again.
func (l *Loop[K, R]) WakeAfter(key K, d time.Duration) { l.queue.AddAfter(key, d) }

// Retry queues the key for a turn after a failure, when the next delay of the key's backoff is
// over. The turn comes sooner if the key is woken for another reason.
func (l *Loop[K, R]) Retry(key K) {
	now := l.cfg.Clock.Now()
	l.mu.Lock()
	b := l.failed[key]
	if b == nil {
		b = &Backoff{Min: l.cfg.RetryMin, Max: l.cfg.RetryMax}
		l.failed[key] = b
	}
	b.Failed(now)
	left := b.Left(now)
	l.mu.Unlock()
	l.WakeAfter(key, left)
}

// Succeeded forgets the failures of a key, and so does Drop.
func (l *Loop[K, R]) Succeeded(key K) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failed, key)
}

// Post queues do for key's next turn, and wakes the key. The turn runs do only if the record then
// belongs to the object with UID to, or if to is Anyone. Post returns false, and queues nothing, if
// the key has no record.
func (l *Loop[K, R]) Post(key K, to types.UID, do func(*R)) bool {
	return l.post(key, "", message[R]{to, do})
}

// PostLatest is Post, but do replaces the last function posted about the same subject, if that has
// not run.
func (l *Loop[K, R]) PostLatest(key K, to types.UID, about string, do func(*R)) bool {
	return l.post(key, about, message[R]{to, do})
}

func (l *Loop[K, R]) post(key K, about string, m message[R]) bool {
	l.mu.RLock()
	e := l.entries[key]
	if e != nil {
		e.add(about, m) // under the lock, so that a Drop follows and takes the function
	}
	l.mu.RUnlock()
	if e != nil {
		l.queue.Add(key)
	}
	return e != nil
}

func (e *entry[R]) add(about string, m message[R]) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if about != "" {
		if i, found := e.latest[about]; found && e.messages[i].to == m.to {
			e.messages[i] = m
			return
		}
		if e.latest == nil {
			e.latest = map[string]int{}
		}
		e.latest[about] = len(e.messages)
	}
	e.messages = append(e.messages, m)
}

func (e *entry[R]) take() []message[R] {
	e.mu.Lock()
	defer e.mu.Unlock()
	m := e.messages
	e.messages, e.latest = nil, nil
	return m
}

// Get returns the record under key, or nil. Outside the key's turn, only those parts of a record
// may be used that are safe for concurrent use.
func (l *Loop[K, R]) Get(key K) *R {
	if e := l.entry(key); e != nil {
		return e.record
	}
	return nil
}

func (l *Loop[K, R]) entry(key K) *entry[R] {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.entries[key]
}

// Put stores a record under a key that has none. It must be called in the key's turn.
func (l *Loop[K, R]) Put(key K, r *R) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[key] = &entry[R]{record: r}
}

// Deliver runs the functions posted for the record, in the order in which they were posted. uid is
// the UID of the object that the record belongs to. Deliver must be called in the key's turn.
func (l *Loop[K, R]) Deliver(key K, uid types.UID) {
	e := l.entry(key)
	if e == nil {
		return
	}
	for _, m := range e.take() {
		if m.to == uid || m.to == Anyone {
			m.do(e.record)
		}
	}
}

// Drop removes the record. It runs the functions that are still posted for Anyone, because they may
// release resources. It must be called in the key's turn.
func (l *Loop[K, R]) Drop(key K) {
	l.mu.Lock()
	e := l.entries[key]
	delete(l.entries, key)
	delete(l.failed, key)
	l.mu.Unlock()
	if e == nil {
		return
	}
	for _, m := range e.take() {
		if m.to == Anyone {
			m.do(e.record)
		}
	}
}

// Each calls do with every record that exists at the time of the call. do may use only those parts
// of a record that are safe for concurrent use.
func (l *Loop[K, R]) Each(do func(K, *R)) {
	type pair struct {
		key    K
		record *R
	}
	l.mu.RLock()
	all := make([]pair, 0, len(l.entries))
	for key, e := range l.entries {
		all = append(all, pair{key, e.record})
	}
	l.mu.RUnlock()
	for _, p := range all {
		do(p.key, p.record)
	}
}

// Records returns the number of records.
func (l *Loop[K, R]) Records() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.entries)
}

// Depth returns the number of keys that wait for a worker.
func (l *Loop[K, R]) Depth() int { return l.queue.Len() }
