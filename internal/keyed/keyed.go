package keyed

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/contain"
	"lockstep.dev/lockstep/internal/failpoint"
)

// Config is what a Loop needs. Turn is required.
type Config[K comparable] struct {
	// Name is the queue's in the metrics of client-go.
	Name string
	// Workers is how many keys are worked on at a time. Default 4.
	Workers int
	// Turn works on a key that was woken, whether or not it has a record.
	Turn func(K)
	// Guard, if there is one, recovers from panics of turns. Panicked is then called in the same turn, to give back what the key's
	// record has taken, if that can be told, and to keep the key from being woken in vain. Then the record is dropped.
	Guard    *contain.Guard
	Panicked func(K, *contain.Panic)
	// Sweep, if there is one, is called every SweepEvery, never twice at once.
	Sweep      func()
	SweepEvery time.Duration
	// Clock is for WakeAfter and Sweep. Default: the real one.
	Clock clock.WithTicker
}

// Loop is a table of records by key, and the workers on them. Its methods may be called at any time and from everywhere,
// unless they say otherwise.
type Loop[K comparable, R any] struct {
	cfg   Config[K]
	queue workqueue.TypedInterface[K]
	crew  Crew[K]
	later *delays[K]

	mu      sync.RWMutex
	entries map[K]*entry[R]
}

// Anyone addresses a function to a key, whatever life of it is under way.
const Anyone types.UID = ""

type entry[R any] struct {
	record *R

	mu       sync.Mutex
	messages []message[R]
	latest   map[string]int // where in messages the last about something is
}

type message[R any] struct {
	to types.UID
	do func(*R)
}

// New prepares a loop. Keys can be woken at once; Run turns to them.
func New[K comparable, R any](cfg Config[K]) *Loop[K, R] {
	if cfg.Workers <= 0 {
		cfg.Workers = 4
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	l := &Loop[K, R]{
		cfg:     cfg,
		queue:   workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[K]{Name: cfg.Name, Clock: cfg.Clock}),
		later:   newDelays[K](cfg.Clock),
		entries: map[K]*entry[R]{},
	}
	l.crew.Size, l.crew.Get = cfg.Workers, l.queue.Get
	l.crew.Turn = func(key K) {
		l.Take(key)
		l.queue.Done(key)
	}
	return l
}

// Run works until ctx is done, and returns when the keys that were in the queue then have had their turn.
func (l *Loop[K, R]) Run(ctx context.Context) {
	var workers sync.WaitGroup
	workers.Go(l.crew.Run)
	workers.Go(func() { l.later.run(ctx, l.queue.Add) })
	l.sweep(ctx)
	l.queue.ShutDown()
	workers.Wait()
}

// Aside runs wait, for an answer from outside of this process, while another key has the place of this turn. The key's own next turn
// follows this one as ever. For turns of Run.
func (l *Loop[K, R]) Aside(wait func()) { l.crew.Aside(wait) }

// Take has a turn of the key at once. It is for those who know that the loop has not begun to run.
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

// named is a key as a fmt.Stringer.
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

// Wake has the key worked on.
func (l *Loop[K, R]) Wake(key K) { l.queue.Add(key) }

// WakeAfter has the key worked on when d is over, or at once if it is not positive. Of several only the earliest counts, so
// a turn that finds that its time has not come asks again.
func (l *Loop[K, R]) WakeAfter(key K, d time.Duration) {
	if d <= 0 {
		l.queue.Add(key)
		return
	}
	l.later.add(key, d)
}

// Post leaves a function for the record under key, as far as it stands for the object with this UID, and wakes the key. It
// says whether the key has a record; without one nothing is left.
func (l *Loop[K, R]) Post(key K, to types.UID, do func(*R)) bool {
	return l.post(key, "", message[R]{to, do})
}

// PostLatest is Post, and puts the function in the place of the last one about the same, if that has not been run.
func (l *Loop[K, R]) PostLatest(key K, to types.UID, about string, do func(*R)) bool {
	return l.post(key, about, message[R]{to, do})
}

func (l *Loop[K, R]) post(key K, about string, m message[R]) bool {
	l.mu.RLock()
	e := l.entries[key]
	if e != nil {
		e.add(about, m) // before a Drop, which takes what is there
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

// Get is the record under key, or nil. Only the key's turn may touch more of it than is safe for everyone.
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

// Put files a record under a key that has none. For the key's turn.
func (l *Loop[K, R]) Put(key K, r *R) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[key] = &entry[R]{record: r}
}

// Deliver runs what was posted for the record, which stands for the object with this UID now, in the order in which it came.
// For the key's turn.
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

// Drop forgets the record. What was posted for Anyone is run for the last time: it may hold something to give back. For the
// key's turn.
func (l *Loop[K, R]) Drop(key K) {
	l.mu.Lock()
	e := l.entries[key]
	delete(l.entries, key)
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

// Each calls do with every record that there was when it was called. Likewise for what is safe for everyone.
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

// Records is how many records there are.
func (l *Loop[K, R]) Records() int {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return len(l.entries)
}

// Depth is how many keys wait for a worker.
func (l *Loop[K, R]) Depth() int { return l.queue.Len() }
