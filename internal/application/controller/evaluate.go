package controller

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"lockstep.dev/lockstep/internal/application/plan"
)

// CUE and templates of charts cannot be interrupted: what takes longer than the limit goes on until it ends by itself, and
// is not evaluated again for the same state. Meanwhile it keeps its place among the few that evaluate at the same time, so
// that there are never more goroutines than places; and a namespace some of whose templates still run gets no more, so that
// one user's do not take the places of all.
type evaluators struct {
	limit  time.Duration
	places chan struct{}

	mu   sync.Mutex
	late map[string]int // by namespace: evaluations that have overrun, and still run
}

// The bounds of evaluations that have overrun.
const (
	latePlaces          = 8 // beside one for each worker
	latePerNamespaceMax = 2
)

func newEvaluators(limit time.Duration, workers int) *evaluators {
	return &evaluators{limit: limit, places: make(chan struct{}, workers+latePlaces), late: map[string]int{}}
}

// errBusy is for what was not evaluated because others still are; it is tried again.
var errBusy = errors.New("templates that took too long are still being evaluated")

// do calls f on another goroutine, and waits for it as long as the limit allows. What f writes to must not be read after
// an error.
func (e *evaluators) do(namespace string, f func() error) error {
	e.mu.Lock()
	late := e.late[namespace]
	e.mu.Unlock()
	if late >= latePerNamespaceMax {
		return fmt.Errorf("namespace %s: %w", namespace, errBusy)
	}
	limit := time.NewTimer(e.limit)
	defer limit.Stop()
	select {
	case e.places <- struct{}{}:
	case <-limit.C:
		return errBusy
	}
	limit.Reset(e.limit)
	done := make(chan error, 1)
	overran := false // under mu
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("the evaluation of a template broke down: %v", r)
			}
			e.mu.Lock()
			if overran {
				if e.late[namespace]--; e.late[namespace] == 0 {
					delete(e.late, namespace)
				}
			}
			e.mu.Unlock()
			<-e.places
		}()
		done <- f()
	}()
	select {
	case err := <-done:
		return err
	case <-limit.C:
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	select {
	case err := <-done:
		return err
	default:
		overran = true
		e.late[namespace]++
		return fmt.Errorf("the templates took more than %s to evaluate", e.limit)
	}
}

// makePlan makes a plan for as long as that may take.
func (c *Controller) makePlan(in *plan.Input) (*plan.Plan, error) {
	var made *plan.Plan
	begin := time.Now()
	err := c.evaluators.do(in.Namespace, func() error {
		p, err := plan.Make(in, c.defs)
		made = p
		return err
	})
	c.metrics.render.Observe(time.Since(begin).Seconds())
	var e *plan.Error
	if err != nil && !errors.As(err, &e) {
		err = &plan.Error{Stage: plan.Render, Err: err}
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}
