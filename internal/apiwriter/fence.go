package apiwriter

import (
	"errors"
	"fmt"
	"time"

	"lockstep.dev/lockstep/internal/fence"
	"lockstep.dev/lockstep/internal/http2client"
)

// Fence gives the term under which writes are made. Term is called often and with locks held: it
// must be fast and must not call the writer.
type Fence interface {
	// Term returns the current term in which this process may write for owner, or nil if this
	// process may not write for owner. The owner is Meta.Owner; for an event it is "event/"
	// followed by namespace/name of the object.
	Term(owner string) *fence.Term
}

// ErrFenced is the outcome of a write whose term ended, or whose owner moved to another process,
// before the write was sent. It is an ErrStopped: this process is no longer responsible for the
// write.
var ErrFenced = fmt.Errorf("not sent, because the lease under which the write was made is lost: %w", ErrStopped)

// errTermLapsed ends an attempt whose term has lapsed but may still be extended.
var errTermLapsed = errors.New("not sent, because the lease under which the write was made has to be renewed first")

// termRetry is the time until a write that ended an attempt with errTermLapsed is tried again.
const termRetry = 100 * time.Millisecond

// Fenced returns a Writer that shares everything with w and whose writes are sent only within the
// term that f returns when they are made. The term is checked again when the write's turn comes,
// before each attempt, and when the bytes are handed to the kernel. While a term has lapsed but may
// still be extended, its writes wait. When the term has ended, or f returns no term for the owner
// any more, they end with ErrFenced.
func (w *W) Fenced(f Fence) Writer { return &W{w.core, f} }

// boundTerm is the fence of a write, and the term at the time when the write was made. A write
// without a fence may always be sent.
type boundTerm struct {
	fence Fence
	owner string
	term  *fence.Term
}

// term returns the fence and term of a write of owner that is made now, or ErrFenced if the write
// must not be made.
func (w *W) term(owner string) (boundTerm, error) {
	if w.fence == nil {
		return boundTerm{}, nil
	}
	u := boundTerm{w.fence, owner, w.fence.Term(owner)}
	if u.term == nil {
		return u, ErrFenced
	}
	return u, nil
}

// check returns ErrFenced or errTermLapsed if the write must not be sent now, else nil.
func (u boundTerm) check() error {
	switch {
	case u.fence == nil:
		return nil
	case u.term.Ended() || u.fence.Term(u.owner) == nil:
		return ErrFenced
	case !u.term.Holds():
		return errTermLapsed
	}
	return nil
}

// sendTerm returns the term that is checked when the request is handed to the kernel, or nil
// without a fence.
func (u boundTerm) sendTerm() http2client.Term {
	if u.fence == nil {
		return nil
	}
	return u.term
}
