package workflows

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// Getting holds the flags that get and list have for workflows.
type Getting struct {
	// Output, Labels, Fields, NoHeaders and PageSize are the values of -o, --selector,
	// --field-selector, --no-headers and --chunk-size, which the verbs add themselves.
	Output, Labels, Fields string
	NoHeaders              bool
	PageSize               int64

	selection
	drawing
	since             time.Duration
	running, archived bool
	archive           archiveFlags
	// inArchive makes Get read the archive even without --archived, for 'lockstep archive'.
	inArchive bool
}

// Add adds the flags that are for workflows only.
func (g *Getting) Add(cmd *cobra.Command) {
	g.addFilters(cmd)
	g.drawing.add(cmd)
	f := cmd.Flags()
	f.BoolVar(&g.running, "running", false, "only those that are not completed")
	f.DurationVar(&g.since, "since", 0, "only those created at most this long ago")
	f.BoolVar(&g.archived, "archived", false, "look in the archive")
	g.archive.add(cmd)
}

// Given returns the name of a flag that is set and that is for workflows only, or "".
func (g *Getting) Given(cmd *cobra.Command) (flag string) {
	for _, name := range []string{"status", "completed", "resubmitted", "prefix", "older", "running", "since", "instanceid",
		"archive", "archived", "node-field-selector", "no-color", "no-utf8"} {
		if cmd.Flags().Changed(name) {
			return name
		}
	}
	return ""
}

// Get prints the workflows called names, or a list of workflows if names is empty.
func (g *Getting) Get(cmd *cobra.Command, v *Verb, names []string) error {
	ctx, stop := command.Interruptible(cmd, 0)
	defer stop()
	if g.archived || g.inArchive {
		return g.getArchived(ctx, v, names)
	}
	client, namespace, err := v.Connect()
	if err != nil {
		return err
	}
	if len(names) == 0 {
		list, err := g.list(ctx, client, v.in(namespace))
		if err != nil {
			return err
		}
		return g.printList(v, list, namespace)
	}
	var failed []error
	for i, name := range names {
		w, err := g.get(ctx, client, namespace, name)
		if err != nil {
			failed = append(failed, err)
			continue
		}
		if err := g.printOne(v, w, i > 0); err != nil {
			return err
		}
	}
	return errors.Join(failed...)
}

func (g *Getting) list(ctx context.Context, client *workflows.Client,
	namespace string) (list []wf.Workflow, err error) {
	q := g.query
	q.Namespace, q.Labels, q.Fields, q.PageSize, q.Running, q.Since = namespace, g.Labels, g.Fields, g.PageSize, g.running, g.since
	err = client.List(ctx, q, func(w *wf.Workflow) error {
		if g.Output != "json" && g.Output != "yaml" && g.Output != "wide" {
			// This output needs none of these fields: free their memory.
			w.Spec.Templates, w.Status.StoredTemplates, w.Status.StoredWorkflowTemplateSpec = nil, nil, nil
		}
		list = append(list, *w)
		return nil
	})
	return list, err
}

func (g *Getting) printList(v *Verb, list []wf.Workflow, namespace string) error {
	// The latest first.
	slices.SortStableFunc(list,
		func(a, b wf.Workflow) int { return b.CreationTimestamp.Compare(a.CreationTimestamp.Time) })
	for i := range list {
		v.Malformed(&list[i])
	}
	switch g.Output {
	case "", "wide":
		if len(list) == 0 {
			where := "in namespace " + namespace
			if v.Everywhere {
				where = "in the cluster"
			}
			fmt.Fprintf(v.Err, "No workflows found %s.\n", where)
			return nil
		}
		o := display.Options{Now: time.Now(), Wide: g.Output == "wide", Color: !g.noColor && command.Colors(v.Out)}
		_, err := fmt.Fprint(v.Out, display.List(list, v.Everywhere, !g.NoHeaders, o))
		return err
	case "name":
		for i := range list {
			fmt.Fprintf(v.Out, "workflow.argoproj.io/%s\n", list[i].Name)
		}
		return nil
	}
	out := &wf.WorkflowList{Items: list}
	out.APIVersion, out.Kind = wf.GroupVersion.String(), "WorkflowList"
	for i := range list {
		malformed.Unmark(&list[i])
		typed(&list[i])
	}
	return command.PrintObject(v.Out, g.Output, out)
}

func (g *Getting) printOne(v *Verb, w *wf.Workflow, another bool) error {
	if g.Output != "" && g.Output != "wide" {
		return command.PrintNext(v.Out, g.Output, typed(w), another)
	}
	g.statuses = g.query.Statuses
	o, err := g.options(v.Out, g.Output == "wide")
	if err != nil {
		return err
	}
	if another {
		fmt.Fprintln(v.Out)
	}
	_, err = fmt.Fprint(v.Out, display.Workflow(w, o))
	return err
}

// typed returns w with its kind, which the server's answers leave out.
func typed(w *wf.Workflow) *wf.Workflow {
	w.APIVersion, w.Kind = wf.GroupVersion.String(), "Workflow"
	return w
}

func newList(s command.Streams) *cobra.Command {
	var g Getting
	cmd := g.listing(s, &cobra.Command{
		Use:     "list",
		Short:   "List workflows: the same as 'get workflows'",
		Example: "  lockstep list --status Failed -A\n  lockstep list --completed --since 24h -o name",
	}, "json", "yaml", "wide", "name")
	cmd.Flags().StringVar(&g.Fields, "field-selector", "", "field selector")
	return cmd
}

// listing returns cmd as a verb that lists workflows.
func (g *Getting) listing(s command.Streams, cmd *cobra.Command, outputs ...string) *cobra.Command {
	v := NewVerb(s, cmd)
	v.allNamespaces(cmd, "workflows of every namespace")
	f := cmd.Flags()
	f.StringVarP(&g.Labels, "selector", "l", "", "label selector")
	f.BoolVar(&g.NoHeaders, "no-headers", false, "no line of headings")
	f.Int64Var(&g.PageSize, "chunk-size", 500, "how many the server sends at a time")
	command.OutputFlag(cmd, &g.Output, outputs...)
	g.Add(cmd)
	cmd.Args = command.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return g.Get(cmd, v, nil) }
	return cmd
}
