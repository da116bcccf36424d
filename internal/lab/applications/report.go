package applications

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
)

// Report is the report of one invocation.
type Report struct{ series.Report[*Run] }

// Run is the result of one load.
type Run struct {
	Scenario     string `json:"scenario"`
	Shape        Shape  `json:"shape"`
	Repeat       int    `json:"repeat"`
	Applications int    `json:"applications"`
	series.Verdict
	Phases []Phase `json:"phases"`
	// RestCPUSeconds is the manager's CPU time at rest with all applications, in seconds per hour;
	// RestCPUSecondsNone is the same without applications, which apps-hold measures first.
	// RestCPUMsPerHour is their difference per application, in milliseconds per hour; if
	// RestCPUSecondsNone was not measured, it is all of RestCPUSeconds per application.
	RestCPUSeconds     float64 `json:"restCPUSecondsPerHour,omitempty"`
	RestCPUSecondsNone float64 `json:"restCPUSecondsPerHourWithoutApplications,omitempty"`
	RestCPUMsPerHour   float64 `json:"restCPUMsPerApplicationAndHour,omitempty"`
	// Held is the growth of each process's anonymous memory, in KiB per application, between the
	// hold without applications and the hold with all.
	Held map[string]float64 `json:"heldKiBPerApplication,omitempty"`

	FloorPerSecond   float64        `json:"floorPerSecond,omitempty"`
	FloorConcurrency int            `json:"floorConcurrency,omitempty"`
	FloorSamples     []floor.Sample `json:"floorSamples,omitempty"`
	// Ratio is the floor's rate divided by the rate of the deployment.
	Ratio float64 `json:"ratioToFloor,omitempty"`

	// TakeoverSeconds is the time from the first change after the end of one of several managers
	// until all applications, which the client changes at that moment, run with their change.
	TakeoverSeconds float64 `json:"takeoverSeconds,omitempty"`
	// UnreachableRatio is the median time of applications while another cluster is unreachable,
	// divided by their median time while it is reachable; it is the median of several rounds.
	// RecoverySeconds is the longest time from the moment at which the cluster was reachable again
	// until its own applications ran. FarRatio is the rate with near clusters divided by the rate
	// with far ones.
	UnreachableRatio float64 `json:"unreachableRatio,omitempty"`
	// UnreachableRatios are the ratios of the rounds.
	UnreachableRatios []float64 `json:"unreachableRatios,omitempty"`
	RecoverySeconds   float64   `json:"recoverySeconds,omitempty"`
	FarRatio          float64   `json:"farRatio,omitempty"`
}

// Phase is a part of a run, from its beginning until there are no more writes.
type Phase struct {
	Name string `json:"name"`
	// Done is the number of applications that reached the goal of the phase; Seconds is the time
	// until the last one did.
	Done      int     `json:"done"`
	Seconds   float64 `json:"seconds"`
	PerSecond float64 `json:"perSecond,omitempty"`
	// TotalMs is the time from the client's request until a watch shows that the application runs; of
	// the phase drift, until the manager has repaired the object.
	// ReportMs is the time from the status of its last Deployment to the application's own status.
	TotalMs  analyse.Percentiles `json:"totalMs"`
	ReportMs analyse.Percentiles `json:"reportMs"`

	// Writes are the manager's writes, without heartbeats.
	analyse.Writes
	WritesEach float64 `json:"writesPerApplication"`

	rig.Used
	// ManagerCPUMs and ManagerKiB are the manager's CPU time and the growth of its memory, per
	// application.
	ManagerCPUMs float64 `json:"managerCPUMsPerApplication"`
	ManagerKiB   float64 `json:"managerKiBPerApplication"`
	// LiveMiB is the live heap of the manager after the phase and a garbage collection; only with
	// Config.Profile.
	LiveMiB float64 `json:"managerLiveMiB,omitempty"`

	// Asked and Ran are the curves of requests and of running applications, in phases that wait for
	// applications to run.
	Asked *analyse.Curve `json:"asked,omitempty"`
	Ran   *analyse.Curve `json:"ran,omitempty"`

	began time.Time
}

// Title returns the name of the run.
func (r *Run) Title() string {
	if r.Repeat > 1 {
		return fmt.Sprintf("%s #%d", r.Scenario, r.Repeat)
	}
	return r.Scenario
}

// deployment returns the first phase that deployed applications, or nil.
func (r *Run) deployment() *Phase {
	for i := range r.Phases {
		if r.Phases[i].Ran != nil {
			return &r.Phases[i]
		}
	}
	return nil
}

// line returns the results of the phase in one line.
func (p *Phase) line(applications int) string {
	s := fmt.Sprintf("%d of %d applications in %.1fs, %.1f/s, %.2f writes and %.2fms CPU each, manager %.0f MiB",
		p.Done, applications, p.Seconds, p.PerSecond, p.WritesEach, p.ManagerCPUMs, p.PeakMiB["manager"])
	if p.LiveMiB > 0 {
		s += fmt.Sprintf(" (%.1f MiB of its heap alive)", p.LiveMiB)
	}
	return s
}

// Repeated implements series.Run.
func (r *Run) Repeated() *int { return &r.Repeat }

// Line returns the results of the run in one line.
func (r *Run) Line() string {
	s := fmt.Sprintf("%d applications", r.Applications)
	if p := r.deployment(); p != nil {
		s = p.line(r.Applications)
	}
	if r.FloorPerSecond > 0 {
		s += fmt.Sprintf(", %s x floor (%.1f/s)", r.ratio(), r.FloorPerSecond)
	}
	return s
}

// Table writes the runs as a table for a terminal. An unfinished run has its finished phases.
func (r *Report) Table(w io.Writer, _ bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tPHASE\tDONE\tTIME\tPER S\tTOTAL P50\tP99\tREPORT P50\tP99\tWRITES\tCPU\tRSS\tANON\tPEAK\tFLOOR\tRATIO\tVIOL")
	for _, run := range r.Runs {
		for j := range run.Phases {
			p := &run.Phases[j]
			floor, ratio := "-", "-"
			if p == run.deployment() && run.FloorPerSecond > 0 {
				floor, ratio = fmt.Sprintf("%.1f/s", run.FloorPerSecond), run.ratio()
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
		for _, f := range run.results() {
			fmt.Fprintf(t, "%s\t%s %.2f%s\n", run.Title(), f.what, f.value, f.after)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.WriteFaults(w)
}

// extrapolated is the number of applications that HeldByMany assumes.
const extrapolated = 100_000

// HeldEach formats the memory that an application adds to each process.
func (r *Run) HeldEach() string {
	return r.held(func(kib float64) string { return fmt.Sprintf("%.1f KiB", kib) })
}

// HeldByMany formats the memory that extrapolated applications would add to each process if each
// added as much as a measured one, and the manager's CPU time at rest with them.
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

// Page returns the report's page.
func (r *Report) Page() page.Page {
	p := r.Report.Page("Applications")
	p.Verdict = r.verdict()
	t := page.Table{Columns: []page.Column{
		{Title: "Run", Key: true}, {Title: "Phase", Key: true}, {Title: "Done", Right: true, Help: "applications that reached the goal of the phase"},
		{Title: "Time", Right: true, Help: "until the last one did"}, {Title: "Per second", Right: true},
		{Title: "× floor", Right: true, Help: "the rate at which a bare client wrote the same objects, records and statuses to the same control plane, divided by the rate of the deployment"},
		{Title: "Total p50", Right: true, Help: "from the client's request until a watch shows that the application runs; in the phase drift, from a change by others until the manager has repaired it"}, {Title: "Total p99", Right: true},
		{Title: "Report p50", Right: true, Help: "from the status of an application's last Deployment to its own status"}, {Title: "Report p99", Right: true},
		{Title: "Writes each", Right: true, Help: "the manager's writes for an application, without heartbeats"},
		{Title: "Manager CPU each", Right: true}, {Title: "Memory each", Right: true, Help: "growth of the manager's memory for an application"},
	}}
	for _, run := range r.Runs {
		for i := range run.Phases {
			t.Rows = append(t.Rows, run.row(&run.Phases[i]))
		}
	}
	p.Sections = append(p.Sections, page.Section{Title: "Results", Tables: []page.Table{t}})
	for _, run := range r.Runs {
		if len(run.Phases) > 0 {
			p.Sections = append(p.Sections, run.section())
		}
	}
	return p
}

// verdict says in one sentence how fast applications were deployed and whether anything was lost.
func (r *Report) verdict() string {
	var rates, ratios []float64
	done, applications := 0, 0
	for _, run := range r.Measured() {
		if p := run.deployment(); p != nil {
			rates, done, applications = append(rates, p.PerSecond), done+p.Done, applications+run.Applications
		}
		if run.floorBounds() {
			ratios = append(ratios, run.Ratio)
		}
	}
	var parts []string
	if len(rates) > 0 {
		parts = append(parts, fmt.Sprintf("%s of %s applications ran, %s a second", page.Thousands(done), page.Thousands(applications), page.Range(rates, "%.1f")))
	}
	if len(ratios) > 0 {
		parts = append(parts, page.Range(ratios, "%.2f")+" × the floor")
	}
	for _, run := range r.Measured() {
		parts = append(parts, run.further()...)
	}
	return "Lockstep: " + strings.Join(append(parts, r.Troubles("nothing lost")), ", ")
}

// further says what came after the deployment: how fast changes were, how soon those by others were
// repaired, what rest costs, and what several managers, or several clusters, made of the load.
func (r *Run) further() (parts []string) {
	first := r.deployment()
	var rates, writes []float64
	for i := range r.Phases {
		p := &r.Phases[i]
		if strings.HasPrefix(p.Name, "update ") && p.PerSecond > 0 {
			rates, writes = append(rates, p.PerSecond), append(writes, p.WritesEach)
		}
		if p.Name == driftPhase && p.Done > 0 {
			parts = append(parts, fmt.Sprintf("99 %% of what others changed or deleted was repaired within %s", page.Ms(p.TotalMs.P99)))
		}
		if r.Scenario == ScenarioShards && strings.HasSuffix(p.Name, " managers") && p.Ran != nil && first.PerSecond > 0 {
			parts = append(parts, fmt.Sprintf("%s: %.1f a second, %s times the rate of one", p.Name, p.PerSecond, page.Factor(p.PerSecond/first.PerSecond)))
		}
	}
	if len(rates) > 0 {
		parts = append(parts, fmt.Sprintf("those that were changed ran again at %s a second with %s writes each", page.Range(rates, "%.1f"), page.Range(writes, "%.1f")))
	}
	if r.Scenario == ScenarioHold && r.RestCPUSeconds > 0 {
		parts = append(parts, fmt.Sprintf("at rest the manager takes %.1f s of CPU in an hour (%.1f s without applications)", r.RestCPUSeconds, r.RestCPUSecondsNone))
		if len(r.Held) > 0 {
			parts = append(parts, "memory held for each application: "+r.HeldEach())
		}
	}
	if r.TakeoverSeconds > 0 {
		parts = append(parts, "everything that was changed when one was killed ran within "+page.Seconds(r.TakeoverSeconds))
	}
	if r.UnreachableRatio > 0 {
		parts = append(parts, fmt.Sprintf("with one cluster cut off the others took %s times as long", page.Factor(r.UnreachableRatio)))
	}
	return parts
}

// floorBounds reports whether there is a floor that the run did not beat.
func (r *Run) floorBounds() bool { return r.FloorPerSecond > 0 && r.Ratio >= 0.995 }

// ratio formats the ratio to the floor.
func (r *Run) ratio() string {
	switch {
	case r.FloorPerSecond == 0:
		return "-"
	case !r.floorBounds():
		return "no floor"
	}
	return fmt.Sprintf("%.2f", r.Ratio)
}

// row is the row of a phase.
func (r *Run) row(p *Phase) []page.Cell {
	none := page.Text("–")
	done, took, pace, ratio := none, none, none, none
	if p.Done > 0 {
		of := r.Applications
		if p.Name == driftPhase {
			of = min(of, driftMax)
		}
		done = page.Textf("%s of %s", page.Thousands(p.Done), page.Thousands(of))
		if p.Done < of {
			done.Tone = page.Bad
		}
	}
	if p.Seconds > 0 {
		took = page.Text(page.Seconds(p.Seconds))
	}
	if p.PerSecond > 0 {
		pace = page.Cell{Text: fmt.Sprintf("%.1f", p.PerSecond), Tone: page.Strong}
	}
	if p == r.deployment() && r.FloorPerSecond > 0 {
		ratio = page.Cell{Text: r.ratio(), Tone: page.Strong}
	}
	times := []page.Cell{none, none, none, none}
	if p.Ran != nil || p.Name == driftPhase {
		times[0], times[1] = page.Text(page.Ms(p.TotalMs.P50)), page.Text(page.Ms(p.TotalMs.P99))
	}
	if p.Ran != nil {
		times[2], times[3] = page.Text(page.Ms(p.ReportMs.P50)), page.Text(page.Ms(p.ReportMs.P99))
	}
	return slices.Concat([]page.Cell{page.Text(r.Title()), page.Text(p.Name), done, took, pace, ratio}, times,
		[]page.Cell{page.Textf("%.2f", p.WritesEach), page.Textf("%.2f ms", p.ManagerCPUMs), page.Textf("%.1f KiB", p.ManagerKiB)})
}

// section has the curves and the figures of a run.
func (r *Run) section() page.Section {
	s := page.Section{Title: r.Title()}
	var figures []page.Pair
	add := func(name, format string, args ...any) {
		figures = append(figures, page.Pair{Name: name, Value: fmt.Sprintf(format, args...)})
	}
	if r.RestCPUSeconds > 0 {
		add("CPU of the manager at rest in an hour", "%.1f s", r.RestCPUSeconds)
		if r.RestCPUSecondsNone > 0 {
			add("without applications", "%.1f s", r.RestCPUSecondsNone)
		}
		add("for each application", "%.3f ms", r.RestCPUMsPerHour)
	}
	if len(r.Held) > 0 {
		add("memory held for each application", "%s", r.HeldEach())
		add(page.Thousands(extrapolated)+" applications would take", "%s", r.HeldByMany())
	}
	for _, f := range r.results() {
		add(f.what, "%.2f%s", f.value, f.after)
	}
	if r.FloorPerSecond > 0 {
		add("floor", "%.1f/s", r.FloorPerSecond)
		add("floor: applications in flight", "%d", r.FloorConcurrency)
	}
	figures = append(append(figures, series.Samples(r.FloorSamples)...), r.Checks())
	s.Details = append(s.Details, page.Detail{Title: "All figures", Tables: append([]page.Table{page.Pairs("Run", figures...)}, r.MetricTables()...), Charts: r.MetricCharts()})
	for _, p := range r.Phases {
		if p.Ran != nil && p.Asked != nil {
			asked, ran := page.Cumulative("asked for", *p.Asked), page.Cumulative("running", *p.Ran)
			asked.Style, ran.Color = page.Dashed, 1
			s.Charts = append(s.Charts, page.Chart{Title: p.Name + ": applications", Unit: " s", Lines: []page.Line{asked, ran}})
		}
		s.Details = append(s.Details, page.Detail{Title: p.Name + ": writes, CPU and memory",
			Tables: []page.Table{series.WritesTable("Writes of the manager", p.Writes), series.UsageTable(p.Used)}})
	}
	return s
}

// result is a figure that only some scenarios have.
type result struct {
	value       float64
	what, after string
}

// results returns the figures that the scenario has.
func (r *Run) results() (out []result) {
	for _, f := range []result{
		{r.TakeoverSeconds, "from the end of a manager until all that was changed then ran:", " s"},
		{r.UnreachableRatio, "one cluster unreachable, median time elsewhere:", " x"},
		{r.RecoverySeconds, "applications of the cluster that was back ran after", " s"},
		{r.FarRatio, "pace near to pace far away:", " x"},
	} {
		if f.value > 0 {
			out = append(out, f)
		}
	}
	return out
}
