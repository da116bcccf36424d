package replay

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/lab/trace"
)

// Report is the report of one invocation.
type Report struct{ series.Report[*Run] }

// Run is the result of one system.
type Run struct {
	series.SystemRun
	// Jobs and Pods are those of the trace. Started counts the jobs all of whose pods had nodes.
	Jobs    int `json:"jobs"`
	Pods    int `json:"pods"`
	Started int `json:"started"`
	// Seconds is the time from the arrival of the first job until the last one had its nodes.
	Seconds float64 `json:"seconds"`
	// WaitMs is the time from a job's arrival at the API server until all its pods had nodes, and
	// WaitMaxMs the longest.
	WaitMs    analyse.Percentiles `json:"waitMs"`
	WaitMaxMs float64             `json:"waitMaxMs"`
	// Waiting and Running are the pods of jobs that wait for nodes, and of jobs that have them, over
	// time.
	Waiting *Line `json:"waiting,omitempty"`
	Running *Line `json:"running,omitempty"`
	// Writes are the system's writes, without heartbeats.
	analyse.Writes
}

// Line is a number of pods over time in seconds.
type Line struct {
	At   []float64 `json:"t"`
	Pods []int     `json:"n"`
}

// linePoints bounds the points of a line.
const linePoints = 600

// analyse computes the figures from the events.
func (r *Run) analyse(load *trace.Trace, events []analyse.Event, jobs map[string]*progress, sys system.System) {
	var first, last time.Time
	var waits []float64
	type change struct {
		at               time.Time
		waiting, running int
	}
	var changes []change
	for i, j := range load.Jobs {
		p := jobs[jobName(i)]
		r.Checked++
		if p.arrived.IsZero() {
			continue
		}
		if first.IsZero() || p.arrived.Before(first) {
			first = p.arrived
		}
		changes = append(changes, change{p.arrived, j.Pods, 0})
		if p.started.IsZero() {
			continue
		}
		r.Started++
		waits = append(waits, p.started.Sub(p.arrived).Seconds()*1e3)
		if p.started.After(last) {
			last = p.started
		}
		changes = append(changes, change{p.started, -j.Pods, j.Pods})
	}
	for i := range events {
		e := &events[i]
		if e.OK() && e.Namespace == namespace && e.Verb == "delete" && e.Sub == "" && jobs[e.Name] != nil && jobs[e.Name].deleted && e.Resource != "pods" {
			var k int
			if _, err := fmt.Sscanf(e.Name, "replay-%d", &k); err == nil && k < len(load.Jobs) {
				changes = append(changes, change{e.Time, 0, -load.Jobs[k].Pods})
			}
		}
	}
	if len(waits) > 0 {
		r.WaitMs, r.WaitMaxMs = analyse.PercentilesOf(waits, 1), analyse.Round(slices.Max(waits), 1)
		r.Seconds = analyse.Round(last.Sub(first).Seconds(), 3)
	}
	slices.SortStableFunc(changes, func(a, b change) int { return a.at.Compare(b.at) })
	r.Waiting, r.Running = &Line{}, &Line{}
	waiting, running, every := 0, 0, max(1, len(changes)/linePoints)
	for i, c := range changes {
		waiting, running = waiting+c.waiting, running+c.running
		if i%every == 0 || i == len(changes)-1 {
			at := analyse.Round(c.at.Sub(first).Seconds(), 3)
			r.Waiting.step(at, waiting)
			r.Running.step(at, running)
		}
	}
	r.Writes = analyse.CountWrites(events, func(e *analyse.Event) bool { return sys.Writers()[e.Actor] && e.Namespace == namespace })
}

// complete checks what holds when the whole trace was replayed.
func (r *Run) complete() {
	if r.Started < r.Jobs && r.TimedOut == "" && r.Lost == "" {
		r.Bad("%d of %d jobs never had nodes for all their pods", r.Jobs-r.Started, r.Jobs)
	}
}

// cut reports whether the run did not come to its end and has waits nevertheless.
func (r *Run) cut() bool { return r.Error != "" && r.Lost == "" && r.Started > 0 }

// shown returns the runs that have waits.
func (r *Report) shown() (out []*Run) {
	for _, run := range r.Runs {
		if run.Error == "" && run.Lost == "" || run.cut() {
			out = append(out, run)
		}
	}
	return out
}

// step adds a value, which the line has from a moment on: until just before, it has the value before.
func (l *Line) step(at float64, pods int) {
	const just = 0.001
	if n := len(l.At); n > 0 && at-l.At[n-1] > 2*just && l.Pods[n-1] != pods {
		l.At, l.Pods = append(l.At, at-just), append(l.Pods, l.Pods[n-1])
	}
	l.At, l.Pods = append(l.At, at), append(l.Pods, pods)
}

// Line implements series.Run.
func (r *Run) Line() string {
	return fmt.Sprintf("%d of %d jobs with %d pods started in %.1f s, wait p50 %s, p99 %s", r.Started, r.Jobs, r.Pods, r.Seconds, page.Ms(r.WaitMs.P50), page.Ms(r.WaitMs.P99))
}

// DropCurves removes the curves from the report, which are for the page.
func (r *Report) DropCurves() {
	for _, run := range r.Runs {
		run.Waiting, run.Running = nil, nil
		run.DropSamples()
	}
}

// Table writes the runs as a table for a terminal.
func (r *Report) Table(w io.Writer, _ bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tSTARTED\tPODS\tTIME\tWAIT P50\tP90\tP99\tLONGEST\tWRITES\tCLIENT LATE\tVIOL")
	for _, run := range r.shown() {
		fmt.Fprintf(t, "%s\t%d/%d\t%d\t%.1fs\t%s\t%s\t%s\t%s\t%d\t%.2fs\t%d\n", run.Title(), run.Started, run.Jobs, run.Pods, run.Seconds, series.Ms(run.WaitMs.P50),
			series.Ms(run.WaitMs.P90), series.Ms(run.WaitMs.P99), series.Ms(run.WaitMaxMs), run.Total, run.LagSeconds, len(run.Violations))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.WriteFaults(w)
}

// lagNoted is the lag of the client, in seconds, from which a report warns.
const lagNoted = 0.5

// Notes adds a lag of the client to what a reader has to know.
func (r *Run) Notes(cpus int) []string {
	notes := r.Circumstances.Notes(cpus)
	if r.LagSeconds > lagNoted {
		notes = append(notes, fmt.Sprintf("the client itself was up to %.1f s late, so that jobs arrived later than the trace says", r.LagSeconds))
	}
	return notes
}

// verdict says how long jobs waited, the system with the shortest waits first, and how many times as
// long they waited with the others.
func (r *Report) verdict() string {
	runs := slices.SortedStableFunc(slices.Values(r.shown()), func(a, b *Run) int { return cmp.Compare(a.WaitMs.P99, b.WaitMs.P99) })
	var parts []string
	for _, run := range runs {
		jobs := page.Plural(run.Jobs, "job")
		if run.Started < run.Jobs {
			jobs = fmt.Sprintf("the %s of %s that had their nodes", page.Thousands(run.Started), jobs)
		}
		text := fmt.Sprintf("%s: 99 %% of %s waited less than %s for their nodes, half of them less than %s", run.Title(), jobs,
			page.Ms(run.WaitMs.P99), page.Ms(run.WaitMs.P50))
		if first := runs[0]; run != first && !run.cut() && !first.cut() && first.WaitMs.P99 > 0 && first.WaitMs.P50 > 0 {
			text += fmt.Sprintf(" (%s and %s times as long as %s)", page.Factor(run.WaitMs.P99/first.WaitMs.P99), page.Factor(run.WaitMs.P50/first.WaitMs.P50), first.Title())
		}
		parts = append(parts, text)
	}
	return strings.Join(append(parts, r.Troubles("nothing lost")), "; ")
}

// Page returns the report's page.
func (r *Report) Page() page.Page {
	p := r.Report.Page("Replay of a trace")
	p.Verdict = r.verdict()
	t := page.Table{Columns: []page.Column{{Title: "Run", Key: true}, {Title: "Jobs started", Right: true, Help: "jobs all of whose pods had nodes"}, {Title: "Pods", Right: true},
		{Title: "Time", Right: true, Help: "from the arrival of the first job until the last one had its nodes"},
		{Title: "Wait p50", Right: true, Help: "from a job's arrival at the API server until all its pods had nodes"}, {Title: "p90", Right: true}, {Title: "p99", Right: true},
		{Title: "Longest", Right: true}, {Title: "Writes", Right: true, Help: "the system's own, without heartbeats"},
		{Title: "Client late", Right: true, Help: "how late the client itself was at most"}, {Title: "Violations", Right: true}}}
	waiting, running := page.Chart{Title: "Pods of jobs that wait", Unit: " s"}, page.Chart{Title: "Pods of jobs that have their nodes", Unit: " s"}
	s := page.Section{Title: "Waits"}
	var clients []series.ClientOf
	for i, run := range r.shown() {
		clients = series.ClientsOf(clients, run.System, run.Clients)
		started := page.Textf("%s of %s", page.Thousands(run.Started), page.Thousands(run.Jobs))
		if run.Started < run.Jobs {
			started.Tone = page.Bad
		}
		t.Rows = append(t.Rows, []page.Cell{{Text: run.Title(), Color: 1 + i}, started, page.Text(page.Thousands(run.Pods)), page.Text(page.Seconds(run.Seconds)),
			{Text: page.Ms(run.WaitMs.P50), Tone: page.Strong}, page.Text(page.Ms(run.WaitMs.P90)), {Text: page.Ms(run.WaitMs.P99), Tone: page.Strong},
			page.Text(page.Ms(run.WaitMaxMs)), page.Text(page.Thousands(run.Total)), page.Textf("%.2f s", run.LagSeconds), page.Count(len(run.Violations), page.Bad)})
		for line, chart := range map[*Line]*page.Chart{run.Waiting: &waiting, run.Running: &running} {
			if line == nil {
				continue
			}
			l := page.Line{Name: run.Title(), X: line.At, Color: i}
			for _, n := range line.Pods {
				l.Y = append(l.Y, float64(n))
			}
			chart.Lines = append(chart.Lines, l)
		}
		s.Details = append(s.Details, page.Detail{Title: run.Title() + ": writes, CPU, memory and queues", Charts: run.MetricCharts(),
			Tables: append([]page.Table{series.WritesTable("Writes of the system", run.Writes), series.UsageTable(run.Used)}, run.MetricTables()...)})
	}
	s.Tables, s.Charts = []page.Table{t}, []page.Chart{waiting, running}
	p.Sections = append(append(p.Sections, s), series.ClientLimits(clients)...)
	return p
}
