package workflows

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/rerun"
)

// rerunVerb is a verb that runs workflows again: retry or resubmit.
type rerunVerb struct {
	*Verb
	choice     selection
	following  Following
	parameters []string
	output     string
}

func newRerun(s command.Streams, cmd *cobra.Command) *rerunVerb {
	r := &rerunVerb{Verb: NewVerb(s, cmd)}
	r.choice.add(cmd)
	r.following.Add(cmd, r.Verb)
	r.DryRun.AddChecked(cmd)
	cmd.Flags().StringArrayVarP(&r.parameters, "parameter", "p", nil, "NAME=VALUE: another value for an argument")
	command.OutputFlag(cmd, &r.output, "name", "json", "yaml")
	return r
}

// run returns the verb's command. It passes each chosen workflow's present state to act, and
// follows the workflows that act returns.
func (r *rerunVerb) run(done string,
	act func(context.Context, *workflows.Client, *wf.Workflow) (*wf.Workflow, error)) *cobra.Command {
	return names.Take(r.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		list, err := r.choice.chosen(ctx, r.Verb, client, namespace, args)
		if err != nil {
			return err
		}
		if err := r.following.Check(r.Verb, len(list)); err != nil {
			return err
		}
		var running []ref
		err = r.eachPrinted(list, done, r.output, func(at ref) (*wf.Workflow, error) {
			w, err := client.Get(ctx, at.namespace, at.name)
			if err != nil {
				return nil, err
			}
			got, err := act(ctx, client, w)
			if err == nil {
				running = append(running, ref{got.Namespace, got.Name})
			}
			return got, err
		})
		if err != nil {
			return err
		}
		return r.following.follow(ctx, r.Verb, client, running)
	}), names.Workflow)
}

// eachPrinted calls act for every workflow. If output is not empty, it prints the workflows that
// act returns in that form; otherwise it prints the same as each.
func (v *Verb) eachPrinted(list []ref, done, output string, act func(ref) (*wf.Workflow, error)) error {
	if output == "" {
		return v.each(list, done, func(r ref) error { _, err := act(r); return err })
	}
	print, err := command.ObjectPrinter(output, v.Out)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range list {
		w, err := act(r)
		if err == nil {
			err = print(typed(w))
		} else {
			err = fmt.Errorf("workflow %s: %w", r.name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func newRetry(s command.Streams) *cobra.Command {
	var o rerun.RetryOptions
	var selector string
	cmd := &cobra.Command{
		Use:   "retry [WORKFLOW...]",
		Short: "Run failed workflows again from where they failed",
		Long: `Run failed workflows again from where they failed: nodes that failed, and what came after them, run again; what succeeded
stays. With --restart-successful, the nodes that --node-field-selector chooses run again too.

Exit codes: 0 retried, and with --watch, --wait or --log succeeded; 1 otherwise; 2 wrong usage; 3 the --timeout ran out.`,
		Example: `  lockstep retry build --watch
  lockstep retry build --restart-successful --node-field-selector displayName=compile`,
	}
	r := newRerun(s, cmd)
	cmd.Flags().BoolVar(&o.RestartSuccessful, "restart-successful", false,
		"run nodes again that succeeded: those of --node-field-selector")
	cmd.Flags().StringVar(&selector, "node-field-selector", "", "nodes to run again, for example displayName=compile")
	cmd.ValidArgsFunction = r.Names(workflows.Query{Completed: true})
	r.Check(func([]string) (err error) {
		if o.Parameters, err = command.KeyValues("--parameter", r.parameters); err != nil {
			return err
		}
		if o.RestartSuccessful != (selector != "") {
			return command.Usagef("--restart-successful and --node-field-selector go together")
		}
		o.Select, err = matchNodes(selector, nil)
		return err
	})
	return r.run("retried", func(ctx context.Context, client *workflows.Client, w *wf.Workflow) (*wf.Workflow, error) {
		return retry(ctx, client, w, o)
	})
}

// retry deletes the pods of nodes that run again, and updates the workflow to its state after the
// retry.
func retry(ctx context.Context, client *workflows.Client, w *wf.Workflow, o rerun.RetryOptions) (*wf.Workflow, error) {
	o.Now = client.Now()
	plan, err := rerun.Retry(w, o)
	if err != nil {
		return nil, err
	}
	if err := client.DeletePods(ctx, w.Namespace, plan.Pods); err != nil {
		return nil, err
	}
	err = client.Replace(ctx, plan.Workflow)
	if apierrors.IsConflict(err) {
		err = errors.New("it changed meanwhile: try again")
	}
	return plan.Workflow, err
}

func newResubmit(s command.Streams) *cobra.Command {
	var o rerun.ResubmitOptions
	var priority int32
	cmd := &cobra.Command{
		Use:     "resubmit [WORKFLOW...]",
		Short:   "Start workflows anew, under new names",
		Example: "  lockstep resubmit hello -p message=again --watch\n  lockstep resubmit failed --memoized",
		Long: `Start workflows anew, under new names. With --memoized, what succeeded in a failed one is not run again.

Exit codes: 0 started, and with --watch, --wait or --log succeeded; 1 otherwise; 2 wrong usage; 3 the --timeout ran out.`,
	}
	r := newRerun(s, cmd)
	cmd.Flags().BoolVar(&o.Memoized, "memoized", false,
		"take over the results of what succeeded; the workflow must have failed")
	cmd.Flags().Int32Var(&priority, "priority", 0, "priority of the new workflow")
	cmd.ValidArgsFunction = r.Names(workflows.Query{})
	r.Check(func([]string) (err error) {
		if cmd.Flags().Changed("priority") {
			o.Priority = &priority
		}
		o.Parameters, err = command.KeyValues("--parameter", r.parameters)
		return err
	})
	return r.run("resubmitted",
		func(ctx context.Context, client *workflows.Client, w *wf.Workflow) (*wf.Workflow, error) {
			got, err := resubmit(ctx, client, w, o)
			if err == nil && r.output == "" {
				fmt.Fprintf(s.Out, "workflow %s %s\n", got.Name, r.DryRun.Said("created"))
			}
			return got, err
		})
}

func resubmit(ctx context.Context, client *workflows.Client, w *wf.Workflow,
	o rerun.ResubmitOptions) (*wf.Workflow, error) {
	if o.Memoized {
		base := w.GenerateName
		if base == "" {
			base = w.Name + "-"
		}
		o.Name = base + rand.String(5) // the reused nodes have the workflow's name in their names
	}
	fresh, err := rerun.Resubmit(w, o)
	if err != nil {
		return nil, err
	}
	got := &wf.Workflow{}
	return got, client.Create(ctx, workflows.Workflows, fresh, got)
}
