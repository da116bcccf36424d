package controller

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/plan"
)

// planner makes the plans of Applications.
type planner struct {
	access
	definitions *definitions
	evaluators  *evaluators
	memo        plan.Memo
	charts      *charts.Store
	requests    *requests
	// outside bounds the questions and actions that are under way at the same time.
	outside *slots
	reading sync.Mutex // held while a fetched text is parsed
	// observe is told how long each plan took, in seconds.
	observe func(seconds float64)
	now     func() time.Time
}

// make makes a plan. A panic while planning becomes a plan.Error.
func (p *planner) make(a *state, in *plan.Input) (made *plan.Plan, err error) {
	begin := p.now()
	run, heavy := p.evaluators.of(a.key), false
	defer func() {
		if heavy {
			p.evaluators.release()
		}
		if r := recover(); r != nil {
			made, err = nil, &plan.Error{Stage: plan.Render, Err: fmt.Errorf("the plan broke down: %v", r)}
		}
		p.observe(p.now().Sub(begin).Seconds())
	}()
	in.Run = func(evaluator string, request []byte) ([]byte, error) {
		answer, err := run(evaluator, request)
		if len(answer) >= heavyBytes && !heavy {
			p.evaluators.acquire()
			heavy = true
		}
		return answer, err
	}
	made, err = plan.Make(in, appDefinitions{p.definitions, in.Run})
	var e *plan.Error
	if err != nil && !errors.As(err, &e) {
		err = &plan.Error{Stage: plan.Render, Err: err}
	}
	if err != nil {
		return nil, err
	}
	return made, nil
}
