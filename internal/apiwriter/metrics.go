package apiwriter

import (
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Count identifies requests of one kind that were sent to the API server, or whose sending was
// attempted.
type Count struct {
	// Verb is the API's: create, update, patch, delete. Resource is as in the audit log, with group
	// and subresource: "pods", "pods/binding", "jobs.batch.volcano.sh/status". Reason is
	// Meta.Reason.
	Verb, Resource, Reason string
	// Code is the HTTP status code, or 0 if no answer arrived.
	Code int
}

type metrics struct {
	requests  *prometheus.CounterVec
	retries   *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	wait      [numClasses]prometheus.Observer
	coalesced prometheus.Counter
	dropped   prometheus.Counter

	mu     sync.Mutex
	counts map[Count]int
	cached map[Count]cachedMetrics
}

type cachedMetrics struct {
	requests prometheus.Counter
	latency  prometheus.Observer
}

var classNames = [numClasses]string{ClassPods: "pods", ClassDelete: "delete", ClassUrgent: "urgent",
	ClassStart: "begin", ClassStatus: "status", ClassEvent: "event"}

// latencyBuckets range from 2 ms, an unloaded nearby server, to 33 s.
var latencyBuckets = prometheus.ExponentialBuckets(0.002, 2, 15)

func newMetrics(registry prometheus.Registerer, w *core) (*metrics, error) {
	const ns, sub = "lockstep", "apiwriter"
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "requests_total",
			Help: "Write requests sent to the API server, by result; code 0 is no answer.",
		}, []string{"verb", "resource", "reason", "code"}),
		retries: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "retries_total",
			Help: "Requests that are sent again, by why.",
		}, []string{"cause"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: ns, Subsystem: sub, Name: "request_seconds",
			Help: "Time from sending a write request to its answer.", Buckets: latencyBuckets,
		}, []string{"verb", "resource"}),
		coalesced: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "coalesced_total",
			Help: "Status writes and events that were merged into a later or earlier one.",
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: ns, Subsystem: sub, Name: "events_dropped_total",
			Help: "Events that were not written: too many waited, or the server refused them.",
		}),
		counts: make(map[Count]int),
		cached: make(map[Count]cachedMetrics),
	}
	wait := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: ns, Subsystem: sub, Name: "wait_seconds",
		Help: "Time that writes waited for their turn.", Buckets: latencyBuckets,
	}, []string{"class"})
	all := []prometheus.Collector{m.requests, m.retries, m.latency, m.coalesced, m.dropped, wait}
	gauge := func(name, help string, labels prometheus.Labels, value func() int) {
		all = append(all, prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: ns, Subsystem: sub, Name: name, Help: help, ConstLabels: labels,
		}, func() float64 {
			w.mu.Lock()
			defer w.mu.Unlock()
			return float64(value())
		}))
	}
	gauge("open", "Writes that have not ended, those that wait to be tried again included.", nil, func() int {
		return w.open
	})
	gauge("in_flight", "Write requests in flight.", nil, func() int { return w.inFlight })
	gauge("limit", "Write requests that may be in flight.", nil, func() int { return w.limiter.limit(time.Now()) })
	gauge("scopes_down", "Sets of writes, by resource, verb and namespace, that the server does not carry out at present.",
		nil,
		func() int { return w.breakers.openCount() })
	gauge("parked", "Writes that wait because their set is down.", nil, func() int { return w.breakers.waiting })
	for class, name := range classNames {
		m.wait[class] = wait.WithLabelValues(name)
		gauge("queued", "Writes that wait for their turn.", prometheus.Labels{"class": name},
			func() int { return w.queue.classes[class].len })
	}
	if registry == nil {
		return m, nil
	}
	for _, c := range all {
		if err := registry.Register(c); err != nil {
			return nil, fmt.Errorf("apiwriter metrics: %w", err)
		}
	}
	return m, nil
}

// sent counts one request.
func (m *metrics) sent(x *write, httpVerb string, code int, took time.Duration) {
	c := Count{Verb: httpVerb, Resource: x.kind.label(x.verb), Reason: x.reason, Code: code}
	m.mu.Lock()
	m.counts[c]++
	k, ok := m.cached[c]
	if !ok {
		k = cachedMetrics{
			m.requests.WithLabelValues(c.Verb, c.Resource, c.Reason, strconv.Itoa(code)),
			m.latency.WithLabelValues(c.Verb, c.Resource),
		}
		m.cached[c] = k
	}
	m.mu.Unlock()
	k.requests.Inc()
	k.latency.Observe(took.Seconds())
}

func (m *metrics) waited(c Class, d time.Duration) { m.wait[c].Observe(d.Seconds()) }

func (m *metrics) retried(o outcome) {
	cause := map[verdict]string{retryLater: "error", overloaded: "overloaded", timedOut: "timeout",
		unavailable: "unavailable", termLapsed: "lease"}[o.verdict]
	m.retries.WithLabelValues(cause).Inc()
}

// Counts returns the number of requests of each kind.
func (w *core) Counts() map[Count]int {
	w.metrics.mu.Lock()
	defer w.metrics.mu.Unlock()
	return maps.Clone(w.metrics.counts)
}

// Limit returns the current maximum number of requests in flight.
func (w *core) Limit() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.limiter.limit(time.Now())
}
