package workflows

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

func newWatch(s command.Streams) *cobra.Command {
	var d drawing
	cmd := &cobra.Command{
		Use:     "watch WORKFLOW",
		Short:   "Watch a workflow until it is completed",
		Example: "  lockstep watch hello\n  lockstep watch @latest --status Running,Failed",
		Long: `Watch a workflow until it is completed. On a terminal its tree is redrawn as it changes; elsewhere each change of a node
is a line, and the tree comes at the end.

Exit codes: 0 the workflow succeeded; 1 it failed, or could not be watched; 2 wrong usage; 3 the --timeout ran out.`,
		Args: command.OneArg("WORKFLOW"),
	}
	v := NewVerb(s, cmd)
	d.add(cmd)
	cmd.Flags().StringSliceVar(&d.statuses, "status", nil, "only nodes with these phases")
	cmd.Flags().DurationVar(&v.Timeout, "timeout", 0, "give up after this time; 0 waits for ever")
	cmd.ValidArgsFunction = v.Names(workflows.Query{Running: true})
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		return v.watch(ctx, client, namespace, args[0], d)
	}), names.Workflow)
}

// watch shows a workflow until it completes, and returns an error if it did not succeed.
func (v *Verb) watch(ctx context.Context, client *workflows.Client, namespace, name string, d drawing) error {
	name, err := client.Name(ctx, namespace, name)
	if err != nil {
		return err
	}
	var last *wf.Workflow
	if command.IsTerminal(v.Out) {
		last, err = v.watchScreen(ctx, client, namespace, name, d)
	} else {
		last, err = v.watchLines(ctx, client, namespace, name)
	}
	if last != nil {
		o, e := d.options(v.Out, false)
		if e != nil {
			return e
		}
		fmt.Fprint(v.Out, display.Workflow(last, o))
	}
	if err != nil {
		return err
	}
	return verdict(last)
}

// watchLines prints a line for each node that enters another phase.
func (v *Verb) watchLines(ctx context.Context, client *workflows.Client, namespace, name string) (*wf.Workflow, error) {
	var last *wf.Workflow
	seen := map[string]wf.NodePhase{}
	err := client.Watch(ctx, namespace, name, func(w *wf.Workflow) bool {
		last = w
		var changed []wf.NodeStatus
		for id := range w.Status.Nodes {
			n := w.Status.Nodes[id]
			if seen[id] != n.Phase && n.Type != wf.NodeStepGroup {
				changed = append(changed, n)
				seen[id] = n.Phase
			}
		}
		slices.SortFunc(changed, func(a, b wf.NodeStatus) int { return strings.Compare(a.Name, b.Name) })
		o := display.Options{}
		for i := range changed {
			n := &changed[i]
			fmt.Fprintln(v.Out, display.OneLine(fmt.Sprintf("%s %s: %s %s", o.Icon(n), n.Name, n.Phase, n.Message)))
		}
		return w.Status.Phase.Completed()
	})
	return last, err
}

// redraw is the interval at which durations on the screen are updated while nothing else changes.
const redraw = time.Second

// watchScreen draws the workflow on the terminal's alternate screen, so that the earlier content
// returns at the end.
func (v *Verb) watchScreen(ctx context.Context, client *workflows.Client, namespace, name string,
	d drawing) (*wf.Workflow, error) {
	out := v.Out.(*os.File)
	var (
		lock sync.Mutex
		last *wf.Workflow
	)
	draw := func() {
		lock.Lock()
		w := last
		lock.Unlock()
		if w == nil {
			return
		}
		o, err := d.options(out, false)
		if err != nil {
			return
		}
		drawFrame(out, display.Workflow(w, o))
	}
	if _, err := d.options(out, false); err != nil {
		return nil, err
	}
	fmt.Fprint(out, "\x1b[?1049h\x1b[?25l")
	defer fmt.Fprint(out, "\x1b[?25h\x1b[?1049l")
	changed := make(chan struct{}, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- client.Watch(ctx, namespace, name, func(w *wf.Workflow) bool {
			lock.Lock()
			last = w
			lock.Unlock()
			select {
			case changed <- struct{}{}:
			default:
			}
			return w.Status.Phase.Completed()
		})
	}()
	tick := time.NewTicker(redraw)
	defer tick.Stop()
	for {
		select {
		case err := <-ended:
			return last, err
		case <-changed:
		case <-tick.C:
		}
		draw()
	}
}

// drawFrame draws the part of text that fits the screen, from the upper left corner.
func drawFrame(out *os.File, text string) {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if width, height, err := term.GetSize(int(out.Fd())); err == nil && height > 1 {
		if len(lines) > height {
			more := len(lines) - height + 1
			lines = append(lines[:height-1], fmt.Sprintf("... %d more lines: see 'lockstep get wf'", more))
		}
		for i := range lines {
			lines[i] = cut(lines[i], width)
		}
	}
	_, _ = io.WriteString(out, "\x1b[H"+strings.Join(lines, "\x1b[K\r\n")+"\x1b[K\x1b[J")
}

// cut shortens a line to width columns. Colour sequences do not count.
func cut(line string, width int) string {
	columns := 0
	escape := false
	for i, r := range line {
		switch {
		case escape:
			escape = r != 'm'
		case r == '\x1b':
			escape = true
		default:
			if columns++; columns > width {
				return line[:i] + "\x1b[0m"
			}
		}
	}
	return line
}
