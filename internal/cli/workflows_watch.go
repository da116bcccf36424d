package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

func newWatch(s streams) *cobra.Command {
	var (
		d       drawing
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:     "watch WORKFLOW",
		Short:   "Watch a workflow until it is completed",
		Example: "  lockstep watch hello\n  lockstep watch @latest --status Running,Failed",
		Long: `Watch a workflow until it is completed. On a terminal its tree is redrawn as it changes; elsewhere each change of a node
is a line, and the tree comes at the end.

Exit codes: 0 the workflow succeeded; 1 it failed, or could not be watched; 2 wrong usage; 3 the --timeout ran out.`,
		Args: exactArgs("WORKFLOW"),
	}
	c := newWFCommand(s, cmd)
	d.add(cmd)
	cmd.Flags().StringSliceVar(&d.statuses, "status", nil, "only nodes with these phases")
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time; 0 waits for ever")
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{Running: true})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := c.bounded(cmd, timeout)
		defer stop()
		return c.watch(ctx, client, namespace, args[0], d)
	}
	return cmd
}

// bounded returns the context of a command that an interrupt ends. If timeout is not zero, the
// context also ends after it.
func (c *wfCommand) bounded(cmd *cobra.Command, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, stop := interruptible(cmd)
	if timeout <= 0 {
		return ctx, stop
	}
	bound, cancel := context.WithTimeout(ctx, timeout)
	return bound, func() { cancel(); stop() }
}

// watch shows a workflow until it completes, and returns an error if it did not succeed.
func (c *wfCommand) watch(ctx context.Context, client *workflows.Client, namespace, name string, d drawing) error {
	if name == "@latest" {
		w, err := client.Get(ctx, namespace, name)
		if err != nil {
			return err
		}
		name = w.Name
	}
	var last *wf.Workflow
	var err error
	if isTerminal(c.s.out) {
		last, err = c.watchScreen(ctx, client, namespace, name, d)
	} else {
		last, err = c.watchLines(ctx, client, namespace, name)
	}
	if last != nil {
		o, e := d.options(c.s.out, false)
		if e != nil {
			return e
		}
		fmt.Fprint(c.s.out, display.Workflow(last, o))
	}
	if err != nil {
		return err
	}
	return verdictOf(last)
}

// watchLines prints a line for each node that enters another phase.
func (c *wfCommand) watchLines(ctx context.Context, client *workflows.Client, namespace, name string) (*wf.Workflow, error) {
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
			fmt.Fprintln(c.s.out, strings.TrimRight(fmt.Sprintf("%s %s: %s %s", o.Icon(n), n.Name, n.Phase, n.Message), " "))
		}
		return w.Status.Phase.Completed()
	})
	return last, err
}

// redraw is the interval at which durations on the screen are updated while nothing else changes.
const redraw = time.Second

// watchScreen draws the workflow on the terminal's alternate screen, so that the earlier content
// returns at the end.
func (c *wfCommand) watchScreen(ctx context.Context, client *workflows.Client, namespace, name string, d drawing) (*wf.Workflow, error) {
	out := c.s.out.(*os.File)
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

func newWait(s streams) *cobra.Command {
	var (
		timeout time.Duration
		ignore  bool
	)
	cmd := &cobra.Command{
		Use:     "wait WORKFLOW...",
		Short:   "Wait until workflows are completed",
		Example: "  lockstep wait hello other --timeout 10m",
		Long: `Wait until workflows are completed.

Exit codes: 0 all succeeded; 1 one failed, or could not be waited for; 2 wrong usage; 3 the --timeout ran out.`,
		Args: minArgs(1, "WORKFLOW"),
	}
	c := newWFCommand(s, cmd)
	cmd.Flags().DurationVar(&timeout, "timeout", 0, "give up after this time; 0 waits for ever")
	cmd.Flags().BoolVar(&ignore, "ignore-not-found", false, "a workflow that does not exist counts as succeeded")
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{Running: true})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := c.bounded(cmd, timeout)
		defer stop()
		errs := make([]error, len(args))
		var waiting sync.WaitGroup
		var lock sync.Mutex
		for i, name := range args {
			waiting.Go(func() {
				w, err := client.Wait(ctx, namespace, name)
				if err != nil {
					if !ignore || !apierrors.IsNotFound(err) {
						errs[i] = err
					}
					return
				}
				lock.Lock()
				defer lock.Unlock()
				fmt.Fprintf(s.out, "%s %s\n", w.Name, w.Status.Phase)
				errs[i] = verdictOf(w)
			})
		}
		waiting.Wait()
		return errors.Join(errs...)
	}
	return cmd
}

func maxArgs(n int, name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) > n {
			return usageError{fmt.Errorf("want at most %d %s, have %d", n, name, len(args))}
		}
		return nil
	}
}

func minArgs(n int, name string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) < n {
			return usageError{fmt.Errorf("want at least %d %s", n, name)}
		}
		return nil
	}
}
