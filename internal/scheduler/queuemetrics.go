package scheduler

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
)

// queueMetrics are the metrics of queues: what their specs state, and what their pods have. They
// are computed when they are read.
type queueMetrics struct {
	cluster                                     *cluster.Cluster
	used                                        func() map[string]QueueUsage
	allocated, capability, deserved, guaranteed *prometheus.Desc
	usage, weight                               *prometheus.Desc
}

func newQueueMetrics(c *cluster.Cluster, used func() map[string]QueueUsage) *queueMetrics {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("lockstep_queue_"+name, help, append([]string{"queue"}, labels...), nil)
	}
	return &queueMetrics{
		cluster:    c,
		used:       used,
		allocated:  desc("allocated", "Requests of the pods of a queue that have nodes: cores, bytes or numbers.", "resource"),
		capability: desc("capability", "The most that a queue and the queues below it may have.", "resource"),
		deserved:   desc("deserved", "What a queue states that it deserves.", "resource"),
		guaranteed: desc("guarantee", "What a queue states that it is guaranteed.", "resource"),
		usage:      desc("usage", "What a queue has used: a mean in which the past counts less (--usage-half-life).", "resource"),
		weight:     desc("weight", "The weight of a queue among its siblings."),
	}
}

// Describe implements prometheus.Collector.
func (m *queueMetrics) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{m.allocated, m.capability, m.deserved, m.guaranteed, m.usage, m.weight} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (m *queueMetrics) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	list := func(d *prometheus.Desc, queue string, amounts corev1.ResourceList) {
		for name, amount := range amounts {
			gauge(d, amount.AsApproximateFloat64(), queue, string(name))
		}
	}
	used := m.used()
	for _, q := range m.cluster.Queues() {
		list(m.allocated, q.Name, m.cluster.Dims().List(q.Used))
		if q.Jobs > 0 {
			gauge(m.allocated, float64(q.Jobs), q.Name, string(schedulingv1beta1.JobsResource))
		}
		list(m.usage, q.Name, used[q.Name].Average)
		if q.Object == nil {
			continue
		}
		list(m.capability, q.Name, q.Object.Spec.Capability)
		list(m.deserved, q.Name, q.Object.Spec.Deserved)
		list(m.guaranteed, q.Name, q.Object.Spec.Guarantee.Resource)
		gauge(m.weight, float64(q.Object.ShareWeight()), q.Name)
	}
}
