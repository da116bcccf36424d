package controller

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/plan"
)

// appCharts finds the charts and values for one plan of an Application.
type appCharts struct {
	p *planner
	a *state
	// read has the objects whose values the plan uses, and their resource versions.
	read map[plan.Ref]string
	run  chart.Run
}

// Chart implements plan.Charts. The objects that Chart reads are watched from then on, and their
// changes enqueue the Application.
func (x *appCharts) Chart(namespace string, from *plan.ChartSource, values []plan.ValuesFrom) (*chart.Chart, []map[string]any, error) {
	source := charts.Source{Chart: from.Source, Repository: from.RepoURL, Version: from.Version}
	if from.Auth != nil {
		ref := from.Auth.SecretRef
		data, err := x.data("Secret", namespace, ref.Namespace, ref.Name, false)
		if err != nil {
			return nil, nil, fmt.Errorf("auth.secretRef: %w", err)
		}
		source.User, source.Password = data["username"], data["password"]
	}
	var out []map[string]any
	for i, v := range values {
		if v.Kind != "Secret" && v.Kind != "ConfigMap" {
			return nil, nil, fmt.Errorf("valuesFrom[%d]: kind is %q, and not Secret or ConfigMap", i, v.Kind)
		}
		data, err := x.data(v.Kind, namespace, v.Namespace, v.Name, v.Optional)
		if err != nil {
			return nil, nil, fmt.Errorf("valuesFrom[%d]: %w", i, err)
		}
		key := v.Key
		if key == "" {
			key = "values.yaml"
		}
		text, ok := data[key]
		if !ok {
			if v.Optional {
				continue
			}
			return nil, nil, fmt.Errorf("valuesFrom[%d]: %s %s has no key %s", i, v.Kind, v.Name, key)
		}
		parsed, err := chart.Values(x.run, text)
		if errors.Is(err, plan.ErrNotYet) {
			return nil, nil, err
		}
		if err != nil {
			return nil, nil, fmt.Errorf("valuesFrom[%d]: %s %s: %w", i, v.Kind, v.Name, err)
		}
		out = append(out, parsed)
	}
	found, err := x.p.charts.Get(x.p.ctx(), source, x.a.key)
	if errors.Is(err, charts.ErrPending) {
		return nil, nil, fmt.Errorf("%w: %w", err, plan.ErrNotYet)
	}
	if failed := (*charts.Failed)(nil); errors.As(err, &failed) {
		x.a.wakeAfter(failed.Again)
		return nil, nil, fmt.Errorf("%w: %w", errChart, err)
	}
	return found, out, err
}

// errChart marks charts that could not be fetched, which is retried.
var errChart = errors.New("it cannot be fetched")

// data returns the data of a Secret or a ConfigMap. home is the namespace if namespace is empty.
func (x *appCharts) data(kind, home, namespace, name string, optional bool) (map[string]string, error) {
	if namespace == "" {
		namespace = home
	}
	if err := x.p.mayReachNamespace(x.a, namespace, true); err != nil {
		return nil, err
	}
	ref := plan.Ref{GVK: schema.GroupVersionKind{Version: "v1", Kind: kind}, Namespace: namespace, Name: name}
	t := x.p.targets.local
	there, known, err := x.p.spies.look(t, ref, x.a.key, true)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, fmt.Errorf("%s: %w", ref, plan.ErrNotYet)
	}
	object := asMap(there)
	u := unstructured.Unstructured{Object: object}
	x.read[ref] = u.GetResourceVersion()
	if object == nil {
		if optional {
			return nil, nil
		}
		return nil, fmt.Errorf("%s does not exist: %w", ref, errChart)
	}
	if err := x.p.mayRead(x.a, t, ref); err != nil {
		return nil, err
	}
	out := map[string]string{}
	if kind == "Secret" {
		data, err := plan.SecretData(object)
		for k, v := range data {
			out[k] = strings.TrimSuffix(string(v), "\n")
		}
		return out, err
	}
	data, _, err := unstructured.NestedStringMap(object, "data")
	for k, v := range data {
		out[k] = v
	}
	return out, err
}

// valuesChanged reports whether an object has changed since the plan was made from its values.
func (p *planner) valuesChanged(a *state, read map[plan.Ref]string) bool {
	for ref, version := range read {
		there, known, err := p.spies.look(p.targets.local, ref, a.key, true)
		if err == nil && known && (&unstructured.Unstructured{Object: asMap(there)}).GetResourceVersion() != version {
			return true
		}
	}
	return false
}

// chartsOf returns the charts for a plan of an Application, and the chart versions that are pinned.
// A deployed revision keeps its charts' versions, unless it follows changes or is deployed again.
func (p *planner) chartsOf(a *state, revision string, follows bool) (*appCharts, map[string]string) {
	found := &appCharts{p, a, map[plan.Ref]string{}, p.evaluators.of(a.key)}
	last := a.tracker.latest()
	if last == nil || last.Name != revision || follows {
		return found, nil
	}
	return found, last.Definitions
}
