package series

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/rig"
)

// Page returns the parts of a report's page that all scenarios share: what went wrong, what a reader
// has to know, the hardware and the settings.
func (r *Report[R]) Page(title string) page.Page {
	p := page.Page{Title: title, Version: r.Version, Time: r.Time, Hardware: r.Machine.pairs(), Settings: page.Settings(r.Config)}
	var busy []R
	for _, run := range r.Runs {
		failure, violations := run.Outcome()
		if *failure != "" {
			p.Problems = append(p.Problems, page.Problem{Run: run.Title(), Text: "not measured: " + *failure})
		}
		for _, v := range *violations {
			p.Problems = append(p.Problems, page.Problem{Run: run.Title(), Text: v})
		}
		for _, note := range run.Notes(r.Machine.CPUs) {
			if note == run.Circumstance().busy(r.Machine.CPUs) {
				busy = append(busy, run)
				continue
			}
			p.Warnings = append(p.Warnings, run.Title()+": "+note)
		}
	}
	if note := r.busy(busy); note != "" {
		p.Warnings = append(p.Warnings, note)
	}
	p.Bad = r.Faults() != nil
	return p
}

// busy says in one line that the machine was busy in some of the runs; empty if there are none.
func (r *Report[R]) busy(some []R) string {
	switch len(some) {
	case 0:
		return ""
	case 1:
		return some[0].Title() + ": " + some[0].Circumstance().busy(r.Machine.CPUs)
	}
	var others []float64
	for _, run := range some {
		others = append(others, run.Circumstance().OtherCPUs)
	}
	return fmt.Sprintf("the machine was busy in %d of %d runs: other work used %s of its %d CPUs", len(some), len(r.Runs),
		page.Range(others, "%.1f"), r.Machine.CPUs)
}

// Troubles says in a few words what went wrong in the runs, or that nothing did: nothing is the word
// for that.
func (r *Report[R]) Troubles(nothing string) string {
	unmeasured, late, missed, violated := 0, 0, 0, 0
	for _, run := range r.Runs {
		failure, violations := run.Outcome()
		if *failure != "" {
			unmeasured++
		} else if run.Missed() != "" {
			missed++
		} else if run.Late() != "" {
			late++
		}
		violated += len(*violations)
	}
	var parts []string
	if unmeasured > 0 {
		parts = append(parts, page.Plural(unmeasured, "run")+" not measured")
	}
	if late > 0 {
		parts = append(parts, "the time ran out in "+page.Plural(late, "run"))
	}
	if missed > 0 {
		parts = append(parts, "events lost by the observer in "+page.Plural(missed, "run"))
	}
	if violated > 0 {
		parts = append(parts, page.Plural(violated, "violation"))
	}
	if len(parts) == 0 {
		return nothing
	}
	return strings.Join(parts, ", ")
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// WritesTable is the table of the writes of one run.
func WritesTable(title string, w analyse.Writes) page.Table {
	t := page.Table{Columns: []page.Column{{Title: title, Key: true}, {Title: page.Thousands(w.Total), Right: true}}}
	for _, kind := range sorted(w.ByKind) {
		t.Rows = append(t.Rows, []page.Cell{page.Text(kind), page.Text(page.Thousands(w.ByKind[kind]))})
	}
	for _, kind := range sorted(w.Refused) {
		t.Rows = append(t.Rows, []page.Cell{page.Text("refused: " + kind), page.Count(w.Refused[kind], page.Warn)})
	}
	return t
}

// UsageTable is the table of the CPU time and memory of each process.
func UsageTable(u rig.Used) page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Process", Key: true}, {Title: "CPU", Right: true}, {Title: "Memory", Right: true},
		{Title: "At most", Right: true}}}
	memory := func(mib float64) page.Cell {
		if mib == 0 {
			return page.Text("–")
		}
		return page.Textf("%.0f MiB", mib)
	}
	for _, process := range sorted(u.CPUSeconds) {
		t.Rows = append(t.Rows, []page.Cell{page.Text(process), page.Textf("%.1f s", u.CPUSeconds[process]), memory(u.RSSMiB[process]),
			memory(u.PeakMiB[process])})
	}
	return t
}

// Samples are the lines of a table about the samples of a floor.
func Samples(samples []floor.Sample) (out []page.Pair) {
	for _, s := range samples {
		out = append(out, page.Pair{Name: fmt.Sprintf("floor: sample at %d in flight", s.Concurrency), Value: fmt.Sprintf("%.0f/s", s.PerSecond)})
	}
	return out
}

// Checks is the line of a table that says how many facts were checked.
func (v *Verdict) Checks() page.Pair {
	return page.Pair{Name: "facts checked", Value: page.Thousands(v.Checked)}
}
