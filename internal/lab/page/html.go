package page

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
)

//go:embed assets/page.html
var pageSource string

//go:embed assets/page.css
var pageCSS string

//go:embed assets/page.js
var pageJS string

//go:embed assets/uPlot.iife.min.js
var uPlotJS string

//go:embed assets/uPlot.min.css
var uPlotCSS string

//go:embed assets/uPlot.LICENSE
var uPlotLicense string

// colors is the number of colours; further lines repeat them.
const colors = 8

// HTML writes the page as one self-contained file.
func (p *Page) HTML(w io.Writer) error {
	var charts []Chart
	t, err := template.New("page").Funcs(template.FuncMap{
		"chart": func(c Chart) int { charts = append(charts, c); return len(charts) - 1 },
		"charts": func() [][]Line {
			out := [][]Line{}
			for _, c := range charts {
				out = append(out, c.Lines)
			}
			return out
		},
		"percent": func(x float64) float64 { return 100 * x },
		"color":   func(i int) string { return fmt.Sprintf("c%d", (i-1)%colors) },
		"css":     func() template.CSS { return template.CSS(uPlotCSS + pageCSS) },
		"js":      func() []template.JS { return []template.JS{template.JS(uPlotJS), template.JS(pageJS)} },
		// column returns the column of the i-th cell of a row.
		"column":  func(t Table, i int) Column { return t.Columns[i] },
		"licence": func() string { return uPlotLicense },
	}).Parse(pageSource)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return t.Execute(w, p)
}
