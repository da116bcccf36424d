package workflows

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// New returns the verbs. newSubmit returns the verb submit, which is also create and update of
// templates and crons.
func New(s command.Streams, newSubmit func(command.Streams) *cobra.Command) []*cobra.Command {
	return []*cobra.Command{
		newArchive(s), newDelete(s), newList(s), newLogs(s), newNode(s), newResubmit(s), newResume(s), newRetry(s),
		newStop(s), newSuspend(s), newTerminate(s), newWait(s), newWatch(s),
		newCron(s, newSubmit), templateKind.command(s, newSubmit), clusterTemplateKind.command(s, newSubmit),
	}
}

// Verb is a verb about workflows.
type Verb struct {
	*command.Verb[*workflows.Client]
	Everywhere bool // --all-namespaces, if the verb has this flag
}

// NewVerb returns a verb for cmd, and adds kubectl's flags to cmd.
func NewVerb(s command.Streams, cmd *cobra.Command) *Verb {
	return &Verb{Verb: command.NewVerb(s, cmd, workflows.New)}
}

// allNamespaces adds the flag --all-namespaces.
func (v *Verb) allNamespaces(cmd *cobra.Command, usage string) {
	cmd.Flags().BoolVarP(&v.Everywhere, "all-namespaces", "A", false, usage)
}

// in returns the namespace to list: namespace, or all with --all-namespaces.
func (v *Verb) in(namespace string) string {
	if v.Everywhere {
		return ""
	}
	return namespace
}

// Names returns a function that completes names of workflows that match q.
func (v *Verb) Names(q workflows.Query) cobra.CompletionFunc {
	return v.Complete(func(ctx context.Context, client *workflows.Client, namespace string) (out []string, err error) {
		q.Namespace = namespace
		err = client.List(ctx, q, func(w *wf.Workflow) error {
			out = append(out, w.Name+"\t"+display.Status(w))
			return nil
		})
		return out, err
	})
}

// ref is the namespace and name of a workflow.
type ref struct{ namespace, name string }

// each calls act for every workflow, prints done or the error for each, and returns an error with
// the number of failures.
func (v *Verb) each(list []ref, done string, act func(ref) error) error {
	failed, said := 0, v.DryRun.Said(done)
	for _, r := range list {
		if err := act(r); err != nil {
			failed++
			fmt.Fprintf(v.Err, "lockstep: workflow %s: %v\n", r.name, err)
			continue
		}
		fmt.Fprintf(v.Out, "workflow %s %s\n", r.name, said)
	}
	switch {
	case len(list) == 0:
		fmt.Fprintln(v.Err, "No workflows match.")
	case failed > 0:
		return fmt.Errorf("%d of %d workflows: not %s", failed, len(list), done)
	}
	return nil
}

// verdict returns an error if the workflow did not succeed.
func verdict(w *wf.Workflow) error {
	if w.Status.Phase == wf.WorkflowSucceeded {
		return nil
	}
	text := fmt.Sprintf("%s: %s", w.Name, w.Status.Phase)
	if w.Status.Message != "" {
		text += ": " + w.Status.Message
	}
	return fmt.Errorf("workflow %s", display.OneLine(text))
}
