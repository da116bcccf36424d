package soak

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/page"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/stats"
	"lockstep.dev/lockstep/internal/lab/system"
)

// Report is the report of one invocation.
type Report struct{ series.Report[*Run] }

// Run is the result of one system.
type Run struct {
	series.SystemRun
	// Seconds is how long the churn lasted, Jobs and Pods how many were created.
	Seconds float64 `json:"seconds"`
	Jobs    int     `json:"jobs"`
	Pods    int     `json:"pods"`
	// Growths are the trends of all lines, and Growing counts those of the system, its objects and
	// etcd that grow without bound.
	Growths []Growth `json:"growths"`
	Growing int      `json:"growing"`
	Lines   []Line   `json:"lines,omitempty"`
}

// Quantity is what a line shows.
type Quantity string

// The quantities.
const (
	Memory     Quantity = "memory"
	Goroutines Quantity = "goroutines"
	Objects    Quantity = "objects"
	Database   Quantity = "database"
	Waiting    Quantity = "waiting"
)

// limits say from which growth on a quantity grows: by more than a share and more than an amount,
// in the last two thirds of the run.
var limits = map[Quantity]struct {
	share, least       float64
	title, unit, human string
}{
	Memory:     {0.05, 4, "Memory, without pages of files", " MiB", "memory"},
	Goroutines: {0.05, 10, "Goroutines", "", "goroutines"},
	Objects:    {0.05, 20, "Objects in the cluster", "", "objects"},
	Database:   {0.10, 2, "Database of etcd, in use", " MiB", "database"},
	Waiting:    {0.20, 20, "Items that wait, by queue", "", "queue"},
}

// quantities are in the order of reports.
var quantities = []Quantity{Memory, Goroutines, Objects, Database, Waiting}

// Line is a quantity of a process over time.
type Line struct {
	Quantity Quantity  `json:"quantity"`
	Of       string    `json:"of"`
	At       []float64 `json:"t"`
	Value    []float64 `json:"v"`
}

// Growth is the trend of a line in the last two thirds of the run.
type Growth struct {
	Quantity Quantity `json:"quantity"`
	Of       string   `json:"of"`
	From     float64  `json:"from"`
	To       float64  `json:"to"`
	// PerHour is the slope; LowPerHour and UpPerHour are its 95 % confidence interval.
	PerHour    float64 `json:"perHour"`
	LowPerHour float64 `json:"lowPerHour"`
	UpPerHour  float64 `json:"upPerHour"`
	// Grows says that it grows without bound as far as this run can tell. Judged is false for
	// processes that are not of the system: their growth is reported, and is no fault of it.
	Grows  bool `json:"grows"`
	Judged bool `json:"judged"`
}

func (r *Run) add(q Quantity, of string, at, value float64) {
	i := slices.IndexFunc(r.Lines, func(l Line) bool { return l.Quantity == q && l.Of == of })
	if i < 0 {
		i = len(r.Lines)
		r.Lines = append(r.Lines, Line{Quantity: q, Of: of})
	}
	l := &r.Lines[i]
	l.At, l.Value = append(l.At, at), append(l.Value, analyse.Round(value, 2))
}

// conclude judges the lines.
func (r *Run) conclude(sys system.System) {
	r.judge(func(q Quantity, of string) bool {
		process, _, _ := strings.Cut(of, ":")
		return q == Objects || q == Database || own(sys, process)
	})
}

func (r *Run) judge(judged func(q Quantity, of string) bool) {
	slices.SortStableFunc(r.Lines, func(a, b Line) int {
		return cmp.Or(slices.Index(quantities, a.Quantity)-slices.Index(quantities, b.Quantity), cmp.Compare(a.Of, b.Of))
	})
	r.Growths, r.Growing = nil, 0
	for _, l := range r.Lines {
		trend, ok := stats.Trend(l.At, l.Value)
		if !ok {
			continue
		}
		limit := limits[l.Quantity]
		g := Growth{Quantity: l.Quantity, Of: l.Of, From: analyse.Round(trend.From, 2), To: analyse.Round(trend.To, 2),
			PerHour: analyse.Round(3600*trend.Slope, 1), LowPerHour: analyse.Round(3600*trend.Low, 1), UpPerHour: analyse.Round(3600*trend.Up, 1),
			Grows: trend.Grows(limit.share, limit.least), Judged: judged(l.Quantity, l.Of)}
		if g.Grows && g.Judged {
			r.Growing++
		}
		r.Growths = append(r.Growths, g)
	}
}

// Line implements series.Run.
func (r *Run) Line() string {
	return fmt.Sprintf("%d jobs and %d pods in %.0f s, %s", r.Jobs, r.Pods, r.Seconds, r.growing())
}

// growing says what grows without bound.
func (r *Run) growing() string {
	var parts []string
	for _, g := range r.Growths {
		if g.Grows && g.Judged {
			parts = append(parts, g.String())
		}
	}
	switch {
	case len(r.Growths) == 0:
		return "too short to judge"
	case len(parts) == 0:
		return "nothing grows without bound"
	}
	return "grows without bound: " + strings.Join(parts, "; ")
}

func (g Growth) String() string {
	l := limits[g.Quantity]
	return fmt.Sprintf("%s of %s from %.0f to %.0f%s (%.0f an hour)", l.human, g.Of, g.From, g.To, l.unit, g.PerHour)
}

// Faults returns an error for what series.Report does, and if something grows without bound.
func (r *Report) Faults() error {
	if err := r.Report.Faults(); err != nil {
		return err
	}
	for _, run := range r.Runs {
		if run.Growing > 0 {
			return fmt.Errorf("%s: %s", run.Title(), run.growing())
		}
	}
	return nil
}

// DropCurves removes the lines from the report, which are for the page.
func (r *Report) DropCurves() {
	for _, run := range r.Runs {
		run.Lines = nil
	}
}

// Table writes the runs as a table for a terminal.
func (r *Report) Table(w io.Writer, wide bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "RUN\tQUANTITY\tOF\tFROM\tTO\tPER HOUR\tGROWS")
	for _, run := range r.Measured() {
		for _, g := range run.Growths {
			if !wide && !g.Grows && !g.Judged {
				continue
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%.1f\t%.1f\t%.1f\t%s\n", run.Title(), g.Quantity, g.Of, g.From, g.To, g.PerHour, g.says())
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	return r.WriteFaults(w)
}

func (g Growth) says() string {
	switch {
	case g.Grows && g.Judged:
		return "yes"
	case g.Grows:
		return "yes, not of the system"
	}
	return "no"
}

func (r *Report) verdict() string {
	var parts []string
	for _, run := range r.Runs {
		switch text := fmt.Sprintf("%s: %s of churn, %s", run.System, lasting(run.Seconds), run.growing()); {
		case run.Lost != "":
		case run.Error == "":
			parts = append(parts, text)
		case len(run.Growths) > 0: // the trends until then are worth knowing
			parts = append(parts, text+", until it ended early")
		}
	}
	return strings.Join(append(parts, r.Troubles("nothing lost")), ", ")
}

// lasting formats a long time.
func lasting(seconds float64) string {
	if seconds < 120 {
		return page.Seconds(seconds)
	}
	return fmt.Sprintf("%.0f minutes", seconds/60)
}

// Page returns the report's page.
func (r *Report) Page() page.Page {
	p := r.Report.Page("Soak")
	p.Verdict, p.Bad = r.verdict(), r.Faults() != nil
	var clients []series.ClientOf
	for _, run := range r.Runs {
		p.Sections = append(p.Sections, run.section())
		clients = series.ClientsOf(clients, run.System, run.Clients)
	}
	p.Sections = append(p.Sections, series.ClientLimits(clients)...)
	return p
}

func (r *Run) section() page.Section {
	s := page.Section{Title: r.Title(), Note: fmt.Sprintf("%s jobs and %s pods were created and deleted. Trends are of the last two thirds of the run.",
		page.Thousands(r.Jobs), page.Thousands(r.Pods))}
	t := page.Table{Columns: []page.Column{{Title: "Quantity", Key: true}, {Title: "Of", Key: true}, {Title: "From", Right: true}, {Title: "To", Right: true},
		{Title: "Per hour", Right: true, Help: "the median slope between all pairs of values (Theil and Sen) with its 95 % confidence interval; of a window of values the least counts"},
		{Title: "Grows", Help: "whether the whole interval is above 0, and the growth is more than noise. Processes that are not of the system are not judged"}}}
	for _, g := range r.Growths {
		unit := limits[g.Quantity].unit
		grows := page.Text(g.says())
		if g.Grows && g.Judged {
			grows.Tone = page.Bad
		}
		t.Rows = append(t.Rows, []page.Cell{page.Text(string(g.Quantity)), page.Text(g.Of), page.Textf("%.1f%s", g.From, unit), page.Textf("%.1f%s", g.To, unit),
			page.Textf("%.1f (%.1f to %.1f)", g.PerHour, g.LowPerHour, g.UpPerHour), grows})
	}
	if len(t.Rows) > 0 {
		s.Tables = append(s.Tables, t)
	}
	for _, q := range quantities {
		c := page.Chart{Title: limits[q].title, Unit: " s"}
		if unit := limits[q].unit; unit != "" {
			c.Title += "," + unit
		}
		for _, l := range r.Lines {
			if l.Quantity == q && len(l.At) > 1 { // a queue that was empty but once has no line
				c.Lines = append(c.Lines, page.Line{Name: l.Of, X: l.At, Y: l.Value, Color: series.ColorOf(l.Of)})
			}
		}
		if len(c.Lines) > 0 {
			s.Charts = append(s.Charts, c)
		}
	}
	s.Details = append(s.Details, page.Detail{Title: "CPU and memory", Tables: []page.Table{series.UsageTable(r.Used)}})
	return s
}

// settledAfter is how long the memory of a process may take to reach its level, in seconds.
const settledAfter = 25 * 60

// Notes adds that a short run cannot tell growth from a beginning.
func (r *Run) Notes(cpus int) []string {
	notes := r.Circumstances.Notes(cpus)
	if r.Seconds < settledAfter {
		notes = append(notes, "it was short: memory that has not reached its level yet looks as if it grew without bound, and half an hour can tell (--duration 30m)")
	}
	return notes
}
