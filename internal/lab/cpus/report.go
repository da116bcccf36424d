package cpus

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"html/template"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Report is one invocation.
type Report struct {
	SchemaVersion string                  `json:"schemaVersion"`
	Version       string                  `json:"lockstepVersion"`
	Time          time.Time               `json:"time"`
	Config        map[string]any          `json:"config"`
	Machine       topologyv1alpha1.Counts `json:"machine"`
	Plan          Plan                    `json:"plan"`
	Runs          []Run                   `json:"runs"`
}

// Run is one mode.
type Run struct {
	Mode   Mode   `json:"mode"`
	Repeat int    `json:"repeat"`
	Error  string `json:"error,omitempty"`
	// Web is the server under load, Pi the sum of the computations.
	Web Result `json:"web"`
	Pi  Result `json:"pi"`
	// Pods says where each was to run and where it ran.
	Pods       []Placed `json:"pods"`
	Checked    int      `json:"checked"`
	Violations []string `json:"violations"`
}

// Placed is a pod with the CPUs that it was given (empty: none) and those that the kernel allowed it.
type Placed struct {
	Name    string `json:"name"`
	Given   string `json:"given,omitempty"`
	Allowed string `json:"allowed"`
}

// Summary is a mode's median over its runs, and its ratio to unpinned.
type Summary struct {
	Mode                        Mode
	Runs                        int
	Web, P50, P99, Pi           float64
	WebRatio, P99Ratio, PiRatio float64
}

// Headline says in a sentence what the report can show.
func (r *Report) Headline() string {
	if r.Plan.Small {
		return "This machine cannot show a difference: " + r.Plan.Why + ". What is verified is that pods run where they were to."
	}
	return fmt.Sprintf("%d CPUs in %d L3 domains: a web server on %d CPUs beside %d computations of pi on %d each.",
		r.Machine.CPUs, r.Machine.L3, r.Plan.Server, r.Plan.PiPods, r.Plan.Pi)
}

// Summaries are the modes that were measured.
func (r *Report) Summaries() []Summary {
	var out []Summary
	for _, m := range modes {
		var web, p50, p99, pi []float64
		for _, run := range r.Runs {
			if run.Mode == m && run.Error == "" {
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

// Faults says why a caller should look: nil if there is nothing wrong.
func (r *Report) Faults() error {
	var errs []error
	for _, run := range r.Runs {
		switch {
		case run.Error != "":
			errs = append(errs, fmt.Errorf("%s: not measured: %s", run.title(), run.Error))
		case len(run.Violations) > 0:
			errs = append(errs, fmt.Errorf("%s: %d violations", run.title(), len(run.Violations)))
		}
	}
	return errors.Join(errs...)
}

func (r *Run) title() string {
	if r.Repeat > 1 {
		return fmt.Sprintf("%s #%d", r.Mode, r.Repeat)
	}
	return string(r.Mode)
}

func (r *Run) line() string {
	if r.Error != "" {
		return r.title() + ": not measured: " + r.Error
	}
	return fmt.Sprintf("%s: web %.0f/s, p99 %.1f ms; pi %.1f/s; %d checks, %d violations", r.title(), r.Web.PerSecond, r.Web.P99Ms, r.Pi.PerSecond, r.Checked, len(r.Violations))
}

// Table writes the report for a terminal.
func (r *Report) Table(w io.Writer) error {
	fmt.Fprintln(w, r.Headline())
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MODE\tRUNS\tWEB\tP50\tP99\tPI\tWEB RATIO\tP99 RATIO\tPI RATIO")
	for _, s := range r.Summaries() {
		fmt.Fprintf(t, "%s\t%d\t%.0f/s\t%.2fms\t%.2fms\t%.1f/s\t%s\t%s\t%s\n", s.Mode, s.Runs, s.Web, s.P50, s.P99, s.Pi, times(s.WebRatio), times(s.P99Ratio), times(s.PiRatio))
	}
	fmt.Fprintln(t)
	fmt.Fprintln(t, "RUN\tPOD\tGIVEN\tALLOWED")
	for i := range r.Runs {
		for _, p := range r.Runs[i].Pods {
			given := p.Given
			if given == "" {
				given = "-"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Runs[i].title(), p.Name, given, p.Allowed)
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			fmt.Fprintf(w, "%s: %s\n", run.title(), run.Error)
		}
		for _, v := range run.Violations {
			fmt.Fprintf(w, "%s: %s\n", run.title(), v)
		}
	}
	return nil
}

func times(x float64) string {
	if x == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", x)
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
		"title": func(r Run) string { return r.title() }, "times": times, "config": func(v any) string { return fmt.Sprint(v) },
		// bar is the height of a ratio in a chart where 2 is full.
		"bar": func(x float64) float64 { return min(100, 50*x) },
	}).Parse(page)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	return t.Execute(w, r)
}
