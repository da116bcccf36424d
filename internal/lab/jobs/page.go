package jobs

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/stats"
	"lockstep.dev/lockstep/internal/lab/system"
)

// Page returns the report's page.
func (r *Report) Page() page.Page {
	p := r.Report.Page(r.title())
	for _, run := range r.Runs {
		if run.Failed > 0 && run.TimedOut == "" {
			p.Problems = append(p.Problems, page.Problem{Run: run.Title(),
				Text: fmt.Sprintf("%d of %s failed or have no node", run.Failed, page.Plural(run.Pods, "pod"))})
		}
		if run.Floor != nil && run.Floor.None != "" {
			p.Warnings = append(p.Warnings, run.Title()+": "+run.Floor.None)
		}
	}
	p.Verdict, p.Bad = r.verdict(), r.Faults() != nil
	if r.Sweep != nil {
		p.Verdict = r.sweepVerdict()
		p.Sections = append(p.Sections, r.sweepSection())
	}
	if r.Tune != nil {
		p.Verdict = r.tuneVerdict()
		p.Sections = append(p.Sections, r.tuneSections()...)
	}
	groups, shown := r.groups(), r.phenomenon()
	p.Sections = append(p.Sections, shown.sections...)
	switch {
	case shown.alone:
		p.Verdict = shown.sentence + ", " + r.lost()
	case shown.whole && shown.sentence != "":
		p.Verdict = strings.Join(append(append([]string{shown.sentence}, r.comparisons()...), r.bounds()...), ", ")
	case shown.sentence != "" && r.Sweep == nil:
		p.Verdict = shown.sentence + ". " + strings.ToUpper(p.Verdict[:1]) + p.Verdict[1:]
	}
	if !shown.alone {
		p.Sections = append(p.Sections, results(groups))
		for _, g := range groups {
			if s := g.section(); len(s.Charts)+len(s.Tables)+len(s.Details) > 0 { // something was measured
				p.Sections = append(p.Sections, s)
			}
		}
	}
	p.Sections = append(p.Sections, series.ClientLimits(r.clients())...)
	return p
}

// group holds the runs of one shape.
type group struct {
	shape    string
	variants []*variant
}

// variant holds the equal runs of a group: one system with the same settings.
type variant struct {
	label string
	// runs are all runs, and times the times of those that were measured completely, by repeat.
	runs  []*Run
	times map[int]float64
	color int // index of the colour
}

func (r *Report) groups() (out []*group) {
	for _, run := range r.Runs {
		i := slices.IndexFunc(out, func(g *group) bool { return g.shape == run.Shape })
		if i < 0 {
			i = len(out)
			out = append(out, &group{shape: run.Shape})
		}
		g := out[i]
		k := slices.IndexFunc(g.variants, func(v *variant) bool { return v.label == run.label() })
		if k < 0 {
			k = len(g.variants)
			g.variants = append(g.variants, &variant{label: run.label(), times: map[int]float64{}, color: k})
		}
		v := g.variants[k]
		v.runs = append(v.runs, run)
		if run.complete() {
			v.times[run.Repeat] = run.ScheduleSeconds
		}
	}
	return out
}

// complete reports whether the run has a time for all its pods.
func (r *Run) complete() bool {
	return r.Error == "" && r.TimedOut == "" && r.Lost == "" && r.Scheduled > 0 && r.Scheduled == r.Pods
}

// time summarises the times of the variant.
func (v *variant) time() stats.Summary { return stats.Of(slices.Collect(maps.Values(v.times))) }

// timesAsFast returns how many times as fast as base the variant is.
func (v *variant) timesAsFast(base *variant) stats.Ratio {
	var theirs, own []float64
	for _, repeat := range slices.Sorted(maps.Keys(v.times)) {
		if t, ok := base.times[repeat]; ok {
			theirs, own = append(theirs, t), append(own, v.times[repeat])
		}
	}
	return stats.Paired(theirs, own)
}

// median returns the run with the median time, or nil.
func (v *variant) median() *Run {
	var complete []*Run
	for _, run := range v.runs {
		if run.complete() {
			complete = append(complete, run)
		}
	}
	slices.SortStableFunc(complete, func(a, b *Run) int { return cmp.Compare(a.ScheduleSeconds, b.ScheduleSeconds) })
	if len(complete) == 0 {
		return nil
	}
	return complete[(len(complete)-1)/2]
}

// measured counts the variants with a time.
func (g *group) measured() (n int) {
	for _, v := range g.variants {
		if len(v.times) > 0 {
			n++
		}
	}
	return n
}

// slowest returns the variant with the longest time, or nil.
func (g *group) slowest() (out *variant) {
	for _, v := range g.variants {
		if len(v.times) > 0 && (out == nil || v.time().Mean > out.time().Mean) {
			out = v
		}
	}
	return out
}

// results is the section with one row for each variant.
func results(groups []*group) page.Section {
	t := page.Table{Columns: []page.Column{
		{Title: "Load", Key: true, Help: "jobs x pods of each"}, {Title: "System", Key: true},
		{Title: "Time", Right: true, Help: "from the arrival of the first job at the API server until every pod has a node, by the audit log (by a watch where there is none); " +
			"of several runs the mean ± its 95 % confidence interval. The mark on the bar is the floor"},
		{Title: "Spread", Right: true, Help: "the shortest and the longest time of equal runs"},
		{Title: "Times as fast", Right: true, Help: "compared with the slowest under the same load; of several runs the mean of the pairs and its 95 % confidence interval"},
		{Title: "× floor", Right: true, Help: "time divided by the floor: the least in which a bare client wrote the same objects to the same server"},
		{Title: "Pods/s", Right: true, Help: "pods divided by time"},
		{Title: "Writes/pod", Right: true, Help: "the system's own writes until all was at rest; without the client's creates, the nodes' statuses and leases"},
		{Title: "p99", Right: true, Help: "the time from a job's creation within which 99 % of its pods had nodes"},
		{Title: "Stalls", Right: true, Help: "gaps of more than a second between two pods that got nodes"},
		{Title: "Failed", Right: true, Help: "pods that failed or have no node at the end"},
		{Title: "Violations", Right: true, Help: "facts that did not hold: lost or duplicate pods, overcommitted nodes, partial gangs, wrong statuses"},
	}}
	repeated, compared, bounded := false, false, false
	slowest := 0.0
	for _, g := range groups {
		compared = compared || len(g.variants) > 1
		if s := g.slowest(); s != nil {
			slowest = max(slowest, s.time().Mean)
		}
	}
	for _, g := range groups {
		// Bars compare systems under one load. If there is only one system, they compare its loads.
		longest := slowest
		if s := g.slowest(); s != nil && compared {
			longest = s.time().Mean
		}
		for _, v := range g.variants {
			repeated = repeated || len(v.runs) > 1
			bounded = bounded || slices.ContainsFunc(v.runs, func(run *Run) bool { return run.Floor != nil || run.RatioToFloor != nil })
			t.Rows = append(t.Rows, v.row(g, longest))
		}
	}
	drop := func(title string) {
		i := slices.IndexFunc(t.Columns, func(c page.Column) bool { return c.Title == title })
		t.Columns = slices.Delete(t.Columns, i, i+1)
		for k := range t.Rows {
			t.Rows[k] = slices.Delete(t.Rows[k], i, i+1)
		}
	}
	if !repeated {
		drop("Spread")
	}
	if !compared {
		drop("Times as fast")
	}
	if !bounded {
		drop("× floor")
	}
	s := page.Section{Title: "Time until every pod has a node", Tables: []page.Table{t}}
	if bounded {
		s.Note = "The floor is the least time in which a bare client wrote the same objects to the same server: no controller can do better."
	}
	return s
}

func (v *variant) row(g *group, longest float64) []page.Cell {
	var ratios, writes, p99, rates []float64
	stalls, failed, violations, noFloor := 0, 0, 0, false
	mark := 0.0
	for _, run := range v.runs {
		failed, violations, stalls = failed+run.Failed, violations+len(run.Invariants.Violations), stalls+run.Stalls.Count
		if run.Writes != nil && run.Error == "" {
			writes = append(writes, run.WritesPerPod)
		}
		if run.RatioToFloor != nil {
			ratios = append(ratios, *run.RatioToFloor)
			mark = *run.FloorSeconds
		}
		noFloor = noFloor || run.Floor != nil && run.Floor.None != ""
		if run.complete() {
			p99, rates = append(p99, run.LatencyMs.P99), append(rates, float64(run.Scheduled)/run.ScheduleSeconds)
		}
	}
	mean := func(values []float64, format func(float64) string) page.Cell {
		if len(values) == 0 {
			return page.Text("–")
		}
		return page.Text(format(stats.Of(values).Mean))
	}
	time := page.Cell{Text: "not measured", Tone: page.Bad}
	spread, faster := page.Text("–"), page.Text("–")
	if s := v.time(); s.N > 0 {
		time = page.Cell{Text: s.Format(page.Seconds), Tone: page.Strong, Bar: &page.Bar{Width: 100 * s.Mean / longest, Mark: 100 * mark / longest, Color: 1 + v.color}}
		spread = page.Textf("%s to %s", page.Seconds(s.Min), page.Seconds(s.Max))
		faster = page.Cell{Text: factor(v.timesAsFast(g.slowest())), Tone: page.Strong, Wrap: true}
		if v == g.slowest() {
			faster = page.Text("slowest")
		}
		if g.measured() < 2 {
			faster = page.Text("–")
		}
	} else if i := slices.IndexFunc(v.runs, func(run *Run) bool { return run.Error == "" }); i >= 0 {
		time.Text = v.runs[i].pods() + " pods"
		if v.runs[i].Lost != "" {
			time.Text = "events lost"
		}
	}
	ratio := mean(ratios, page.Factor)
	if len(ratios) == 0 && noFloor {
		ratio.Text = "no floor"
	}
	ratio.Tone = page.Strong
	return []page.Cell{
		page.Text(g.shape), {Text: v.label, Color: 1 + v.color}, time, spread, faster, ratio,
		mean(rates, func(x float64) string { return page.Thousands(int(x + 0.5)) }),
		mean(writes, func(x float64) string { return fmt.Sprintf("%.2f", x) }), mean(p99, page.Ms),
		page.Count(stalls, page.Warn), page.Count(failed, page.Bad), page.Count(violations, page.Bad),
	}
}

// apart reports whether a ratio is so far from 1 that too few runs, and not equal systems, are the reason
// why its confidence interval has 1.
func apart(ratio float64) bool { return max(ratio, 1/ratio) > 1.5 }

// factor formats how many times as fast one is as another.
func factor(r stats.Ratio) string {
	switch {
	case r.N == 0:
		return "–"
	case r.N == 1:
		return page.Factor(r.Mean) + " ×"
	case !r.Differs() && apart(r.Mean):
		return fmt.Sprintf("%s × (%s to %s), not certain", page.Factor(r.Mean), page.Factor(r.Low), page.Factor(r.Up))
	case !r.Differs():
		return fmt.Sprintf("equal (%s to %s ×)", page.Factor(r.Low), page.Factor(r.Up))
	}
	return fmt.Sprintf("%s × (%s to %s)", page.Factor(r.Mean), page.Factor(r.Low), page.Factor(r.Up))
}

// section has the charts of a group, and the figures of its runs.
func (g *group) section() page.Section {
	s := page.Section{Title: g.title()}
	cumulative, rate := page.Chart{Title: "Pods created and scheduled", Unit: " s"}, page.Chart{Title: "Pods scheduled per second", Unit: " s"}
	longest := 0.0
	for _, v := range g.variants {
		if run := v.median(); run != nil {
			longest = max(longest, run.ScheduleSeconds)
		}
	}
	floors := map[string]bool{}
	for _, v := range g.variants {
		run := v.median()
		if run == nil || run.Curves == nil {
			continue
		}
		name := v.label
		if len(v.times) > 1 {
			name += fmt.Sprintf(" (median of %d)", len(v.times))
		}
		add := func(c *page.Chart, l page.Line, style string) {
			l.Color, l.Style = v.color, style
			c.Lines = append(c.Lines, l)
		}
		if run.ScheduleSeconds-run.CreateSeconds > 0.02*run.ScheduleSeconds {
			add(&cumulative, page.Cumulative(name+": created", run.Curves.Created), page.Dashed)
			name += ": scheduled"
		}
		add(&cumulative, page.Cumulative(name, run.Curves.Scheduled), "")
		// One floor for each system: those of its other variants are the same writes.
		if run.Floor != nil && run.Floor.Curve != nil && !floors[run.System] {
			floors[run.System] = true
			add(&cumulative, page.Cumulative("floor of "+v.label, *run.Floor.Curve), page.Dotted)
		}
		add(&rate, page.Rate(v.label, run.Curves.Scheduled, longest), "")
	}
	if len(cumulative.Lines) > 0 {
		s.Charts = append(s.Charts, cumulative, rate)
	}
	if c, ok := g.concurrency(); ok && g.variants[0].runs[0].Scenario != scenario.BatchWorkers { // its page begins with it
		s.Charts = append(s.Charts, c)
	}
	if t := g.causes(); len(t.Rows) > 0 {
		s.Tables = append(s.Tables, t)
	}
	for _, v := range g.variants {
		for _, run := range v.runs {
			if run.Error == "" && run.Lost == "" {
				s.Details = append(s.Details, run.detail())
			}
		}
	}
	return s
}

// causes is the table of the writes that the server refused.
func (g *group) causes() page.Table {
	t := page.Table{Title: "Writes that the server refused, by cause", Columns: []page.Column{{Title: "System", Key: true}, {Title: "Cause"},
		{Title: "Writes", Right: true, Help: "in all runs of the system; a write that is repeated counts each time"}}}
	for _, v := range g.variants {
		sum := map[string]int{}
		for _, run := range v.runs {
			for cause, n := range run.Causes {
				sum[cause] += n
			}
		}
		for _, cause := range slices.Sorted(maps.Keys(sum)) {
			t.Rows = append(t.Rows, []page.Cell{{Text: v.label, Color: 1 + v.color}, page.Text(cause), page.Count(sum[cause], page.Warn)})
		}
	}
	return t
}

func (g *group) title() string {
	if shape, err := scenario.ParseShape(g.shape); err == nil {
		return fmt.Sprintf("%s: %s of %s", g.shape, page.Plural(shape.Jobs, "job"), page.Plural(shape.PodsPerJob, "pod"))
	}
	return g.shape
}

// concurrency is the chart of the time over fixed numbers of writes in flight, with what the
// adaptive writer takes beside it; ok is false if fewer than three numbers were measured.
func (g *group) concurrency() (c page.Chart, ok bool) {
	c = page.Chart{Title: "Seconds over the manager's writes in flight", Log: true}
	lines := map[bool]*page.Line{}
	adaptive := map[bool]float64{}
	var highest float64
	for _, v := range g.variants {
		if len(v.times) == 0 || len(v.runs[0].Parameters) > 1 {
			continue // of a sweep over several parameters the map shows more
		}
		run := v.runs[0]
		setting := run.Settings[system.WritesInFlight]
		if setting == "adaptive" {
			adaptive[run.Gang] = v.time().Mean
		}
		n, err := strconv.Atoi(setting)
		if err != nil {
			continue
		}
		l := lines[run.Gang]
		if l == nil {
			l = &page.Line{Name: "fixed", Points: true}
			if run.Gang {
				l.Name = "fixed, gang"
			}
			lines[run.Gang] = l
		}
		l.X, l.Y = append(l.X, float64(n)), append(l.Y, v.time().Mean)
		highest = max(highest, float64(n))
	}
	for _, gang := range []bool{true, false} {
		l := lines[gang]
		if l == nil || len(l.X) < 3 {
			continue
		}
		l.Color = len(c.Lines)
		c.Lines = append(c.Lines, *l)
		if t, ok := adaptive[gang]; ok {
			c.Lines = append(c.Lines, page.Line{Name: "adaptive" + l.Name[len("fixed"):], Color: l.Color, Style: page.Dashed,
				X: []float64{slices.Min(l.X), highest}, Y: []float64{t, t}})
		}
	}
	return c, len(c.Lines) > 0
}

// detail has the figures of one run.
func (r *Run) detail() page.Detail {
	d := page.Detail{Title: r.Title() + ": " + page.Seconds(r.ScheduleSeconds)}
	figures := []page.Pair{
		{Name: "all jobs created after", Value: page.Seconds(r.JobsSeconds)},
		{Name: "all pods created after", Value: page.Seconds(r.CreateSeconds)},
		{Name: "first pod with a node after", Value: page.Seconds(r.FirstScheduledSeconds)},
		{Name: "job created to pod with a node, p50", Value: page.Ms(r.LatencyMs.P50)},
		{Name: "p90", Value: page.Ms(r.LatencyMs.P90)}, {Name: "p99", Value: page.Ms(r.LatencyMs.P99)},
		{Name: "longest gap between two pods", Value: page.Seconds(r.Stalls.LongestSeconds)},
		{Name: "facts checked", Value: page.Thousands(r.Invariants.Checked)},
	}
	if r.Gang {
		figures = append(figures, page.Pair{Name: "longest time a gang was partly placed", Value: page.Seconds(r.Invariants.LongestPartialGangSeconds)})
	}
	d.Tables = append(d.Tables, page.Pairs("Times", figures...), r.usage())
	if r.Writes != nil {
		d.Tables = append(d.Tables, r.writesTable())
	}
	if f := r.Floor; f != nil {
		t := page.Table{Columns: []page.Column{{Title: "Floor", Key: true}, {Title: "Writes in flight", Right: true}, {Title: "Until the last pod", Right: true}}}
		for _, s := range f.Calibration {
			t.Rows = append(t.Rows, []page.Cell{page.Text("sample"), page.Text(fmt.Sprint(s.Concurrency)), page.Textf("%.0f pods/s", s.PerSecond)})
		}
		for _, try := range f.Tries {
			t.Rows = append(t.Rows, []page.Cell{page.Text(try.Order), page.Text(fmt.Sprint(try.Concurrency)), page.Text(page.Seconds(try.PodsSeconds))})
		}
		d.Tables = append(d.Tables, t)
	}
	if len(r.Settings) > 0 {
		d.Tables = append(d.Tables, page.Pairs("Settings of the system", page.Settings(r.Settings)...))
	}
	d.Tables, d.Charts = append(d.Tables, r.MetricTables()...), r.MetricCharts()
	return d
}

// writesTable is the table of the system's writes.
func (r *Run) writesTable() page.Table {
	total := 0
	for _, n := range r.Writes {
		total += n
	}
	return series.WritesTable("Writes of the system", analyse.Writes{ByKind: r.Writes, Total: total, Refused: r.Refused})
}

var componentTitles = map[string]string{
	"apiserver": "kube-apiserver", "etcd": "etcd", "manager": "lockstep manager", "controllerManager": "kube-controller-manager",
	"scheduler": "kube-scheduler", "nodes": "simulated nodes", "client": "benchmark client",
}

func componentTitle(key string) string { return cmp.Or(componentTitles[key], key) }

// usage is the table of the CPU time and memory of each process, beside the CPU time for the floor.
func (r *Run) usage() page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Process", Key: true}, {Title: "CPU", Right: true, Help: "CPU time from the first job to the last pod"}}}
	if r.Floor != nil && r.Floor.CPUSeconds != nil {
		t.Columns = append(t.Columns, page.Column{Title: "CPU for the floor", Right: true})
	}
	t.Columns = append(t.Columns, page.Column{Title: "Memory at most", Right: true})
	for _, key := range slices.Sorted(maps.Keys(r.CPUSeconds)) {
		row := []page.Cell{page.Text(componentTitle(key)), page.Textf("%.1f s", r.CPUSeconds[key])}
		if r.Floor != nil && r.Floor.CPUSeconds != nil {
			floor := page.Text("–") // it did not run
			if seconds := r.Floor.CPUSeconds[key]; seconds > 0 {
				floor = page.Textf("%.1f s", seconds)
			}
			row = append(row, floor)
		}
		memory := page.Text("–")
		if mib := r.PeakRSSMiB[key]; mib > 0 {
			memory = page.Textf("%.0f MiB", mib)
		}
		t.Rows = append(t.Rows, append(row, memory))
	}
	return t
}
