package apiwriter

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestAPodThatWasSeenIsNotMadeAgain loses the response to a create, and deletes the pod, which a
// watch has shown, before the next attempt.
func TestAPodThatWasSeenIsNotMadeAgain(t *testing.T) {
	p, err := localtest.Proxy(localtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	b := newBench(t, func(c *Config) { c.REST = p.REST(c.REST) }).run()
	var creates atomic.Int32
	p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if r.Verb != "create" || creates.Add(1) > 1 {
			return f
		}
		f.Answer, f.Worked = http.StatusServiceUnavailable, true
		f.Done = func() {
			pod, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Error(err)
				return
			}
			b.Seen(b.pod("p", "another")) // of another owner: not the pod that is created here
			b.Seen(pod)
			if err := b.client.CoreV1().Pods(b.ns).Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
				t.Error(err)
			}
		}
		return f
	})
	done := make(chan error, 1)
	b.Create(test, b.pod("p", "uid"), func(_ Object, err error) { done <- err })
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := creates.Load(); n != 1 {
		t.Errorf("%d attempts", n)
	}
	if _, err := b.client.CoreV1().Pods(b.ns).Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the pod was made again: %v", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := len(b.creating); n > 0 {
		t.Errorf("%d creates are remembered", n)
	}
}

// TestAnotherAsksWhenTheOneThatAskedHasBeenSeen checks that another write probes after the probe of
// a breaker failed and a watch showed its pod, so that the probe needs no further attempt.
func TestAnotherAsksWhenTheOneThatAskedHasBeenSeen(t *testing.T) {
	p, err := localtest.Proxy(localtest.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	b := newBench(t, func(c *Config) { c.REST, c.Fixed = p.REST(c.REST), 1 }).run()
	var creates atomic.Int32
	p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
		if r.Verb != "create" {
			return f
		}
		switch n := creates.Add(1); {
		case n <= outageAfter:
			f.Answer = http.StatusServiceUnavailable
		case n == outageAfter+1:
			f.Answer, f.Worked = http.StatusServiceUnavailable, true
			f.Done = func() {
				pods, err := b.client.CoreV1().Pods(b.ns).List(t.Context(), metav1.ListOptions{})
				if err != nil || len(pods.Items) != 1 {
					t.Errorf("%d pods, %v; want the first", len(pods.Items), err)
					return
				}
				b.Seen(&pods.Items[0])
			}
		}
		return f
	})
	o := newOutcomes()
	const n = outageAfter + 3
	for i := range n {
		name := fmt.Sprint("p-", i)
		b.Create(test, b.pod(name, "uid"), o.of(name))
	}
	b.flush()
	o.allOnce(t, n)
}
