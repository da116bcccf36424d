package controller

import (
	"fmt"
	"time"

	"lockstep.dev/lockstep/internal/application/plan"
)

// makePlan makes a plan on another goroutine, for as long as the limit allows. CUE cannot be interrupted: a template that
// takes longer goes on until it ends by itself, and is not evaluated again for this state of the application.
func (c *Controller) makePlan(in *plan.Input) (*plan.Plan, error) {
	type result struct {
		plan *plan.Plan
		err  error
	}
	done := make(chan result, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- result{err: &plan.Error{Stage: plan.Render, Err: fmt.Errorf("the evaluation of a template broke down: %v", r)}}
			}
		}()
		p, err := plan.Make(in, c.defs)
		done <- result{p, err}
	}()
	limit := time.NewTimer(c.cfg.EvaluationLimit)
	defer limit.Stop()
	select {
	case r := <-done:
		return r.plan, r.err
	case <-limit.C:
		return nil, &plan.Error{Stage: plan.Render, Err: fmt.Errorf("the templates took more than %s to evaluate", c.cfg.EvaluationLimit)}
	}
}
