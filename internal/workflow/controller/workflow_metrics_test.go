package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// TestMetricsThatContradictOthersAreDropped checks that the metrics of one workflow cannot prevent
// those of all others from being served.
func TestMetricsThatContradictOthersAreDropped(t *testing.T) {
	counter := func(name, help string, labels ...wf.MetricLabel) engine.Sample {
		return engine.Sample{Name: name, Help: help, Kind: engine.MetricCounter, Labels: labels, Value: 1}
	}
	histogram := engine.Sample{Name: "h", Help: "h", Kind: engine.MetricHistogram, Value: 1, Buckets: []float64{2}}
	a, b := wf.MetricLabel{Key: "a", Value: "1"}, wf.MetricLabel{Key: "b", Value: "2"}
	for name, c := range map[string]struct {
		first, second engine.Sample
		want          string // error for the second; "" if both are served
		served        int    // metrics of workflows
	}{
		"the same":                      {counter("m", "x", a, b), counter("m", "x", a, b), "", 1},
		"other values of labels":        {counter("m", "x", a), counter("m", "x", wf.MetricLabel{Key: "a", Value: "3"}), "", 2},
		"other labels":                  {counter("m", "x", a), counter("m", "x", b), "", 2},
		"labels in another order":       {counter("m", "x", a, b), counter("m", "x", b, a), "", 1},
		"another help":                  {counter("m", "x", a), counter("m", "y", b), "", 2},
		"the name with the prefix":      {counter("m", "x"), counter("argo_workflows_m", "y"), "", 1},
		"another kind":                  {counter("m", "x"), engine.Sample{Name: "m", Help: "x", Kind: engine.MetricGauge}, "is a Gauge, and", 1},
		"another kind and other labels": {counter("m", "x"), engine.Sample{Name: "m", Kind: engine.MetricGauge, Labels: []wf.MetricLabel{a}}, "is a Gauge, and", 1},
		"a part of a histogram":         {histogram, counter("h_count", "x"), "part of the histogram argo_workflows_h", 1},
		"a histogram with such a part":  {counter("h_sum", "x"), histogram, "name of the metric argo_workflows_h_sum", 1},
		"a label twice":                 {counter("m", "x"), counter("n", "x", a, a), "duplicate label names", 1},
		"no name of a metric":           {counter("m", "x"), counter("n \xff", "x"), "not a valid metric name", 1},
		"a bound as a label":            {counter("m", "x"), engine.Sample{Name: "n", Kind: engine.MetricHistogram, Labels: []wf.MetricLabel{{Key: "le"}}}, "label le", 1},
	} {
		t.Run(name, func(t *testing.T) {
			var s workflowMetrics
			s.init()
			registry := prometheus.NewRegistry()
			registry.MustRegister(&s)
			if err := s.take("ns", "first", []engine.Sample{c.first}); err != nil {
				t.Fatal(err)
			}
			err := s.take("ns", "second", []engine.Sample{c.second})
			if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
			if got := served(t, registry); got != c.served {
				t.Errorf("%d metrics are served, want %d", got, c.served)
			}
		})
	}
}

// TestSamplesOfAnEarlierControllerAreUnregistered checks that a manager that begins to lead serves
// the metrics of its new controller only.
func TestSamplesOfAnEarlierControllerAreUnregistered(t *testing.T) {
	registry := prometheus.NewRegistry()
	for range 2 {
		var s workflowMetrics
		s.init()
		registry.MustRegister(&s)
		if err := s.take("ns", "w", []engine.Sample{{Name: "m", Kind: engine.MetricGauge, Since: time.Unix(1, 0)}}); err != nil {
			t.Fatal(err)
		}
		if got := served(t, registry); got != 1 {
			t.Errorf("%d metrics are served, want 1", got)
		}
		if !registry.Unregister(&s) {
			t.Error("the collector cannot be unregistered")
		}
	}
}

// served returns the number of metrics of workflows that the registry serves.
func served(t *testing.T, registry *prometheus.Registry) int {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Error(err)
	}
	n := 0
	for _, f := range families {
		if strings.HasPrefix(f.GetName(), samplePrefix) {
			n += len(f.Metric)
		}
	}
	return n
}

// TestAMetricThatIsDroppedIsNamedInTheStatus checks that the workflow says why its metric is
// missing.
func TestAMetricThatIsDroppedIsNamedInTheStatus(t *testing.T) {
	d := newDesk(t, Config{})
	if err := d.workflowMetrics.take("ns", "another", []engine.Sample{{Name: "m", Kind: engine.MetricCounter}}); err != nil {
		t.Fatal(err)
	}
	d.show("1", `
spec:
  entrypoint: main
  metrics: {prometheus: [{name: m, help: h, gauge: {realtime: true, value: "{{workflow.duration}}"}}]}
  templates: [{name: main, container: {image: i, command: [c]}}]
`)
	r := d.loop.Get(d.key)
	want := "metric m: it is a Gauge, and another metric of this name is a Counter"
	for _, c := range r.run.Workflow.Status.Conditions {
		if c.Type == wf.ConditionMetricsError && c.Message == want && r.next.fields {
			return
		}
	}
	t.Errorf("the conditions are %v, want one that says %s", r.run.Workflow.Status.Conditions, want)
}

// TestAMetricMayBeDefinedAgain checks that a metric can get another kind when no workflow under way
// emits it any more, but not by a workflow of another namespace, and that its help is the latest.
func TestAMetricMayBeDefinedAgain(t *testing.T) {
	var s workflowMetrics
	s.init()
	registry := prometheus.NewRegistry()
	registry.MustRegister(&s)
	emit := func(namespace, uid string, kind engine.MetricKind) error {
		return s.take(namespace, uid, []engine.Sample{{Name: "m", Help: uid, Kind: kind, Value: 1}})
	}
	for _, c := range []struct {
		what, namespace, uid string
		kind                 engine.MetricKind
		ends, fails          bool
	}{
		{"the first", "ns", "1", engine.MetricCounter, false, false},
		{"another kind while the first is under way", "ns", "2", engine.MetricGauge, false, true},
		{"the same kind again", "ns", "1", engine.MetricCounter, true, false},
		{"another kind in another namespace", "other", "3", engine.MetricGauge, true, true},
		{"another kind", "ns", "4", engine.MetricGauge, true, false},
		{"the new kind with another help", "other", "5", engine.MetricGauge, false, false},
		{"the old kind", "ns", "6", engine.MetricCounter, false, true},
	} {
		if err := emit(c.namespace, c.uid, c.kind); (err != nil) != c.fails {
			t.Errorf("%s: the error is %v", c.what, err)
		}
		if c.ends {
			s.forget(c.uid)
		}
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == samplePrefix+"m" && (f.GetHelp() != "5" || f.GetType().String() != "GAUGE") {
			t.Errorf("the metric is %v", f)
		}
	}
	if n := served(t, registry); n != 1 {
		t.Errorf("%d metrics are served, want 1", n)
	}
}
