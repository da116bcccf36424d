package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep.dev/lockstep/internal/cputopology/agent/enforce"
)

// metrics of the agent. Those of its writes are apiwriter's.
type metrics struct {
	passes                             *prometheus.CounterVec
	duration                           prometheus.Histogram
	writes, repaired                   prometheus.Counter
	pinned, shared, problems, poolCPUs prometheus.Gauge
	unwatched                          prometheus.Gauge
}

func newMetrics(registry *prometheus.Registry) *metrics {
	const namespace = "lockstep_agent"
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
	}
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: namespace, Name: name, Help: help})
	}
	m := &metrics{
		passes: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: "passes_total",
			Help: "Passes over the node's cgroups, by whether they could be made."}, []string{"result"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: "pass_duration_seconds",
			Help: "Time that a pass takes.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12)}),
		writes:    counter("cgroup_writes_total", "Writes to files of cgroups, those that were refused included."),
		repaired:  counter("repaired_total", "Containers whose CPUs somebody else had changed and that have their own again."),
		pinned:    gauge("pinned_containers", "Containers that have the CPUs of their pods' annotations."),
		shared:    gauge("shared_cgroups", "Cgroups of containers and sandboxes that are not pinned."),
		problems:  gauge("problems", "Containers and pods whose CPU sets are not what they should be."),
		poolCPUs:  gauge("shared_cpus", "CPUs of the shared pool."),
		unwatched: gauge("unwatched", "1 if changes of some cgroups are found by looking once in a while only."),
	}
	registry.MustRegister(m.passes, m.duration, m.writes, m.repaired, m.pinned, m.shared, m.problems, m.poolCPUs, m.unwatched,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

func (m *metrics) passed(out enforce.Outcome, err error, took time.Duration) {
	m.duration.Observe(took.Seconds())
	if err != nil {
		m.passes.WithLabelValues("error").Inc()
		return
	}
	m.passes.WithLabelValues("ok").Inc()
	m.writes.Add(float64(out.Writes))
	m.repaired.Add(float64(out.Repaired))
	m.pinned.Set(float64(out.Pinned))
	m.shared.Set(float64(out.Shared))
	m.problems.Set(float64(len(out.Problems)))
	m.poolCPUs.Set(float64(out.Pool.Len()))
}

// stalled is how long no pass may take before the agent is not healthy.
const stalled = 30 * time.Second

// serve opens the HTTP servers and returns how to close them.
func (a *Agent) serve() (stop func(), err error) {
	muxes := map[string]*http.ServeMux{}
	mux := func(address string) *http.ServeMux {
		if muxes[address] == nil {
			muxes[address] = http.NewServeMux()
		}
		return muxes[address]
	}
	if address := a.cfg.MetricsAddress; address != "" {
		mux(address).Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	}
	if address := a.cfg.HealthAddress; address != "" {
		mux(address).HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
			last := a.health.last.Load()
			if since := time.Since(time.Unix(0, last)); last != 0 && since > stalled {
				http.Error(w, fmt.Sprintf("the last pass was %.0f s ago", since.Seconds()), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
		mux(address).HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
			if !a.health.ready.Load() {
				http.Error(w, "CPU sets are not applied: see the log", http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	var servers []*http.Server
	stop = func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		for _, s := range servers {
			if s.Shutdown(ctx) != nil {
				_ = s.Close()
			}
		}
	}
	for address, handler := range muxes {
		l, err := net.Listen("tcp", address)
		if err != nil {
			stop()
			return nil, fmt.Errorf("agent: %w", err)
		}
		s := &http.Server{Handler: handler, ReadHeaderTimeout: 5 * time.Second}
		servers = append(servers, s)
		go func() {
			if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				a.log.Error("serving ended", "address", address, "error", err)
			}
		}()
	}
	return stop, nil
}
