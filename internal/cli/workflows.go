package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
	"lockstep.dev/lockstep/internal/workflow/nodeselect"
)

// completionTimeout bounds how long completion of names may take when a user presses Tab.
const completionTimeout = 2 * time.Second

// wfCommand holds the streams and flags that the verbs about workflows share.
type wfCommand struct {
	s     streams
	flags *genericclioptions.ConfigFlags
	all   bool // --all-namespaces, if the verb has this flag
	// dryRun is the value of --dry-run, if the verb has this flag.
	dryRun dryRun
}

// newWFCommand adds kubectl's flags to cmd.
func newWFCommand(s streams, cmd *cobra.Command) *wfCommand {
	return &wfCommand{s: s, flags: kubeFlags(cmd)}
}

func (c *wfCommand) allNamespaces(cmd *cobra.Command) {
	cmd.Flags().BoolVarP(&c.all, "all-namespaces", "A", false, "workflows of every namespace")
}

// connect returns a client and the namespace to work in.
func (c *wfCommand) connect() (*workflows.Client, string, error) {
	cfg, namespace, err := where(c.flags)
	if err != nil {
		return nil, "", err
	}
	client, err := workflows.New(cfg)
	if err != nil {
		return nil, "", err
	}
	client.DryRun = kubeclient.DryRun(c.dryRun.on())
	return client, namespace, nil
}

// completeWorkflows completes names of workflows that match q.
func (c *wfCommand) completeWorkflows(q workflows.Query) cobra.CompletionFunc {
	return c.complete(func(ctx context.Context, client *workflows.Client, namespace string) ([]string, error) {
		var out []string
		q.Namespace = namespace
		err := client.List(ctx, q, func(w *wf.Workflow) error {
			out = append(out, w.Name+"\t"+display.Status(w))
			return nil
		})
		return out, err
	})
}

func (c *wfCommand) complete(names func(context.Context, *workflows.Client, string) ([]string, error)) cobra.CompletionFunc {
	return completion(func(ctx context.Context) ([]string, error) {
		client, namespace, err := c.connect()
		if err != nil {
			return nil, err
		}
		return names(ctx, client, namespace)
	})
}

// completion returns a function that completes arguments with the names that names returns.
func completion(names func(context.Context) ([]string, error)) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		all, err := names(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return matching(all, args, toComplete), cobra.ShellCompDirectiveNoFileComp
	}
}

// first limits a completion to the first argument.
func first(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, toComplete)
	}
}

// matching returns the names that begin with toComplete and are not in args yet. A name may have a
// description after a tab.
func matching(names, args []string, toComplete string) []string {
	var out []string
	for _, name := range names {
		bare, _, _ := strings.Cut(name, "\t")
		if strings.HasPrefix(bare, toComplete) && !slices.Contains(args, bare) {
			out = append(out, name)
		}
	}
	return out
}

// drawing holds the flags of verbs that draw trees.
type drawing struct {
	noColor, ascii bool
	nodes          string
	statuses       []string
}

func (d *drawing) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&d.noColor, "no-color", false, "no colours, as $NO_COLOR does")
	cmd.Flags().BoolVar(&d.ascii, "no-utf8", false, "draw with plain characters")
	cmd.Flags().StringVar(&d.nodes, "node-field-selector", "", "only nodes that match, for example displayName=build,phase!=Succeeded")
}

// options returns the display's options for a writer.
func (d *drawing) options(w io.Writer, wide bool) (display.Options, error) {
	o := display.Options{Now: time.Now(), Wide: wide, ASCII: d.ascii, Color: !d.noColor && colors(w)}
	match, err := matchNodes(d.nodes, d.statuses)
	o.Match = match
	return o, err
}

// matchNodes returns a function that selects nodes, or nil if neither a selector nor statuses are
// given.
func matchNodes(selector string, statuses []string) (func(*wf.NodeStatus) bool, error) {
	if selector == "" && len(statuses) == 0 {
		return nil, nil
	}
	match, err := nodeselect.Parse(selector)
	if err != nil {
		return nil, usageError{err}
	}
	return func(n *wf.NodeStatus) bool {
		return match(n) && (len(statuses) == 0 || slices.Contains(statuses, string(n.Phase)))
	}, nil
}

// colors reports whether w is a terminal and the user has not switched off colours.
func colors(w io.Writer) bool {
	return isTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// selection chooses the workflows of a verb that acts on several: by name, or by a query.
type selection struct {
	query workflows.Query
	all   bool
}

func (s *selection) add(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&s.query.Labels, "selector", "l", "", "label selector")
	f.StringVar(&s.query.Fields, "field-selector", "", "field selector, for example metadata.name=hello")
}

// addFilters adds the filter flags of list and delete.
func (s *selection) addFilters(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringSliceVar(&s.query.Statuses, "status", nil, "only with these phases: Pending, Running, Succeeded, Failed, Error")
	f.BoolVar(&s.query.Completed, "completed", false, "only completed ones")
	f.BoolVar(&s.query.Resubmitted, "resubmitted", false, "only those submitted again")
	f.StringVar(&s.query.Prefix, "prefix", "", "only with names that begin so")
	f.DurationVar(&s.query.OlderFor, "older", 0, "only those created longer ago than this, for example 24h")
	f.Int64Var(&s.query.PageSize, "chunk-size", 500, "how many the server sends at a time")
	must(cmd.RegisterFlagCompletionFunc("status", cobra.FixedCompletions(
		[]string{"Pending", "Running", "Succeeded", "Failed", "Error"}, cobra.ShellCompDirectiveNoFileComp)))
}

// ref is the namespace and name of a workflow.
type ref struct{ namespace, name string }

// chosen returns the workflows that args name or, without args, those that the flags select.
func (s *selection) chosen(ctx context.Context, client *workflows.Client, namespace string, everywhere bool, args []string) ([]ref, error) {
	var out []ref
	for _, name := range args {
		if name == "@latest" {
			w, err := client.Get(ctx, namespace, name)
			if err != nil {
				return nil, err
			}
			name = w.Name
		}
		out = append(out, ref{namespace, name})
	}
	q := s.query
	filtered := q.Labels != "" || q.Fields != "" || len(q.Statuses) > 0 || q.Completed || q.Resubmitted || q.Prefix != "" || q.OlderFor > 0
	switch {
	case len(args) > 0 && (filtered || s.all):
		return nil, usageError{errors.New("give either names or flags that select")}
	case len(args) > 0:
		return out, nil
	case !filtered && !s.all:
		return nil, usageError{errors.New("say which: name workflows, or select them with -l")}
	}
	if q.Namespace = namespace; everywhere {
		q.Namespace = ""
	}
	err := client.List(ctx, q, func(w *wf.Workflow) error {
		out = append(out, ref{w.Namespace, w.Name})
		return nil
	})
	return out, err
}

// each acts on every workflow, prints the outcome of each, and returns an error with the number of
// failures.
func (c *wfCommand) each(list []ref, done string, act func(ref) error) error {
	failed, said := 0, c.dryRun.said(done)
	for _, r := range list {
		if err := act(r); err != nil {
			failed++
			fmt.Fprintf(c.s.err, "lockstep: workflow %s: %v\n", r.name, err)
			continue
		}
		fmt.Fprintf(c.s.out, "workflow %s %s\n", r.name, said)
	}
	switch {
	case len(list) == 0:
		fmt.Fprintln(c.s.err, "No workflows match.")
	case failed > 0:
		return fmt.Errorf("%d of %d workflows: not %s", failed, len(list), done)
	}
	return nil
}

// verdictOf returns an error if the workflow did not succeed.
func verdictOf(w *wf.Workflow) error {
	if w.Status.Phase == wf.WorkflowSucceeded {
		return nil
	}
	if w.Status.Message != "" {
		return fmt.Errorf("workflow %s: %s: %s", w.Name, w.Status.Phase, w.Status.Message)
	}
	return fmt.Errorf("workflow %s: %s", w.Name, w.Status.Phase)
}
