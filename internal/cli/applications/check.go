package applications

import (
	"errors"
	"io"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// Check renders applications and compiles definitions without a cluster, with the built-in
// definitions and those among the objects. It returns, for each object, what is wrong with it, or
// nil. Charts are not fetched.
func Check(objects []*unstructured.Unstructured) []error {
	errs := make([]error, len(objects))
	defs, err := builtinDefinitions()
	for i, u := range objects {
		if err != nil {
			errs[i] = err
			continue
		}
		def, wrong := definitionOf(u)
		if wrong == nil && def != nil {
			defs[def.String()] = def
			if _, wrong = render.Compile(def, inProcess()); wrong == nil {
				wrong = render.Vet(def)
			}
		}
		errs[i] = wrong
	}
	for i, u := range objects {
		if u.GetKind() != "Application" || errs[i] != nil {
			continue
		}
		if wrong := printRendered(io.Discard, io.Discard, u, defs, noCharts{}); !errors.Is(wrong, plan.ErrNotYet) {
			errs[i] = wrong
		}
	}
	return errs
}

// noCharts has no charts.
type noCharts struct{}

// Chart implements plan.Charts.
func (noCharts) Chart(string, *plan.ChartSource, []plan.ValuesFrom) (*chart.Chart, []map[string]any, error) {
	return nil, nil, plan.ErrNotYet
}
