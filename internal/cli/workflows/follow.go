package workflows

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// Following holds the flags of verbs that start workflows: what to do until the workflows end.
type Following struct{ Watch, Wait, Log bool }

// Add adds the flags, and --timeout of v.
func (f *Following) Add(cmd *cobra.Command, v *Verb) {
	cmd.Flags().BoolVar(&f.Watch, "watch", false, "watch the workflow until it is completed")
	cmd.Flags().BoolVar(&f.Wait, "wait", false, "wait until every run has ended")
	cmd.Flags().BoolVar(&f.Log, "log", false, "print what the workflow's pods write until it is completed")
	cmd.Flags().DurationVar(&v.Timeout, "timeout", 0, "give up after this time; 0 waits for ever")
}

// Check checks the flags for n runs.
func (f *Following) Check(v *Verb, n int) error {
	switch {
	case f.Watch && f.Log, f.Watch && f.Wait, f.Log && f.Wait:
		return command.Usagef("give one of --watch, --wait and --log")
	case (f.Watch || f.Log) && n != 1:
		return command.Usagef("--watch and --log follow one workflow, and these are %d: use --wait", n)
	case v.Timeout < 0:
		return command.Usagef("--timeout=%s: want zero or more", v.Timeout)
	}
	return nil
}

// Follow does what the flags say until the workflow ends. It returns an error if the workflow did
// not succeed.
func (f *Following) Follow(ctx context.Context, v *Verb, client *workflows.Client, namespace, name string) error {
	return f.follow(ctx, v, client, []ref{{namespace, name}})
}

func (f *Following) follow(ctx context.Context, v *Verb, client *workflows.Client, list []ref) error {
	switch {
	case v.DryRun.On(): // nothing was started
	case f.Watch:
		return v.watch(ctx, client, list[0].namespace, list[0].name, drawing{})
	case f.Log:
		r := list[0]
		if err := client.Logs(ctx, r.namespace, r.name, workflows.LogOptions{Follow: true},
			command.LogLine(v.Out, true)); err != nil {
			return err
		}
		w, err := client.Get(ctx, r.namespace, r.name)
		if err != nil {
			return err
		}
		return verdict(w)
	case f.Wait:
		var errs []error
		// Waiting for one after the other takes no longer: the last workflow to end determines it.
		for _, r := range list {
			w, err := client.Wait(ctx, r.namespace, r.name)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err == nil {
				fmt.Fprintf(v.Err, "%s %s\n", w.Name, display.OneLine(string(w.Status.Phase)))
				err = verdict(w)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	return nil
}
