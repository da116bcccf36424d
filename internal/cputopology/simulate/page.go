package simulate

import (
	_ "embed"
	"html/template"
	"io"
	"strings"
)

//go:embed page.html
var pageText string

var page = template.Must(template.New("page").Parse(pageText))

// Page writes summaries as one self-contained HTML page.
func Page(w io.Writer, summaries []Summary, load, turnover float64) error {
	type row struct {
		Summary
		First, Own bool
		Kept       float64 // width of the bar in percent
	}
	type group struct {
		Machine string
		Nodes   int
		Rows    []row
	}
	var groups []group
	lastMix := ""
	for _, s := range summaries {
		if n := len(groups); n == 0 || groups[n-1].Machine != s.Machine || groups[n-1].Nodes != s.Nodes {
			groups = append(groups, group{Machine: s.Machine, Nodes: s.Nodes})
			lastMix = ""
		}
		g := &groups[len(groups)-1]
		own := strings.HasPrefix(s.Policy, Own)
		g.Rows = append(g.Rows, row{s, s.Mix != lastMix, own, min(s.FreeL3Percent, 100)})
		lastMix = s.Mix
	}
	return page.Execute(w, map[string]any{"Groups": groups, "Load": 100 * load, "Turnover": turnover})
}
