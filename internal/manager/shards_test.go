package manager

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
)

// TestAManagerThatCannotFollowEnds checks that a manager does not keep the lease of its share while
// it cannot work on the share. The server refuses all requests, so that the manager never leads.
func TestAManagerThatCannotFollowEnds(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) }))
	t.Cleanup(server.Close)
	m, err := New(Config{REST: &rest.Config{Host: server.URL}, LeaderElect: true, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.evaluators.Close)
	taken := prometheus.NewGauge(prometheus.GaugeOpts{Name: "lockstep_workflows_active", Help: "Workflows that this manager works on."})
	m.registry.MustRegister(taken)
	writer, err := apiwriter.New(apiwriter.Config{REST: m.cfg.REST, Scheme: scheme.Scheme})
	if err != nil {
		t.Fatal(err)
	}
	writing, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(writing) })
	defer func() { stop(); running.Wait() }()

	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err = m.leadInTurn(ctx, writer)
	if ctx.Err() != nil {
		t.Error("the manager did not end by itself")
	}
	if registered := (prometheus.AlreadyRegisteredError{}); !errors.As(err, &registered) {
		t.Errorf("the manager ended with %v", err)
	}
}
