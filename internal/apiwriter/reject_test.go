package apiwriter

import (
	"errors"
	"runtime"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
)

// TestRejectedWritesShareAGoroutine checks that a full queue costs no goroutine for each write that
// it rejects, and that each write is nevertheless ended once, outside the call.
func TestRejectedWritesShareAGoroutine(t *testing.T) {
	w, err := New(Config{REST: &rest.Config{Host: "https://127.0.0.1:1"}, Scheme: scheme.Scheme, MaxQueued: 1})
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod"}}
	w.Create(Meta{}, pod, nil)
	const rejected = 5000
	var lock sync.Mutex // held by the caller, and taken by done
	var all sync.WaitGroup
	all.Add(rejected)
	lock.Lock()
	before := runtime.NumGoroutine()
	for range rejected {
		w.Create(Meta{}, pod, func(_ Object, err error) {
			lock.Lock()
			defer lock.Unlock()
			if !errors.Is(err, ErrQueueFull) {
				t.Error(err)
			}
			all.Done()
		})
	}
	if more := runtime.NumGoroutine() - before; more > 10 {
		t.Errorf("%d goroutines for %d rejected writes", more, rejected)
	}
	lock.Unlock()
	all.Wait()
}
