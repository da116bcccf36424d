package report

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// column is one column of the table. Figures are right-aligned.
type column struct {
	title string
	right bool
	value func(*Run) string
}

var columns = []column{
	{"SYSTEM", false, name},
	{"SHAPE", false, func(r *Run) string { return r.Shape }},
	{"GANG", false, func(r *Run) string { return yes(r.Gang) }},
	{"PODS", true, pods},
	{"CREATE", true, func(r *Run) string { return seconds(r.CreateSeconds) }},
	{"SCHEDULE", true, func(r *Run) string { return seconds(r.ScheduleSeconds) }},
	{"PODS/S", true, func(r *Run) string { return rate(r) }},
	{"FLOOR", true, func(r *Run) string { return optional(r.FloorSeconds, seconds) }},
	{"RATIO", true, func(r *Run) string { return optional(r.RatioToFloor, ratio) }},
	{"W/POD", true, func(r *Run) string { return writesPerPod(r) }},
	{"STALLS", true, func(r *Run) string { return fmt.Sprint(r.Stalls.Count) }},
	{"VIOL", true, func(r *Run) string { return fmt.Sprint(len(r.Invariants.Violations)) }},
}

var wideColumns = []column{
	{"P50", true, func(r *Run) string { return seconds(r.LatencyMs.P50 / 1e3) }},
	{"P99", true, func(r *Run) string { return seconds(r.LatencyMs.P99 / 1e3) }},
	{"GAP", true, func(r *Run) string { return seconds(r.Stalls.LongestSeconds) }},
	{"FLOOR-AT", true, func(r *Run) string {
		if r.Floor == nil {
			return "-"
		}
		return fmt.Sprint(r.Floor.Concurrency)
	}},
	{"CPU:API", true, cpu("apiserver")}, {"CPU:ETCD", true, cpu("etcd")}, {"CPU:MGR", true, cpu("manager")},
	{"CPU:KCM", true, cpu("controllerManager")}, {"CPU:SCHED", true, cpu("scheduler")},
	{"RSS:API", true, rss("apiserver")}, {"RSS:MGR", true, rss("manager")},
}

// Table writes the runs as a table for a terminal, within 100 columns unless wide is true.
func Table(w io.Writer, r *Report, wide bool) error {
	cols := columns
	if wide {
		cols = append(append([]column{}, columns...), wideColumns...)
	}
	rows := [][]string{make([]string, len(cols))}
	widths := make([]int, len(cols))
	for i, c := range cols {
		rows[0][i] = c.title
	}
	for i := range r.Runs {
		row := make([]string, len(cols))
		for k, c := range cols {
			row[k] = "-"
			if r.Runs[i].Error == "" || k < 4 {
				row[k] = c.value(&r.Runs[i])
			}
		}
		rows = append(rows, row)
	}
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell))
			if cols[i].right {
				line += pad + cell
			} else {
				line += cell + pad
			}
			line += "  "
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	for i := range r.Runs {
		run := &r.Runs[i]
		if run.Error != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", Title(run), run.Error)
		}
		if len(run.Invariants.Violations) > 0 {
			fmt.Fprintf(&b, "\n%s: violations\n", Title(run))
			for _, v := range run.Invariants.Violations {
				fmt.Fprintf(&b, "  %s\n", v)
			}
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Line returns a run in one line.
func Line(r *Run) string {
	if r.Error != "" {
		return fmt.Sprintf("%s: not measured: %s", Title(r), r.Error)
	}
	s := fmt.Sprintf("%s: %s pods in %s (%s/s)", Title(r), pods(r), seconds(r.ScheduleSeconds), rate(r))
	if r.RatioToFloor != nil {
		s += fmt.Sprintf(", %s x floor (%s)", ratio(*r.RatioToFloor), seconds(*r.FloorSeconds))
	}
	if r.Writes != nil {
		s += fmt.Sprintf(", %s writes/pod", writesPerPod(r))
	}
	return s + ", " + count(len(r.Invariants.Violations), "violation")
}

// Title returns the name of a run among others.
func Title(r *Run) string {
	s := name(r) + " " + r.Shape
	if r.Gang {
		s += " gang"
	}
	return s
}

// name returns the system with the settings that distinguish the run.
func name(r *Run) string {
	s := r.System
	if n, ok := r.Settings["kube-controller-manager concurrent job syncs"]; ok && n != "5" {
		s += " syncs=" + n
	}
	if n, ok := r.Settings["manager writes in flight"]; ok && n != "adaptive" {
		s += " w=" + n
	}
	if r.Repeat > 1 {
		s += fmt.Sprintf(" #%d", r.Repeat)
	}
	return s
}

// pods returns the number of scheduled pods, with the total if some are missing.
func pods(r *Run) string {
	if r.Scheduled == r.Pods {
		return fmt.Sprint(r.Pods)
	}
	return fmt.Sprintf("%d/%d", r.Scheduled, r.Pods)
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func seconds(s float64) string {
	switch {
	case s < 10:
		return fmt.Sprintf("%.2fs", s)
	default:
		return fmt.Sprintf("%.1fs", s)
	}
}

func ratio(x float64) string { return fmt.Sprintf("%.2f", x) }

func rate(r *Run) string {
	if r.ScheduleSeconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(r.Scheduled)/r.ScheduleSeconds)
}

func writesPerPod(r *Run) string {
	if r.Writes == nil {
		return "-"
	}
	return fmt.Sprintf("%.2f", r.WritesPerPod)
}

func optional(x *float64, format func(float64) string) string {
	if x == nil {
		return "-"
	}
	return format(*x)
}

func cpu(component string) func(*Run) string {
	return func(r *Run) string {
		if s, ok := r.CPUSeconds[component]; ok {
			return fmt.Sprintf("%.1fs", s)
		}
		return "-"
	}
}

func rss(component string) func(*Run) string {
	return func(r *Run) string {
		if m, ok := r.PeakRSSMiB[component]; ok {
			return fmt.Sprintf("%.0fMi", m)
		}
		return "-"
	}
}
