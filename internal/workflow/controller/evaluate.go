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

// Evaluators evaluate programs of users: see sandbox.Pool.
type Evaluators interface {
	Insist(ctx context.Context, tenant, evaluator string, request []byte) (response []byte, cpu time.Duration, err error)
}

// evaluations are what a workflow has evaluated in child processes.
//
// The turn that needs an answer waits for it, aside. Meanwhile the workflow may have become another manager's, or this one may end: then
// evaluations are interrupted, what the turn has decided counts for nothing, and the record is let go of.
type evaluations struct {
	// spent is the CPU time of the Step that is under way, or of the pods that are being made.
	spent time.Duration
	// hopeless are requests that have exceeded a limit, with what was said about them.
	hopeless    map[[sha256.Size]byte]error
	interrupted bool
}

const (
	// evaluationMax is the CPU time of the evaluations of one Step, and hopelessMax how many of them are remembered.
	evaluationMax = 30 * time.Second
	hopelessMax   = 1000
	// evaluateAgain is when a workflow is taken up again whose turn was interrupted.
	evaluateAgain = time.Second
)

var (
	errInterrupted     = errors.New("the evaluation was interrupted")
	errEvaluationSpent = fmt.Errorf("the expressions of the workflow take more than %s of CPU at a time", evaluationMax)
)

// evaluate has the expressions of a workflow evaluated. For its turns.
func (c *Controller) evaluate(r *record) template.Run {
	return func(evaluator string, request []byte) ([]byte, error) {
		e := &r.evaluations
		sum := sha256.New()
		sum.Write([]byte(evaluator + "\x00"))
		sum.Write(request)
		key := [sha256.Size]byte(sum.Sum(nil))
		switch {
		case e.interrupted || c.requests == nil: // Resume waits for nobody
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
		c.loop.Aside(func() { answer, cpu, err = c.Evaluators.Insist(c.requests, r.key.Namespace, evaluator, request) })
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

// interrupts says whether a turn that was aside must not go on.
func (c *Controller) interrupts(key types.NamespacedName, epoch uint64) bool {
	w, exists := c.Informers.Workflows.Get(key.Namespace, key.Name)
	return c.requests.Err() != nil || c.epoch.Load() != epoch || exists && !c.mine(w)
}

// giveUp lets go of a workflow whose evaluations were interrupted: the run has seen answers that are none.
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
