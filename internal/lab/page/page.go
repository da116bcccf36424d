package page

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Page is the content of a report.
type Page struct {
	Title, Version string
	Time           time.Time
	// Verdict is the result in one sentence. Bad marks a verdict on a run that failed.
	Verdict string
	Bad     bool
	// Warnings are what a reader of any figure has to know.
	Warnings []string
	// Problems are the errors and violations, all of them.
	Problems []Problem
	Sections []Section
	// Hardware and Settings are at the end.
	Hardware, Settings []Pair
}

// Problem is an error or a violation of a run.
type Problem struct{ Run, Text string }

// Pair is a name with a value.
type Pair struct{ Name, Value string }

// Section is a part of a page, on one case or one question.
type Section struct {
	Title, Note string
	Tables      []Table
	Heats       []Heat
	Charts      []Chart
	// Details are further tables, which the page folds.
	Details []Detail
}

// Heat is a map of a figure over two parameters. Cells has a row for each of Rows, with a cell for
// each of Columns.
type Heat struct {
	Title, Down, Across string
	Rows, Columns       []string
	Cells               [][]HeatCell
}

// HeatCell is a cell of a map. Shade is 0 for the best and 1 for the worst. Equal cells do not
// differ from the best one beyond the error.
type HeatCell struct {
	Text, Help         string
	Shade              float64
	Best, Equal, Empty bool
}

// Detail is a folded group of tables.
type Detail struct {
	Title  string
	Tables []Table
	Charts []Chart
}

// Table is a table. Each row has a cell for each column.
type Table struct {
	Title, Note string
	Columns     []Column
	Rows        [][]Cell
}

// Column is a column of a table.
type Column struct {
	Title string
	// Help says what the figures mean.
	Help string
	// Right aligns figures; Key is a column that names the row.
	Right, Key bool
}

// Cell is one cell.
type Cell struct {
	Text string
	// Tone is Strong, Bad or Warn, or empty.
	Tone Tone
	// Color is 1 + the index of the colour of the row's curves; 0 is none.
	Color int
	// Bar, if set, is drawn beside the text.
	Bar *Bar
	// Wrap lets a figure with an interval take several lines.
	Wrap bool
}

// Tone is the emphasis of a cell.
type Tone string

// The tones.
const (
	Strong Tone = "strong"
	Bad    Tone = "bad"
	Warn   Tone = "warn"
)

// Bar is a bar of Width percent with a mark at Mark percent, if Mark is not 0. Color is 1 + the index
// of its colour.
type Bar struct {
	Width, Mark float64
	Color       int
}

// Chart shows lines over time in seconds, or over another quantity X.
type Chart struct {
	Title string
	// Unit follows the values of the horizontal axis, which is logarithmic if Log is true.
	Unit  string
	Log   bool
	Lines []Line
}

// Line is one line of a chart.
type Line struct {
	Name  string    `json:"name"`
	X     []float64 `json:"x"`
	Y     []float64 `json:"y"`
	Color int       `json:"color"` // index of the colour
	// Style is solid (empty), dashed or dotted. Points marks each value.
	Style  string `json:"style,omitempty"`
	Points bool   `json:"points,omitempty"`
}

// The styles.
const (
	Dashed = "dashed"
	Dotted = "dotted"
)

// Cumulative returns the line of a cumulative curve, which begins at the origin.
func Cumulative(name string, c analyse.Curve) Line {
	l := Line{Name: name, X: []float64{0}, Y: []float64{0}}
	for i := range c.AtSeconds {
		l.X, l.Y = append(l.X, c.AtSeconds[i]), append(l.Y, float64(c.Count[i]))
	}
	return l
}

// steps are the widths, in seconds, in which Rate counts. stepsMax is how many of them are enough to
// see how the rate of the longest curve changes, and stepsEnough how many of any other.
var steps = []float64{0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 30, 60}

const (
	stepsMax    = 48
	stepsEnough = 12
)

// Rate returns the line of the rate of a cumulative curve that is shown with others, of which the
// longest has the given length in seconds.
func Rate(name string, c analyse.Curve, longest float64) Line {
	l := Line{Name: name}
	if len(c.AtSeconds) == 0 {
		return l
	}
	end := c.AtSeconds[len(c.AtSeconds)-1]
	longest = min(longest, end*stepsMax/stepsEnough)
	step := steps[len(steps)-1]
	for _, s := range steps {
		if longest/s <= stepsMax {
			step = s
			break
		}
	}
	counts := make([]float64, int(end/step)+1)
	before := 0
	for i, at := range c.AtSeconds {
		counts[min(len(counts)-1, int(at/step))] += float64(c.Count[i] - before)
		before = c.Count[i]
	}
	for k, n := range counts {
		width := step
		if k == len(counts)-1 {
			// Of the last step only a part has passed. Too little of it says nothing.
			if width = end - float64(k)*step; width < step/2 && k > 0 {
				break
			}
			width = max(width, step/2)
		}
		l.X, l.Y = append(l.X, analyse.Round((float64(k)+0.5)*step, 3)), append(l.Y, analyse.Round(n/width, 1))
	}
	l.Points = len(l.X) < 40
	return l
}

// Text returns a cell without emphasis.
func Text(s string) Cell { return Cell{Text: s} }

// Textf returns a formatted cell without emphasis.
func Textf(format string, args ...any) Cell { return Cell{Text: fmt.Sprintf(format, args...)} }

// Count returns the cell of a count which should be 0: with the tone if it is not.
func Count(n int, tone Tone) Cell {
	c := Cell{Text: Thousands(n)}
	if n > 0 {
		c.Tone = tone
	}
	return c
}

// Pairs returns a table of names and values. Its title is that of the names.
func Pairs(title string, pairs ...Pair) Table {
	t := Table{Columns: []Column{{Title: title, Key: true}, {Right: true}}}
	for _, p := range pairs {
		t.Rows = append(t.Rows, []Cell{Text(p.Name), Text(p.Value)})
	}
	return t
}

// Settings returns settings in the order of their names.
func Settings[V any](settings map[string]V) []Pair {
	var out []Pair
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		out = append(out, Pair{name, value(settings[name])})
	}
	return out
}

// value formats a setting for people.
func value(v any) string {
	if v == nil {
		return "none"
	}
	text := strings.Trim(fmt.Sprint(v), "[]")
	if m, ok := v.(map[string]any); ok {
		var parts []string
		for _, p := range Settings(m) {
			parts = append(parts, p.Name+" "+p.Value)
		}
		text = strings.Join(parts, ", ")
	}
	return cmp.Or(text, "none")
}

// Thousands separates the thousands of a count by commas.
func Thousands(n int) string {
	digits := fmt.Sprint(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits
}

// Plural returns a count with its noun.
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return Thousands(n) + " " + noun + "s"
}

// Factor formats how many times as much something is.
func Factor(x float64) string {
	switch {
	case x < 2:
		return fmt.Sprintf("%.2f", x)
	case x < 10:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// Seconds formats a time.
func Seconds(s float64) string {
	if s < 10 {
		return fmt.Sprintf("%.2f s", s)
	}
	return fmt.Sprintf("%.1f s", s)
}

// Ms formats a time of x milliseconds.
func Ms(x float64) string {
	if x < 1000 {
		return fmt.Sprintf("%.0f ms", x)
	}
	return Seconds(x / 1e3)
}

// Range formats the least and the greatest of values, or the one value if both look the same.
func Range(values []float64, format string) string {
	if len(values) == 0 {
		return "none"
	}
	least, most := fmt.Sprintf(format, slices.Min(values)), fmt.Sprintf(format, slices.Max(values))
	if least == most {
		return least
	}
	return least + " to " + most
}
