package series

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

//go:embed page.html
var pageSource string

// Chart shows counts over time.
type Chart struct {
	// Seconds and Count are the ends of the axes.
	Seconds float64
	Count   int
	Curves  []Curve
}

// Curve is one curve of a chart, with its name in the legend.
type Curve struct {
	Name string
	analyse.Curve
}

const chartWidth, chartHeight = 640.0, 200.0

// Points returns the points of a curve in the coordinates of the picture.
func (c Chart) Points(curve Curve) string {
	var b strings.Builder
	for i := range curve.AtSeconds {
		x, y := 0.0, chartHeight
		if c.Seconds > 0 && c.Count > 0 {
			x, y = min(1, curve.AtSeconds[i]/c.Seconds)*chartWidth, chartHeight*(1-float64(curve.Count[i])/float64(c.Count))
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
	}
	return b.String()
}

// Page is the part of a report's page that belongs to the scenario.
type Page struct {
	Title string
	// Body is a template. It may use Funcs, the functions ms and value, and the templates writes,
	// usage, samples, verdict and chart.
	Body  string
	Funcs template.FuncMap
	Data  any
}

// Value formats a setting for people.
func Value(v any) string { return cmp.Or(strings.Trim(fmt.Sprint(v), "[]"), "none") }

// Page writes a report as one self-contained page.
func (r *Report[R]) Page(w io.Writer, p Page) error {
	funcs := template.FuncMap{"ms": Ms, "value": Value}
	maps.Copy(funcs, p.Funcs)
	t, err := template.New("page").Funcs(funcs).Parse(pageSource)
	if err == nil {
		_, err = t.New("body").Parse(p.Body)
	}
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return t.Execute(w, struct {
		Title, Version string
		Time           time.Time
		Config         map[string]any
		Data           any
	}{p.Title, r.Version, r.Time, r.Config, p.Data})
}
