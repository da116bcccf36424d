package workflows

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
)

// Report is the report of one invocation.
type Report struct{ series.Report[*Run] }

// Run is the result of one shape under one load. Seconds count from the moment at which the first
// workflow's create reached the server.
type Run struct {
	Scenario       string `json:"scenario"`
	Shape          string `json:"shape"`
	Repeat         int    `json:"repeat"`
	WritesInFlight int    `json:"writesInFlight"` // of the manager; 0 means adaptive
	series.Verdict

	Workflows     int     `json:"workflows"`
	Succeeded     int     `json:"succeeded"`
	SubmitSeconds float64 `json:"submitSeconds"`
	// Seconds is the time until the last workflow had ended.
	Seconds   float64 `json:"seconds"`
	PerMinute float64 `json:"perMinute"`
	DepthMax  int     `json:"depthMax"` // maximum number of workflows under way at the same time

	// QueueMs is the time from a workflow's create to its first pod's create, TotalMs the time to
	// its end, and BeyondMs the part of TotalMs in which none of its pods was under way.
	// BeyondPerStepMs is the median of BeyondMs divided by the steps on the critical path.
	QueueMs         analyse.Percentiles `json:"queueMs"`
	TotalMs         analyse.Percentiles `json:"totalMs"`
	BeyondMs        analyse.Percentiles `json:"beyondMs"`
	BeyondPerStepMs float64             `json:"beyondPerStepMs"`

	// Writes are the manager's writes, without heartbeats.
	analyse.Writes
	WritesPerWorkflow float64 `json:"writesPerWorkflow"`

	rig.Used
	ManagerCPUMs float64 `json:"managerCPUMsPerWorkflow"`
	// ManagerKiB is the difference between the manager's peak memory and its memory before the
	// load, per workflow.
	ManagerKiB float64 `json:"managerKiBPerWorkflow"`

	FloorSeconds     float64        `json:"floorSeconds,omitempty"`
	FloorConcurrency int            `json:"floorConcurrency,omitempty"`
	FloorSamples     []floor.Sample `json:"floorSamples,omitempty"`
	// Ratio is Seconds divided by FloorSeconds; RatioBeyondPods leaves the pods' own time on the
	// critical path out of both.
	Ratio           float64 `json:"ratioToFloor,omitempty"`
	RatioBeyondPods float64 `json:"ratioToFloorBeyondPods,omitempty"`

	// Steps are the steps of workflows-rate, SustainedPerSecond is the highest rate that the manager
	// kept up with, and BehindPerSecond is the lowest one at which it fell behind, if there is one.
	Steps              []Step  `json:"steps,omitempty"`
	SustainedPerSecond float64 `json:"sustainedPerSecond,omitempty"`
	BehindPerSecond    float64 `json:"behindPerSecond,omitempty"`
	// Doubt says why the manager may be able to do more than the search found; empty if nothing
	// suggests it.
	Doubt string `json:"doubt,omitempty"`

	Created analyse.Curve `json:"created"`
	Ended   analyse.Curve `json:"ended"`
}

// Step is a step of workflows-rate. Rates are in workflows per second. Waiting is the number of
// workflows that were under way when the last one of the step had been sent. Late is how many of these
// would have ended by then if they had taken only the time of their pods. Growth is by how many seconds
// workflows took longer from one second to the next, and LagGrowth by how many they were sent later.
type Step struct {
	Asked   float64 `json:"asked"`
	Sent    float64 `json:"sent"`
	Ended   float64 `json:"ended"`
	Waiting int     `json:"underWay"`
	Late    int     `json:"late"`
	Growth  float64 `json:"growth"`

	LagGrowth float64 `json:"lagGrowth"`
	KeptUp    bool    `json:"keptUp"`
	Verdict   string  `json:"verdict"`
}

// Title returns the name of the run.
func (r *Run) Title() string {
	s := strings.TrimPrefix(r.Scenario, "workflows-") + " " + r.Shape
	if r.WritesInFlight > 0 {
		s += fmt.Sprintf(" w=%d", r.WritesInFlight)
	}
	if r.Repeat > 1 {
		s += fmt.Sprintf(" #%d", r.Repeat)
	}
	return s
}

// Repeated implements series.Run.
func (r *Run) Repeated() *int { return &r.Repeat }

// Line returns the results of the run in one line.
func (r *Run) Line() string {
	s := fmt.Sprintf("%d of %d workflows in %.1fs, %.0f/min", r.Succeeded, r.Workflows, r.Seconds, r.PerMinute)
	if r.FloorSeconds > 0 {
		s += fmt.Sprintf(", %s x floor (%.1fs)", r.ratio(), r.FloorSeconds)
	}
	if r.SustainedPerSecond > 0 {
		s += fmt.Sprintf(", keeps up with %.1f/s", r.SustainedPerSecond)
	}
	if r.BehindPerSecond > 0 {
		s += fmt.Sprintf(", falls behind at %.1f/s", r.BehindPerSecond)
	}
	return s + fmt.Sprintf(", %.2f writes each, beyond pods p50 %.0fms p99 %.0fms, manager %.2fms CPU and %.1f KiB each",
		r.WritesPerWorkflow, r.BeyondMs.P50, r.BeyondMs.P99, r.ManagerCPUMs, r.ManagerKiB)
}

// Table writes the runs as a table for a terminal.
func (r *Report) Table(w io.Writer, _ bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tWORKFLOWS\tTIME\tPER MIN\tFLOOR\tRATIO\tKEEPS UP\tDEPTH\tQUEUE P50\tP99\tBEYOND P50\tP90\tP99\tPER STEP\tWRITES\tCPU\tMEMORY\tVIOL")
	for _, run := range r.Measured() {
		floor, ratio, pace := "-", "-", "-"
		if run.FloorSeconds > 0 {
			floor, ratio = fmt.Sprintf("%.1fs", run.FloorSeconds), run.ratio()
		}
		if run.SustainedPerSecond > 0 {
			pace = fmt.Sprintf("%.1f/s", run.SustainedPerSecond)
		}
		fmt.Fprintf(t, "%s\t%d/%d\t%.1fs\t%.0f\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2fms\t%.1fKi\t%d\n", run.Title(), run.Succeeded, run.Workflows,
			run.Seconds, run.PerMinute, floor, ratio, pace, run.DepthMax, series.Ms(run.QueueMs.P50), series.Ms(run.QueueMs.P99), series.Ms(run.BeyondMs.P50), series.Ms(run.BeyondMs.P90), series.Ms(run.BeyondMs.P99),
			series.Ms(run.BeyondPerStepMs), run.WritesPerWorkflow, run.ManagerCPUMs, run.ManagerKiB, len(run.Violations))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.WriteFaults(w)
}

// Page returns the report's page.
func (r *Report) Page() page.Page {
	p := r.Report.Page("Workflows")
	p.Verdict = r.verdict()
	t := page.Table{Columns: []page.Column{
		{Title: "Run", Key: true}, {Title: "Succeeded", Right: true},
		{Title: "Time", Right: true, Help: "from the arrival of the first workflow at the API server to the end of the last"},
		{Title: "Per minute", Right: true, Help: "workflows that ended, in a minute"},
		{Title: "× floor", Right: true, Help: "time divided by the floor: the time in which a bare client wrote the same objects to the same server. It does not wait for pods to run"},
		{Title: "Keeps up with", Right: true, Help: "the highest rate at which the last workflows took as long as the first ones"},
		{Title: "Beyond pods p50", Right: true, Help: "from a workflow's creation to its end, without the time in which a pod of it was under way"},
		{Title: "p99", Right: true, Help: "the same, of the slowest hundredth"},
		{Title: "Per step", Right: true, Help: "the median of that for each step on the critical path"},
		{Title: "Writes each", Right: true, Help: "the manager's writes for a workflow, without heartbeats"},
		{Title: "Manager CPU each", Right: true}, {Title: "Memory each", Right: true}, {Title: "Violations", Right: true},
	}}
	for _, run := range r.Measured() {
		ratio, pace := page.Text("–"), page.Text("–")
		if run.FloorSeconds > 0 {
			ratio = page.Cell{Text: run.ratio(), Tone: page.Strong}
		}
		if run.SustainedPerSecond > 0 {
			pace = page.Cell{Text: fmt.Sprintf("%.1f/s", run.SustainedPerSecond), Tone: page.Strong}
		}
		succeeded := page.Textf("%s of %s", page.Thousands(run.Succeeded), page.Thousands(run.Workflows))
		if run.Succeeded < run.Workflows {
			succeeded.Tone = page.Bad
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(run.Title()), succeeded, page.Text(page.Seconds(run.Seconds)),
			{Text: page.Thousands(int(run.PerMinute + 0.5)), Tone: page.Strong}, ratio, pace, page.Text(page.Ms(run.BeyondMs.P50)), page.Text(page.Ms(run.BeyondMs.P99)),
			page.Text(page.Ms(run.BeyondPerStepMs)), page.Textf("%.2f", run.WritesPerWorkflow), page.Textf("%.2f ms", run.ManagerCPUMs),
			page.Textf("%.1f KiB", run.ManagerKiB), page.Count(len(run.Violations), page.Bad)})
	}
	p.Sections = append(p.Sections, page.Section{Title: "Results", Tables: []page.Table{t}})
	for _, run := range r.Runs {
		switch {
		case run.Error == "" && run.Lost == "":
			p.Sections = append(p.Sections, run.section())
		case run.searched():
			p.Sections = append(p.Sections, page.Section{Title: run.Title(), Note: "The search did not come to its end.", Tables: []page.Table{run.stepsTable()}})
		}
	}
	return p
}

// verdict says in one sentence how fast the workflows were and whether anything was lost.
func (r *Report) verdict() string {
	var parts []string
	workflows, succeeded := 0, 0
	var rates, ratios, paces, behind []float64
	for _, run := range r.Measured() {
		workflows, succeeded = workflows+run.Workflows, succeeded+run.Succeeded
		if run.floorBounds() {
			ratios = append(ratios, run.Ratio)
		}
		if len(run.Steps) == 0 { // of a search, how long all steps took says nothing
			rates = append(rates, run.PerMinute)
		}
	}
	early := false
	var doubts []string
	for _, run := range r.Runs {
		if run.Lost != "" || run.Error != "" && !run.searched() {
			continue
		}
		if run.SustainedPerSecond > 0 {
			paces, early = append(paces, run.SustainedPerSecond), early || run.Error != ""
		}
		if run.BehindPerSecond > 0 {
			behind = append(behind, run.BehindPerSecond)
		}
		if run.Doubt != "" && !slices.Contains(doubts, run.Doubt) {
			doubts = append(doubts, run.Doubt)
		}
	}
	if len(paces) > 0 {
		parts = append(parts, "keeps up with "+page.Range(paces, "%.1f")+" workflows a second")
	}
	if len(behind) > 0 {
		parts = append(parts, "falls behind at "+page.Range(behind, "%.1f"))
	}
	parts = append(parts, doubts...)
	if early {
		parts = append(parts, "as far as the search came")
	}
	if workflows > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s workflows succeeded", page.Thousands(succeeded), page.Thousands(workflows)))
	}
	if len(rates) > 0 {
		least, most := page.Thousands(int(slices.Min(rates)+0.5)), page.Thousands(int(slices.Max(rates)+0.5))
		if most != least {
			least += " to " + most
		}
		parts = append(parts, least+" a minute")
	}
	if len(ratios) > 0 {
		parts = append(parts, page.Range(ratios, "%.2f")+" × the floor")
	}
	return "Lockstep: " + strings.Join(append(parts, r.Troubles("nothing lost")), ", ")
}

// floorBounds reports whether there is a floor that the run did not beat.
func (r *Run) floorBounds() bool { return r.FloorSeconds > 0 && r.Ratio >= 0.995 }

// ratio formats the ratio to the floor.
func (r *Run) ratio() string {
	switch {
	case r.FloorSeconds == 0:
		return "-"
	case !r.floorBounds():
		return "no floor"
	}
	return fmt.Sprintf("%.2f", r.Ratio)
}

// section has the curves and the figures of a run.
func (r *Run) section() page.Section {
	created, ended := page.Cumulative("created", r.Created), page.Cumulative("ended", r.Ended)
	created.Style, ended.Color = page.Dashed, 1
	rate := page.Rate("ended", r.Ended, r.Seconds)
	rate.Color = 1
	figures := []page.Pair{
		{Name: "create to first pod, p50", Value: page.Ms(r.QueueMs.P50)}, {Name: "create to first pod, p99", Value: page.Ms(r.QueueMs.P99)},
		{Name: "create to end, p50", Value: page.Ms(r.TotalMs.P50)}, {Name: "create to end, p99", Value: page.Ms(r.TotalMs.P99)},
		{Name: "most under way at a time", Value: page.Thousands(r.DepthMax)}, {Name: "all submitted after", Value: page.Seconds(r.SubmitSeconds)},
	}
	if r.FloorSeconds > 0 {
		figures = append(figures, page.Pair{Name: "floor", Value: page.Seconds(r.FloorSeconds)},
			page.Pair{Name: "floor: writes in flight", Value: fmt.Sprint(r.FloorConcurrency)})
	}
	figures = append(figures, series.Samples(r.FloorSamples)...)
	d := page.Detail{Title: "All figures", Tables: []page.Table{page.Pairs("Times", append(figures, r.Checks())...),
		series.WritesTable("Writes of the manager", r.Writes), series.UsageTable(r.Used)}, Charts: r.MetricCharts()}
	d.Tables = append(d.Tables, r.MetricTables()...)
	s := page.Section{Title: r.Title(), Details: []page.Detail{d}, Charts: []page.Chart{
		{Title: "Workflows created and ended", Unit: " s", Lines: []page.Line{created, ended}},
		{Title: "Workflows ended per second", Unit: " s", Lines: []page.Line{rate}}}}
	if len(r.Steps) > 0 {
		s.Tables = append(s.Tables, r.stepsTable())
	}
	return s
}

// searched reports whether the run has steps of a search which did not come to its end.
func (r *Run) searched() bool { return r.Error != "" && r.Lost == "" && len(r.Steps) > 0 }

// stepsTable is the table of the rates that were tried.
func (r *Run) stepsTable() page.Table {
	t := page.Table{Columns: []page.Column{{Title: "Asked", Key: true}, {Title: "Sent", Right: true}, {Title: "Ended", Right: true},
		{Title: "Under way", Right: true, Help: "workflows that had not ended when the last one was sent"},
		{Title: "Growth", Right: true, Help: "by how many seconds workflows took longer from one second to the next; up to 0.02 counts as keeping up"},
		{Title: "Late", Right: true, Help: "workflows that would have ended by then if nothing but their pods took time. If most are late, the step is too short to tell"}, {Title: "Result"}}}
	for _, step := range r.Steps {
		result := page.Text(step.Verdict)
		if !step.KeptUp {
			result.Tone = page.Warn
		}
		t.Rows = append(t.Rows, []page.Cell{page.Textf("%.1f/s", step.Asked), page.Textf("%.1f/s", step.Sent), page.Textf("%.1f/s", step.Ended),
			page.Text(page.Thousands(step.Waiting)), page.Textf("%.3f", step.Growth+0), page.Text(page.Thousands(step.Late)), result})
	}
	return t
}
