package nodecontroller

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	gone    prometheus.Gauge
	moves   *prometheus.CounterVec
	repacks *prometheus.CounterVec
	freed   prometheus.Counter
}

func newMetrics(registry prometheus.Registerer) *metrics {
	m := &metrics{
		gone: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "lockstep", Subsystem: "topology", Name: "agents_gone",
			Help: "Nodes whose agent has not been heard of for a while."}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "topology",
			Name: "moves_total",
			Help: "Moves of pods to other CPUs of their node, by what became of them: made, busy (the CPUs were given to " +
				"somebody else first, or the pod was changed), failed, or back (made, and taken back because the agent could " +
				"not)."},
			[]string{"result"}),
		repacks: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "topology",
			Name: "repacks_total",
			Help: "Repacks of nodes that have ended, by who asked for them and how they ended."}, []string{"by", "phase"}),
		freed: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "lockstep", Subsystem: "topology",
			Name: "freed_l3_domains_total",
			Help: "L3 domains that became free by moves."}),
	}
	if registry != nil {
		registry.MustRegister(m.gone, m.moves, m.repacks, m.freed)
	}
	return m
}
