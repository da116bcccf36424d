package cli

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/rand"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/rerun"
)

// following holds the flags of verbs that start workflows: what to do until the workflows end.
type following struct {
	watch, wait, log bool
	timeout          time.Duration
}

func (f *following) add(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&f.watch, "watch", false, "watch the workflow until it is completed")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until every run has ended")
	cmd.Flags().BoolVar(&f.log, "log", false, "print what the workflow's pods write until it is completed")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "give up after this time; 0 waits for ever")
}

func (f *following) check(n int) error {
	switch {
	case f.watch && f.log, f.watch && f.wait, f.log && f.wait:
		return usageError{errors.New("give one of --watch, --wait and --log")}
	case (f.watch || f.log) && n != 1:
		return usageError{fmt.Errorf("--watch and --log follow one workflow, and these are %d: use --wait", n)}
	case f.timeout < 0:
		return usageError{fmt.Errorf("--timeout=%s: want zero or more", f.timeout)}
	}
	return nil
}

// follow does what the flags say until the workflows end. It returns an error if a workflow did not
// succeed.
func (c *wfCommand) follow(ctx context.Context, client *workflows.Client, f following, list []ref) error {
	switch {
	case c.dryRun.on(): // nothing was started
	case f.watch:
		return c.watch(ctx, client, list[0].namespace, list[0].name, drawing{})
	case f.log:
		r := list[0]
		if err := client.Logs(ctx, r.namespace, r.name, workflows.LogOptions{Follow: true}, logLine(c.s.out, true)); err != nil {
			return err
		}
		w, err := client.Get(ctx, r.namespace, r.name)
		if err != nil {
			return err
		}
		return verdictOf(w)
	case f.wait:
		var errs []error
		// one after the other: the last workflow to end determines the duration
		for _, r := range list {
			w, err := client.Wait(ctx, r.namespace, r.name)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil {
				fmt.Fprintf(c.s.err, "%s %s\n", w.Name, w.Status.Phase)
				err = verdictOf(w)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return nil
}

func newRetry(s streams) *cobra.Command {
	var (
		choice     selection
		restart    bool
		selector   string
		parameters []string
		f          following
		output     string
	)
	cmd := &cobra.Command{
		Use:   "retry [WORKFLOW...]",
		Short: "Run failed workflows again from where they failed",
		Long: `Run failed workflows again from where they failed: nodes that failed, and what came after them, run again; what succeeded
stays. With --restart-successful, the nodes that --node-field-selector chooses run again too.

Exit codes: 0 retried, and with --watch, --wait or --log succeeded; 1 otherwise; 2 wrong usage; 3 the --timeout ran out.`,
		Example: `  lockstep retry build --watch
  lockstep retry build --restart-successful --node-field-selector displayName=compile`,
	}
	c := newWFCommand(s, cmd)
	choice.add(cmd)
	f.add(cmd)
	c.dryRun.addChecked(cmd)
	cmd.Flags().BoolVar(&restart, "restart-successful", false, "run nodes again that succeeded: those of --node-field-selector")
	cmd.Flags().StringVar(&selector, "node-field-selector", "", "nodes to run again, for example displayName=compile")
	cmd.Flags().StringArrayVarP(&parameters, "parameter", "p", nil, "NAME=VALUE: another value for an argument")
	outputFlag(cmd, &output, "name", "json", "yaml")
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{Completed: true})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := rerun.RetryOptions{RestartSuccessful: restart}
		var err error
		if o.Parameters, err = keyValues("--parameter", parameters); err != nil {
			return err
		}
		if restart != (selector != "") {
			return usageError{errors.New("--restart-successful and --node-field-selector go together")}
		}
		if o.Select, err = matchNodes(selector, nil); err != nil {
			return err
		}
		return c.anew(cmd, args, &choice, &f, "retried", output, func(ctx context.Context, client *workflows.Client, w *wf.Workflow) (*wf.Workflow, error) {
			return retryWorkflow(ctx, client, w, o)
		})
	}
	return cmd
}

// anew makes the chosen workflows run again: it passes each workflow's present state to act and
// follows the workflows that act returns.
func (c *wfCommand) anew(cmd *cobra.Command, args []string, choice *selection, f *following, done, output string,
	act func(context.Context, *workflows.Client, *wf.Workflow) (*wf.Workflow, error)) error {
	client, namespace, err := c.connect()
	if err != nil {
		return err
	}
	ctx, stop := c.bounded(cmd, f.timeout)
	defer stop()
	list, err := choice.chosen(ctx, client, namespace, false, args)
	if err != nil {
		return err
	}
	if err := f.check(len(list)); err != nil {
		return err
	}
	var running []ref
	err = c.eachPrinted(list, done, output, func(r ref) (*wf.Workflow, error) {
		w, err := client.Get(ctx, r.namespace, r.name)
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
	return c.follow(ctx, client, *f, running)
}

// retryWorkflow deletes the pods of nodes that run again, and updates the workflow to its state
// after the retry.
func retryWorkflow(ctx context.Context, client *workflows.Client, w *wf.Workflow, o rerun.RetryOptions) (*wf.Workflow, error) {
	o.Now = client.Now()
	plan, err := rerun.Retry(w, o)
	if err != nil {
		return nil, err
	}
	if err := client.DeletePods(ctx, w.Namespace, plan.Pods); err != nil {
		return nil, err
	}
	if err := client.Replace(ctx, plan.Workflow); err != nil {
		if apierrors.IsConflict(err) {
			err = errors.New("it changed meanwhile: try again")
		}
		return nil, err
	}
	return plan.Workflow, nil
}

// eachPrinted is each with the flag -o: it prints the workflows that act returns.
func (c *wfCommand) eachPrinted(list []ref, done, output string, act func(ref) (*wf.Workflow, error)) error {
	if output == "" {
		return c.each(list, done, func(r ref) error { _, err := act(r); return err })
	}
	print, err := objectPrinter(output, c.s.out)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range list {
		w, err := act(r)
		if err == nil {
			w.APIVersion, w.Kind = wf.GroupVersion.String(), "Workflow"
			err = print(w)
		} else {
			err = fmt.Errorf("workflow %s: %w", r.name, err)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func newResubmit(s streams) *cobra.Command {
	var (
		choice     selection
		memoized   bool
		parameters []string
		priority   int32
		f          following
		output     string
	)
	cmd := &cobra.Command{
		Use:     "resubmit [WORKFLOW...]",
		Short:   "Start workflows anew, under new names",
		Example: "  lockstep resubmit hello -p message=again --watch\n  lockstep resubmit failed --memoized",
		Long: `Start workflows anew, under new names. With --memoized, what succeeded in a failed one is not run again.

Exit codes: 0 started, and with --watch, --wait or --log succeeded; 1 otherwise; 2 wrong usage; 3 the --timeout ran out.`,
	}
	c := newWFCommand(s, cmd)
	choice.add(cmd)
	f.add(cmd)
	c.dryRun.addChecked(cmd)
	cmd.Flags().BoolVar(&memoized, "memoized", false, "take over the results of what succeeded; the workflow must have failed")
	cmd.Flags().StringArrayVarP(&parameters, "parameter", "p", nil, "NAME=VALUE: another value for an argument")
	cmd.Flags().Int32Var(&priority, "priority", 0, "priority of the new workflow")
	outputFlag(cmd, &output, "name", "json", "yaml")
	cmd.ValidArgsFunction = c.completeWorkflows(workflows.Query{})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o := rerun.ResubmitOptions{Memoized: memoized}
		var err error
		if o.Parameters, err = keyValues("--parameter", parameters); err != nil {
			return err
		}
		if cmd.Flags().Changed("priority") {
			o.Priority = &priority
		}
		return c.anew(cmd, args, &choice, &f, "resubmitted", output, func(ctx context.Context, client *workflows.Client, w *wf.Workflow) (*wf.Workflow, error) {
			got, err := resubmitWorkflow(ctx, client, w, o)
			if err == nil && output == "" {
				fmt.Fprintf(s.out, "workflow %s %s\n", got.Name, c.dryRun.said("created"))
			}
			return got, err
		})
	}
	return cmd
}

func resubmitWorkflow(ctx context.Context, client *workflows.Client, w *wf.Workflow, o rerun.ResubmitOptions) (*wf.Workflow, error) {
	if o.Memoized {
		base := w.GenerateName
		if base == "" {
			base = w.Name + "-"
		}
		o.Name = base + rand.String(5) // the nodes that are taken over have it in their names
	}
	fresh, err := rerun.Resubmit(w, o)
	if err != nil {
		return nil, err
	}
	got := &wf.Workflow{}
	return got, client.Create(ctx, workflows.Workflows, fresh, got)
}
