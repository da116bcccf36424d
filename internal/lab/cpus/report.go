package cpus

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/series"
)

// Report is the report of one invocation.
type Report struct {
	series.Report[*Run]
	// Topology counts the CPUs, cores and caches of the node.
	Topology topologyv1alpha1.Counts `json:"topology"`
	Plan     Plan                    `json:"plan"`
}

// Run is the result of one mode.
type Run struct {
	Mode   Mode `json:"mode"`
	Repeat int  `json:"repeat"`
	series.Verdict
	// Web is the server under load; Pi is the sum of the computations.
	Web Result `json:"web"`
	Pi  Result `json:"pi"`
	// Programs are the results of the plan's programs.
	Programs []Ran `json:"programs,omitempty"`
	// Pods lists the assigned and the allowed CPUs of each pod.
	Pods []Placed `json:"pods"`
}

// Placed is a pod with the CPUs assigned to it, empty if none, and the CPUs that the kernel allowed
// it. Both are lists such as 0-3,8.
type Placed struct {
	Name    string `json:"name"`
	Given   string `json:"given,omitempty"`
	Allowed string `json:"allowed"`
}

// Summary has the medians of a mode over its runs, and their ratios to unpinned.
type Summary struct {
	Mode                        Mode
	Runs                        int
	Web, P50, P99, Pi           float64
	WebRatio, P99Ratio, PiRatio float64
}

// Headline returns a sentence that says what the report can show.
func (r *Report) Headline() string {
	if r.Plan.Small {
		return "This machine cannot show a difference: " + r.Plan.Why + ". What is verified is that pods run where they were to. To show one, it would need " + r.lacks() + "."
	}
	return fmt.Sprintf("%d CPUs in %d L3 domains: a web server on %d CPUs beside %d computations of pi on %d each.",
		r.Topology.CPUs, r.Topology.L3, r.Plan.Server, r.Plan.PiPods, r.Plan.Pi)
}

// Summaries returns the summaries of the measured modes.
func (r *Report) Summaries() []Summary {
	var out []Summary
	for _, m := range modes {
		var web, p50, p99, pi []float64
		for _, run := range r.Measured() {
			if run.Mode == m {
				web, p50, p99, pi = append(web, run.Web.PerSecond), append(p50, run.Web.P50Ms), append(p99, run.Web.P99Ms), append(pi, run.Pi.PerSecond)
			}
		}
		if len(web) == 0 {
			continue
		}
		s := Summary{Mode: m, Runs: len(web), Web: median(web), P50: median(p50), P99: median(p99), Pi: median(pi)}
		if len(out) > 0 && out[0].Mode == Unpinned {
			base := out[0]
			s.WebRatio, s.P99Ratio, s.PiRatio = ratio(s.Web, base.Web), ratio(s.P99, base.P99), ratio(s.Pi, base.Pi)
		}
		out = append(out, s)
	}
	return out
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}

func median(xs []float64) float64 {
	slices.Sort(xs)
	return (xs[(len(xs)-1)/2] + xs[len(xs)/2]) / 2
}

// Title returns the name of the run.
func (r *Run) Title() string {
	if r.Repeat > 1 {
		return fmt.Sprintf("%s #%d", r.Mode, r.Repeat)
	}
	return string(r.Mode)
}

// Repeated implements series.Run.
func (r *Run) Repeated() *int { return &r.Repeat }

// Line returns the results of the run in one line.
func (r *Run) Line() string {
	return fmt.Sprintf("web %.0f/s, p99 %.1f ms; pi %.1f/s; %d programs; %d checks", r.Web.PerSecond, r.Web.P99Ms, r.Pi.PerSecond, len(r.Programs), r.Checked)
}

// Table writes the report as a table for a terminal.
func (r *Report) Table(w io.Writer, _ bool) error {
	fmt.Fprintln(w, r.Headline())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MODE\tRUNS\tWEB\tP50\tP99\tPI\tWEB RATIO\tP99 RATIO\tPI RATIO")
	for _, s := range r.Summaries() {
		fmt.Fprintf(t, "%s\t%d\t%.0f/s\t%.2fms\t%.2fms\t%.1f/s\t%s\t%s\t%s\n", s.Mode, s.Runs, s.Web, s.P50, s.P99, s.Pi, times(s.WebRatio), times(s.P99Ratio), times(s.PiRatio))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, strings.ToUpper(strings.Join(ProgramColumns, "\t")))
	for _, row := range r.ProgramRows() {
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "RUN\tPOD\tGIVEN\tALLOWED")
	for _, run := range r.Runs {
		for _, p := range run.Pods {
			given := p.Given
			if given == "" {
				given = "-"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", run.Title(), p.Name, given, p.Allowed)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.WriteFaults(w)
}

func times(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", x)
}

// figure is the cell of a figure, which may be missing.
func figure(text string) page.Cell {
	if text == "-" {
		return page.Text("–")
	}
	return page.Text(text)
}

// Page returns the report's page.
func (r *Report) Page() page.Page {
	p := r.Report.Page("CPU topology")
	p.Verdict = r.verdict()
	note := "Medians over the runs of a mode. Modes take turns, so that a machine that slows down slows all of them."
	if r.Plan.Small {
		note = "Medians over the runs of a mode. The differences are noise."
		p.Warnings = append([]string{r.Headline()}, p.Warnings...)
	}
	t := page.Table{Columns: []page.Column{{Title: "Mode", Key: true}, {Title: "Runs", Right: true},
		{Title: "Web requests", Right: true, Help: "requests that the web server answered in a second"},
		{Title: "Times as fast", Right: true, Help: "web requests compared with unpinned"}, {Title: "p50", Right: true}, {Title: "p99", Right: true},
		{Title: "p99 to unpinned", Right: true}, {Title: "Computations of pi", Right: true}, {Title: "Pi to unpinned", Right: true}}}
	for _, s := range r.Summaries() {
		web := page.Cell{Text: fmt.Sprintf("%.0f/s", s.Web), Tone: page.Strong}
		t.Rows = append(t.Rows, []page.Cell{page.Text(string(s.Mode)), page.Text(fmt.Sprint(s.Runs)), web, figure(times(s.WebRatio)), page.Textf("%.2f ms", s.P50),
			page.Textf("%.2f ms", s.P99), figure(times(s.P99Ratio)), page.Textf("%.1f/s", s.Pi), figure(times(s.PiRatio))})
	}
	pods := page.Table{Columns: []page.Column{{Title: "Run", Key: true}, {Title: "Pod", Key: true}, {Title: "CPUs given"}, {Title: "CPUs allowed by the kernel"}}}
	for _, run := range r.Runs {
		for _, placed := range run.Pods {
			pods.Rows = append(pods.Rows, []page.Cell{page.Text(run.Title()), page.Text(placed.Name), page.Text(cmp.Or(placed.Given, "–")), page.Text(placed.Allowed)})
		}
	}
	programs := page.Table{}
	for i, title := range ProgramColumns {
		programs.Columns = append(programs.Columns, page.Column{Title: title, Key: i < 2, Right: i >= 2})
	}
	for _, row := range r.ProgramRows() {
		var cells []page.Cell
		for _, text := range row {
			cells = append(cells, figure(text))
		}
		programs.Rows = append(programs.Rows, cells)
	}
	p.Sections = append(p.Sections, page.Section{Title: "Results", Note: note, Tables: []page.Table{t}},
		page.Section{Title: "Programs", Tables: []page.Table{programs}, Note: "Latencies are of a step: 4,096 dependent loads, 64 operations on a hash " +
			"table, 1,024 changes of shared lines, 1.5 MB of a stream. LLC misses and remote loads are for each unit of the rate; – means that the " +
			"processor's counters cannot be read."},
		page.Section{Title: "Where the pods ran", Tables: []page.Table{pods}})
	return p
}

// verdict says in one sentence what pinning changed.
func (r *Report) verdict() string {
	var parts []string
	if r.Plan.Small {
		parts = append(parts, "this machine cannot show a difference")
	} else {
		for _, s := range r.Summaries() {
			if s.WebRatio > 0 {
				parts = append(parts, fmt.Sprintf("%s: %s times the web requests of unpinned, %s times the p99", s.Mode, times(s.WebRatio), times(s.P99Ratio)))
			}
		}
	}
	return strings.Join(append(parts, r.Troubles("all pods ran where they were to")), "; ")
}
