package workflows

import (
	_ "embed"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/floor"
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

	// Steps are the steps of workflows-rate, and SustainedPerSecond is the last rate that the
	// manager kept up with.
	Steps              []Step  `json:"steps,omitempty"`
	SustainedPerSecond float64 `json:"sustainedPerSecond,omitempty"`

	Created analyse.Curve `json:"created"`
	Ended   analyse.Curve `json:"ended"`
}

// Step is a step of workflows-rate. Rates are in workflows per second; Waiting is the number of
// workflows under way at the end of the step.
type Step struct {
	Asked   float64 `json:"asked"`
	Sent    float64 `json:"sent"`
	Ended   float64 `json:"ended"`
	Waiting int     `json:"underWay"`
	KeptUp  bool    `json:"keptUp"`
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

// Line returns the results of the run in one line.
func (r *Run) Line() string {
	s := fmt.Sprintf("%d of %d workflows in %.1fs, %.0f/min", r.Succeeded, r.Workflows, r.Seconds, r.PerMinute)
	if r.FloorSeconds > 0 {
		s += fmt.Sprintf(", %.2f x floor (%.1fs)", r.Ratio, r.FloorSeconds)
	}
	if r.SustainedPerSecond > 0 {
		s += fmt.Sprintf(", keeps up with %.1f/s", r.SustainedPerSecond)
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
			floor, ratio = fmt.Sprintf("%.1fs", run.FloorSeconds), fmt.Sprintf("%.2f", run.Ratio)
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

//go:embed page.html
var page string

// HTML writes the report as one self-contained page.
func (r *Report) HTML(w io.Writer) error {
	return r.Page(w, series.Page{Title: "Lockstep workflows benchmark", Body: page, Data: r})
}

// Chart shows the workflows over time.
func (r *Run) Chart() series.Chart {
	return series.Chart{Seconds: r.Seconds, Count: r.Workflows, Curves: []series.Curve{{Name: "created", Curve: r.Created}, {Name: "ended", Curve: r.Ended}}}
}
