package workflows

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/duration"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/cron/schedule"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/cron"
)

var cronKind = objectKind{
	use: "cron", noun: "cron workflow", kind: "CronWorkflow", resource: workflows.Crons, namespaced: true,
	aliases: []string{"cwf", "cron-workflow"}, words: names.CronWorkflow,
	head: []string{"NAME", "AGE", "LAST RUN", "NEXT RUN", "SCHEDULES", "TIMEZONE", "SUSPENDED", "ACTIVE"}, row: cronRow,
}

func cronRow(o workflows.Object) []string {
	c := o.(*wf.CronWorkflow)
	last := "never"
	if t := c.Status.LastScheduledTime; t != nil {
		last = duration.HumanDuration(time.Since(t.Time))
	}
	return []string{c.Name, age(c), last, nextRun(c), strings.Join(c.Spec.AllSchedules(), ","), c.Spec.Timezone,
		fmt.Sprint(c.Spec.Suspend), fmt.Sprint(len(c.Status.Active))}
}

// nextRun returns when a CronWorkflow runs next, as text.
func nextRun(c *wf.CronWorkflow) string {
	switch {
	case c.Spec.Suspend:
		return "suspended"
	case c.Status.Phase == "Stopped":
		return "stopped"
	}
	times, err := schedule.Parse(c.Spec.AllSchedules(), c.Spec.Timezone, c.CreationTimestamp.Time)
	if err != nil {
		return "invalid"
	}
	now := time.Now()
	if next := times.Next(now); !next.IsZero() {
		return "in " + duration.HumanDuration(next.Sub(now))
	}
	return "never"
}

func newCron(s command.Streams, newSubmit func(command.Streams) *cobra.Command) *cobra.Command {
	return cronKind.command(s, newSubmit,
		newCronSuspend(s, "suspend", "Keep cron workflows from starting anything", true),
		newCronSuspend(s, "resume", "Let suspended cron workflows go on", false), newCronTrigger(s))
}

func newCronSuspend(s command.Streams, use, short string, suspend bool) *cobra.Command {
	cmd := &cobra.Command{Use: use + " NAME...", Short: short, Example: cronKind.example(use + " nightly"),
		Args: command.SomeArgs("NAME")}
	v := NewVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = cronKind.names(v)
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		for _, name := range args {
			if err := client.SuspendCron(ctx, namespace, name, suspend); err != nil {
				return err
			}
			fmt.Fprintf(s.Out, "cron workflow %s %s\n", name, v.DryRun.Said(strings.TrimSuffix(use, "e")+"ed"))
		}
		return nil
	}), names.CronWorkflow)
}

func newCronTrigger(s command.Streams) *cobra.Command {
	var f Following
	cmd := &cobra.Command{
		Use:   "trigger NAME",
		Short: "Start a cron workflow's workflow now, whatever its schedule says",
		Long: `Start a cron workflow's workflow now, whatever its schedule says.

Exit codes: 0 started, and with --watch, --wait or --log succeeded; 1 otherwise; 2 wrong usage; 3 the --timeout ran out.`,
		Example: "  lockstep cron trigger nightly --watch",
		Args:    command.OneArg("NAME"),
	}
	v := NewVerb(s, cmd)
	f.Add(cmd, v)
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = cronKind.names(v)
	v.Check(func([]string) error { return f.Check(v, 1) })
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		w, err := fromCron(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		got := &wf.Workflow{}
		if err := client.Create(ctx, workflows.Workflows, w, got); err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "workflow %s %s\n", got.Name, v.DryRun.Said("created"))
		return f.Follow(ctx, v, client, got.Namespace, got.Name)
	}), names.CronWorkflow)
}

// fromCron returns the workflow that a CronWorkflow would start now.
func fromCron(ctx context.Context, client *workflows.Client, namespace, name string) (*wf.Workflow, error) {
	c := &wf.CronWorkflow{}
	if err := client.Read(ctx, workflows.Crons, namespace, name, c); err != nil {
		return nil, err
	}
	return cron.Workflow(c, "", time.Time{}), nil
}
