package deploy

import (
	"time"

	"golang.org/x/sync/semaphore"

	"lockstep.dev/lockstep/internal/controlloop"
)

// Answers holds the answers of other systems to the questions of one Application, by question. A
// question is asked once, on a goroutine of its own, until its answer is due for repetition.
type Answers map[string]*Answer

// Answer is the answer to one question.
type Answer struct {
	Value any
	Err   error
	// Known is set if Value or Err is the answer. While a question is asked again, it is not set,
	// and Value and Err are the previous answer.
	Known bool

	asking, repeats bool
	backoff         controlloop.Backoff
}

// RepeatFirst and RepeatMax bound the backoff between two reads of state that no watch shows.
const (
	RepeatFirst = time.Second
	RepeatMax   = time.Minute
)

// outsideMax bounds the requests to other systems, apart from the manager's own writes, that are
// under way at the same time.
const outsideMax = 16

// NewOutside returns a Planner's Outside.
func NewOutside() *semaphore.Weighted { return semaphore.NewWeighted(outsideMax) }

// Ask returns the answer to a question, and calls ask on another goroutine if there is none or if
// it is due for repetition. The answer enqueues the Application. ask must not read the
// Application's State, which belongs to the turns.
func (p *Planner) Ask(a *State, in Answers, question string, ask func() (any, error)) *Answer {
	x := in[question]
	if x == nil {
		x = &Answer{}
		in[question] = x
	}
	if x.repeats && x.backoff.Left(p.Now()) <= 0 {
		x.Known, x.repeats = false, false
	}
	if x.Known || x.asking {
		return x
	}
	if !p.Outside.TryAcquire(1) {
		a.WakeAfter(RepeatFirst) // too many requests are under way
		return x
	}
	x.asking = true
	go func() {
		defer p.Outside.Release(1)
		value, err := ask()
		a.Post(func() { x.Value, x.Err, x.Known, x.asking = value, err, true, false })
	}()
	return x
}

// Repeat has the question of a known answer asked again after a backoff, which begins with least.
func (p *Planner) Repeat(a *State, x *Answer, least time.Duration) {
	if !x.Known {
		return
	}
	now := p.Now()
	if !x.repeats {
		x.backoff.Min, x.backoff.Max, x.repeats = least, RepeatMax, true
		x.backoff.Failed(now)
	}
	a.WakeAfter(max(0, x.backoff.Left(now)))
}
