package apiwriter

import (
	"cmp"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/informer"
)

type statusKey struct {
	kind kind
	name types.NamespacedName
}

// statusEntry is the pending status of one object.
//
//	          Status                    its turn                 ended, nothing new
//	(none) ────────────▶ queued ───────────────────▶ in flight ────────────────────▶ resting ──interval──▶ (none)
//	                       ▲                          │                                │
//	                       │    interval over, or     │ ended, with a newer status     │ Status
//	                       └────── urgent ◀── delayed ◀┴───────────────────────────────┘
type statusEntry struct {
	key       statusKey
	state     statusState
	boundTerm        // of latest
	write     *write // queued or in flight; an earlier write that it replaced is void
	meta      Meta
	latest    Object       // the status to write next; nil when there is none
	calls     []statusCall // waiting for latest
	sent      []statusCall // in flight
	urgent    bool
	version   string    // of the object after this writer's last write
	uid       types.UID // UID of the object that has version
	ended     time.Time // when the last write ended
}

type statusCall struct {
	seq  uint64
	done func(Object, error)
}

type statusState int

const (
	statusResting statusState = iota
	statusDelayed
	statusQueued
	statusInFlight
)

// Status implements Writer.
func (w *W) Status(m Meta, obj Object, urgent bool, done func(Object, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	term, err := w.term(m.Owner)
	k, kindErr := w.kindOf(m, obj)
	key := statusKey{k, types.NamespacedName{Namespace: obj.GetNamespace(), Name: obj.GetName()}}
	e := w.statuses[key]
	if err = cmp.Or(err, kindErr, w.accepts()); err != nil && (e == nil || !errors.Is(err, ErrQueueFull)) {
		w.reject(done, err)
		return
	}
	if e == nil {
		e = &statusEntry{key: key}
		w.statuses[key] = e
	}
	if e.latest != nil {
		w.metrics.coalesced.Inc()
	}
	e.meta, e.boundTerm = m, term
	e.latest = obj
	e.urgent = e.urgent || urgent
	e.calls = append(e.calls, statusCall{w.opened(), done})
	switch {
	case e.state == statusResting, e.state == statusDelayed:
		w.scheduleStatus(e)
	case urgent && e.state == statusQueued && e.write.class != ClassUrgent:
		w.queueStatus(e) // moves ahead of writes that are not urgent
	}
}

// versionKept is the minimum time for which the version produced by a status write is remembered.
// The caller's watch lags by seconds when the server is busy, and a status based on an older
// version is refused.
const versionKept = 15 * time.Second

// scheduleStatus queues the entry's latest status, now or when StatusInterval has passed. The
// caller holds mu.
func (w *core) scheduleStatus(e *statusEntry) {
	wait := time.Until(e.ended.Add(w.cfg.StatusInterval))
	if e.urgent || e.ended.IsZero() || wait <= 0 {
		w.queueStatus(e)
		return
	}
	if e.state == statusDelayed {
		return // its timer is set
	}
	e.state = statusDelayed
	w.after(wait, func() {
		if e.state == statusDelayed {
			w.queueStatus(e)
		}
	})
}

func (w *core) queueStatus(e *statusEntry) {
	e.state = statusQueued
	class := ClassStatus
	if e.urgent {
		class = ClassUrgent
	}
	e.write = &write{
		verb: verbStatus, class: class, owner: e.meta.Owner, reason: e.meta.Reason,
		kind: e.key.kind, name: e.key.name, status: e,
	}
	w.enqueue(e.write)
}

// begin moves the entry's latest status into x, which is about to be sent. The caller holds mu.
func (e *statusEntry) begin(x *write) {
	e.state = statusInFlight
	if e.latest == nil {
		return // a further attempt, with no newer status
	}
	x.obj, x.uid, x.body = e.latest, e.latest.GetUID(), nil
	x.boundTerm, x.reason, x.metadataOnly = e.boundTerm, e.meta.Reason, e.meta.MetadataOnly
	e.sent = append(e.sent, e.calls...)
	e.latest, e.calls, e.urgent = nil, nil, false
	x.version = x.obj.GetResourceVersion()
	if x.version != "" && e.uid == x.uid && informer.Older(x.version, e.version) {
		// The version of our own last write, which the caller's cache does not show yet.
		x.version = e.version
	}
}

// statusEnded ends the write of a status. The caller holds mu.
func (w *core) statusEnded(x *write, obj Object, err error) []func() {
	e := x.status
	sent := e.sent
	e.sent = nil
	if errors.Is(err, ErrStopped) { // the write may not have begun
		sent = append(sent, e.take()...)
	}
	e.state = statusResting
	e.ended = time.Now()
	if err == nil {
		e.version, e.uid = obj.GetResourceVersion(), obj.GetUID()
	}
	if e.latest != nil {
		w.scheduleStatus(e)
	} else {
		kept := max(w.cfg.StatusInterval, versionKept)
		w.after(kept, func() {
			if e.state == statusResting && !time.Now().Before(e.ended.Add(kept)) {
				delete(w.statuses, e.key)
			}
		})
	}
	return w.endStatus(sent, obj, err)
}

// take empties the entry and returns the calls that waited for latest.
func (e *statusEntry) take() []statusCall {
	calls := e.calls
	e.calls, e.latest = nil, nil
	return calls
}

func (w *core) endStatus(calls []statusCall, obj Object, err error) []func() {
	var ends []func()
	for _, c := range calls {
		ends = append(ends, w.end(c.seq, c.done, obj, err))
	}
	return ends
}
