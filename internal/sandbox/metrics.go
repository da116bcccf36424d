package sandbox

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// poolMetrics holds the metrics of a pool. The number and memory of children are determined at each
// collection.
type poolMetrics struct {
	pool     *Pool
	time     *prometheus.HistogramVec
	ended    *prometheus.CounterVec
	started  prometheus.Counter
	children *prometheus.Desc
	memory   *prometheus.Desc
}

func newMetrics(p *Pool) *poolMetrics {
	return &poolMetrics{
		pool: p,
		time: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "lockstep_evaluation_seconds",
			Help:    "Time of evaluations of users' programs in child processes, with the wait for a child.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9),
		}, []string{"evaluator"}),
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_evaluations_ended_total",
			Help: "Evaluations that gave no answer, by cause: memory, cpu, stack, output, request, crash, busy, late, other.",
		}, []string{"cause"}),
		started: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "lockstep_evaluators_started_total", Help: "Child processes started for evaluations.",
		}),
		children: prometheus.NewDesc("lockstep_evaluators", "Child processes for evaluations.", nil, nil),
		memory: prometheus.NewDesc("lockstep_evaluators_memory_bytes",
			"Resident memory of the child processes for evaluations, without files.", nil, nil),
	}
}

// count records an evaluation.
func (m *poolMetrics) count(evaluator string, took time.Duration, err error) {
	m.time.WithLabelValues(evaluator).Observe(took.Seconds())
	var failed *Failed
	if err == nil || errors.As(err, &failed) {
		return
	}
	cause := "other"
	var exceeded *Exceeded
	var crashed *Crashed
	switch {
	case errors.As(err, &exceeded):
		cause = string(exceeded.Limit)
	case errors.As(err, &crashed):
		cause = "crash"
	case errors.Is(err, ErrBusy):
		cause = "busy"
	case errors.Is(err, ErrLate):
		cause = "late"
	}
	m.ended.WithLabelValues(cause).Inc()
}

// Describe implements prometheus.Collector.
func (m *poolMetrics) Describe(to chan<- *prometheus.Desc) {
	m.time.Describe(to)
	m.ended.Describe(to)
	m.started.Describe(to)
	to <- m.children
	to <- m.memory
}

// Collect implements prometheus.Collector.
func (m *poolMetrics) Collect(to chan<- prometheus.Metric) {
	m.time.Collect(to)
	m.ended.Collect(to)
	m.started.Collect(to)
	n, memory := m.pool.size()
	to <- prometheus.MustNewConstMetric(m.children, prometheus.GaugeValue, float64(n))
	to <- prometheus.MustNewConstMetric(m.memory, prometheus.GaugeValue, float64(memory))
}

// size returns the number of children and their total resident memory, in bytes.
func (p *Pool) size() (children int, memory int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.children {
		memory += c.resident()
	}
	return len(p.children), memory
}
