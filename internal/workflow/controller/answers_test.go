package controller_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// hold holds back the answers to requests from now on. there is closed when the first answer is
// held; release delivers all of them.
func hold(t testing.TB, method, path string) (there <-chan struct{}, release func()) {
	return managertest.Hold(t, func(r *http.Request) bool { return r.Method == method && r.URL.Path == path })
}

// await waits until an answer is held.
func (e *env) await(there <-chan struct{}) {
	e.Helper()
	select {
	case <-there:
	case <-e.Context().Done():
		e.Fatal("no such request was made")
	}
}

// passedBy runs another workflow to its end; by then the manager has processed everything before
// it.
func (e *env) passedBy(name string) {
	e.Helper()
	e.submit(name, "entrypoint: quick\ntemplates:"+stepTemplates)
	e.until(name, inPhase(wf.WorkflowSucceeded))
}

// TestLabelsOfAWorkflowThatEndsWhileItsStatusIsBeingWritten checks that the final labels are
// written although the answer to the previous write of labels is still missing.
func TestLabelsOfAWorkflowThatEndsWhileItsStatusIsBeingWritten(t *testing.T) {
	e := start(t)
	there, release := hold(t, "PATCH", fmt.Sprintf("/apis/%s/namespaces/%s/workflows/w", wf.GroupVersion, e.ns))
	e.submit("w", `
entrypoint: main
templates:
- name: main
  metadata: {annotations: {lockstep.dev/sim-duration: 2500ms}}
  container: {image: a, command: [c]}
`)
	e.await(there) // to the first status, 2 s after the start
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

// TestAnEditThatComesBeforeTheAnswerToAStatus checks that an edit is taken in although no event
// follows the answer.
func TestAnEditThatComesBeforeTheAnswerToAStatus(t *testing.T) {
	e := start(t)
	there, release := hold(t, "PATCH", fmt.Sprintf("/apis/%s/namespaces/%s/workflows/w", wf.GroupVersion, e.ns))
	e.submit("w", "entrypoint: forever\ntemplates:"+stepTemplates)
	e.await(there) // the answer to the status Running
	e.patch("w", `{"spec":{"shutdown":"Terminate"}}`)
	e.passedBy("other")
	release()
	e.until("w", inPhase(wf.WorkflowFailed))
}

// TestAPodThatEndsBeforeItsCreateIsAnswered checks that the pod stays, with its log, if its
// workflow has no podGC.
func TestAPodThatEndsBeforeItsCreateIsAnswered(t *testing.T) {
	for _, template := range []string{"quick", "fail"} {
		t.Run(template, func(t *testing.T) {
			e := start(t)
			there, release := hold(t, "POST", fmt.Sprintf("/api/v1/namespaces/%s/pods", e.ns))
			e.submit("w", "entrypoint: "+template+"\ntemplates:"+stepTemplates)
			e.await(there)
			e.until("w", func(w *wf.Workflow) error {
				if !w.Status.Phase.Completed() {
					return fmt.Errorf("it is not over")
				}
				return nil
			})
			release()
			e.passedBy("other")
			pods := e.pods("w")
			if len(pods) != 1 || pods[0].DeletionTimestamp != nil {
				t.Errorf("the finished workflow has pods %v, want the one that ended", pods)
			}
			if n := managerCalls(t, e.c, e.ns)["pods delete"]; n != 0 {
				t.Errorf("the manager deleted pods %d times", n)
			}
		})
	}
}

const withRepository = `
artifactRepositoryRef: {configMap: %s, key: disk}
entrypoint: quick
templates:` + stepTemplates + `
`

// TestARepositoryThatIsBeingReadHoldsUpNoOtherWorkflow checks that workflows that name a ConfigMap
// of artifact repositories wait for it without a worker, and read it again when an answer is lost.
func TestARepositoryThatIsBeingReadHoldsUpNoOtherWorkflow(t *testing.T) {
	e := start(t)
	cm := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Data: map[string]string{"disk": "volume: {claimName: c}"},
	}
	if _, err := e.core.CoreV1().ConfigMaps(e.ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	path := fmt.Sprintf("/api/v1/namespaces/%s/configmaps/mine", e.ns)
	there, release := hold(t, "GET", path)
	const n = 6 // more than the number of workers
	for i := range n {
		e.submit(fmt.Sprint("w", i), fmt.Sprintf(withRepository, "mine"))
	}
	e.await(there)
	e.passedBy("other")
	times := managertest.Lose(t, func(r *http.Request) bool { return r.Method == http.MethodGet && r.URL.Path == path })
	release()
	for i := range n {
		w := e.until(fmt.Sprint("w", i), inPhase(wf.WorkflowSucceeded))
		if ref := w.Status.ArtifactRepositoryRef; ref == nil || ref.ConfigMap != "mine" || ref.Key != "disk" {
			t.Errorf("the status names the repository %v", ref)
		}
	}
	e.submit("lost", fmt.Sprintf(withRepository, "mine"))
	e.until("lost", inPhase(wf.WorkflowSucceeded))
	if times() == 0 {
		t.Error("no answer was lost")
	}
	e.submit("missing", fmt.Sprintf(withRepository, "none"))
	w := e.until("missing", inPhase(wf.WorkflowError))
	if !strings.Contains(w.Status.Message, "ConfigMap 'none' not found") {
		t.Errorf("the message is %q", w.Status.Message)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
