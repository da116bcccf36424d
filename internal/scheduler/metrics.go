package scheduler

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.dev/lockstep/internal/cluster"
)

// Results of an attempt to place a gang, as values of a metric label.
const (
	resultPlaced  = "placed"
	resultRoom    = "no_room"
	resultQueue   = "queue"
	resultVolumes = "volumes"
)

type metrics struct {
	cycleSeconds  prometheus.Histogram
	waitSeconds   prometheus.Histogram
	pods          prometheus.Counter
	attempts      *prometheus.CounterVec
	waiting       prometheus.Gauge
	lines         prometheus.Gauge
	evictions     prometheus.Counter
	searchSeconds prometheus.Histogram
	queues        *queueMetrics
	waitingIn     *prometheus.GaugeVec
	// Nodes by their measured use.
	overused, unmeasured prometheus.Gauge
}

func newMetrics(c *cluster.Cluster, used func() map[string]QueueUsage) *metrics {
	const ns, sub = "lockstep", "scheduler"
	return &metrics{
		queues: newQueueMetrics(c, used),
		waitingIn: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: "queue", Name: "waiting_gangs", Help: "Gangs of a queue that wait for nodes.",
		}, []string{"queue"}),
		cycleSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "cycle_seconds",
			Help:    "Time that a scheduling cycle took.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10),
		}),
		waitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "wait_seconds",
			Help:    "Time from a gang's submission to its placement.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 12),
		}),
		pods: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "placements_total", Help: "Pods given a node.",
		}),
		attempts: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "attempts_total",
			Help: "Attempts to place a gang, by result: placed, no_room (on nodes), queue (it may hold no more), volumes (they are not bound yet).",
		}, []string{"result"}),
		waiting: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "waiting_gangs", Help: "Gangs that wait for nodes.",
		}),
		lines: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "waiting_shapes", Help: "Different requests among the gangs that wait.",
		}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "evictions_total", Help: "Pods evicted so that a waiting gang fits, or because their nodes are wanted back.",
		}),
		overused: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "overused_nodes", Help: "Nodes that take no pods because they are used above the threshold.",
		}),
		unmeasured: prometheus.NewGauge(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: "unmeasured_nodes",
			Help: "Nodes whose use is to be read and is not known, or was measured too long ago.",
		}),
		searchSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "eviction_search_seconds",
			Help:    "Time that it took to decide who leaves for a waiting gang.",
			Buckets: prometheus.ExponentialBuckets(50e-6, 4, 10),
		}),
	}
}

func (m *metrics) register(r prometheus.Registerer) error {
	var errs []error
	for _, c := range []prometheus.Collector{m.cycleSeconds, m.waitSeconds, m.pods, m.attempts, m.waiting, m.lines,
		m.evictions, m.searchSeconds, m.queues, m.waitingIn, m.overused, m.unmeasured} {
		errs = append(errs, r.Register(c))
	}
	return errors.Join(errs...)
}

func (m *metrics) cycle(took time.Duration, pods, waiting, lines int) {
	m.cycleSeconds.Observe(took.Seconds())
	m.waiting.Set(float64(waiting))
	m.lines.Set(float64(lines))
	m.pods.Add(float64(pods))
}

func (m *metrics) placed(waited time.Duration) {
	m.attempts.WithLabelValues(resultPlaced).Inc()
	m.waitSeconds.Observe(waited.Seconds())
}
