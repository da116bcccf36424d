package applications

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"
)

// Report is one invocation.
type Report struct {
	SchemaVersion string         `json:"schemaVersion"`
	Version       string         `json:"lockstepVersion"`
	Time          time.Time      `json:"time"`
	Config        map[string]any `json:"config"`
	Runs          []Run          `json:"runs"`
}

// Run is one load.
type Run struct {
	Scenario     string  `json:"scenario"`
	Shape        Shape   `json:"shape"`
	Repeat       int     `json:"repeat"`
	Applications int     `json:"applications"`
	Error        string  `json:"error,omitempty"`
	Phases       []Phase `json:"phases"`
	// RestCPUMsPerHour is the manager's CPU time per application while nobody does anything, in ms per hour.
	RestCPUMsPerHour float64 `json:"restCPUMsPerApplicationAndHour,omitempty"`

	FloorPerSecond   float64  `json:"floorPerSecond,omitempty"`
	FloorConcurrency int      `json:"floorConcurrency,omitempty"`
	FloorSamples     []Sample `json:"floorSamples,omitempty"`
	// Ratio is the floor's pace over that of the deployment.
	Ratio float64 `json:"ratioToFloor,omitempty"`

	Checked    int      `json:"checked"`
	Violations []string `json:"violations"`
}

// Phase is a part of a run, from its begin until nobody writes any more.
type Phase struct {
	Name string `json:"name"`
	// Done is how many applications got to where the phase brings them; Seconds, until the last was there.
	Done      int     `json:"done"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"perSecond,omitempty"`
	// TotalMs is from the client's request to a watch's showing that the application runs. ReportMs is from the status of
	// its last Deployment to its own that says so.
	TotalMs  Percentiles `json:"totalMs"`
	ReportMs Percentiles `json:"reportMs"`

	// Writes of the manager, heartbeats left out.
	Writes      map[string]int `json:"writes"`
	WritesTotal int            `json:"writesTotal"`
	WritesEach  float64        `json:"writesPerApplication"`
	Refused     map[string]int `json:"refused,omitempty"`

	CPUSeconds map[string]float64 `json:"cpuSeconds"`
	RSSMiB     map[string]float64 `json:"rssMiB"`
	PeakMiB    map[string]float64 `json:"peakRSSMiB"`
	// ManagerCPUMs and ManagerKiB are the manager's CPU time, and what its memory grew by, per application.
	ManagerCPUMs float64 `json:"managerCPUMsPerApplication"`
	ManagerKiB   float64 `json:"managerKiBPerApplication"`

	began time.Time
}

// Percentiles of a distribution.
type Percentiles struct {
	P50 float64 `json:"p50"`
	P90 float64 `json:"p90"`
	P99 float64 `json:"p99"`
}

// Sample is a pace of the floor, in applications per second.
type Sample struct {
	Concurrency int     `json:"concurrency"`
	PerSecond   float64 `json:"perSecond"`
}

// Faults says why a caller should look: nil if there is nothing wrong.
func (r *Report) Faults() error {
	var errs []error
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			errs = append(errs, fmt.Errorf("%s: not measured: %s", run.Scenario, run.Error))
		} else if len(run.Violations) > 0 {
			errs = append(errs, fmt.Errorf("%s: %d violations", run.Scenario, len(run.Violations)))
		}
	}
	return errors.Join(errs...)
}

func (r *Run) line() string {
	if r.Error != "" {
		return r.Scenario + ": not measured: " + r.Error
	}
	s := fmt.Sprintf("%s: %d applications", r.Scenario, r.Applications)
	if len(r.Phases) > 0 {
		p := r.Phases[0]
		s += fmt.Sprintf(" in %.1fs, %.1f/s, %.2f writes and %.2fms CPU each, manager %.0f MiB", p.Seconds, p.PerSecond, p.WritesEach, p.ManagerCPUMs, p.PeakMiB["manager"])
	}
	if r.FloorPerSecond > 0 {
		s += fmt.Sprintf(", %.2f x floor (%.1f/s)", r.Ratio, r.FloorPerSecond)
	}
	return s + fmt.Sprintf(", %d violations", len(r.Violations))
}

// Table writes the runs for a terminal.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tPHASE\tDONE\tTIME\tPER S\tTOTAL P50\tP99\tREPORT P50\tP99\tWRITES\tCPU\tRSS\tPEAK\tFLOOR\tRATIO\tVIOL")
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			continue
		}
		for j := range run.Phases {
			p := &run.Phases[j]
			floor, ratio := "-", "-"
			if j == 0 && run.FloorPerSecond > 0 {
				floor, ratio = fmt.Sprintf("%.1f/s", run.FloorPerSecond), fmt.Sprintf("%.2f", run.Ratio)
			}
			fmt.Fprintf(t, "%s\t%s\t%d/%d\t%.1fs\t%.1f\t%s\t%s\t%s\t%s\t%.2f\t%.2fms\t%.0fMi\t%.0fMi\t%s\t%s\t%d\n", run.Scenario, p.Name, p.Done, run.Applications, p.Seconds, p.PerSecond,
				ms(p.TotalMs.P50), ms(p.TotalMs.P99), ms(p.ReportMs.P50), ms(p.ReportMs.P99), p.WritesEach, p.ManagerCPUMs,
				p.RSSMiB["manager"], p.PeakMiB["manager"], floor, ratio, len(run.Violations))
		}
		if run.RestCPUMsPerHour > 0 {
			fmt.Fprintf(t, "%s\tat rest: %.3f ms CPU per application and hour\n", run.Scenario, run.RestCPUMsPerHour)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			fmt.Fprintf(w, "\n%s: %s\n", run.Scenario, run.Error)
		}
		for _, v := range run.Violations {
			fmt.Fprintf(w, "\n%s: %s", run.Scenario, v)
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
	data, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "result.json"), append(data, '\n'), 0o644)
}
