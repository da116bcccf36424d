package controller_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// heldEvaluators answers when the test releases it.
type heldEvaluators struct {
	asked, free chan struct{}
	once        sync.Once
}

func (h *heldEvaluators) DoUntilAnswered(ctx context.Context, _, evaluator string, request []byte) ([]byte, time.Duration, error) {
	h.once.Do(func() { close(h.asked) })
	select {
	case <-h.free:
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	answer, err := template.InProcess()(evaluator, request)
	return answer, 0, err
}

// TestEvaluationsAreInterrupted moves a workflow to another manager while one of its expressions is
// evaluated: the decisions of the first manager's turn are discarded, and the second manager
// continues. Meanwhile other workflows of the first manager go on.
func TestEvaluationsAreInterrupted(t *testing.T) {
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{Count: 1, Pods: 100}), localtest.WithInstall())
	e := newEnv(t, c)
	held := &heldEvaluators{asked: make(chan struct{}), free: make(chan struct{})}
	first, second := e.sharerWith(nil, held), e.sharer(nil)
	first.has(true)
	for i := range 20 { // more than the number of workers
		e.submit(fmt.Sprintf("w%d", i), `
entrypoint: main
templates:
- name: main
  steps: [[{name: a, template: pod, when: "{{=sprig.upper('a') == 'A'}}"}]]
- {name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: 1ms}}}`)
	}
	e.await(held.asked)
	e.submit("plain", "entrypoint: pod\ntemplates: [{name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: 1ms}}}]")
	e.until("plain", inPhase(wf.WorkflowSucceeded))
	first.has(false)
	second.has(true)
	uids := map[string]string{}
	for i := range 20 {
		name := fmt.Sprintf("w%d", i)
		e.until(name, inPhase(wf.WorkflowSucceeded))
		for _, p := range e.pods(name) {
			uids[p.Name] = string(p.UID)
		}
	}
	before := first.refused.Load()
	close(held.free)
	e.eventually("the first manager's turns end", func() error {
		if first.refused.Load() < before+20 {
			return errors.New("they have not")
		}
		return nil
	})
	for i := range 20 {
		name := fmt.Sprintf("w%d", i)
		e.expect(e.until(name, inPhase(wf.WorkflowSucceeded)), "W Steps Succeeded\nW[0] StepGroup Succeeded\nW[0].a Pod Succeeded")
		if pods := e.pods(name); len(pods) != 1 || uids[pods[0].Name] != string(pods[0].UID) {
			t.Errorf("%s: %d pods, or another", name, len(pods))
		}
	}
}
