package controller

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/clip"
)

type metrics struct {
	reconcile  prometheus.Histogram
	finished   *prometheus.CounterVec
	duration   prometheus.Histogram
	compressed prometheus.Counter
}

func newMetrics(registry prometheus.Registerer, c *Controller) (*metrics, error) {
	m := &metrics{
		reconcile: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_workflow_reconcile_seconds", Help: "Time to take in what happened to a workflow and act on it.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 4, 9),
		}),
		finished: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_workflows_finished_total", Help: "Workflows that ended, by phase.",
		}, []string{"phase"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_workflow_duration_seconds", Help: "Time from a workflow's creation to its end.",
			Buckets: prometheus.ExponentialBuckets(0.1, 4, 10),
		}),
		compressed: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_workflow_statuses_compressed_total", Help: "Statuses that were written with compressed nodes.",
		}),
	}
	active := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_workflows_active", Help: "Workflows that this manager works on.",
	}, func() float64 { return float64(c.loop.Records()) })
	depth := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "lockstep_workflow_queue_depth", Help: "Workflows with something to take in.",
	}, func() float64 { return float64(c.loop.Depth()) })
	if registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m.reconcile, m.finished, m.duration, m.compressed, active, depth, &c.workflowMetrics} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("workflow controller: %w", err)
		}
	}
	return m, nil
}

func (m *metrics) reconciled(d time.Duration) { m.reconcile.Observe(d.Seconds()) }

func (m *metrics) ended(phase wf.WorkflowPhase, w *wf.Workflow) {
	m.finished.WithLabelValues(string(phase)).Inc()
	m.duration.Observe(w.Status.FinishedAt.Sub(w.CreationTimestamp.Time).Seconds())
}

// shortened truncates a message to 900 bytes, to fit into an event.
func shortened(s string) string { return clip.Text(s, 900) }
