package controller_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// answers keeps back answers of the API server to the manager in this process, as a slow network does: what was asked for has
// happened, and the manager does not know it.
var answers = late{held: map[string]*heldAnswer{}}

type late struct {
	mu   sync.Mutex
	held map[string]*heldAnswer // by "METHOD PATH"
}

type heldAnswer struct {
	once            sync.Once
	there, released chan struct{}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (l *late) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		l.mu.Lock()
		h := l.held[r.Method+" "+r.URL.Path]
		l.mu.Unlock()
		if h != nil {
			h.once.Do(func() { close(h.there) })
			select {
			case <-h.released:
			case <-r.Context().Done():
			}
		}
		return answer, err
	})
}

// hold keeps back answers to requests from now on. there is closed when there is one; release lets them all go.
func (l *late) hold(t testing.TB, method, path string) (there <-chan struct{}, release func()) {
	h := &heldAnswer{there: make(chan struct{}), released: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held[method+" "+path] = h
	var once sync.Once
	release = func() {
		once.Do(func() {
			l.mu.Lock()
			delete(l.held, method+" "+path)
			l.mu.Unlock()
			close(h.released)
		})
	}
	t.Cleanup(release)
	return h.there, release
}

// await waits for an answer that is held.
func (e *env) await(there <-chan struct{}) {
	e.Helper()
	select {
	case <-there:
	case <-e.Context().Done():
		e.Fatal("no such request was made")
	}
}

// passedBy runs another workflow to its end: by then the manager has taken in what happened before.
func (e *env) passedBy(name string) {
	e.Helper()
	e.submit(name, "entrypoint: quick\ntemplates:"+stepTemplates)
	e.until(name, inPhase(wf.WorkflowSucceeded))
}

// TestLabelsOfAWorkflowThatEndsWhileItsStatusIsBeingWritten has the labels of the end written although the manager does not
// know yet that those of before are.
func TestLabelsOfAWorkflowThatEndsWhileItsStatusIsBeingWritten(t *testing.T) {
	e := start(t)
	there, release := answers.hold(t, "PATCH", fmt.Sprintf("/apis/%s/namespaces/%s/workflows/w", wf.GroupVersion, e.ns))
	e.submit("w", `
entrypoint: main
templates:
- name: main
  metadata: {annotations: {lockstep.dev/sim-duration: 2500ms}}
  container: {image: a, command: [c]}
`)
	e.await(there) // of the first status, 2 s after the beginning
	w, err := e.get("w")
	if err != nil || w.Labels[wf.LabelPhase] != string(wf.WorkflowRunning) {
		t.Fatalf("the first status has label %q, %v", w.Labels[wf.LabelPhase], err)
	}
	e.eventually("the pod is done", func() error {
		for _, p := range e.pods("w") {
			if p.Status.Phase == corev1.PodSucceeded {
				return nil
			}
		}
		return fmt.Errorf("it is not")
	})
	e.passedBy("other")
	release()
	w = e.until("w", inPhase(wf.WorkflowSucceeded))
	if w.Labels[wf.LabelPhase] != string(wf.WorkflowSucceeded) || w.Labels[wf.LabelCompleted] != "true" {
		t.Errorf("the workflow has succeeded and its labels are %v", w.Labels)
	}
}

// TestAnEditThatComesBeforeTheAnswerToAStatus is taken in although nothing happens to the workflow after the answer.
func TestAnEditThatComesBeforeTheAnswerToAStatus(t *testing.T) {
	e := start(t)
	there, release := answers.hold(t, "PATCH", fmt.Sprintf("/apis/%s/namespaces/%s/workflows/w", wf.GroupVersion, e.ns))
	e.submit("w", "entrypoint: forever\ntemplates:"+stepTemplates)
	e.await(there) // the answer to the status that says that it runs
	e.patch("w", `{"spec":{"shutdown":"Terminate"}}`)
	e.passedBy("other")
	release()
	e.until("w", inPhase(wf.WorkflowFailed))
}
