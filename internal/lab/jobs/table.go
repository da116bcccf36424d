package jobs

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"

	"lockstep.dev/lockstep/internal/lab/series"
)

// column is one column of the table. Figures are right-aligned.
type column struct {
	title string
	right bool
	value func(*Run) string
}

var columns = []column{
	{"SYSTEM", false, (*Run).name},
	{"SHAPE", false, func(r *Run) string { return r.Shape }},
	{"GANG", false, func(r *Run) string { return yes(r.Gang) }},
	{"PODS", true, (*Run).pods},
	{"CREATE", true, func(r *Run) string { return seconds(r.CreateSeconds) }},
	{"SCHEDULE", true, func(r *Run) string { return seconds(r.ScheduleSeconds) }},
	{"PODS/S", true, (*Run).rate},
	{"FLOOR", true, func(r *Run) string { return optional(r.FloorSeconds, seconds) }},
	{"RATIO", true, func(r *Run) string {
		if r.Floor != nil && r.Floor.None != "" {
			return "none"
		}
		return optional(r.RatioToFloor, ratio)
	}},
	{"W/POD", true, (*Run).writesPerPod},
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
func (r *Report) Table(w io.Writer, wide bool) error {
	cols := columns
	if wide {
		cols = slices.Concat(columns, wideColumns)
	}
	rows := [][]string{make([]string, len(cols))}
	widths := make([]int, len(cols))
	for i, c := range cols {
		rows[0][i] = c.title
	}
	for _, run := range r.Runs {
		row := make([]string, len(cols))
		for k, c := range cols {
			row[k] = "-"
			if run.Error == "" && run.Lost == "" && run.Rate == nil || k < 4 {
				row[k] = c.value(run)
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
	for _, run := range r.Runs {
		if run.Error != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", run.Title(), run.Error)
		}
		if run.Rate != nil {
			fmt.Fprintf(&b, "\n%s: %s\n", run.Title(), run.Line())
		}
		for _, note := range run.Notes(r.Machine.CPUs) {
			fmt.Fprintf(&b, "\n%s: %s\n", run.Title(), note)
		}
		if run.Floor != nil && run.Floor.None != "" {
			fmt.Fprintf(&b, "\n%s: %s\n", run.Title(), run.Floor.None)
		}
		if len(run.Invariants.Violations) > 0 {
			fmt.Fprintf(&b, "\n%s: violations\n", run.Title())
			for _, v := range run.Invariants.Violations {
				fmt.Fprintf(&b, "  %s\n", v)
			}
		}
	}
	for i, c := range r.clients() {
		if i == 0 {
			fmt.Fprintln(&b, "\nclient limits")
		}
		fmt.Fprintf(&b, "  %s: %s: QPS %s, burst %s\n", c.System, c.Name, c.QPS, c.Burst)
	}
	if r.Tune != nil {
		r.writeTune(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// clients returns the client limits of all systems in the report.
func (r *Report) clients() (out []series.ClientOf) {
	for _, run := range r.Runs {
		out = series.ClientsOf(out, run.System, run.Clients)
	}
	return out
}

// pods returns the number of scheduled pods, with the total if some are missing.
func (r *Run) pods() string {
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
	if s < 10 {
		return fmt.Sprintf("%.2fs", s)
	}
	return fmt.Sprintf("%.1fs", s)
}

func ratio(x float64) string { return fmt.Sprintf("%.2f", x) }

func (r *Run) rate() string {
	if r.ScheduleSeconds == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", float64(r.Scheduled)/r.ScheduleSeconds)
}

func (r *Run) writesPerPod() string {
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
