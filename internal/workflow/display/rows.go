package display

import (
	"cmp"
	"strings"
	"time"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/util/duration"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// Options configures the display.
type Options struct {
	// Now is the current time. The durations of workflows and nodes that still run end at it.
	Now time.Time
	// Wide adds columns and omitted nodes.
	Wide bool
	// ASCII avoids characters that some terminals lack; Color adds colours.
	ASCII, Color bool
	// Match reports whether to show a node. Nodes above a shown node are shown too. nil shows all
	// nodes.
	Match func(*wf.NodeStatus) bool
}

// glyph is the symbol and colour of a phase.
type glyph struct{ utf8, ascii, color string }

const (
	gray   = "90"
	red    = "31"
	green  = "32"
	yellow = "33"
	cyan   = "36"
)

var glyphs = map[wf.NodePhase]glyph{
	wf.PhasePending:   {"◷", ".", yellow},
	wf.PhaseRunning:   {"●", "*", cyan},
	wf.PhaseSucceeded: {"✔", "+", green},
	wf.PhaseSkipped:   {"○", "-", gray},
	wf.PhaseOmitted:   {"○", "-", gray},
	wf.PhaseFailed:    {"✖", "x", red},
	wf.PhaseError:     {"⚠", "!", red},
}

var (
	paused  = glyph{"ǁ", "=", yellow}
	unknown = glyph{"?", "?", gray}
)

// Icon returns the symbol of a node, coloured if o.Color is true.
func (o *Options) Icon(n *wf.NodeStatus) string {
	g, ok := glyphs[n.Phase]
	switch {
	case n.Type == wf.NodeSuspend && n.Phase == wf.PhaseRunning:
		g = paused
	case !ok:
		g = unknown
	}
	text := g.utf8
	if o.ASCII {
		text = g.ascii
	}
	return o.paint(text, g.color)
}

func (o *Options) paint(text, color string) string {
	if !o.Color {
		return text
	}
	return "\x1b[" + color + "m" + text + "\x1b[0m"
}

// Tree returns the tree of a workflow's nodes, which must not be compressed: a heading and a line
// per node.
func Tree(w *wf.Workflow, o Options) string {
	roots := forest(w)
	if len(roots) == 0 {
		return ""
	}
	head := []string{"STEP", "TEMPLATE", "PODNAME", "DURATION", "MESSAGE"}
	if o.Wide {
		head = append(head, "ARTIFACTS", "RESOURCESDURATION", "NODENAME")
	}
	t := &table{workflow: w, options: &o, rows: [][]string{head}}
	for i, root := range roots {
		shown := o.visible(root)
		if i > 0 && len(shown) > 0 && len(t.rows) > 1 {
			t.rows = append(t.rows, nil)
		}
		for _, e := range shown {
			t.add(" ", e)
			t.under(" ", e)
		}
	}
	return align(t.rows)
}

type table struct {
	workflow *wf.Workflow
	options  *Options
	rows     [][]string
}

// pieces returns the text that draws a branch: before a node, and before the lines below the node.
// last is true for the last node of its parent.
func (t *table) pieces(last bool) (branch, below string) {
	switch {
	case t.options.ASCII && last:
		return "`-", "  "
	case t.options.ASCII:
		return "|-", "| "
	case last:
		return "└─", "  "
	}
	return "├─", "│ "
}

func (t *table) fork(several bool) string {
	switch {
	case t.options.ASCII && several:
		return "+-"
	case t.options.ASCII:
		return "--"
	case several:
		return "┬─"
	}
	return "──"
}

// under draws the nodes under e; each line begins with indent.
func (t *table) under(indent string, e *entry) {
	var items []*entry
	for _, k := range t.options.kids(e) {
		if k.Type != wf.NodeStepGroup || len(t.options.kids(k)) > 0 {
			items = append(items, k)
		}
	}
	for i, k := range items {
		branch, below := t.pieces(i == len(items)-1)
		if k.Type != wf.NodeStepGroup {
			t.add(indent+branch, k)
			t.under(indent+below, k)
			continue
		}
		steps := t.options.kids(k)
		for j, step := range steps {
			inner, innerBelow := t.pieces(j == len(steps)-1)
			if j == 0 {
				t.add(indent+branch+t.fork(len(steps) > 1), step)
			} else {
				t.add(indent+below+inner, step)
			}
			t.under(indent+below+innerBelow, step)
		}
	}
}

// add adds the line of one node.
func (t *table) add(prefix string, e *entry) {
	o, n := t.options, e.NodeStatus
	message := n.Message
	if n.MemoizationStatus != nil && n.MemoizationStatus.Hit && message == "" {
		message = "from the cache"
	}
	row := []string{prefix + o.Icon(n) + " " + OneLine(cmp.Or(n.DisplayName, n.Name))}
	took := elapsed(n.StartedAt.Time, n.FinishedAt.Time, o.Now, n.Phase)
	cells := []string{templateOf(n), podOf(t.workflow, n), took, message}
	if o.Wide {
		cells = append(cells, artifactsOf(n), resources(n.ResourcesDuration), n.HostNodeName)
	}
	for _, text := range cells {
		row = append(row, OneLine(text))
	}
	t.rows = append(t.rows, row)
}

func templateOf(n *wf.NodeStatus) string {
	if n.TemplateRef != nil {
		return n.TemplateRef.Name + "/" + n.TemplateRef.Template
	}
	return n.TemplateName
}

// podOf returns the name of a node's pod, or "" if the node has no pod.
func podOf(w *wf.Workflow, n *wf.NodeStatus) string {
	if n.Type != wf.NodePod {
		return ""
	}
	return n.PodName(w.Name)
}

func artifactsOf(n *wf.NodeStatus) string {
	if n.Outputs == nil {
		return ""
	}
	var names []string
	for i := range n.Outputs.Artifacts {
		names = append(names, n.Outputs.Artifacts[i].Name)
	}
	return strings.Join(names, ",")
}

// elapsed returns the time from started to finished or, if it has not finished, to now. It returns
// "" if a time that it needs is unknown.
func elapsed(started, finished, now time.Time, phase wf.NodePhase) string {
	switch {
	case started.IsZero():
		return ""
	case !finished.IsZero():
		return duration.HumanDuration(max(0, finished.Sub(started)))
	case phase.Fulfilled():
		return ""
	}
	return duration.HumanDuration(max(0, now.Sub(started)))
}

// OneLine makes a text of an object fit into a line: it replaces line breaks and tabs by spaces,
// and removes other control characters. Every text that a user may have written passes it, because
// another user's terminal would obey escape sequences.
func OneLine(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r == 0x7f || 0x80 <= r && r < 0xa0:
			return -1
		}
		return r
	}, strings.TrimSpace(s))
}

// align pads cells to columns and joins the rows. A nil row becomes an empty line.
func align(rows [][]string) string {
	var widths []int
	for _, row := range rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], width(cell))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		var line strings.Builder
		for i, cell := range row {
			line.WriteString(cell)
			if widths[i] > 0 {
				line.WriteString(strings.Repeat(" ", widths[i]-width(cell)+2))
			}
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	return b.String()
}

// width returns the number of columns of a cell. Colour sequences take none.
func width(s string) int {
	n := 0
	for {
		i := strings.Index(s, "\x1b[")
		if i < 0 {
			return n + utf8.RuneCountInString(s)
		}
		n += utf8.RuneCountInString(s[:i])
		end := strings.IndexByte(s[i:], 'm')
		if end < 0 {
			return n
		}
		s = s[i+end+1:]
	}
}
