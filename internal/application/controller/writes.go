package controller

import (
	"maps"
	"slices"
	"time"
)

// writes is what is known of one Application's writes: which are under way, and which failed last
// time. Writes are named: those of objects by refKey, others by a word.
type writes struct {
	flight map[string]bool
	failed map[string]failedWrite
	// answered is the time of the last answer to a write of an object.
	answered time.Time
}

// failedWrite is a write that failed.
type failedWrite struct {
	message string
	// retryAt is when the write may be repeated; zero: not before something has changed.
	retryAt time.Time
	times   int
}

// The backoff of a failed write starts at retryFirst and doubles up to retryMax. Refused writes are
// retried, too, because the reason for the refusal may have gone.
const (
	retryFirst = time.Second
	retryMax   = 5 * time.Minute
)

// start marks a write as under way. It returns false if it is under way already.
func (w *writes) start(name string) bool {
	if w.flight[name] {
		return false
	}
	if w.flight == nil {
		w.flight = map[string]bool{}
	}
	w.flight[name] = true
	return true
}

// cancel takes back start.
func (w *writes) cancel(name string) { delete(w.flight, name) }

// end records the outcome of a write.
func (w *writes) end(name string, err error) {
	delete(w.flight, name)
	if err == nil {
		delete(w.failed, name)
		return
	}
	if w.failed == nil {
		w.failed = map[string]failedWrite{}
	}
	f := w.failed[name]
	f.message = err.Error()
	w.failed[name] = f
}

// endObject records the outcome of a write of an object. If the write failed, endObject returns the
// delay after which it may be repeated.
func (w *writes) endObject(name string, err error, now time.Time) (delay time.Duration) {
	w.answered = now
	w.end(name, err)
	if err == nil {
		return 0
	}
	f := w.failed[name]
	delay = min(retryFirst<<f.times, retryMax)
	f.times, f.retryAt = min(f.times+1, 16), now.Add(delay)
	w.failed[name] = f
	return delay
}

// inFlight reports whether a write is under way.
func (w *writes) inFlight(name string) bool { return w.flight[name] }

// any reports whether any write is under way. The answers bring the Application back.
func (w *writes) any() bool { return len(w.flight) > 0 }

// failure returns why a write failed last time, or an empty string.
func (w *writes) failure(name string) string { return w.failed[name].message }

// mayRetry reports whether the backoff of a failed write is over.
func (w *writes) mayRetry(name string, now time.Time) bool {
	f, ok := w.failed[name]
	return ok && !f.retryAt.IsZero() && !now.Before(f.retryAt)
}

// forget drops the failure of a write, or all failures if no name is given.
func (w *writes) forget(names ...string) {
	if len(names) == 0 {
		clear(w.failed)
	}
	for _, name := range names {
		delete(w.failed, name)
	}
}

// failures returns the messages of the writes that failed, sorted by name.
func (w *writes) failures() []string {
	out := make([]string, 0, len(w.failed))
	for _, name := range slices.Sorted(maps.Keys(w.failed)) {
		out = append(out, w.failed[name].message)
	}
	return out
}
