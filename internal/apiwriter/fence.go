package apiwriter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/fence"
	"lockstep.dev/lockstep/internal/wire"
)

// Fence says under which term writes are made. Its method is called often, with locks held: it must be fast, and call nothing of
// the writer.
type Fence interface {
	// Term is the term under which what is written for an owner is this program's now; nil if it is not. The owner is
	// Meta.Owner; of an event it is "event/" and what it is about, as namespace/name.
	Term(owner string) *fence.Term
}

// ErrFenced is the outcome of writes whose term was over, or whose owner's work had become somebody else's, before they were sent.
// It is an ErrStopped: what it was for is not this program's any more.
var ErrFenced = fmt.Errorf("not sent, because the lease under which the write was made is lost: %w", ErrStopped)

// errHeld ends an attempt whose term has lapsed and may still be extended.
var errHeld = errors.New("not sent, because the lease under which the write was made has to be renewed first")

// heldRetry is how long after that the write is looked at again.
const heldRetry = 100 * time.Millisecond

// Fenced returns a Writer that shares everything with w and whose writes are sent only within the term that f gives them when
// they are made: each is looked at again when its turn comes, before each attempt, and when its bytes are handed to the kernel.
// While a term has lapsed and may be extended its writes wait; when it has ended, or f gives the owner none any more, they end
// with ErrFenced.
func (w *W) Fenced(f Fence) Writer { return &fenced{w, f} }

// fenced is a W whose writes have a fence.
type fenced struct {
	w     *W
	fence Fence
}

func (f *fenced) Create(m Meta, obj Object, done func(Object, error)) {
	m.fence = f.fence
	f.w.Create(m, obj, done)
}

func (f *fenced) Bind(m Meta, b Binding, done func(error)) {
	m.fence = f.fence
	f.w.Bind(m, b, done)
}

func (f *fenced) Status(m Meta, obj Object, urgent bool, done func(Object, error)) {
	m.fence = f.fence
	f.w.Status(m, obj, urgent, done)
}

func (f *fenced) Patch(m Meta, obj Object, kind types.PatchType, data []byte, done func(Object, error)) {
	m.fence = f.fence
	f.w.Patch(m, obj, kind, data, done)
}

func (f *fenced) PatchVersion(m Meta, obj Object, urgent bool, data []byte, done func(Object, error)) {
	m.fence = f.fence
	f.w.PatchVersion(m, obj, urgent, data, done)
}

func (f *fenced) Delete(m Meta, obj Object, opts DeleteOptions, done func(error)) {
	m.fence = f.fence
	f.w.Delete(m, obj, opts, done)
}

func (f *fenced) Event(about Object, eventType, reason, message string) {
	m := Meta{Owner: "event/" + about.GetNamespace() + "/" + about.GetName(), fence: f.fence}
	if u, ok := m.begin(); ok {
		f.w.event(u, about, eventType, reason, message)
	}
}

func (f *fenced) Lag() time.Duration              { return f.w.Lag() }
func (f *fenced) Flush(ctx context.Context) error { return f.w.Flush(ctx) }

// under is the fence of a write, and the term that it had when the write was made. Without a fence it may always be sent.
type under struct {
	fence Fence
	owner string
	term  *fence.Term
}

// begin returns what a write that is made now is under, or false if it must not be made.
func (m *Meta) begin() (under, bool) {
	if m.fence == nil {
		return under{}, true
	}
	u := under{m.fence, m.Owner, m.fence.Term(m.Owner)}
	return u, u.term != nil
}

// check returns why the write must not be sent now, if it must not.
func (u under) check() error {
	switch {
	case u.fence == nil:
		return nil
	case u.term.Ended() || u.fence.Term(u.owner) == nil:
		return ErrFenced
	case !u.term.Holds():
		return errHeld
	}
	return nil
}

// asked is what is asked when a request is handed to the kernel.
func (u under) asked() wire.Term {
	if u.fence == nil {
		return nil
	}
	return u.term
}
