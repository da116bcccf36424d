package deploy

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/evaluation"
	"lockstep.dev/lockstep/internal/application/external"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Planner makes the plans of Applications.
type Planner struct {
	Access
	Definitions *definitions.Library
	Evaluators  *evaluation.Cache
	Memo        plan.Memo
	Charts      *charts.Store
	Requests    *external.Client
	// Outside bounds the questions and actions that are under way at the same time.
	Outside *semaphore.Weighted
	reading sync.Mutex // held while a fetched text is parsed
	// Observe is called with the time that each plan took, in seconds.
	Observe func(seconds float64)
	Now     func() time.Time
}

// Make makes a plan. A panic while planning becomes a plan.Error.
func (p *Planner) Make(a *State, in *plan.Input) (made *plan.Plan, err error) {
	begin := p.Now()
	run, heavy := p.Evaluators.Of(a.Key), false
	defer func() {
		if heavy {
			p.Evaluators.Release()
		}
		if r := recover(); r != nil {
			made, err = nil, &plan.Error{Stage: plan.Render, Err: fmt.Errorf("the plan broke down: %v", r)}
		}
		p.Observe(p.Now().Sub(begin).Seconds())
	}()
	in.Run = func(evaluator string, request []byte) ([]byte, error) {
		answer, err := run(evaluator, request)
		if len(answer) >= evaluation.HeavyBytes && !heavy {
			p.Evaluators.Acquire()
			heavy = true
		}
		return answer, err
	}
	made, err = plan.Make(in, definitions.Templates{Library: p.Definitions, Run: in.Run})
	if err != nil {
		return nil, planError(a, err)
	}
	for i := range made.Components {
		if comp := &made.Components[i]; comp.Err != nil {
			comp.Err = planError(a, comp.Err)
		}
	}
	return made, nil
}

// Given returns the labels and annotations that policies give an Application. in.Run is not needed.
func (p *Planner) Given(a *State, in *plan.Input) (*plan.Given, error) {
	with := *in
	with.Run = p.Evaluators.Of(a.Key)
	given, err := plan.GivenBy(&with, definitions.Templates{Library: p.Definitions, Run: with.Run})
	if err != nil {
		return nil, planError(a, err)
	}
	return given, nil
}

// planError returns the error of a plan as a plan.Error. If it is about an API that cannot be
// reached at present, the plan is made again.
func planError(a *State, err error) *plan.Error {
	var e *plan.Error
	if !errors.As(err, &e) {
		e = &plan.Error{Stage: plan.Render, Err: err}
	}
	if a.mayPass(err) {
		e = &plan.Error{Stage: e.Stage, Component: e.Component, Err: fmt.Errorf("%w: %w", e.Err, ErrAskedAgain)}
	}
	return e
}
