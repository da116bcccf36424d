package jobs

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/stats"
)

// point has the figures of the runs with one combination of values, by repeat.
type point struct {
	values  map[string]string
	figures map[int]float64
}

func (p *point) summary() stats.Summary { return stats.Of(slices.Collect(maps.Values(p.figures))) }

// over returns how many times other's figure p's is, in pairs of repeats.
func (p *point) over(other *point) stats.Ratio {
	var own, theirs []float64
	for _, repeat := range slices.Sorted(maps.Keys(p.figures)) {
		if x, ok := other.figures[repeat]; ok {
			own, theirs = append(own, p.figures[repeat]), append(theirs, x)
		}
	}
	return stats.Paired(own, theirs)
}

// points returns the combinations that have figures, in the order of the parameters' values.
func (r *Report) points() (out []*point) {
	by := map[string]*point{}
	for _, run := range r.Runs {
		x, ok := r.Sweep.figure(run)
		if !ok {
			continue
		}
		key := describe(run.Parameters)
		if by[key] == nil {
			by[key] = &point{run.Parameters, map[int]float64{}}
			out = append(out, by[key])
		}
		by[key].figures[run.Repeat] = x
	}
	rank := func(p *point) (at int) {
		for _, parameter := range r.Sweep.Parameters {
			at = at*len(parameter.Values) + slices.Index(parameter.Values, p.values[parameter.Name])
		}
		return at
	}
	slices.SortFunc(out, func(a, b *point) int { return rank(a) - rank(b) })
	return out
}

// best returns the point with the least mean, and those that do not differ from it beyond the error.
func best(points []*point) (least *point, equal []*point) {
	for _, p := range points {
		if least == nil || p.summary().Mean < least.summary().Mean {
			least = p
		}
	}
	for _, p := range points {
		if p != least && len(p.figures) > 1 && !p.over(least).Differs() {
			equal = append(equal, p)
		}
	}
	return least, equal
}

// sweepVerdict says in one sentence which values are the best.
func (r *Report) sweepVerdict() string {
	points := r.points()
	if len(points) == 0 {
		return "no run was measured"
	}
	least, equal := best(points)
	text := fmt.Sprintf("the best of %s is %s: %s", page.Plural(len(points), "setting"), describe(least.values), r.format(least.summary()))
	worst := slices.MaxFunc(points, func(a, b *point) int { return cmpFloat(a.summary().Mean, b.summary().Mean) })
	if worst != least {
		text += fmt.Sprintf("; the worst, %s, takes %s ×", describe(worst.values), page.Factor(worst.summary().Mean/least.summary().Mean))
	}
	switch {
	case len(equal) > 3:
		text += fmt.Sprintf("; %d others do not differ from it beyond the error", len(equal))
	case len(equal) > 0:
		var names []string
		for _, p := range equal {
			names = append(names, describe(p.values))
		}
		text += "; not different beyond the error: " + strings.Join(names, "; ")
	case len(least.figures) < 2:
		text += "; one run each says nothing about the error"
	}
	return text + ", " + r.lost()
}

func cmpFloat(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// format formats the figure of the sweep.
func (r *Report) format(s stats.Summary) string {
	switch {
	case strings.HasSuffix(strings.ToLower(r.Sweep.Figure), "seconds"):
		return s.Format(page.Seconds)
	case strings.HasPrefix(r.Sweep.Figure, "latencyMs"):
		return s.Format(page.Ms)
	}
	return s.Format(func(x float64) string { return strconv.FormatFloat(x, 'g', 4, 64) })
}

// sweepSection has the curve of a sweep over one parameter, or the map of one over two, and a row
// for each setting.
func (r *Report) sweepSection() page.Section {
	points := r.points()
	s := page.Section{Title: r.Sweep.Figure + " by setting"}
	if len(points) == 0 {
		return s
	}
	least, equal := best(points)
	t := page.Table{Columns: []page.Column{{Title: "Setting", Key: true}}}
	t.Columns = append(t.Columns, page.Column{Title: r.Sweep.Figure, Right: true, Help: "the mean of the runs with the setting, and its 95 % confidence interval"},
		page.Column{Title: "× best", Right: true, Help: "compared with the best setting in the same repetition, with a 95 % confidence interval"},
		page.Column{Title: "Runs", Right: true})
	longest := slices.MaxFunc(points, func(a, b *point) int { return cmpFloat(a.summary().Mean, b.summary().Mean) }).summary().Mean
	for _, p := range points {
		row := []page.Cell{page.Text(describe(p.values))}
		against := page.Text(factor(p.over(least)))
		if p == least {
			against = page.Cell{Text: "best", Tone: page.Strong}
		}
		width := 0.0
		if longest > 0 {
			width = 100 * p.summary().Mean / longest
		}
		t.Rows = append(t.Rows, append(row, page.Cell{Text: r.format(p.summary()), Tone: page.Strong, Bar: &page.Bar{Width: width, Color: 1}}, against,
			page.Text(fmt.Sprint(len(p.figures)))))
	}
	s.Tables = append(s.Tables, t)
	switch len(r.Sweep.Parameters) {
	case 1:
		if c, ok := r.curve(points); ok {
			s.Charts = append(s.Charts, c)
		}
	case 2:
		s.Heats = append(s.Heats, r.heat(points, least, equal))
	}
	s.Note = fmt.Sprintf("The order of the runs is random, by the seed %d. The least is the best.", r.Sweep.Seed)
	return s
}

// curve is the chart of a sweep over one parameter of numbers; ok is false if it has too few.
func (r *Report) curve(points []*point) (c page.Chart, ok bool) {
	name := r.Sweep.Parameters[0].Name
	c = page.Chart{Title: r.Sweep.Figure + " over " + name}
	mean := page.Line{Name: "mean", Points: true}
	low, high := page.Line{Name: "95 % confidence", Style: page.Dotted, Color: 7}, page.Line{Name: "95 % confidence", Style: page.Dotted, Color: 7}
	type value struct {
		x float64
		s stats.Summary
	}
	var values []value
	for _, p := range points {
		x, err := strconv.ParseFloat(p.values[name], 64)
		if err != nil {
			return c, false
		}
		values = append(values, value{x, p.summary()})
	}
	slices.SortFunc(values, func(a, b value) int { return cmpFloat(a.x, b.x) })
	if len(values) < 3 {
		return c, false
	}
	// Wide ranges are shown logarithmically. 0, which has no logarithm, is then left to the table.
	if values[0].x == 0 && values[len(values)-1].x >= 10*values[1].x && len(values) > 3 {
		values = values[1:]
	}
	c.Log = values[0].x > 0 && values[len(values)-1].x >= 10*values[0].x
	repeated := false
	for _, v := range values {
		repeated = repeated || v.s.N > 1
		mean.X, mean.Y = append(mean.X, v.x), append(mean.Y, v.s.Mean)
		low.X, low.Y = append(low.X, v.x), append(low.Y, math.Max(0, v.s.Mean-v.s.Half))
		high.X, high.Y = append(high.X, v.x), append(high.Y, v.s.Mean+v.s.Half)
	}
	c.Lines = []page.Line{mean}
	if repeated {
		c.Lines = append(c.Lines, low, high)
	}
	return c, true
}

// heat is the map of a sweep over two parameters. Shades are logarithmic between the best and the
// worst.
func (r *Report) heat(points []*point, least *point, equal []*point) page.Heat {
	down, across := r.Sweep.Parameters[0], r.Sweep.Parameters[1]
	h := page.Heat{Title: r.Sweep.Figure, Down: down.Name, Across: across.Name, Columns: across.Values, Rows: down.Values}
	most := slices.MaxFunc(points, func(a, b *point) int { return cmpFloat(a.summary().Mean, b.summary().Mean) }).summary().Mean
	shade := func(x float64) float64 {
		low := least.summary().Mean
		if low <= 0 || most <= low {
			return 0
		}
		return math.Log(x/low) / math.Log(most/low)
	}
	for _, y := range down.Values {
		var row []page.HeatCell
		for _, x := range across.Values {
			i := slices.IndexFunc(points, func(p *point) bool { return p.values[down.Name] == y && p.values[across.Name] == x })
			if i < 0 {
				row = append(row, page.HeatCell{Text: "–", Empty: true})
				continue
			}
			p := points[i]
			row = append(row, page.HeatCell{Text: r.format(stats.Summary{N: 1, Mean: p.summary().Mean}), Shade: shade(p.summary().Mean),
				Best: p == least, Equal: slices.Contains(equal, p), Help: r.format(p.summary())})
		}
		h.Cells = append(h.Cells, row)
	}
	return h
}
