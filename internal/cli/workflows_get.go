package cli

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// workflowGet holds the flags that get and list have for workflows.
type workflowGet struct {
	selection
	drawing
	since              time.Duration
	noHeaders, running bool
	archived           bool
	archive            archiveFlags
	output             string
}

func (g *workflowGet) add(cmd *cobra.Command) {
	g.addFilters(cmd)
	g.drawing.add(cmd)
	f := cmd.Flags()
	f.BoolVar(&g.running, "running", false, "only those that are not completed")
	f.DurationVar(&g.since, "since", 0, "only those created at most this long ago")
	f.BoolVar(&g.noHeaders, "no-headers", false, "no line of headings")
	f.BoolVar(&g.archived, "archived", false, "look in the archive")
	g.archive.add(cmd)
}

// given returns a flag that is set and that only workflows have, or "".
func (g *workflowGet) given(cmd *cobra.Command) (flag string) {
	for _, name := range []string{"status", "completed", "resubmitted", "prefix", "older", "running", "since", "archived", "node-field-selector"} {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

// run lists workflows, or draws one.
func (g *workflowGet) run(c *wfCommand, cmd *cobra.Command, names []string) error {
	ctx, stop := interruptible(cmd)
	defer stop()
	if g.archived {
		return g.archive.get(ctx, c, g, names)
	}
	client, namespace, err := c.connect()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		q := g.query
		q.Namespace, q.Running, q.Since = namespace, g.running, g.since
		if c.all {
			q.Namespace = ""
		}
		var list []wf.Workflow
		if err := client.List(ctx, q, func(w *wf.Workflow) error {
			if g.output != "json" && g.output != "yaml" && g.output != "wide" {
				// saves memory; this output form needs none of them
				w.Spec.Templates, w.Status.StoredTemplates, w.Status.StoredWorkflowTemplateSpec = nil, nil, nil
			}
			list = append(list, *w)
			return nil
		}); err != nil {
			return err
		}
		return g.printList(c, list, namespace)
	}
	var failed []error
	for i, name := range names {
		w, err := client.Get(ctx, namespace, name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if err := g.printOne(c, w, i > 0); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

func (g *workflowGet) printList(c *wfCommand, list []wf.Workflow, namespace string) error {
	// The latest first.
	slices.SortStableFunc(list, func(a, b wf.Workflow) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range list {
		warnMalformed(c.s.err, &list[i])
	}
	switch g.output {
	case "", "wide":
		if len(list) == 0 {
			where := "in namespace " + namespace
			if c.all {
				where = "in the cluster"
			}
			fmt.Fprintf(c.s.err, "No workflows found %s.\n", where)
			return nil
		}
		o := display.Options{Now: time.Now(), Wide: g.output == "wide", Color: !g.noColor && colors(c.s.out)}
		_, err := fmt.Fprint(c.s.out, display.List(list, c.all, !g.noHeaders, o))
		return err
	case "name":
		for i := range list {
			fmt.Fprintf(c.s.out, "workflow.argoproj.io/%s\n", list[i].Name)
		}
		return nil
	}
	print, err := objectPrinter(g.output, c.s.out)
	if err != nil {
		return err
	}
	out := &wf.WorkflowList{Items: list}
	out.APIVersion, out.Kind = wf.GroupVersion.String(), "WorkflowList"
	for i := range list {
		malformed.Unmark(&list[i])
		list[i].APIVersion, list[i].Kind = wf.GroupVersion.String(), "Workflow"
	}
	return print(out)
}

func (g *workflowGet) printOne(c *wfCommand, w *wf.Workflow, another bool) error {
	if g.output == "" || g.output == "wide" {
		g.statuses = g.query.Statuses
		o, err := g.options(c.s.out, g.output == "wide")
		if err != nil {
			return err
		}
		if another {
			fmt.Fprintln(c.s.out)
		}
		_, err = fmt.Fprint(c.s.out, display.Workflow(w, o))
		return err
	}
	print, err := objectPrinter(g.output, c.s.out)
	if err != nil {
		return err
	}
	w.APIVersion, w.Kind = wf.GroupVersion.String(), "Workflow"
	return print(w)
}

func newList(s streams) *cobra.Command {
	var g workflowGet
	cmd := &cobra.Command{
		Use:     "list",
		Short:   "List workflows: the same as 'get workflows'",
		Example: "  lockstep list --status Failed -A\n  lockstep list --completed --since 24h -o name",
		Args:    noArgs,
	}
	c := newWFCommand(s, cmd)
	c.allNamespaces(cmd)
	cmd.Flags().StringVarP(&g.query.Labels, "selector", "l", "", "label selector")
	cmd.Flags().StringVar(&g.query.Fields, "field-selector", "", "field selector")
	outputFlag(cmd, &g.output, "json", "yaml", "wide", "name")
	g.add(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return g.run(c, cmd, nil) }
	return cmd
}

// exactArgs requires exactly one argument for each of names, which appear in the error.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		if len(args) != len(names) {
			return usageError{fmt.Errorf("want %d argument(s) %v, have %d", len(names), names, len(args))}
		}
		return nil
	}
}
