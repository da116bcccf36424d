package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestALeaseIsFreedThoughTheAnswerIsLost loses the answer to the write by which a manager frees the
// lease of a dead predecessor on this machine. The manager continues with the election: its next
// attempt meets a conflict with the first.
func TestALeaseIsFreedThoughTheAnswerIsLost(t *testing.T) {
	const attemptsMax = 5
	for name, lose := range map[string]faultproxy.Loss{
		"stream": faultproxy.ResetStream, "connection": faultproxy.ResetConnection, "half an answer": faultproxy.HalfBody,
	} {
		t.Run(name, func(t *testing.T) {
			c := localtest.Shared(t)
			core := kubernetes.NewForConfigOrDie(c.RESTConfig())
			ns := localtest.Namespace(t, core)
			dead := deadHolder(t)
			lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leaseName}, Spec: coordinationv1.LeaseSpec{HolderIdentity: &dead}}
			if _, err := core.CoordinationV1().Leases(ns).Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			p, err := localtest.Proxy(c)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(p.Close)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			var mu sync.Mutex
			attempts := 0
			p.Decide(func(r *faultproxy.Request) (f faultproxy.Fault) {
				if r.Resource != "leases" || !r.Write() {
					return f
				}
				mu.Lock()
				defer mu.Unlock()
				switch attempts++; {
				case attempts == 1:
					f.Lose, f.Worked = lose, true
				case attempts > attemptsMax:
					cancel(fmt.Errorf("it tries for the %dth time", attempts))
				}
				return f
			})
			log := slog.New(slog.NewTextHandler(os.Stderr, nil))
			writer, err := apiwriter.New(apiwriter.Config{REST: p.REST(c.RESTConfig()), Scheme: scheme.Scheme, Logger: log})
			if err != nil {
				t.Fatal(err)
			}
			var running sync.WaitGroup
			writing, stop := context.WithCancel(context.Background())
			running.Go(func() { _ = writer.Run(writing) })
			defer func() { stop(); running.Wait() }()

			m := &Manager{log: log}
			m.cfg.LeaseNamespace = ns
			if err := m.prepareLease(ctx, core, writer); err != nil {
				t.Error(errors.Join(err, context.Cause(ctx)))
			}
			got, err := core.CoordinationV1().Leases(ns).Get(t.Context(), leaseName, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if holder := got.Spec.HolderIdentity; holder == nil || *holder != "" {
				t.Errorf("the lease is not free: %+v", got.Spec)
			}
			mu.Lock()
			defer mu.Unlock()
			if attempts < 2 {
				t.Errorf("%d attempts were made: no answer was lost", attempts)
			}
		})
	}
}

// deadHolder returns the identity of a process of this machine that has ended.
func deadHolder(t *testing.T) string {
	t.Helper()
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	self, ok := proc.self()
	if !ok {
		t.Skip("the kernel does not say which process this is")
	}
	self.started += "0" // of an earlier process with this number
	return host + "_" + self.String() + "_6f1c"
}
