package deploy

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
)

// AppCharts finds the charts and values for one plan of an Application.
type AppCharts struct {
	p *Planner
	a *State
	// Read has the objects whose values the plan uses, and their resource versions.
	Read map[plan.Ref]string
	run  chart.Run
}

// Chart implements plan.Charts. The objects that Chart reads are watched from then on, and their
// changes enqueue the Application.
func (x *AppCharts) Chart(namespace string, from *plan.ChartSource, values []plan.ValuesFrom) (*chart.Chart, []map[string]any, error) {
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
	found, err := x.p.Charts.Get(x.p.Ctx(), source, x.a.Key)
	if errors.Is(err, charts.ErrPending) {
		return nil, nil, fmt.Errorf("%w: %w", err, plan.ErrNotYet)
	}
	if failed := (*charts.Failed)(nil); errors.As(err, &failed) {
		x.a.WakeAfter(failed.Again)
		return nil, nil, fmt.Errorf("%w: %w", ErrChart, err)
	}
	return found, out, err
}

// ErrChart marks a chart that could not be fetched. The fetch is retried.
var ErrChart = errors.New("it cannot be fetched")

// data returns the data of a Secret or a ConfigMap. home is the namespace if namespace is empty.
func (x *AppCharts) data(kind, home, namespace, name string, optional bool) (map[string]string, error) {
	if namespace == "" {
		namespace = home
	}
	if err := x.p.MayReachNamespace(x.a, namespace, true); err != nil {
		return nil, err
	}
	ref := plan.Ref{GVK: schema.GroupVersionKind{Version: "v1", Kind: kind}, Namespace: namespace, Name: name}
	t := x.p.Targets.Local
	there, known, err := x.p.Watches.Get(t, ref, x.a.Key, true)
	switch {
	case err != nil:
		return nil, err
	case !known:
		return nil, fmt.Errorf("%s: %w", ref, plan.ErrNotYet)
	}
	object := objects.Map(there)
	u := unstructured.Unstructured{Object: object}
	x.Read[ref] = u.GetResourceVersion()
	if object == nil {
		if optional {
			return nil, nil
		}
		return nil, fmt.Errorf("%s does not exist: %w", ref, ErrChart)
	}
	if err := x.p.MayRead(x.a, t, ref); err != nil {
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

// ValuesChanged reports whether an object in read has changed since the plan was made from its
// values.
func (p *Planner) ValuesChanged(a *State, read map[plan.Ref]string) bool {
	for ref, version := range read {
		there, known, err := p.Watches.Get(p.Targets.Local, ref, a.Key, true)
		if err == nil && known && (&unstructured.Unstructured{Object: objects.Map(there)}).GetResourceVersion() != version {
			return true
		}
	}
	return false
}

// ChartsOf returns the charts for a plan of an Application, and the chart versions that are pinned.
// A deployed revision keeps its charts' versions, unless it follows changes or is deployed again.
func (p *Planner) ChartsOf(a *State, revision string, follows bool) (*AppCharts, map[string]string) {
	found := &AppCharts{p, a, map[plan.Ref]string{}, p.Evaluators.Of(a.Key)}
	last := a.Tracker.Latest()
	if last == nil || last.Name != revision || follows {
		return found, nil
	}
	return found, last.Definitions
}
