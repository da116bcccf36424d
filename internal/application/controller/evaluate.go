package controller

import (
	"errors"
	"fmt"
	"time"

	"lockstep.dev/lockstep/internal/application/plan"
)

// makePlan makes a plan on another goroutine, for as long as the limit allows. CUE cannot be interrupted: a template that
// takes longer goes on until it ends by itself, and is not evaluated again for this state of the application.
func (c *Controller) makePlan(in *plan.Input) (*plan.Plan, error) {
	var made *plan.Plan
	err := c.evaluate(func() error {
		p, err := plan.Make(in, c.defs)
		made = p
		return err
	})
	var e *plan.Error
	if err != nil && !errors.As(err, &e) {
		err = &plan.Error{Stage: plan.Render, Err: err}
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}

// evaluate calls f on another goroutine, and waits for it as long as the limit allows.
func (c *Controller) evaluate(f func() error) error {
	done := make(chan error, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- fmt.Errorf("the evaluation of a template broke down: %v", r)
			}
		}()
		done <- f()
	}()
	limit := time.NewTimer(c.cfg.EvaluationLimit)
	defer limit.Stop()
	select {
	case err := <-done:
		return err
	case <-limit.C:
		return fmt.Errorf("the templates took more than %s to evaluate", c.cfg.EvaluationLimit)
	}
}
