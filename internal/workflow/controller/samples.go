package controller

import (
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.dev/lockstep/internal/workflow/engine"
)

// samples is the Prometheus collector of the metrics that workflows emit. It is unchecked: Describe
// sends nothing.
//
// A metric is identified by its name, label names and label values. At most samplesMax metrics are
// kept; further ones are dropped and counted.
type samples struct {
	log *slog.Logger

	mu      sync.Mutex
	byKey   map[string]*sample
	dropped float64
}

type sample struct {
	engine.Sample
	desc    *prometheus.Desc
	values  []string
	value   float64
	count   uint64
	buckets map[float64]uint64
	since   map[string]time.Time // start times of gauges in real time, by owner
}

// samplesMax bounds the metrics of all workflows together.
const samplesMax = 20_000

func (s *samples) init(log *slog.Logger) { s.log, s.byKey = log, map[string]*sample{} }

// take adds the samples that a workflow emitted.
func (s *samples) take(owner string, list []engine.Sample, now time.Time) {
	if len(list) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list {
		e := &list[i]
		key := e.Name
		var names, values []string
		for _, l := range e.Labels {
			names, values = append(names, l.Key), append(values, l.Value)
			key += "\x00" + l.Key + "\x00" + l.Value
		}
		m := s.byKey[key]
		if m == nil {
			if len(s.byKey) >= samplesMax {
				s.dropped++
				continue
			}
			m = &sample{
				Sample: *e, desc: prometheus.NewDesc("argo_workflows_"+strings.TrimPrefix(e.Name, "argo_workflows_"), e.Help, names, nil),
				values: values, buckets: map[float64]uint64{}, since: map[string]time.Time{},
			}
			s.byKey[key] = m
		}
		m.add(owner+"/"+e.Owner, e)
	}
}

func (m *sample) add(owner string, e *engine.Sample) {
	delete(m.since, owner)
	switch {
	case !e.Since.IsZero():
		m.since[owner] = e.Since
	case e.Kind == engine.MetricCounter:
		m.value += e.Value
	case e.Kind == engine.MetricHistogram:
		m.value += e.Value
		m.count++
		for _, bound := range e.Buckets {
			if e.Value <= bound {
				m.buckets[bound]++
			} else {
				m.buckets[bound] += 0
			}
		}
	case e.Operation == "Add":
		m.value += e.Value
	case e.Operation == "Sub":
		m.value -= e.Value
	default:
		m.value = e.Value
	}
}

// forget stops the real-time gauges of a workflow.
func (s *samples) forget(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.byKey {
		for o := range m.since {
			if strings.HasPrefix(o, owner+"/") {
				delete(m.since, o)
			}
		}
	}
}

// Describe implements prometheus.Collector. It sends nothing, because the metrics are not known
// beforehand.
func (s *samples) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (s *samples) Collect(out chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for _, m := range s.byKey {
		var metric prometheus.Metric
		var err error
		switch m.Kind {
		case engine.MetricHistogram:
			metric, err = prometheus.NewConstHistogram(m.desc, m.count, m.value, m.buckets, m.values...)
		case engine.MetricCounter:
			metric, err = prometheus.NewConstMetric(m.desc, prometheus.CounterValue, m.value, m.values...)
		default:
			value := m.value
			for _, since := range m.since {
				value = now.Sub(since).Seconds()
			}
			metric, err = prometheus.NewConstMetric(m.desc, prometheus.GaugeValue, value, m.values...)
		}
		if err != nil {
			// Names and values were checked when the workflow emitted the metric. A metric with
			// clashing labels is left out.
			continue
		}
		out <- metric
	}
}
