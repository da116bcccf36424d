package controller

import (
	"fmt"
	"net/http"
	"strconv"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/records"
)

// metrics are the controller's metrics. Values that can be counted on demand are not stored;
// Collect counts them.
type metrics struct {
	c *Controller

	render   prometheus.Histogram
	requests *prometheus.CounterVec
	latency  *prometheus.HistogramVec
}

var (
	phasesDesc = prometheus.NewDesc("lockstep_applications", "Applications that this manager works on, by the phase in their status.", []string{"phase"}, nil)
	awakeDesc  = prometheus.NewDesc("lockstep_applications_awake", "Applications that something is to be done about, or was a short while ago.", nil, nil)
	queueDesc  = prometheus.NewDesc("lockstep_application_queue_depth", "Applications with something to take in.", nil, nil)
	reachDesc  = prometheus.NewDesc("lockstep_cluster_reachable", "1 for a managed cluster that can be reached, 0 for one that cannot: its breaker is open.", []string{"cluster"}, nil)
)

func newMetrics(registry prometheus.Registerer, c *Controller) (*metrics, error) {
	m := &metrics{
		c: c,
		render: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "lockstep_application_render_seconds", Help: "Time to make the plan of an application, or of a step of one: templates evaluated, policies applied.",
			Buckets: prometheus.ExponentialBuckets(100e-6, 4, 9),
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "lockstep_cluster_requests_total", Help: "Requests to managed clusters, by the status of the answer, or error where there was none.",
		}, []string{"cluster", "code"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "lockstep_cluster_request_seconds", Help: "Time of requests to managed clusters, without watches.",
			Buckets: prometheus.ExponentialBuckets(0.002, 2, 14),
		}, []string{"cluster"}),
	}
	if registry == nil {
		return m, nil
	}
	for _, collector := range []prometheus.Collector{m, m.render, m.requests, m.latency} {
		if err := registry.Register(collector); err != nil {
			return nil, fmt.Errorf("application controller: %w", err)
		}
	}
	return m, nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{phasesDesc, awakeDesc, queueDesc, reachDesc} {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value int, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, float64(value), labels...)
	}
	phases := map[oam.ApplicationPhase]int{}
	for _, o := range m.c.applications.List() {
		if owns := m.c.cfg.Owns; owns == nil || owns(o.Namespace+"/"+o.Name) {
			phase := records.SummaryOf(o).Phase
			if phase == "" {
				phase = oam.PhaseStarting
			}
			phases[phase]++
		}
	}
	for phase, n := range phases {
		gauge(phasesDesc, n, string(phase))
	}
	gauge(awakeDesc, m.c.loop.Records())
	gauge(queueDesc, m.c.loop.Depth())
	for _, t := range m.c.targets.Managed() {
		reachable := 0
		if t.Down() == nil {
			reachable = 1
		}
		gauge(reachDesc, reachable, t.Name)
	}
}

// measured returns a copy of a managed cluster's configuration that counts and times requests.
func (m *metrics) measured(cluster string, cfg *rest.Config) *rest.Config {
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(next http.RoundTripper) http.RoundTripper { return &measuredTransport{m, cluster, next} })
	return cfg
}

// left deletes the metrics of a cluster.
func (m *metrics) left(cluster string) {
	m.requests.DeletePartialMatch(prometheus.Labels{"cluster": cluster})
	m.latency.DeleteLabelValues(cluster)
}

type measuredTransport struct {
	m       *metrics
	cluster string
	next    http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t *measuredTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	begin := t.m.c.now()
	res, err := t.next.RoundTrip(r)
	code := "error"
	if err == nil {
		code = strconv.Itoa(res.StatusCode)
	}
	t.m.requests.WithLabelValues(t.cluster, code).Inc()
	if r.URL.Query().Get("watch") == "" {
		t.m.latency.WithLabelValues(t.cluster).Observe(t.m.c.now().Sub(begin).Seconds())
	}
	return res, err
}
