package jobs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/page"
)

// sentence says which rate a system keeps up with.
func (r *Rate) sentence() string {
	jobs := "jobs"
	if r.PodsPerJob > 0 {
		jobs = "jobs of " + page.Plural(r.PodsPerJob, "pod")
	}
	s := fmt.Sprintf("keeps up with %s %s a second", perSecond(r.Sustained), jobs)
	if r.Sustained == 0 {
		s = "kept up with no rate that was tried"
	}
	if r.Behind > 0 {
		s += fmt.Sprintf(" and falls behind at %s", perSecond(r.Behind))
	}
	if r.Bound != "" {
		s += " (" + r.Bound + ")"
	}
	return s
}

// rates says which rates of jobs the systems keep up with.
func (r *Report) rates() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Jobs", Key: true, Help: "1 x pods of each job"}, {Title: "System", Key: true},
		{Title: "Keeps up with", Right: true,
			Help: "the highest rate, in jobs per second, at which the last jobs waited as long as the first ones"},
		{Title: "Falls behind at", Right: true, Help: "the lowest rate at which jobs waited longer and longer, twice"},
		{Title: "Pods/s", Right: true, Help: "the first rate, in pods"},
		{Title: "Wait p50", Right: true,
			Help: "at the first rate: from when a job was due until all its pods had nodes"},
		{Title: "p99", Right: true},
		{Title: "Client late p99", Right: true,
			Help: "at the first rate: how much later than due the client sent jobs"},
		{Title: "Writes/pod", Right: true, Help: "the system's own writes in all steps, for each pod"},
		{Title: "Failed", Right: true}, {Title: "Violations", Right: true},
	}}
	out := phenomenon{alone: true}
	first := page.Section{Title: "Which rate does the system keep up with?",
		Note: "An open loop: each job is sent when it is due, whether the system has dealt with the earlier ones or not. Up to its capacity a system lets " +
			"all wait equally long; above it, each job waits longer than the one before."}
	var sentences []string
	for i, run := range r.Runs {
		// Of a search that was interrupted the steps so far are worth showing.
		if run.Rate == nil || len(run.Rate.Steps) == 0 {
			continue
		}
		sentence := r.called(run) + " " + run.Rate.sentence()
		if run.Error != "" {
			sentence += ", as far as the search came"
		}
		sentences = append(sentences, sentence)
		best := run.Rate.step(run.Rate.Sustained, capacity.KeptUp)
		color := i
		row := []page.Cell{page.Text(run.Shape), {Text: run.name(), Color: 1 + color}, {Text: perSecond(run.Rate.Sustained) + "/s", Tone: page.Strong},
			page.Text("not found"), page.Text(perSecond(run.Rate.Sustained * float64(run.Rate.PodsPerJob)))}
		if run.Rate.Behind > 0 {
			row[3] = page.Text(perSecond(run.Rate.Behind) + "/s")
		}
		if best != nil {
			row = append(row, page.Text(page.Ms(best.WaitMs.P50)), page.Text(page.Ms(best.WaitMs.P99)), page.Text(page.Ms(best.LagMs.P99)))
		} else {
			row = append(row, page.Text("–"), page.Text("–"), page.Text("–"))
		}
		t.Rows = append(t.Rows, append(row, page.Text(run.writesPerPod()), page.Count(run.Failed, page.Bad), page.Count(len(run.Invariants.Violations), page.Bad)))
		out.sections = append(out.sections, run.rateSection(color))
	}
	if s := r.rateFactors(); s != "" {
		sentences = append(sentences, s)
	}
	first.Tables = []page.Table{t}
	first.Charts = []page.Chart{r.waitOverRate()}
	out.sentence, out.sections = cmp.Or(strings.Join(sentences, "; "), "nothing was measured"), append([]page.Section{first}, out.sections...)
	return out
}

// rateFactors compares the rates that systems keep up with under one load; empty if there is nothing to
// compare.
func (r *Report) rateFactors() string {
	var parts []string
	for i, run := range r.Runs {
		if i == 0 || run.Rate == nil || run.Error != "" || run.Lost != "" || run.Rate.Sustained == 0 {
			continue
		}
		first := r.Runs[0]
		if first.Rate == nil || first.Error != "" || first.Lost != "" || first.Shape != run.Shape || first.name() == run.name() {
			continue
		}
		factor := first.Rate.Sustained / run.Rate.Sustained
		text := fmt.Sprintf("%s times the rate of %s", page.Factor(factor), r.called(run))
		if first.Rate.Behind == 0 && run.Rate.Behind > 0 {
			text = "at least " + text
		}
		parts = append(parts, text)
	}
	if len(parts) == 0 {
		return ""
	}
	return r.called(r.Runs[0]) + " has " + strings.Join(parts, ", ")
}

// step returns the last step at a rate with a verdict, or nil.
func (r *Rate) step(rate float64, verdict string) (out *RateStep) {
	for i := range r.Steps {
		if s := &r.Steps[i]; s.Rate == rate && s.Verdict == verdict {
			out = s
		}
	}
	return out
}

// waitOverRate is the chart of the median wait over the rate, of all runs.
func (r *Report) waitOverRate() page.Chart {
	c := page.Chart{Title: "Median wait of a job in milliseconds over jobs per second", Unit: "/s"}
	for i, run := range r.Runs {
		if run.Rate == nil || len(run.Rate.Steps) == 0 {
			continue
		}
		steps := slices.Clone(run.Rate.Steps)
		slices.SortStableFunc(steps, func(a, b RateStep) int { return cmp.Compare(a.Rate, b.Rate) })
		l := page.Line{Name: run.name(), Color: i, Points: true}
		for _, s := range steps {
			if n := len(l.X); n > 0 && l.X[n-1] == s.Rate {
				l.Y[n-1] = min(l.Y[n-1], s.WaitMs.P50)
				continue
			}
			l.X, l.Y = append(l.X, s.Rate), append(l.Y, s.WaitMs.P50)
		}
		c.Lines = append(c.Lines, l)
	}
	return c
}

// rateSection has the waits on both sides of a system's capacity, and all steps.
func (r *Run) rateSection(color int) page.Section {
	s := page.Section{Title: r.Title() + ": the search"}
	c := page.Chart{Title: "Wait in milliseconds of the jobs of two steps, by when they were due", Unit: " s"}
	for _, side := range []struct {
		step  *RateStep
		style string
	}{{r.Rate.step(r.Rate.Sustained, capacity.KeptUp), ""}, {cmp.Or(r.Rate.step(r.Rate.Behind, capacity.FellBehind), r.Rate.step(r.Rate.Behind, capacity.ClientBehind), r.Rate.step(r.Rate.Behind, capacity.TooShort)), page.Dashed}} {
		if side.step == nil || side.step.Waits == nil {
			continue
		}
		c.Lines = append(c.Lines, page.Line{Name: fmt.Sprintf("%s/s: %s", perSecond(side.step.Rate), side.step.Verdict), Color: color, Style: side.style,
			X: side.step.Waits.AtSeconds, Y: side.step.Waits.Ms})
	}
	if len(c.Lines) > 0 {
		s.Charts = append(s.Charts, c)
	}
	t := page.Table{Columns: []page.Column{{Title: "Rate", Key: true,
		Help: "jobs per second, in the order in which they were tried"},
		{Title: "Jobs", Right: true},
		{Title: "Wait p50", Right: true}, {Title: "p99", Right: true},
		{Title: "Growth", Right: true,
			Help: fmt.Sprintf("by how many seconds jobs waited longer from one second to the next, by the medians of the first and the last third; up to %.2f counts as keeping up", capacity.GrowthMax)},
		{Title: "Waiting", Right: true, Help: "jobs with pods without nodes when the last one was due"},
		{Title: "Client late p99", Right: true, Help: "how much later than due the client sent jobs"},
		{Title: "Verdict"}}}
	for _, step := range r.Rate.Steps {
		verdict := page.Text(step.Verdict)
		if step.Verdict != capacity.KeptUp {
			verdict.Tone = page.Warn
		}
		if step.Unscheduled > 0 {
			verdict.Text += fmt.Sprintf(", %s not done in time", page.Plural(step.Unscheduled, "job"))
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(fmt.Sprintf("%.1f/s", step.Rate)), page.Text(page.Thousands(step.Jobs)), page.Text(page.Ms(step.WaitMs.P50)),
			page.Text(page.Ms(step.WaitMs.P99)), page.Textf("%.3f", analyse.Round(step.Growth, 3)+0), page.Text(page.Thousands(step.Waiting)),
			page.Text(page.Ms(step.LagMs.P99)), verdict})
	}
	s.Tables = append(s.Tables, t)
	s.Details = append(s.Details, page.Detail{Title: "All figures", Tables: []page.Table{r.usage(), r.writesTable()}})
	return s
}

// queued says how a queue of jobs that are all submitted at once becomes shorter.
func (r *Report) queued() phenomenon {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each"}, {Title: "System", Key: true},
		{Title: "Submitted in", Right: true, Help: "until the server had answered the last create of a job"},
		{Title: "Most waiting", Right: true, Help: "pods at a time whose job existed and that had no node"},
		{Title: "Drained at", Right: true,
			Help: "pods that got nodes per second, without the first and the last tenth"},
		{Title: "Wait p50", Right: true, Help: "from a job's creation until its pods had nodes"},
		{Title: "p99", Right: true},
	}}
	s := page.Section{Title: "How fast is the queue drained?"}
	c := page.Chart{Title: "Pods waiting for a node", Unit: " s"}
	var sentences []string
	for _, run := range r.typical() {
		drained := page.Text("–")
		if run.Curves != nil {
			if rate := steady(run.Curves.Scheduled); rate > 0 {
				drained = page.Cell{Text: perSecond(rate) + "/s", Tone: page.Strong}
			}
			l := page.Cumulative(run.ofRuns()+" "+run.Shape, run.Curves.Waiting)
			l.Color = run.color
			c.Lines = append(c.Lines, l)
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(run.Shape), run.cell(), page.Text(page.Seconds(run.JobsSeconds)), page.Text(page.Thousands(run.WaitingMax)), drained,
			page.Text(page.Ms(run.LatencyMs.P50)), page.Text(page.Ms(run.LatencyMs.P99))})
		sentences = append(sentences, fmt.Sprintf("%s: of %s at most %s wait, and they are drained at %s", run.label, page.Plural(run.Pods, "pod"),
			page.Thousands(run.WaitingMax), drained.Text))
	}
	s.Tables, s.Charts = []page.Table{t}, []page.Chart{c}
	return phenomenon{sentence: strings.Join(sentences, "; "), sections: []page.Section{s}}
}

// steady returns the slope of the middle eight tenths of a cumulative curve, per second.
func steady(c analyse.Curve) float64 {
	if len(c.Count) == 0 {
		return 0
	}
	total := c.Count[len(c.Count)-1]
	at := func(share float64) int {
		return slices.IndexFunc(c.Count, func(n int) bool { return float64(n) >= share*float64(total) })
	}
	i, k := at(0.1), at(0.9)
	if seconds := c.AtSeconds[k] - c.AtSeconds[i]; seconds > 0 {
		return float64(c.Count[k]-c.Count[i]) / seconds
	}
	return 0
}
