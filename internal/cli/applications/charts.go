package applications

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// fetchedCharts fetches the charts of a preview and waits for them. It does not read passwords and
// values from the cluster.
type fetchedCharts struct {
	ctx   context.Context
	err   io.Writer
	store *charts.Store
	woken chan struct{}
}

// chartTimeout bounds one request for a chart.
const chartTimeout = time.Minute

// newFetchedCharts returns charts that run reads.
func newFetchedCharts(ctx context.Context, errOut io.Writer, run render.Run) *fetchedCharts {
	f := &fetchedCharts{ctx: ctx, err: errOut, woken: make(chan struct{}, 1)}
	f.store = charts.New(charts.Config{HTTP: &http.Client{Timeout: chartTimeout},
		Open: func(archive []byte) (*chart.Chart, error) { return chart.Open(run, archive) }, Wake: func(types.NamespacedName) { f.woken <- struct{}{} }})
	return f
}

// Chart implements plan.Charts.
func (f *fetchedCharts) Chart(_ string, from *plan.ChartSource,
	values []plan.ValuesFrom) (*chart.Chart, []map[string]any, error) {
	for _, v := range values {
		fmt.Fprintf(f.err, "without the values of %s %s, which are in the cluster\n", v.Kind, v.Name)
	}
	source := charts.Source{Chart: from.Source, Repository: from.RepoURL, Version: from.Version}
	c, err := f.store.Get(f.ctx, source, types.NamespacedName{})
	if errors.Is(err, charts.ErrPending) {
		select {
		case <-f.woken:
			c, err = f.store.Get(f.ctx, source, types.NamespacedName{})
		case <-f.ctx.Done():
			err = f.ctx.Err()
		}
	}
	return c, nil, err
}
