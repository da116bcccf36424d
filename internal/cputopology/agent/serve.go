package agent

import (
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"lockstep.dev/lockstep/internal/cputopology/agent/enforce"
	"lockstep.dev/lockstep/internal/serve"
)

// metrics are the metrics of the agent. The metrics of its writes are in apiwriter.
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
		writes: counter("cgroup_writes_total", "Writes to files of cgroups, those that were refused included."),
		repaired: counter("repaired_total",
			"Containers whose CPUs somebody else had changed and that have their own again."),
		pinned:    gauge("pinned_containers", "Containers that have the CPUs of their pods' annotations."),
		shared:    gauge("shared_cgroups", "Cgroups of containers and sandboxes that are not pinned."),
		problems:  gauge("problems", "Containers and pods whose CPU sets are not what they should be."),
		poolCPUs:  gauge("shared_cpus", "CPUs of the shared pool."),
		unwatched: gauge("unwatched", "1 if changes of some cgroups are found by looking once in a while only."),
	}
	registry.MustRegister(m.passes, m.duration, m.writes, m.repaired, m.pinned, m.shared, m.problems, m.poolCPUs,
		m.unwatched,
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

// stalled is the time without a completed pass after which the agent is unhealthy.
const stalled = 30 * time.Second

// serve starts the HTTP servers and returns a function that stops them.
func (a *Agent) serve() (stop func(), err error) {
	var paths serve.Paths
	paths.Handle(a.cfg.MetricsAddress, "GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{}))
	paths.Check(a.cfg.HealthAddress, "GET /healthz", func() error {
		last := a.health.last.Load()
		if since := time.Since(time.Unix(0, last)); last != 0 && since > stalled {
			return fmt.Errorf("the last pass was %.0f s ago", since.Seconds())
		}
		return nil
	})
	paths.Check(a.cfg.HealthAddress, "GET /readyz", func() error {
		if !a.health.ready.Load() {
			return errors.New("CPU sets are not applied: see the log")
		}
		return nil
	})
	if stop, err = paths.Start(a.log); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	return stop, nil
}
