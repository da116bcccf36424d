package controller

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// LockDatabase has the locks that controllers of several clusters share. Only one goroutine at a time
// uses it.
type LockDatabase interface {
	// Heartbeat shows the other controllers that this one is active.
	Heartbeat(ctx context.Context, now time.Time) error
	// Rows returns what the database has of this controller.
	Rows(ctx context.Context) ([]locks.Row, error)
	// Acquire gives a request all its locks, or none.
	Acquire(ctx context.Context, now time.Time, q locks.Question) (locks.Answer, error)
	// Queue shows the other controllers that requests wait.
	Queue(ctx context.Context, waiting []locks.Question) error
	// Hold makes a request a holder without asking.
	Hold(ctx context.Context, q locks.Question) error
	Leave(ctx context.Context, d locks.Departure) error
	Close() error
}

// lockDatabase brings the table of locks and the database together, outside of the turns of
// workflows: it asks for locks, and gives back those that are not needed. Only the leader has one.
type lockDatabase struct {
	c     *Controller
	table *locks.Table
	// loop has one key: it works on the database one step after the other.
	loop *controlloop.Loop[struct{}, struct{}]

	// The following are used only by turns of the loop.
	of       *settings.Synchronization // the configuration of db
	db       LockDatabase
	beat     time.Time            // time of the last heartbeat
	queued   map[string]time.Time // holders whose requests are in the database, and when they asked
	strays   bool                 // some rows are of holders that are not known yet
	failures controlloop.Backoff

	// trouble is true while requests are told that the database does not answer.
	trouble atomic.Bool
}

const (
	// databaseTimeout bounds one step of work on the database.
	databaseTimeout = 10 * time.Second
	// databaseRetryMax bounds the backoff after an error.
	databaseRetryMax = 15 * time.Second
	// contended is the pause after another controller changed the holders of a lock at the same time.
	contended = 100 * time.Millisecond
	// holderMax is the size of the column that has the name of a holder, in bytes.
	holderMax = 256
)

var (
	errNoLockDatabase = errors.New("synchronization: the lock is in a database, and the configuration of workflows names none under " +
		"the key synchronization")
	errHolderTooLong = errors.New("synchronization: the names of the workflow and the node are too long for a lock in a database: " +
		"together they may have 256 characters")
)

func newLockDatabase(c *Controller, table *locks.Table) *lockDatabase {
	d := &lockDatabase{c: c, table: table, queued: map[string]time.Time{}, failures: controlloop.Backoff{Max: databaseRetryMax}}
	d.loop = controlloop.New[struct{}, struct{}](controlloop.Config[struct{}]{
		Name: "workflow-lock-database", Workers: 1, Turn: func(struct{}) { d.turn() }, Clock: c.Clock,
	})
	return d
}

// run works on the database until ctx is done.
func (d *lockDatabase) run(ctx context.Context) {
	if !d.c.Leads || d.c.OpenLocks == nil {
		return
	}
	d.loop.Wake(struct{}{})
	d.loop.Run(ctx)
	d.close()
}

// wake makes a turn follow. It is called after the table has changed.
func (d *lockDatabase) wake() { d.loop.Wake(struct{}{}) }

// refuses returns why a holder can never get locks of the database.
func (d *lockDatabase) refuses(r locks.Request) error {
	s := d.c.Settings()
	switch {
	case !slices.ContainsFunc(r.Keys, locks.InDatabase):
		return nil
	case len(r.Holder) > holderMax:
		return errHolderTooLong
	case s.Synchronization == nil && s.Refused == "" || d.c.OpenLocks == nil:
		return errNoLockDatabase
	}
	return nil
}

func (d *lockDatabase) close() {
	if d.db == nil {
		return
	}
	if err := d.db.Close(); err != nil {
		d.c.Log.Warn("closing the database of locks", "error", err)
	}
	d.db, d.of = nil, nil
}

// turn does what is due, and decides when the next turn follows.
func (d *lockDatabase) turn() {
	if d.loop.Context().Err() != nil {
		return
	}
	now := d.c.Clock.Now()
	if left := d.failures.Left(now); left > 0 {
		d.loop.WakeAfter(struct{}{}, left)
		return
	}
	to := d.c.Settings().Synchronization
	if to == nil {
		d.close()
		d.tell(d.table.Trouble("the configuration of workflows names no database of locks"))
		return // a configuration that does wakes the loop
	}
	next, err := d.work(to, now)
	if d.loop.Context().Err() != nil {
		return
	}
	if err != nil {
		d.close() // the next try reads the credentials anew
		d.failures.Failed(now)
		next = d.failures.Left(now)
		if !d.trouble.Swap(true) {
			d.c.Log.Warn("the database of locks does not answer; trying again", "error", err)
		}
		d.tell(d.table.Trouble(shortened("the database does not answer: " + err.Error())))
	}
	d.loop.WakeAfter(struct{}{}, next)
}

// work does what is due, and returns after which time it is to be done again.
func (d *lockDatabase) work(to *settings.Synchronization, now time.Time) (time.Duration, error) {
	//   1. Open the database.
	if d.db != nil && !reflect.DeepEqual(d.of, to) {
		d.close()
	}
	if d.db == nil {
		var db LockDatabase
		if err := d.timed(func(ctx context.Context) (err error) { db, err = d.c.OpenLocks(ctx, to); return err }); err != nil {
			return 0, err
		}
		d.db, d.of, d.beat = db, to, time.Time{}
		clear(d.queued)
	}
	//   2. Show that this controller is active, and compare its rows with the table.
	beat := now.Sub(d.beat) >= to.Heartbeat
	if beat {
		if err := d.timed(func(ctx context.Context) error { return d.db.Heartbeat(ctx, now) }); err != nil {
			return 0, err
		}
	}
	if beat || d.strays {
		if err := d.compare(); err != nil {
			return 0, err
		}
		if beat {
			d.beat = now
		}
	}
	d.failures.Succeeded()
	d.trouble.Store(false)
	d.tell(d.table.Trouble(""))
	//   3. Give back what is not needed any more.
	for _, departure := range d.table.Departures() {
		if err := d.timed(func(ctx context.Context) error { return d.db.Leave(ctx, departure) }); err != nil {
			return 0, err
		}
		d.table.Departed(departure)
		delete(d.queued, departure.Holder)
	}
	//   4. Ask for locks.
	again, err := d.ask(now)
	if err != nil {
		return 0, err
	}
	//   5. Let the others see who waits.
	if err := d.queue(); err != nil {
		return 0, err
	}
	next := to.Heartbeat - now.Sub(d.beat)
	if d.strays || len(d.queued) > 0 {
		next = min(next, to.Poll)
	}
	if again {
		next = contended
	}
	return next, nil
}

func (d *lockDatabase) timed(do func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(d.loop.Context(), databaseTimeout)
	defer cancel()
	return do(ctx)
}

// ask asks the database for the locks of all requests that may have them as far as the table knows,
// once each. It reports whether another controller was in the way.
func (d *lockDatabase) ask(now time.Time) (again bool, err error) {
	done := map[string]bool{}
	for {
		questions := d.table.Ask(done)
		if len(questions) == 0 {
			return again, nil
		}
		for _, q := range questions {
			done[q.Holder] = true
			var a locks.Answer
			if err := d.timed(func(ctx context.Context) (err error) { a, err = d.db.Acquire(ctx, now, q); return err }); err != nil {
				return false, err // the request is asked until the table learns of the trouble
			}
			if a.Granted || a.Err != nil {
				delete(d.queued, q.Holder)
			} else {
				d.queued[q.Holder] = q.Since
				again = again || a.Blocked == ""
			}
			d.tell(d.table.Decide(q, a))
		}
	}
}

// queue makes requests wait in the database that do not yet.
func (d *lockDatabase) queue() error {
	var list []locks.Question
	waiting := d.table.Waiting()
	for _, q := range waiting {
		if since, found := d.queued[q.Holder]; !found || !since.Equal(q.Since) {
			list = append(list, q)
		}
	}
	if len(list) > 0 {
		if err := d.timed(func(ctx context.Context) error { return d.db.Queue(ctx, list) }); err != nil {
			return err
		}
	}
	still := make(map[string]time.Time, len(waiting))
	for _, q := range waiting {
		still[q.Holder] = q.Since
	}
	d.queued = still
	return nil
}

// compare compares the rows of this controller with the table: after a crash or a hand-over, or
// after somebody changed them. Holders without a row get one; rows without a holder are removed.
func (d *lockDatabase) compare() error {
	var rows []locks.Row
	if err := d.timed(func(ctx context.Context) (err error) { rows, err = d.db.Rows(ctx); return err }); err != nil {
		return err
	}
	held := map[locks.Row]bool{}
	strays := map[string][]string{}
	for _, r := range rows {
		held[r] = true
		if !d.table.Knows(r.Holder) {
			strays[r.Holder] = append(strays[r.Holder], r.Key)
		} else {
			d.table.Stale(r.Holder, r.Key)
		}
	}
	for _, q := range d.table.Held() {
		if !slices.ContainsFunc(q.Keys, func(key string) bool { return !held[locks.Row{Holder: q.Holder, Key: key, Held: true}] }) {
			continue
		}
		if err := d.timed(func(ctx context.Context) error { return d.db.Hold(ctx, q) }); err != nil {
			return err
		}
	}
	d.strays = false
	running := sync.OnceValue(d.running)
	for _, holder := range slices.Sorted(maps.Keys(strays)) {
		if !d.stray(holder, strays[holder], running) {
			d.strays = true
		}
	}
	return nil
}

// stray decides about rows whose holder the table does not know. It reports whether that is
// decided; otherwise the workflow may still ask for the locks that it got before a crash.
func (d *lockDatabase) stray(holder string, keys []string, running func() map[types.NamespacedName]bool) bool {
	c := d.c
	namespace, name := locks.WorkflowOf(holder)
	leave := func() {
		for _, key := range keys {
			d.table.Stale(holder, key)
		}
	}
	key := types.NamespacedName{Namespace: namespace, Name: name}
	w, exists := c.Informers.Workflows.Get(namespace, name)
	if !exists || w.Status.Phase.Completed() {
		if running()[key] {
			return false
		}
		leave()
		return true
	}
	c.loop.Post(key, controlloop.Anyone, func(r *record) {
		if _, asking := r.asking[holder]; r.run != nil && r.stepped && !asking && !d.table.Knows(holder) {
			leave()
			d.wake()
		}
	})
	return false
}

// running returns the workflows with pods that run. Workflows that are deleted are among them.
func (d *lockDatabase) running() map[types.NamespacedName]bool {
	out := map[types.NamespacedName]bool{}
	for _, p := range d.c.Informers.Pods.List() {
		if name := p.Labels[wf.LabelWorkflow]; name != "" && !ended(p) {
			out[types.NamespacedName{Namespace: p.Namespace, Name: name}] = true
		}
	}
	return out
}

func (d *lockDatabase) tell(states []locks.State) { d.c.locks.tell(states) }
