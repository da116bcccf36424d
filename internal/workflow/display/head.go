package display

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/malformed"
)

// Workflow returns the whole display of a workflow: its head, then the tree of its nodes.
func Workflow(w *wf.Workflow, o Options) string {
	head := Head(w, o)
	if tree := Tree(w, o); tree != "" {
		return head + "\n" + tree
	}
	return head
}

// Head returns the lines above the tree.
func Head(w *wf.Workflow, o Options) string {
	var b strings.Builder
	line := func(name, value string) { fmt.Fprintf(&b, "%-20s %s\n", name, OneLine(value)) }
	line("Name:", w.Name)
	line("Namespace:", w.Namespace)
	line("ServiceAccount:", cmp.Or(w.Spec.ServiceAccountName, w.EffectiveSpec().ServiceAccountName,
		"unset (will run with the default ServiceAccount)"))
	line("Status:", Status(w))
	if w.Status.Message != "" {
		line("Message:", w.Status.Message)
	}
	if len(w.Status.Conditions) > 0 {
		b.WriteString("Conditions:\n")
		for _, c := range w.Status.Conditions {
			line(" "+OneLine(string(c.Type)), cmp.Or(c.Message, string(c.Status)))
		}
	}
	moment := func(name string, t time.Time) {
		if !t.IsZero() {
			line(name, fmt.Sprintf("%s (%s)", t.UTC().Format("Mon Jan 02 15:04:05 -0700 2006"), ago(t, o.Now)))
		}
	}
	moment("Created:", w.CreationTimestamp.Time)
	moment("Started:", w.Status.StartedAt.Time)
	moment("Finished:", w.Status.FinishedAt.Time)
	if d := Duration(w, o.Now); d != "" {
		line("Duration:", d)
	}
	if w.Status.Progress != "" {
		line("Progress:", w.Status.Progress)
	}
	if len(w.Status.ResourcesDuration) > 0 {
		line("ResourcesDuration:", resources(w.Status.ResourcesDuration))
	}
	if ps := w.Spec.Arguments.Parameters; len(ps) > 0 {
		b.WriteString("\nParameters:\n")
		writeParameters(&b, ps)
	}
	if out := w.Status.Outputs; out != nil && len(out.Parameters) > 0 {
		b.WriteString("\nOutput Parameters:\n")
		writeParameters(&b, out.Parameters)
	}
	if out := w.Status.Outputs; out != nil && len(out.Artifacts) > 0 {
		b.WriteString("\nOutput Artifacts:\n")
		for i := range out.Artifacts {
			fmt.Fprintf(&b, "  %s\n", OneLine(out.Artifacts[i].Name))
		}
	}
	return b.String()
}

func writeParameters(b *strings.Builder, list []wf.Parameter) {
	for i := range list {
		p := &list[i]
		value := cmp.Or(p.Value, p.Default, wf.Any("<none>"))
		fmt.Fprintf(b, "%-20s %s\n", "  "+OneLine(p.Name)+":", OneLine(string(*value)))
	}
}

// Status returns the phase of a workflow, and in parentheses whether it is being shut down or is
// suspended.
func Status(w *wf.Workflow) string {
	if malformed.Of(w) != nil {
		return "Malformed"
	}
	phase := string(cmp.Or(w.Status.Phase, wf.WorkflowPending))
	if !w.Status.Phase.Completed() {
		switch {
		case w.Spec.Shutdown != "":
			phase += " (" + string(w.Spec.Shutdown) + ")"
		case Suspended(w):
			phase += " (Suspended)"
		}
	}
	return phase
}

// Suspended reports whether a running workflow, or one of its nodes, is paused until a user or a
// time ends the pause.
func Suspended(w *wf.Workflow) bool {
	if ptr.Deref(w.Spec.Suspend, false) {
		return true
	}
	for id := range w.Status.Nodes {
		if n := w.Status.Nodes[id]; n.Type == wf.NodeSuspend && n.Phase == wf.PhaseRunning {
			return true
		}
	}
	return false
}

// Duration returns how long a workflow took or has been running, or "" before its start.
func Duration(w *wf.Workflow, now time.Time) string {
	return elapsed(w.Status.StartedAt.Time, w.Status.FinishedAt.Time, now, wf.PhaseRunning)
}

// ago returns how long ago t was.
func ago(t, now time.Time) string {
	if now.Before(t) {
		return "now"
	}
	return duration.HumanDuration(now.Sub(t)) + " ago"
}

// secondsMax is the longest time.Duration in seconds.
const secondsMax = int64(math.MaxInt64 / time.Second)

func resources(list map[corev1.ResourceName]int64) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(list)) {
		unit := wf.ResourceUnit(name)
		amount := time.Duration(min(list[name], secondsMax)) * time.Second
		out = append(out, fmt.Sprintf("%s*(%s %s)", amount, unit.String(), name))
	}
	return strings.Join(out, ",")
}

// List returns a table of workflows, with their namespaces if namespaces is true. Nodes are read
// only if o.Wide is true.
func List(list []wf.Workflow, namespaces, headers bool, o Options) string {
	var rows [][]string
	row := func(namespace string, cells ...string) {
		if namespaces {
			cells = slices.Insert(cells, 0, namespace)
		}
		rows = append(rows, cells)
	}
	switch {
	case headers && o.Wide:
		row("NAMESPACE", "NAME", "STATUS", "AGE", "DURATION", "PROGRESS", "PRIORITY", "P/R/C", "PARAMETERS", "MESSAGE")
	case headers:
		row("NAMESPACE", "NAME", "STATUS", "AGE", "DURATION", "PROGRESS", "MESSAGE")
	}
	for i := range list {
		w := &list[i]
		age := ""
		if !w.CreationTimestamp.IsZero() {
			age = duration.HumanDuration(max(0, o.Now.Sub(w.CreationTimestamp.Time)))
		}
		cells := []string{w.Name, o.paint(OneLine(Status(w)), phaseColor(w)), age, Duration(w, o.Now), OneLine(w.Status.Progress)}
		if o.Wide {
			cells = append(cells, fmt.Sprint(ptr.Deref(w.Spec.Priority, 0)), counts(w), OneLine(parameters(w)))
		}
		row(w.Namespace, append(cells, OneLine(w.Status.Message))...)
	}
	return align(rows)
}

func phaseColor(w *wf.Workflow) string {
	return cmp.Or(glyphs[wf.NodePhase(w.Status.Phase)].color, gray)
}

// counts returns the numbers of pending, running and completed pods.
func counts(w *wf.Workflow) string {
	var pending, running, completed int
	for id := range w.Status.Nodes {
		n := w.Status.Nodes[id]
		switch {
		case n.Type != wf.NodePod:
		case n.Phase == wf.PhasePending:
			pending++
		case n.Phase == wf.PhaseRunning:
			running++
		case n.Phase.Completed():
			completed++
		}
	}
	return fmt.Sprintf("%d/%d/%d", pending, running, completed)
}

func parameters(w *wf.Workflow) string {
	var out []string
	for _, p := range w.Spec.Arguments.Parameters {
		if p.Value != nil {
			out = append(out, p.Name+"="+string(*p.Value))
		}
	}
	return strings.Join(out, ",")
}
