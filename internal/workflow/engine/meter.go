package engine

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// meter registers a template's metrics for a node: real-time gauges are emitted when the Step that
// starts the node is done, other metrics when the node ends.
func (r *Run) meter(n *node, t *compiled, inputs *inputsScope) {
	if t.Metrics == nil {
		return
	}
	fail := func(err error) { r.metricsError(fmt.Sprintf("templates.%s.metrics: %v", t.Name, err)) }
	scopes := func() []template.Scope {
		own := template.Map{"status": string(n.Phase), "duration": seconds(n.StartedAt.Time, n.FinishedAt.Time)}
		for name, text := range nodeValues(n) {
			if name == "exitCode" || strings.HasPrefix(name, "outputs.") {
				own[name] = text
			}
		}
		for name, amount := range n.ResourcesDuration {
			own["resourcesDuration."+string(name)] = strconv.FormatInt(amount, 10)
		}
		return []template.Scope{r.globals, inputs, own}
	}
	r.metered = append(r.metered, func() { // the node exists only when the Step is done
		if n.run != nil && !n.Phase.Fulfilled() {
			r.realtime(t.Metrics, n.ID, n.StartedAt.Time, []template.Scope{r.globals, inputs}, fail)
		}
	})
	n.ending = append(n.ending, func() { r.emit(t.Metrics, Sample{Owner: n.ID}, scopes(), fail) })
}

// meterWorkflow emits the workflow's own real-time gauges.
func (r *Run) meterWorkflow() {
	if r.spec.Metrics != nil {
		r.realtime(r.spec.Metrics, r.Workflow.Name, r.Workflow.Status.StartedAt.Time, []template.Scope{r.globals},
			r.workflowMetricsError)
	}
}

// meterEnd emits the workflow's own metrics when it ends.
func (r *Run) meterEnd() {
	if r.spec == nil || r.spec.Metrics == nil {
		return
	}
	s := &r.Workflow.Status
	own := template.Map{"status": string(s.Phase), "duration": seconds(s.StartedAt.Time, s.FinishedAt.Time)}
	own["workflow.status"], own["workflow.duration"] = own["status"], own["duration"]
	for name, amount := range s.ResourcesDuration {
		own["resourcesDuration."+string(name)] = strconv.FormatInt(amount, 10)
	}
	r.emit(r.spec.Metrics, Sample{Owner: r.Workflow.Name}, []template.Scope{own, r.globals}, r.workflowMetricsError)
}

func (r *Run) workflowMetricsError(err error) { r.metricsError(fmt.Sprintf("spec.metrics: %v", err)) }

func (r *Run) metricsError(message string) { r.out.Status = r.MetricsError(message) || r.out.Status }

// MetricsError adds the MetricsError condition, unless the workflow has one. It reports whether it
// has changed the status. The workflow goes on.
func (r *Run) MetricsError(message string) bool {
	s := &r.Workflow.Status
	if slices.ContainsFunc(s.Conditions, func(c wf.Condition) bool { return c.Type == wf.ConditionMetricsError }) {
		return false
	}
	s.Conditions = append(s.Conditions,
		wf.Condition{Type: wf.ConditionMetricsError, Status: metav1.ConditionTrue, Message: message})
	return true
}

func seconds(from, to time.Time) string {
	if from.IsZero() || to.IsZero() {
		return "0"
	}
	return strconv.FormatFloat(to.Sub(from).Seconds(), 'f', -1, 64)
}

func isRealtime(m *wf.Prometheus) bool { return m.Gauge != nil && ptr.Deref(m.Gauge.Realtime, false) }

// realtime emits the real-time gauges of a node or workflow that has started.
func (r *Run) realtime(metrics *wf.Metrics, owner string, since time.Time, scopes []template.Scope, fail func(error)) {
	begun := template.Map{"duration": "0", "workflow.duration": "0", "status": string(wf.PhaseRunning)}
	gauges := slices.DeleteFunc(slices.Clone(metrics.Prometheus), func(m *wf.Prometheus) bool { return m == nil || !isRealtime(m) })
	r.emit(&wf.Metrics{Prometheus: gauges}, Sample{Owner: owner, Since: since}, append(scopes, begun), fail)
}

// emit emits metrics of a node or workflow, with the Owner and Since of of. Of one that has ended,
// real-time gauges get their last value.
func (r *Run) emit(metrics *wf.Metrics, of Sample, scopes []template.Scope, fail func(error)) {
	for _, m := range metrics.Prometheus {
		if m == nil {
			continue
		}
		s, due, err := sample(m, scopes)
		if err != nil {
			fail(fmt.Errorf("%s: %w", m.Name, err))
		} else if due {
			s.Owner, s.Since = of.Owner, of.Since
			r.out.Samples = append(r.out.Samples, s)
		}
	}
}

// sample computes one value of a metric. due is false if the metric's when condition is false.
func sample(declared *wf.Prometheus, scopes []template.Scope) (out Sample, due bool, err error) {
	m := declared.DeepCopy()
	program, err := template.Compile(m, "when")
	if err != nil {
		return out, false, err
	}
	if m.When != "" {
		text, err := resolveText(m.When, scopes)
		if err != nil {
			return out, false, fmt.Errorf("when: %w", err)
		}
		if due, err = when(text, scopes); err != nil || !due {
			return out, false, err
		}
	}
	if err := program.Apply(m, scopes); err != nil {
		return out, false, err
	}
	out = Sample{Name: m.Name, Help: m.Help}
	value := ""
	switch {
	case m.Counter != nil:
		out.Kind, value = MetricCounter, m.Counter.Value
	case m.Gauge != nil:
		out.Kind, value, out.Operation = MetricGauge, m.Gauge.Value, cmp.Or(m.Gauge.Operation, "Set")
	case m.Histogram != nil:
		out.Kind, value = MetricHistogram, m.Histogram.Value
		for _, b := range m.Histogram.Buckets {
			bound, err := strconv.ParseFloat(string(b), 64)
			if err != nil || math.IsNaN(bound) {
				return out, false, fmt.Errorf("histogram.buckets: '%s' is not a number", b)
			}
			out.Buckets = append(out.Buckets, bound)
		}
	}
	for _, l := range m.Labels {
		if l != nil {
			out.Labels = append(out.Labels, *l)
		}
	}
	if out.Value, err = strconv.ParseFloat(strings.TrimSpace(value), 64); err != nil {
		return out, false, fmt.Errorf("value: '%s' is not a number", shorten(value))
	}
	return out, true, nil
}
