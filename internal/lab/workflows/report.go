package workflows

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Report is one invocation.
type Report struct {
	SchemaVersion string         `json:"schemaVersion"`
	Version       string         `json:"lockstepVersion"`
	Time          time.Time      `json:"time"`
	Config        map[string]any `json:"config"`
	Runs          []Run          `json:"runs"`
}

// Run is one shape under one load. Seconds count from when the first workflow reached the server.
type Run struct {
	Scenario       string `json:"scenario"`
	Shape          string `json:"shape"`
	Repeat         int    `json:"repeat"`
	WritesInFlight int    `json:"writesInFlight"` // of the manager; 0 is adaptive
	Error          string `json:"error,omitempty"`

	Workflows     int     `json:"workflows"`
	Succeeded     int     `json:"succeeded"`
	SubmitSeconds float64 `json:"submitSeconds"`
	// Seconds is until the last workflow had ended.
	Seconds   float64 `json:"seconds"`
	PerMinute float64 `json:"perMinute"`
	DepthMax  int     `json:"depthMax"` // workflows under way at a time

	// QueueMs is from a workflow's create to its first pod's, TotalMs to its end, BeyondMs the part of that in which none of
	// its pods was under way, BeyondPerStepMs its median over the steps on the longest way.
	QueueMs         Percentiles `json:"queueMs"`
	TotalMs         Percentiles `json:"totalMs"`
	BeyondMs        Percentiles `json:"beyondMs"`
	BeyondPerStepMs float64     `json:"beyondPerStepMs"`

	// Writes of the manager, heartbeats left out.
	Writes            map[string]int `json:"writes"`
	WritesTotal       int            `json:"writesTotal"`
	WritesPerWorkflow float64        `json:"writesPerWorkflow"`
	Refused           map[string]int `json:"refused,omitempty"`

	CPUSeconds   map[string]float64 `json:"cpuSeconds"`
	PeakMiB      map[string]float64 `json:"peakRSSMiB"`
	ManagerCPUMs float64            `json:"managerCPUMsPerWorkflow"`
	// ManagerKiB is how much the manager's peak lies above its memory before the load, per workflow.
	ManagerKiB float64 `json:"managerKiBPerWorkflow"`

	FloorSeconds     float64  `json:"floorSeconds,omitempty"`
	FloorConcurrency int      `json:"floorConcurrency,omitempty"`
	FloorSamples     []Sample `json:"floorSamples,omitempty"`
	// Ratio is Seconds over FloorSeconds; RatioBeyondPods leaves the pods' own time on the longest way out of Seconds.
	Ratio           float64 `json:"ratioToFloor,omitempty"`
	RatioBeyondPods float64 `json:"ratioToFloorBeyondPods,omitempty"`

	// Steps and SustainedPerSecond, the last pace that the manager kept up with, are of workflows-rate.
	Steps              []Step  `json:"steps,omitempty"`
	SustainedPerSecond float64 `json:"sustainedPerSecond,omitempty"`

	Checked    int      `json:"checked"`
	Violations []string `json:"violations"`

	Created analyse.Curve `json:"created"`
	Ended   analyse.Curve `json:"ended"`
}

// Percentiles of a distribution.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Sample is a pace of the floor, in workflows per second.
type Sample struct {
	Concurrency        int     `json:"concurrency"`
	WorkflowsPerSecond float64 `json:"workflowsPerSecond"`
}

// Step is a step of workflows-rate, in workflows per second.
type Step struct {
	Asked   float64 `json:"asked"`
	Sent    float64 `json:"sent"`
	Ended   float64 `json:"ended"`
	Waiting int     `json:"underWay"`
	KeptUp  bool    `json:"keptUp"`
}

// Faults says why a caller should look: nil if there is nothing wrong.
func (r *Report) Faults() error {
	var errs []error
	for i := range r.Runs {
		run := &r.Runs[i]
		switch {
		case run.Error != "":
			errs = append(errs, fmt.Errorf("%s: not measured: %s", run.title(), run.Error))
		case run.Succeeded < run.Workflows || len(run.Violations) > 0:
			errs = append(errs, fmt.Errorf("%s: %d of %d workflows succeeded, %d violations", run.title(), run.Succeeded, run.Workflows, len(run.Violations)))
		}
	}
	return errors.Join(errs...)
}

func (r *Run) title() string {
	s := strings.TrimPrefix(r.Scenario, "workflows-") + " " + r.Shape
	if r.WritesInFlight > 0 {
		s += fmt.Sprintf(" w=%d", r.WritesInFlight)
	}
	if r.Repeat > 1 {
		s += fmt.Sprintf(" #%d", r.Repeat)
	}
	return s
}

func (r *Run) line() string {
	if r.Error != "" {
		return r.title() + ": not measured: " + r.Error
	}
	s := fmt.Sprintf("%s: %d workflows in %.1fs, %.0f/min", r.title(), r.Succeeded, r.Seconds, r.PerMinute)
	if r.FloorSeconds > 0 {
		s += fmt.Sprintf(", %.2f x floor (%.1fs)", r.Ratio, r.FloorSeconds)
	}
	if r.SustainedPerSecond > 0 {
		s += fmt.Sprintf(", keeps up with %.1f/s", r.SustainedPerSecond)
	}
	return s + fmt.Sprintf(", %.2f writes each, beyond pods p50 %.0fms p99 %.0fms, manager %.2fms CPU and %.1f KiB each, %d violations",
		r.WritesPerWorkflow, r.BeyondMs.P50, r.BeyondMs.P99, r.ManagerCPUMs, r.ManagerKiB, len(r.Violations))
}

// Table writes the runs for a terminal.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tWORKFLOWS\tTIME\tPER MIN\tFLOOR\tRATIO\tKEEPS UP\tDEPTH\tQUEUE P50\tP99\tBEYOND P50\tP90\tP99\tPER STEP\tWRITES\tCPU\tMEMORY\tVIOL")
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			continue
		}
		floor, ratio, pace := "-", "-", "-"
		if run.FloorSeconds > 0 {
			floor, ratio = fmt.Sprintf("%.1fs", run.FloorSeconds), fmt.Sprintf("%.2f", run.Ratio)
		}
		if run.SustainedPerSecond > 0 {
			pace = fmt.Sprintf("%.1f/s", run.SustainedPerSecond)
		}
		fmt.Fprintf(t, "%s\t%d/%d\t%.1fs\t%.0f\t%s\t%s\t%s\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%.2f\t%.2fms\t%.1fKi\t%d\n", run.title(), run.Succeeded, run.Workflows,
			run.Seconds, run.PerMinute, floor, ratio, pace, run.DepthMax, ms(run.QueueMs.P50), ms(run.QueueMs.P99), ms(run.BeyondMs.P50), ms(run.BeyondMs.P90), ms(run.BeyondMs.P99),
			ms(run.BeyondPerStepMs), run.WritesPerWorkflow, run.ManagerCPUMs, run.ManagerKiB, len(run.Violations))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			fmt.Fprintf(w, "\n%s: %s\n", run.title(), run.Error)
		}
		for _, v := range run.Violations {
			fmt.Fprintf(w, "\n%s: %s", run.title(), v)
		}
	}
	return nil
}

func ms(x float64) string {
	if x >= 10_000 {
		return fmt.Sprintf("%.1fs", x/1e3)
	}
	return fmt.Sprintf("%.0fms", x)
}

func (r *Report) save(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "result.json"), append(data, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "report.html"))
	if err != nil {
		return err
	}
	return errors.Join(r.HTML(f), f.Close())
}

//go:embed page.html
var page string

// HTML writes the report as one page that needs nothing else.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"ms": ms, "title": func(r *Run) string { return r.title() }, "runs": func() []*Run {
			var out []*Run
			for i := range r.Runs {
				out = append(out, &r.Runs[i])
			}
			return out
		}, "line": polyline, "config": func(v any) string { return fmt.Sprint(v) },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return t.Execute(w, r)
}

const chartWidth, chartHeight = 640.0, 200.0

// polyline are the points of a curve in a chart that is as long as the run and as high as its workflows.
func polyline(r *Run, c analyse.Curve) string {
	var b strings.Builder
	for i := range c.AtSeconds {
		x, y := 0.0, chartHeight
		if r.Seconds > 0 && r.Workflows > 0 {
			x, y = c.AtSeconds[i]/r.Seconds*chartWidth, chartHeight*(1-float64(c.Count[i])/float64(r.Workflows))
		}
		fmt.Fprintf(&b, "%.1f,%.1f ", x, y)
	}
	return b.String()
}
