package sandbox

import (
	"errors"
	"fmt"
	"time"
)

// Limit names the limit that a request exceeded.
type Limit string

// The limits of a request.
const (
	Memory  Limit = "memory"
	CPU     Limit = "cpu"
	Stack   Limit = "stack"
	Output  Limit = "output"
	Request Limit = "request"
)

// Exceeded says that a request exceeded a limit.
type Exceeded struct {
	Limit Limit
	// Max is the limit in a form for users, such as 256 MiB.
	Max string
}

func (e *Exceeded) Error() string {
	switch e.Limit {
	case CPU:
		return "evaluation took more than " + e.Max + " of CPU"
	case Output:
		return "evaluation made an output over " + e.Max
	case Request:
		return "what is to be evaluated is over " + e.Max
	}
	return "evaluation took more than " + e.Max + " of " + string(e.Limit)
}

// Crashed says that a request ended its child, but not by a limit.
type Crashed struct {
	// Reason is the first line of the child's error output, or the message of the panic.
	Reason string
}

func (e *Crashed) Error() string { return "evaluation broke down: " + e.Reason }

// Failed is an error returned by the evaluator.
type Failed struct{ Message string }

func (e *Failed) Error() string { return e.Message }

// Errors that say nothing about the request.
var (
	// ErrBusy is returned if too many requests of the tenant are waiting, or the request has waited
	// too long.
	ErrBusy = errors.New("too many evaluations are waiting")
	// ErrLate is returned if a request has not ended in time without using up its CPU time: the
	// machine is busy.
	ErrLate = errors.New("the evaluation did not get enough CPU to end in time")
	// ErrClosed is returned after Close.
	ErrClosed = errors.New("the evaluators are stopped")
)

// Permanent reports whether the same request would fail in the same way.
func Permanent(err error) bool {
	var exceeded *Exceeded
	var crashed *Crashed
	var failed *Failed
	return errors.As(err, &exceeded) || errors.As(err, &crashed) || errors.As(err, &failed)
}

// Temporary reports whether err comes from the pool, so that the request may be retried.
func Temporary(err error) bool {
	var start *startError
	return errors.Is(err, ErrBusy) || errors.Is(err, ErrLate) || errors.Is(err, ErrClosed) || errors.As(err, &start)
}

// startError says that a child could not be started.
type startError struct{ err error }

func (e *startError) Error() string {
	return "a process for evaluations cannot be started: " + e.err.Error()
}
func (e *startError) Unwrap() error { return e.err }

// bytesText formats a size for users.
func bytesText(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// durationText formats a duration for users.
func durationText(d time.Duration) string {
	if d%time.Second == 0 {
		return fmt.Sprintf("%d s", d/time.Second)
	}
	return d.String()
}
