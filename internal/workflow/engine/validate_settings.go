package engine

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

func (c *checker) hooks(hooks wf.LifecycleHooks, p place) {
	for _, name := range slices.Sorted(maps.Keys(hooks)) {
		h := hooks[name]
		at := p.at("hooks." + name)
		if (h.Template == "") == (h.TemplateRef == nil) {
			c.add(at, "must have exactly one of template, templateRef")
		}
		if h.Expression == "" && name != wf.ExitHook {
			c.add(at.at("expression"), "is required")
		}
		c.expression(at.at("expression"), h.Expression)
		c.parameters(h.Arguments.Parameters, at.at("arguments"))
		c.valuesFrom(h.Arguments.Parameters, at.at("arguments"))
	}
}

func (c *checker) retryStrategy(s *wf.RetryStrategy, p place) {
	if s == nil {
		return
	}
	c.choice(p.at("retryPolicy"), string(s.RetryPolicy), "", string(wf.RetryAlways), string(wf.RetryOnFailure),
		string(wf.RetryOnError), string(wf.RetryOnTransientError))
	c.expression(p.at("expression"), s.Expression)
	if s.Limit != nil && !strings.Contains(s.Limit.String(), "{{") {
		if n, err := strconv.Atoi(s.Limit.String()); err != nil || n < 0 {
			c.add(p.at("limit"), "'%s' is not a number of retries", shorten(s.Limit.String()))
		}
	}
	if b := s.Backoff; b != nil {
		if b.Duration == "" {
			c.add(p.at("backoff.duration"), "is required")
		}
		c.duration(p.at("backoff.duration"), b.Duration)
		c.duration(p.at("backoff.maxDuration"), b.MaxDuration)
		c.duration(p.at("backoff.cap"), b.Cap)
		if b.Factor != nil && !strings.Contains(b.Factor.String(), "{{") {
			if f, err := strconv.ParseFloat(b.Factor.String(), 64); err != nil || f < 0 {
				c.add(p.at("backoff.factor"), "'%s' is not a factor", shorten(b.Factor.String()))
			}
		}
	}
}

func (c *checker) synchronization(s *wf.Synchronization, p place) {
	if s == nil {
		return
	}
	mutex := func(at place, m wf.Mutex) {
		if m.Name == "" {
			c.add(at.at("name"), "is required")
		}
	}
	semaphore := func(at place, m wf.SemaphoreRef) {
		switch {
		case m.Database != nil && m.ConfigMapKeyRef != nil:
			c.add(at, "must not have both database and configMapKeyRef")
		case m.Database != nil && m.Database.Key == "":
			c.add(at.at("database.key"), "is required")
		case m.Database != nil:
		case m.ConfigMapKeyRef == nil || m.ConfigMapKeyRef.Name == "" || m.ConfigMapKeyRef.Key == "":
			c.add(at.at("configMapKeyRef"), "with name and key is required")
		}
	}
	for i, m := range s.Mutexes {
		mutex(p.index("mutexes", i), m)
	}
	for i, m := range s.Semaphores {
		semaphore(p.index("semaphores", i), m)
	}
	if s.Mutex != nil {
		mutex(p.at("mutex"), *s.Mutex)
	}
	if s.Semaphore != nil {
		semaphore(p.at("semaphore"), *s.Semaphore)
	}
}

var (
	metricName = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	labelName  = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z0-9_]*$`)
)

func (c *checker) metrics(metrics *wf.Metrics, p place) {
	if metrics == nil {
		return
	}
	for i, m := range metrics.Prometheus {
		at := p.index("prometheus", i)
		if m == nil {
			c.add(at, "is empty")
			continue
		}
		if !strings.Contains(m.Name, "{{") && !metricName.MatchString(m.Name) {
			c.add(at.at("name"), "'%s' is not a name of a metric", shorten(m.Name))
		}
		if m.Help == "" {
			c.add(at.at("help"), "is required")
		}
		for j, l := range m.Labels {
			if l == nil || !labelName.MatchString(l.Key) {
				c.add(at.index("labels", j).at("key"), "is not a name of a label")
			}
		}
		kinds := map[string]string{}
		if m.Counter != nil {
			kinds["counter"] = m.Counter.Value
		}
		if m.Gauge != nil {
			kinds["gauge"] = m.Gauge.Value
			c.choice(at.at("gauge.operation"), m.Gauge.Operation, "", "Set", "Add", "Sub")
			if isRealtime(m) && !strings.Contains(m.Gauge.Value, "duration") {
				c.add(at.at("gauge.value"), "in real time must be a duration")
			}
		}
		if m.Histogram != nil {
			kinds["histogram"] = m.Histogram.Value
		}
		if len(kinds) != 1 {
			c.add(at, "must have exactly one of counter, gauge, histogram")
		}
		for kind, value := range kinds {
			if value == "" {
				c.add(at.at(kind+".value"), "is required")
			}
		}
	}
}

// constant reports whether a value is set and has no variables.
func constant(value *wf.AnyString) bool {
	return value != nil && !strings.Contains(string(*value), "{{")
}

// allows reports whether the parameter's enum has the value, or there is no enum.
func allows(p *wf.Parameter, value wf.AnyString) bool {
	return p.Enum == nil || slices.Contains(p.Enum, value)
}

// notInEnum says that the value is none of the parameter's enum.
func notInEnum(p *wf.Parameter, value wf.AnyString) string {
	allowed := make([]string, len(p.Enum))
	for i := range p.Enum {
		allowed[i] = string(p.Enum[i])
	}
	return fmt.Sprintf("'%s' is none of the values in enum: %s", shorten(string(value)), shorten(strings.Join(allowed, ", ")))
}

// parameters checks that parameters have names, that the names are unique, and that values are in
// their enum.
func (c *checker) parameters(list []wf.Parameter, p place) {
	seen := map[string]bool{}
	for i := range list {
		name := list[i].Name
		switch {
		case name == "":
			c.add(p.index("parameters", i).at("name"), "is required")
		case seen[name]:
			c.add(p.named("parameters", i, name), "name is not unique")
		}
		seen[name] = true
		c.nameOfValue(p.named("parameters", i, name), name)
		if from := list[i].ValueFrom; from != nil && from.Event != "" {
			c.add(p.named("parameters", i, name).at("valueFrom.event"), "is not supported: it belongs to WorkflowEventBindings")
		}
		for j, value := range []*wf.AnyString{list[i].Value, list[i].Default} {
			if constant(value) && !allows(&list[i], *value) {
				c.add(p.named("parameters", i, name).at([]string{"value", "default"}[j]), "%s", notInEnum(&list[i], *value))
			}
		}
	}
}

// values checks that the arguments of a call have values.
func (c *checker) values(list []wf.Parameter, p place) {
	for i := range list {
		if a := &list[i]; a.Value == nil && a.Default == nil && a.ValueFrom == nil {
			c.add(p.named("parameters", i, a.Name), "must have value or valueFrom")
		}
	}
	c.valuesFrom(list, p)
}

// valuesFrom checks the sources of arguments. The other sources are those of outputs.
func (c *checker) valuesFrom(list []wf.Parameter, p place) {
	for i := range list {
		v := list[i].ValueFrom
		if v == nil || v.Event != "" { // which parameters refuses
			continue
		}
		at := p.named("parameters", i, list[i].Name).at("valueFrom")
		for _, other := range []struct {
			field string
			set   bool
		}{
			{"path", v.Path != ""}, {"jsonPath", v.JSONPath != ""}, {"jqFilter", v.JQFilter != ""},
			{"parameter", v.Parameter != ""}, {"expression", v.Expression != ""},
		} {
			if other.set {
				c.add(at.at(other.field), "belongs to outputs; arguments can have configMapKeyRef")
			}
		}
		if v.ConfigMapKeyRef == nil && v.Supplied == nil {
			c.add(at, "of arguments must have configMapKeyRef")
		}
	}
}
