package jobs

import (
	"cmp"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"maps"
	"slices"
	"strings"

	"lockstep.dev/lockstep/internal/lab/series"
)

//go:embed assets/page.html
var pageSource string

//go:embed assets/page.css
var pageCSS string

//go:embed assets/page.js
var pageJS string

//go:embed assets/uPlot.iife.min.js
var uPlotJS string

//go:embed assets/uPlot.min.css
var uPlotCSS string

//go:embed assets/uPlot.LICENSE
var uPlotLicense string

// page is the data of the template.
type page struct {
	Report  *Report
	Groups  []group
	Clients []clientOf
	// Notes are sentences about single runs that the reader of any figure has to know.
	Notes    []string
	Headline string
	Good     bool
	CSS      template.CSS
	JS       []template.JS
	Licence  string
}

// group holds all runs of one shape, which share a chart.
type group struct {
	Shape, What string
	Runs        []*Run
	// Bars compare the times until all pods were scheduled.
	Bars []bar
}

type bar struct {
	Label, Value, Note string
	// Width is the time of the run and Mark that of its floor, in percent of the group's longest.
	Width, Mark float64
	// Color is the index of the run's colour.
	Color int
	Bad   bool
}

// HTML writes the report as one self-contained page.
func (r *Report) HTML(w io.Writer) error {
	t, err := template.New("page").Funcs(template.FuncMap{
		"seconds": seconds, "ratio": ratio, "optional": func(x *float64, f string) string {
			if f == "ratio" {
				return optional(x, ratio)
			}
			return optional(x, seconds)
		},
		"rate": (*Run).rate, "name": (*Run).name, "yes": yes, "writesPerPod": (*Run).writesPerPod, "thousands": thousands,
		"ms": func(x float64) string { return seconds(x / 1e3) }, "color": colorClass,
		"usage": usageRows, "value": series.Value,
	}).Parse(pageSource)
	if err != nil {
		return fmt.Errorf("report page: %w", err)
	}
	p := page{Report: r, CSS: template.CSS(uPlotCSS + pageCSS), JS: []template.JS{template.JS(uPlotJS), template.JS(pageJS)},
		Licence: uPlotLicense}
	for _, shape := range shapes(r) {
		p.Groups = append(p.Groups, newGroup(r, shape))
	}
	runs, failed, violations := r.faults()
	pods := 0
	for _, run := range r.Runs {
		pods += run.Scheduled
	}
	p.Clients = r.clients()
	for _, run := range r.Runs {
		for _, note := range []string{run.TimedOut, run.busy(r.Machine.CPUs)} {
			if note != "" {
				p.Notes = append(p.Notes, run.Title()+": "+note)
			}
		}
	}
	p.Good = runs+failed+violations == 0
	p.Headline = fmt.Sprintf("%s, %s pods scheduled, %s failed, %s", count(len(r.Runs), "run"), thousands(pods),
		thousands(failed), count(violations, "invariant violation"))
	if runs > 0 {
		p.Headline += fmt.Sprintf(", %s without a result", count(runs, "run"))
	}
	return t.Execute(w, p)
}

func shapes(r *Report) []string {
	var out []string
	for _, run := range r.Runs {
		if !slices.Contains(out, run.Shape) {
			out = append(out, run.Shape)
		}
	}
	return out
}

func newGroup(r *Report, shape string) group {
	g := group{Shape: shape}
	widest := 0.0
	for _, run := range r.Runs {
		if run.Shape != shape {
			continue
		}
		g.Runs = append(g.Runs, run)
		widest = max(widest, run.ScheduleSeconds)
		if run.FloorSeconds != nil {
			widest = max(widest, *run.FloorSeconds)
		}
	}
	if jobs, pods, ok := strings.Cut(shape, "x"); ok {
		g.What = fmt.Sprintf("%s of %s", plural(jobs, "job"), plural(pods, "pod"))
	}
	for i, run := range g.Runs {
		b := bar{Label: label(run), Value: seconds(run.ScheduleSeconds), Color: i, Bad: run.Error != "" || run.Scheduled < run.Pods}
		if widest > 0 {
			b.Width = 100 * run.ScheduleSeconds / widest
			if run.FloorSeconds != nil {
				b.Mark = 100 * *run.FloorSeconds / widest
				b.Note = ratio(*run.RatioToFloor) + "× floor"
			}
		}
		g.Bars = append(g.Bars, b)
	}
	return g
}

// label returns the name of a run among the runs of its shape.
func label(r *Run) string {
	s := r.name()
	if r.Gang {
		s += ", gang"
	}
	return s
}

// colors is the number of colours for runs; further runs repeat them.
const colors = 8

func colorClass(i int) string { return fmt.Sprintf("c%d", i%colors) }

func plural(n, noun string) string {
	if n == "1" {
		return n + " " + noun
	}
	return group3(n) + " " + noun + "s"
}

func count(n int, noun string) string { return plural(fmt.Sprint(n), noun) }

func thousands(n int) string { return group3(fmt.Sprint(n)) }

// group3 separates thousands by commas.
func group3(digits string) string {
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

var componentTitles = map[string]string{
	"apiserver": "kube-apiserver", "etcd": "etcd", "manager": "lockstep manager", "controllerManager": "kube-controller-manager",
	"scheduler": "kube-scheduler", "nodes": "simulated nodes", "client": "benchmark client",
}

// usageRow has the CPU time and memory of one component, with bars in percent of the run's largest.
// Floor is the component's CPU time for the floor; it is empty if no floor was measured.
type usageRow struct {
	Component          string
	CPU, Floor, Memory string
	CPUBar, MemoryBar  float64
}

func usageRows(r *Run) []usageRow {
	var cpuMax, rssMax float64
	for _, v := range r.CPUSeconds {
		cpuMax = max(cpuMax, v)
	}
	for _, v := range r.PeakRSSMiB {
		rssMax = max(rssMax, v)
	}
	var rows []usageRow
	keys := []string{"apiserver", "etcd", "manager", "controllerManager", "scheduler", "nodes", "client"}
	for _, key := range slices.Sorted(maps.Keys(r.CPUSeconds)) {
		if !slices.Contains(keys, key) {
			keys = append(keys, key) // a process of a system's file
		}
	}
	for _, key := range keys {
		seconds, hasCPU := r.CPUSeconds[key]
		mib, hasRSS := r.PeakRSSMiB[key]
		if !hasCPU && !hasRSS {
			continue
		}
		row := usageRow{Component: cmp.Or(componentTitles[key], key), CPU: fmt.Sprintf("%.1f s", seconds), Memory: "–"}
		if f := r.Floor; f != nil {
			row.Floor = "–" // the component did not run
			if seconds, ok := f.CPUSeconds[key]; ok && seconds > 0 {
				row.Floor = fmt.Sprintf("%.1f s", seconds)
			}
		}
		if cpuMax > 0 {
			row.CPUBar = 100 * seconds / cpuMax
		}
		if hasRSS && rssMax > 0 {
			row.Memory, row.MemoryBar = fmt.Sprintf("%.0f MiB", mib), 100*mib/rssMax
		}
		rows = append(rows, row)
	}
	return rows
}
