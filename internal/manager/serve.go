package manager

import (
	"errors"
	"net/http"
	"net/http/pprof"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep.dev/lockstep/internal/serve"
)

// serve starts the HTTP servers for metrics and health; stop closes them.
func (m *Manager) serve() (stop func(), err error) {
	var paths serve.Paths
	metrics, health := m.cfg.MetricsAddress, m.cfg.HealthAddress
	paths.Handle(metrics, "/metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{}))
	if m.cfg.Profiling {
		paths.Handle(metrics, "/debug/pprof/", http.HandlerFunc(pprof.Index))
		paths.Handle(metrics, "/debug/pprof/cmdline", http.HandlerFunc(pprof.Cmdline))
		paths.Handle(metrics, "/debug/pprof/profile", http.HandlerFunc(pprof.Profile))
		paths.Handle(metrics, "/debug/pprof/symbol", http.HandlerFunc(pprof.Symbol))
		paths.Handle(metrics, "/debug/pprof/trace", http.HandlerFunc(pprof.Trace))
	}
	paths.Check(health, "/healthz", func() error { return nil })
	paths.Check(health, "/readyz", func() error {
		if !m.ready.Load() {
			return errors.New("not leading, or still reading the cluster")
		}
		return nil
	})
	return paths.Start(m.log)
}
