package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/system"
)

// shapes says how the time for equally many pods depends on the number of jobs that they are in.
func (r *Report) shapes() phenomenon {
	c := page.Chart{Title: "Seconds over the number of jobs that the pods are in", Log: true}
	type curve struct {
		page.Line
		floor            page.Line
		fastest, slowest string // shapes
	}
	var curves []*curve
	byLabel := map[string]*curve{}
	groups := r.groups()
	slices.SortStableFunc(groups, func(a, b *group) int { return a.jobs() - b.jobs() })
	for _, g := range groups {
		for _, v := range g.variants {
			if len(v.times) == 0 || g.jobs() == 0 {
				continue
			}
			l := byLabel[v.label]
			if l == nil {
				l = &curve{}
				l.Name, l.Color, l.Points = r.called(v.runs[0]), len(curves), true
				l.floor = page.Line{Name: "floor of " + l.Name, Color: l.Color, Style: page.Dotted}
				byLabel[v.label] = l
				curves = append(curves, l)
			}
			mean := v.time().Mean
			if len(l.Y) == 0 || mean < slices.Min(l.Y) {
				l.fastest = g.shape
			}
			if len(l.Y) == 0 || mean > slices.Max(l.Y) {
				l.slowest = g.shape
			}
			l.X, l.Y = append(l.X, float64(g.jobs())), append(l.Y, mean)
			if run := v.median(); run != nil && run.FloorSeconds != nil {
				l.floor.X, l.floor.Y = append(l.floor.X, float64(g.jobs())), append(l.floor.Y, *run.FloorSeconds)
			}
		}
	}
	var sentences []string
	for _, l := range curves {
		c.Lines = append(c.Lines, l.Line)
		if len(l.floor.X) > 1 {
			c.Lines = append(c.Lines, l.floor)
		}
		if len(l.Y) > 1 {
			least, most := slices.Min(l.Y), slices.Max(l.Y)
			sentences = append(sentences, fmt.Sprintf("%s takes %s (%s) to %s (%s)", l.Name, page.Seconds(least), l.fastest, page.Seconds(most), l.slowest))
		}
	}
	if len(sentences) == 0 {
		return phenomenon{}
	}
	return phenomenon{whole: true, sentence: strings.Join(sentences, "; "), sections: []page.Section{{Title: "How does the time depend on the number of jobs?",
		Note:   "All loads have about the same number of pods. A job costs writes of its own: its creation by the client, and its status.",
		Charts: []page.Chart{c}}}}
}

// jobs returns the number of jobs of the group's load; 0 if it is no shape.
func (g *group) jobs() int {
	shape, err := scenario.ParseShape(g.shape)
	if err != nil {
		return 0
	}
	return shape.Jobs
}

// workers says whether a fixed number of writes in flight has a valley: few starve, many collapse.
func (r *Report) workers() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each"}, {Title: "Writes in flight", Key: true},
		{Title: "Time", Right: true, Help: "until every pod has a node; of several runs the mean ± its 95 % confidence interval"},
		{Title: "× the best", Right: true, Help: "the time, compared with that of the best fixed number; of several runs the mean of the pairs and its 95 % confidence interval"},
		{Title: "Verdict"},
	}}
	s := page.Section{Title: "Is there a valley?",
		Note: "Too few writes in flight leave the server idle. Too many may overload it: the time falls first and grows again. " +
			"A number is in the valley if it differs from the best by no more than the error, or by less than 15 %; of single runs, by less than a third."}
	var sentences []string
	for _, g := range r.groups() {
		for _, gang := range []bool{true, false} {
			fixed, adaptive := g.fixed(gang)
			if len(fixed) < 3 {
				continue
			}
			best := slices.MinFunc(fixed, func(a, b *variant) int { return cmp.Compare(a.time().Mean, b.time().Mean) })
			few, many := fixed[0], fixed[len(fixed)-1]
			for _, v := range append(fixed, adaptive...) {
				ratio := v.longer(best)
				cell, verdict := times(ratio), page.Text("in the valley")
				switch {
				case v == best:
					cell, verdict = page.Text("1"), page.Cell{Text: "the best", Tone: page.Strong}
				case slower(v, best):
					verdict = page.Cell{Text: "too few", Tone: page.Warn}
					if v.inFlight() > best.inFlight() {
						verdict.Text = "too many"
					}
					if v.inFlight() == 0 {
						verdict.Text = "slower"
					}
				}
				name := v.runs[0].Settings[system.WritesInFlight]
				if strings.HasSuffix(r.called(v.runs[0]), gangSuffix) {
					name += gangSuffix
				}
				t.Rows = append(t.Rows, []page.Cell{page.Text(g.shape), {Text: name, Color: 1 + v.color}, {Text: v.time().Format(page.Seconds), Tone: page.Strong}, cell, verdict})
			}
			text := fmt.Sprintf("%s takes %s × the time of %s, the best of %d fixed numbers of writes in flight", few.name(), page.Factor(few.longer(best).Mean), best.name(), len(fixed))
			switch {
			case few == best:
				text = fmt.Sprintf("%s, the fewest, are the best of %d fixed numbers of writes in flight", best.name(), len(fixed))
			case !slower(few, best):
				text = fmt.Sprintf("few writes in flight do not starve the server here: with %s it takes no longer than with %s, the best", few.name(), best.name())
			}
			switch {
			case many == best:
				text += ", which is the highest: more do not collapse here"
			case slower(many, best):
				text += fmt.Sprintf(", and %s takes %s ×: too many are slower again", many.name(), page.Factor(many.longer(best).Mean))
			default:
				text += fmt.Sprintf(", and %s takes %s ×: the valley is flat, too many do not collapse here", many.name(), page.Factor(many.longer(best).Mean))
			}
			sentences = append(sentences, text)
		}
		if c, ok := g.concurrency(); ok {
			s.Charts = append(s.Charts, c)
		}
	}
	if len(sentences) == 0 {
		return phenomenon{}
	}
	s.Tables = []page.Table{t}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// slower reports whether a variant takes longer than the best, beyond noise.
func slower(v, best *variant) bool { return beyondNoise(v.longer(best)) }

// fixed returns the measured variants of the group with a fixed number of writes in flight, in the
// order of the numbers, and the adaptive ones.
func (g *group) fixed(gang bool) (fixed, adaptive []*variant) {
	for _, v := range g.variants {
		setting, ok := v.runs[0].Settings[system.WritesInFlight]
		switch {
		case !ok || len(v.times) == 0 || v.runs[0].Gang != gang:
		case v.inFlight() == 0:
			if setting == "adaptive" {
				adaptive = append(adaptive, v)
			}
		default:
			fixed = append(fixed, v)
		}
	}
	slices.SortStableFunc(fixed, func(a, b *variant) int { return a.inFlight() - b.inFlight() })
	return fixed, adaptive
}

// inFlight returns the fixed number of writes in flight; 0 if it is adaptive.
func (v *variant) inFlight() int {
	n, err := strconv.Atoi(v.runs[0].Settings[system.WritesInFlight])
	if err != nil {
		return 0
	}
	return n
}

// name returns the number of writes in flight for sentences.
func (v *variant) name() string { return v.runs[0].Settings[system.WritesInFlight] }
