package records

import (
	"maps"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/controlloop"
)

// Writes holds one Application's writes that are under way and those that failed last time. A write
// of an object is named by RefKey, any other write by a word.
type Writes struct {
	Flight map[string]bool
	Failed map[string]failedWrite
	// Answered is the time of the last answer to a write of an object.
	Answered time.Time
}

// failedWrite is a write that failed. Refused writes are retried, too, because the reason for the
// refusal may be gone. If backoff is zero, the write is not retried before something has changed.
type failedWrite struct {
	message string
	backoff controlloop.Backoff
}

// Start marks a write as under way. It returns false if it is under way already.
func (w *Writes) Start(name string) bool {
	if w.Flight[name] {
		return false
	}
	if w.Flight == nil {
		w.Flight = map[string]bool{}
	}
	w.Flight[name] = true
	return true
}

// Cancel undoes Start.
func (w *Writes) Cancel(name string) { delete(w.Flight, name) }

// End records the outcome of a write.
func (w *Writes) End(name string, err error) {
	delete(w.Flight, name)
	if err == nil {
		delete(w.Failed, name)
		return
	}
	if w.Failed == nil {
		w.Failed = map[string]failedWrite{}
	}
	f := w.Failed[name]
	f.message = err.Error()
	w.Failed[name] = f
}

// EndObject records the outcome of a write of an object. If the write failed, EndObject returns the
// delay after which it may be retried.
func (w *Writes) EndObject(name string, err error, now time.Time) (delay time.Duration) {
	w.Answered = now
	w.End(name, err)
	if err == nil {
		return 0
	}
	f := w.Failed[name]
	f.backoff.Failed(now)
	w.Failed[name] = f
	return f.backoff.Left(now)
}

// InFlight reports whether a write is under way.
func (w *Writes) InFlight(name string) bool { return w.Flight[name] }

// Any reports whether any write is under way. Its answer will enqueue the Application.
func (w *Writes) Any() bool { return len(w.Flight) > 0 }

// Failure returns why a write failed last time, or an empty string.
func (w *Writes) Failure(name string) string { return w.Failed[name].message }

// Waits reports whether a failed write must not be retried yet, and how long its backoff lasts. A
// failure without a backoff is never retried; its left is 0.
func (w *Writes) Waits(name string, now time.Time) (left time.Duration, waits bool) {
	f, failed := w.Failed[name]
	switch {
	case !failed:
		return 0, false
	case f.backoff == (controlloop.Backoff{}):
		return 0, true
	}
	left = f.backoff.Left(now)
	return left, left > 0
}

// Forget drops the failure of a write, or all failures if no name is given.
func (w *Writes) Forget(names ...string) {
	if len(names) == 0 {
		clear(w.Failed)
	}
	for _, name := range names {
		delete(w.Failed, name)
	}
}

// Failures returns the messages of the writes that failed, sorted by name.
func (w *Writes) Failures() []string {
	out := make([]string, 0, len(w.Failed))
	for _, name := range slices.Sorted(maps.Keys(w.Failed)) {
		out = append(out, w.Failed[name].message)
	}
	return out
}
