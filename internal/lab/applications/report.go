package applications

import (
	_ "embed"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
)

// Report is one invocation.
type Report struct{ series.Report[*Run] }

// Run is one load.
type Run struct {
	Scenario     string `json:"scenario"`
	Shape        Shape  `json:"shape"`
	Repeat       int    `json:"repeat"`
	Applications int    `json:"applications"`
	series.Verdict
	Phases []Phase `json:"phases"`
	// RestCPUSeconds is the manager's CPU time while nobody does anything, in seconds per hour; RestCPUSecondsNone, without
	// applications, which apps-hold measures before. RestCPUMsPerHour is what lies between them, or all of it, for each
	// application in milliseconds per hour.
	RestCPUSeconds     float64 `json:"restCPUSecondsPerHour,omitempty"`
	RestCPUSecondsNone float64 `json:"restCPUSecondsPerHourWithoutApplications,omitempty"`
	RestCPUMsPerHour   float64 `json:"restCPUMsPerApplicationAndHour,omitempty"`
	// Held is what each application adds to the memory of processes that is not pages of files, in KiB, between the hold
	// without applications and the one with all.
	Held map[string]float64 `json:"heldKiBPerApplication,omitempty"`

	FloorPerSecond   float64        `json:"floorPerSecond,omitempty"`
	FloorConcurrency int            `json:"floorConcurrency,omitempty"`
	FloorSamples     []floor.Sample `json:"floorSamples,omitempty"`
	// Ratio is the floor's pace over that of the deployment.
	Ratio float64 `json:"ratioToFloor,omitempty"`

	// TakeoverSeconds is from the end of one of several managers until all applications, which are changed at that moment,
	// run as they were changed.
	TakeoverSeconds float64 `json:"takeoverSeconds,omitempty"`
	// UnreachableRatio is how long applications took in the median while another cluster was unreachable, to how long they
	// took while it was there: the median of several rounds. RecoverySeconds is the longest from the moment that it was back until
	// its own applications ran. FarRatio is the pace with clusters near to that with clusters far away.
	UnreachableRatio float64 `json:"unreachableRatio,omitempty"`
	// UnreachableRatios are those of the rounds.
	UnreachableRatios []float64 `json:"unreachableRatios,omitempty"`
	RecoverySeconds   float64   `json:"recoverySeconds,omitempty"`
	FarRatio          float64   `json:"farRatio,omitempty"`
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
	TotalMs  analyse.Percentiles `json:"totalMs"`
	ReportMs analyse.Percentiles `json:"reportMs"`

	// Writes of the manager, heartbeats left out.
	analyse.Writes
	WritesEach float64 `json:"writesPerApplication"`

	rig.Used
	// ManagerCPUMs and ManagerKiB are the manager's CPU time, and what its memory grew by, per application.
	ManagerCPUMs float64 `json:"managerCPUMsPerApplication"`
	ManagerKiB   float64 `json:"managerKiBPerApplication"`
	// LiveMiB is what was alive in the manager's heap after the phase; only with a profile, which has it collected first.
	LiveMiB float64 `json:"managerLiveMiB,omitempty"`

	// Asked and Ran are when the client asked, and when applications ran, of phases that wait for that.
	Asked *analyse.Curve `json:"asked,omitempty"`
	Ran   *analyse.Curve `json:"ran,omitempty"`

	began time.Time
}

// Title names the run.
func (r *Run) Title() string {
	if r.Repeat > 1 {
		return fmt.Sprintf("%s #%d", r.Scenario, r.Repeat)
	}
	return r.Scenario
}

// deployment is the first phase in which applications were deployed.
func (r *Run) deployment() *Phase {
	for i := range r.Phases {
		if r.Phases[i].Ran != nil {
			return &r.Phases[i]
		}
	}
	return nil
}

// line is what came of it.
func (p *Phase) line(applications int) string {
	s := fmt.Sprintf("%d of %d applications in %.1fs, %.1f/s, %.2f writes and %.2fms CPU each, manager %.0f MiB",
		p.Done, applications, p.Seconds, p.PerSecond, p.WritesEach, p.ManagerCPUMs, p.PeakMiB["manager"])
	if p.LiveMiB > 0 {
		s += fmt.Sprintf(" (%.1f MiB of its heap alive)", p.LiveMiB)
	}
	return s
}

// Line is what came of it.
func (r *Run) Line() string {
	s := fmt.Sprintf("%d applications", r.Applications)
	if p := r.deployment(); p != nil {
		s = p.line(r.Applications)
	}
	if r.FloorPerSecond > 0 {
		s += fmt.Sprintf(", %.2f x floor (%.1f/s)", r.Ratio, r.FloorPerSecond)
	}
	return s
}

// Table writes the runs for a terminal, those that were not measured to their end as far as they are.
func (r *Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tPHASE\tDONE\tTIME\tPER S\tTOTAL P50\tP99\tREPORT P50\tP99\tWRITES\tCPU\tRSS\tANON\tPEAK\tFLOOR\tRATIO\tVIOL")
	for _, run := range r.Runs {
		for j := range run.Phases {
			p := &run.Phases[j]
			floor, ratio := "-", "-"
			if p == run.deployment() && run.FloorPerSecond > 0 {
				floor, ratio = fmt.Sprintf("%.1f/s", run.FloorPerSecond), fmt.Sprintf("%.2f", run.Ratio)
			}
			done, pace, times := "-", "-", "-\t-\t-\t-"
			if p.Done > 0 {
				done, pace = fmt.Sprintf("%d/%d", p.Done, run.Applications), fmt.Sprintf("%.1f", p.PerSecond)
			}
			if p.Ran != nil {
				times = strings.Join([]string{series.Ms(p.TotalMs.P50), series.Ms(p.TotalMs.P99), series.Ms(p.ReportMs.P50), series.Ms(p.ReportMs.P99)}, "\t")
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%.1fs\t%s\t%s\t%.2f\t%.2fms\t%.0fMi\t%.0fMi\t%.0fMi\t%s\t%s\t%d\n", run.Title(), p.Name, done, p.Seconds, pace, times, p.WritesEach, p.ManagerCPUMs,
				p.RSSMiB["manager"], p.AnonMiB["manager"], p.PeakMiB["manager"], floor, ratio, len(run.Violations))
		}
		if run.RestCPUSeconds > 0 {
			of := "all that the manager does at rest included"
			if run.RestCPUSecondsNone > 0 {
				of = fmt.Sprintf("beside the %.1f s that the manager takes without any", run.RestCPUSecondsNone)
			}
			fmt.Fprintf(t, "%s\tCPU at rest in an hour: %.3f ms for each application, %s\n", run.Title(), run.RestCPUMsPerHour, of)
		}
		if len(run.Held) > 0 {
			fmt.Fprintf(t, "%s\tmemory held: %s\n%s\t%d applications would take: %s\n", run.Title(), run.HeldEach(), run.Title(), extrapolated, run.HeldByMany())
		}
	}
	for _, run := range r.Runs {
		for _, figure := range []struct {
			value       float64
			what, after string
		}{
			{run.TakeoverSeconds, "from the end of a manager until all that was changed then ran:", " s"},
			{run.UnreachableRatio, "one cluster unreachable, median time elsewhere:", " x"},
			{run.RecoverySeconds, "applications of the cluster that was back ran after", " s"},
			{run.FarRatio, "pace near to pace far away:", " x"},
		} {
			if figure.value > 0 {
				fmt.Fprintf(t, "%s\t%s %.2f%s\n", run.Title(), figure.what, figure.value, figure.after)
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.WriteFaults(w)
}

// extrapolated is how many applications HeldByMany is about.
const extrapolated = 100_000

// HeldEach says what an application adds to the memory of each process.
func (r *Run) HeldEach() string {
	return r.held(func(kib float64) string { return fmt.Sprintf("%.1f KiB", kib) })
}

// HeldByMany says what many would add, if each added as much as these do, and what CPU time they would take at rest.
func (r *Run) HeldByMany() string {
	return r.held(func(kib float64) string { return fmt.Sprintf("%.1f GiB", kib*extrapolated/(1<<20)) }) +
		fmt.Sprintf("; %.1f s of the manager's CPU in an hour", r.RestCPUSecondsNone+r.RestCPUMsPerHour*extrapolated/1e3)
}

func (r *Run) held(amount func(kib float64) string) string {
	var parts []string
	for _, process := range slices.Sorted(maps.Keys(r.Held)) {
		parts = append(parts, process+" "+amount(r.Held[process]))
	}
	return strings.Join(parts, ", ")
}

//go:embed page.html
var page string

// HTML writes the report as one page that needs nothing else.
func (r *Report) HTML(w io.Writer) error {
	return r.Page(w, series.Page{Title: "Lockstep applications benchmark", Body: page, Data: r})
}

// Charts show the applications over time, one for each phase that waits for them to run.
func (r *Run) Charts() map[string]series.Chart {
	out := map[string]series.Chart{}
	for _, p := range r.Phases {
		if p.Ran != nil {
			out[p.Name] = series.Chart{Seconds: p.Seconds, Count: r.Applications, Curves: []series.Curve{{Name: "asked for", Curve: *p.Asked}, {Name: "running", Curve: *p.Ran}}}
		}
	}
	return out
}
