package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// workflowMetrics is the Prometheus collector of the metrics that workflows emit. The metrics of all
// workflows share one registry, which serves nothing at all while two of them contradict each
// other. So a metric that contradicts an earlier one is dropped.
//
// At most samplesMax metrics are kept; further ones are dropped too.
type workflowMetrics struct {
	dropped prometheus.Counter

	mu       sync.Mutex
	families map[string]*family // by full name
	series   int                // number of metrics in all families
}

// family is the metrics of one name. They have one kind and one help text. A workflow may define the
// family anew, with another kind, if it is in the namespace of the workflow that has defined it and
// no other workflow under way has emitted to it.
type family struct {
	kind      engine.MetricKind
	help      string // the latest
	namespace string
	users     map[string]bool    // UIDs of the workflows under way that have emitted to it
	series    map[string]*sample // by labels
}

type sample struct {
	kind    engine.MetricKind
	names   []string // of labels
	values  []string
	value   float64
	count   uint64
	buckets map[float64]uint64
	since   map[string]time.Time // start times of gauges in real time, by owner
}

// samplesMax bounds the metrics of all workflows together.
const samplesMax = 20_000

// samplePrefix is the beginning of the names of all metrics that workflows emit.
const samplePrefix = "argo_workflows_"

func (s *workflowMetrics) init() {
	s.families = map[string]*family{}
	s.dropped = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "lockstep_workflow_metrics_dropped_total",
		Help: "Values of workflows' own metrics that were dropped: they contradict others, or there are too many.",
	})
}

// take adds the samples that a workflow emitted. It drops those that cannot be served together with
// earlier ones, and returns an error for the first of them.
func (s *workflowMetrics) take(namespace, owner string, list []engine.Sample) (first error) {
	if len(list) == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range list {
		e := &list[i]
		m, err := s.find(namespace, owner, e)
		if err != nil {
			s.dropped.Inc()
			first = cmp.Or(first, fmt.Errorf("metric %s: %w", e.Name, err))
			continue
		}
		m.add(owner+"/"+e.Owner, e)
	}
	return first
}

// find returns the metric of a sample that a workflow has emitted. If there is none, find makes it.
func (s *workflowMetrics) find(namespace, owner string, e *engine.Sample) (*sample, error) {
	name := samplePrefix + strings.TrimPrefix(e.Name, samplePrefix)
	m := &sample{kind: e.Kind, buckets: map[float64]uint64{}, since: map[string]time.Time{}}
	key := ""
	byKey := func(a, b wf.MetricLabel) int { return strings.Compare(a.Key, b.Key) }
	for _, l := range slices.SortedFunc(slices.Values(e.Labels), byKey) {
		if l.Key == "le" && e.Kind == engine.MetricHistogram {
			return nil, fmt.Errorf("a histogram has the label le of its own")
		}
		m.names, m.values = append(m.names, l.Key), append(m.values, l.Value)
		key += l.Key + "\x00" + l.Value + "\x00"
	}
	f := s.families[name]
	if f != nil && f.kind == e.Kind && f.series[key] != nil {
		f.users[owner], f.help = true, e.Help
		return f.series[key], nil
	}
	if _, err := m.metric(name, e.Help, time.Time{}); err != nil {
		return nil, err
	}
	if s.series >= samplesMax {
		return nil, fmt.Errorf("the workflows have more than %d metrics", samplesMax)
	}
	if f != nil && f.kind != e.Kind {
		if !s.replaceable(name, namespace, owner) {
			return nil, fmt.Errorf("it is a %s, and another metric of this name is a %s", e.Kind, f.kind)
		}
		f = nil
	}
	if f == nil {
		if err := s.collides(name, namespace, owner, e.Kind); err != nil {
			return nil, err
		}
		f = &family{kind: e.Kind, namespace: namespace, users: map[string]bool{}, series: map[string]*sample{}}
		s.families[name] = f
	}
	f.users[owner], f.help, f.series[key] = true, e.Help, m
	s.series++
	return m, nil
}

// replaceable reports whether a workflow may replace a family, and removes the family if so.
func (s *workflowMetrics) replaceable(name, namespace, owner string) bool {
	f := s.families[name]
	if f.namespace != namespace || len(f.users) > 1 || len(f.users) == 1 && !f.users[owner] {
		return false
	}
	s.series -= len(f.series)
	delete(s.families, name)
	return true
}

// collides returns an error if a new family would have the name of a part of a histogram.
func (s *workflowMetrics) collides(name, namespace, owner string, kind engine.MetricKind) error {
	for _, suffix := range []string{"_count", "_sum", "_bucket"} {
		other, found := strings.CutSuffix(name, suffix)
		if f := s.families[other]; found && f != nil && f.kind == engine.MetricHistogram && !s.replaceable(other, namespace, owner) {
			return fmt.Errorf("its name is that of a part of the histogram %s", other)
		}
		part := name + suffix
		if kind == engine.MetricHistogram && s.families[part] != nil && !s.replaceable(part, namespace, owner) {
			return fmt.Errorf("a part of this histogram has the name of the metric %s", part)
		}
	}
	return nil
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

// metric returns the value to serve. It returns an error if the name or the labels are not valid.
func (m *sample) metric(name, help string, now time.Time) (prometheus.Metric, error) {
	desc := prometheus.NewDesc(name, help, m.names, nil)
	switch m.kind {
	case engine.MetricHistogram:
		return prometheus.NewConstHistogram(desc, m.count, m.value, m.buckets, m.values...)
	case engine.MetricCounter:
		return prometheus.NewConstMetric(desc, prometheus.CounterValue, m.value, m.values...)
	}
	value := m.value
	for _, since := range m.since {
		value = now.Sub(since).Seconds()
	}
	return prometheus.NewConstMetric(desc, prometheus.GaugeValue, value, m.values...)
}

// forget stops the real-time gauges of a workflow that is not under way any more.
func (s *workflowMetrics) forget(owner string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.families {
		delete(f.users, owner)
		for _, m := range f.series {
			for o := range m.since {
				if strings.HasPrefix(o, owner+"/") {
					delete(m.since, o)
				}
			}
		}
	}
}

// Describe implements prometheus.Collector. The metrics of workflows are not known beforehand, so
// it describes only the counter of those that are dropped. A collector that described nothing could
// not be unregistered.
func (s *workflowMetrics) Describe(out chan<- *prometheus.Desc) { s.dropped.Describe(out) }

// Collect implements prometheus.Collector.
func (s *workflowMetrics) Collect(out chan<- prometheus.Metric) {
	s.dropped.Collect(out)
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	for name, f := range s.families {
		for _, m := range f.series {
			if metric, err := m.metric(name, f.help, now); err == nil { // find has checked the name and the labels
				out <- metric
			}
		}
	}
}
