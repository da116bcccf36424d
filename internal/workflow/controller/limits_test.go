package controller_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

const withSemaphore = `
entrypoint: quick
synchronization: {semaphores: [{configMapKeyRef: {name: %s, key: max}}]}
templates:` + stepTemplates

// TestSemaphoresThatDoNotExistLeaveNothing checks that a missing ConfigMap is read, but neither
// watched nor remembered.
func TestSemaphoresThatDoNotExistLeaveNothing(t *testing.T) {
	const n = 40
	e := start(t)
	e.submit("first", "entrypoint: quick\ntemplates:"+stepTemplates)
	e.until("first", inPhase(wf.WorkflowSucceeded))
	before := runtime.NumGoroutine()
	for i := range n {
		name := fmt.Sprint("w", i)
		e.submit(name, fmt.Sprintf(withSemaphore, fmt.Sprint("missing-", i)))
		w := e.until(name, inPhase(wf.WorkflowError))
		if want := fmt.Sprintf("configmaps %q not found", fmt.Sprint("missing-", i)); !strings.Contains(w.Status.Message, want) {
			t.Errorf("the message is %q, want %s in it", w.Status.Message, want)
		}
	}
	calls := managerCalls(t, e.c, e.ns)
	if calls["configmaps list"]+calls["configmaps watch"] > 0 || calls["configmaps get"] > 2*n {
		t.Errorf("the manager has asked for %v", calls)
	}
	e.eventually("the goroutines are gone", func() error {
		if now := runtime.NumGoroutine(); now > before+n {
			return fmt.Errorf("there are %d, and were %d", now, before)
		}
		return nil
	})
	// The ConfigMap that was missing exists now.
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "missing-0"}, Data: map[string]string{"max": "1"}}
	if _, err := e.core.CoreV1().ConfigMaps(e.ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.submit("again", fmt.Sprintf(withSemaphore, "missing-0"))
	e.until("again", inPhase(wf.WorkflowSucceeded))
}

// TestASemaphoreThatIsBeingReadHoldsUpNoOtherLock checks that other locks are granted however long
// the read takes.
func TestASemaphoreThatIsBeingReadHoldsUpNoOtherLock(t *testing.T) {
	e := start(t)
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Data: map[string]string{"max": "1"}}
	if _, err := e.core.CoreV1().ConfigMaps(e.ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	there, release := hold(t, "GET", fmt.Sprintf("/api/v1/namespaces/%s/configmaps/slow", e.ns))
	e.submit("waits", fmt.Sprintf(withSemaphore, "slow"))
	e.await(there)
	for i := range 3 {
		name := fmt.Sprint("other-", i)
		e.submit(name, "entrypoint: quick\nsynchronization: {mutexes: [{name: m}]}\ntemplates:"+stepTemplates)
		e.until(name, inPhase(wf.WorkflowSucceeded))
	}
	if w, err := e.get("waits"); err != nil || w.Status.Phase.Completed() {
		t.Errorf("while its limit was being read, the workflow ended as %s, %q, %v", w.Status.Phase, w.Status.Message, err)
	}
	release()
	e.until("waits", inPhase(wf.WorkflowSucceeded))
}
