package cpus

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/lab/series"
)

// Report is the report of one invocation.
type Report struct {
	series.Report[*Run]
	Machine topologyv1alpha1.Counts `json:"machine"`
	Plan    Plan                    `json:"plan"`
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
		r.Machine.CPUs, r.Machine.L3, r.Plan.Server, r.Plan.PiPods, r.Plan.Pi)
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
	for _, row := range append([][]string{ProgramColumns}, r.ProgramRows()...) {
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

//go:embed page.html
var page string

// HTML writes the report as one self-contained page.
func (r *Report) HTML(w io.Writer) error {
	return r.Page(w, series.Page{Title: "CPU topology: unpinned, pinned, static-burst", Body: page, Data: r, Funcs: template.FuncMap{
		"times": times, "columns": func() []string { return ProgramColumns },
		// bar is the height of a ratio in a chart where 2 is full.
		"bar": func(x float64) float64 { return min(100, 50*x) },
	}})
}
