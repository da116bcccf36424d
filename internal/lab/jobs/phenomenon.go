package jobs

import (
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/scenario"
)

// phenomenon is what a scenario is named for: a sentence that says whether it occurred in these runs,
// with figures, and the sections that show it.
type phenomenon struct {
	sentence string
	sections []page.Section
	// alone says that the runs have no times of one load, which pages otherwise compare, and whole
	// that the sentence compares them.
	alone, whole bool
}

// phenomena are the phenomena by scenario. Scenarios that compare times under given loads have none.
var phenomena = map[string]func(*Report) phenomenon{
	scenario.BatchShapes:  (*Report).shapes,
	scenario.BatchWorkers: (*Report).workers,
	scenario.Admission:    (*Report).admits,
	scenario.Contention:   (*Report).contention,
	scenario.Mixed:        (*Report).mixed,
	scenario.Queues:       (*Report).queues,
	scenario.Rate:         (*Report).rates,
	scenario.Queued:       (*Report).queued,
	scenario.Enqueue:      (*Report).enqueue,
	scenario.ClientLimits: (*Report).clientLimits,
	scenario.ForeignPods:  (*Report).foreignPods,
}

// phenomenon returns that of the report's scenario, if it has one and something was measured.
func (r *Report) phenomenon() phenomenon {
	if len(r.Runs) == 0 || phenomena[r.Runs[0].Scenario] == nil {
		return phenomenon{}
	}
	return phenomena[r.Runs[0].Scenario](r)
}

// title returns the title of the page.
func (r *Report) title() string {
	switch {
	case r.Tune != nil:
		return "Batch jobs: what limits a system"
	case r.Sweep != nil:
		return "Batch jobs: sweep"
	}
	if len(r.Runs) > 0 && phenomena[r.Runs[0].Scenario] != nil {
		return "Batch jobs: " + r.Runs[0].Scenario
	}
	return "Batch jobs"
}

// typical returns the median run of each variant, with the colours of their curves. Variants without
// a complete run are left out.
func (r *Report) typical() (out []typical) {
	for _, g := range r.groups() {
		for _, v := range g.variants {
			if run := v.median(); run != nil {
				out = append(out, typical{Run: run, label: r.called(run), color: v.color, runs: len(v.times)})
			}
		}
	}
	return out
}

// called returns the name of a run's variant in sentences: with gangs only if the system was measured
// without them, too.
func (r *Report) called(run *Run) string {
	if slices.ContainsFunc(r.Runs, func(other *Run) bool { return other.System == run.System && other.Gang != run.Gang }) {
		return run.label()
	}
	return run.variant()
}

// typical is the median run of so many equal runs.
type typical struct {
	*Run
	label string
	color int // index of the colour
	runs  int
}

// cell returns the cell that names the run in tables.
func (t *typical) cell() page.Cell { return page.Cell{Text: t.label, Color: 1 + t.color} }

// ofRuns names the runs of which one is shown, for captions.
func (t *typical) ofRuns() string {
	if t.runs < 2 {
		return t.label
	}
	return fmt.Sprintf("%s (median of %d)", t.label, t.runs)
}
