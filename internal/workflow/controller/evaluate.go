package controller

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Evaluators evaluates users' programs in child processes. See sandbox.Pool.
type Evaluators interface {
	DoUntilAnswered(ctx context.Context, tenant, evaluator string, request []byte) (response []byte, cpu time.Duration, err error)
}

// evaluations is the state of the expression evaluations of one workflow in child processes.
//
// The turn that needs an answer yields its worker until the answer comes. If meanwhile the workflow
// moves to another manager, or this manager ends, the evaluations are interrupted: the decisions of
// the turn are discarded, and the controller releases the workflow.
type evaluations struct {
	// spent is the CPU time used by the current Step, or by the pods being built.
	spent time.Duration
	// hopeless holds requests that exceeded a limit, by hash, with the error.
	hopeless    map[[sha256.Size]byte]error
	interrupted bool
}

const (
	// evaluationMax bounds the CPU time of the evaluations of one Step; hopelessMax bounds the
	// number of entries in hopeless.
	evaluationMax = 30 * time.Second
	hopelessMax   = 1000
	// evaluateAgain is the delay before a workflow whose turn was interrupted is loaded again.
	evaluateAgain = time.Second
)

var (
	errInterrupted     = errors.New("the evaluation was interrupted")
	errEvaluationSpent = fmt.Errorf("the expressions of the workflow take more than %s of CPU at a time", evaluationMax)
)

// evaluate returns the function by which turns of the workflow evaluate expressions in child
// processes. The function returns errInterrupted if the turn must not go on.
func (c *Controller) evaluate(r *record) template.Run {
	return func(evaluator string, request []byte) ([]byte, error) {
		e := &r.evaluations
		sum := sha256.New()
		sum.Write([]byte(evaluator + "\x00"))
		sum.Write(request)
		key := [sha256.Size]byte(sum.Sum(nil))
		switch {
		case e.interrupted || c.requests == nil: // turns made by Resume, before Run, do not wait
			e.interrupted = true
			return nil, errInterrupted
		case e.hopeless[key] != nil:
			return nil, e.hopeless[key]
		case e.spent >= evaluationMax:
			return nil, errEvaluationSpent
		}
		var answer []byte
		var cpu time.Duration
		var err error
		c.loop.Yield(func() {
			answer, cpu, err = c.Evaluators.DoUntilAnswered(c.requests, r.key.Namespace, evaluator, request)
		})
		e.spent += cpu
		if c.interrupts(r.key, r.epoch) || err != nil && !sandbox.Permanent(err) {
			e.interrupted = true
			return nil, errInterrupted
		}
		var failed *sandbox.Failed
		switch {
		case err == nil:
			return answer, nil
		case errors.As(err, &failed):
			return nil, errors.New(failed.Message)
		}
		if e.hopeless == nil || len(e.hopeless) >= hopelessMax {
			e.hopeless = map[[sha256.Size]byte]error{}
		}
		e.hopeless[key] = err
		return nil, err
	}
}

// interrupts reports whether a turn must not go on after it yielded: Run is ending, the lease
// lapsed, or another manager owns the workflow.
func (c *Controller) interrupts(key types.NamespacedName, epoch uint64) bool {
	w, exists := c.Informers.Workflows.Get(key.Namespace, key.Name)
	return c.requests.Err() != nil || c.epoch.Load() != epoch || exists && !c.mine(w)
}

// giveUp releases a workflow whose evaluations were interrupted: its engine run received
// errInterrupted in place of answers, so its state cannot be used.
func (c *Controller) giveUp(r *record, w *wf.Workflow) {
	c.Log.Debug("a turn was interrupted", "workflow", r.key)
	c.abandon(r, w.UID == r.uid)
	c.drop(r.key, r)
	if c.requests == nil {
		c.loop.Wake(r.key)
	} else {
		c.loop.WakeAfter(r.key, evaluateAgain)
	}
}
