package objects

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/kubectl/pkg/cmd/wait"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit"
)

// waiting returns the verb wait for all kinds but workflows, and for conditions of any kind.
func waiting(s command.Streams) *branch {
	var conditions []string
	var selector string
	return &branch{
		about: `Batch jobs are waited for in the same way (wait job/hello). With --for, any kind is waited for as kubectl wait does, until
a condition holds: wait queue/research --for=jsonpath={.status.state}=Closed.`,
		both: []string{"timeout"},
		add: func(f *pflag.FlagSet) {
			f.StringArrayVar(&conditions, "for", nil, "what to wait for: create, delete, condition=NAME[=VALUE], jsonpath={PATH}[=VALUE]")
			f.StringVarP(&selector, "selector", "l", "", "label selector, for kinds other than workflows")
		},
		selected: func(f *pflag.FlagSet) bool { return f.Changed("selector") },
		always:   func(f *pflag.FlagSet) bool { return f.Changed("for") },
		run: func(cmd *cobra.Command, kube *genericclioptions.ConfigFlags, args []string) error {
			timeout, err := cmd.Flags().GetDuration("timeout")
			if err != nil {
				return err
			}
			ctx, stop := command.Interruptible(cmd, timeout)
			defer stop()
			if len(conditions) == 0 {
				return waitForRuns(ctx, s, kube, args, selector)
			}
			flags := wait.NewWaitFlags(kube, streams(s))
			flags.ForCondition, flags.Timeout, flags.ResourceBuilderFlags.LabelSelector = conditions, timeout, &selector
			if timeout == 0 {
				flags.Timeout = forever
			}
			o, err := flags.ToOptions(args)
			if err != nil {
				return command.Usage(err)
			}
			return timeUp(o.RunWaitContext(ctx))
		},
	}
}

func waitForRuns(ctx context.Context, s command.Streams, kube *genericclioptions.ConfigFlags, args []string, selector string) error {
	objects, err := submit.Find(kube, args, selector)
	if err != nil {
		return err
	}
	for _, o := range objects {
		if !o.IsRun() {
			return command.Usagef("%s is not a run: say with --for what to wait for", o.Ref())
		}
	}
	failed, err := command.WaitForRuns(ctx, s.Out, objects)
	switch {
	case err != nil:
		return err
	case failed > 0:
		return fmt.Errorf("%d of %d runs failed", failed, len(objects))
	}
	return nil
}

// forever is kubectl's form of no timeout.
const forever = -1 * time.Second

// timeUp returns err, as an expired deadline if kubectl gave up waiting.
func timeUp(err error) error {
	if err != nil && strings.Contains(err.Error(), "timed out waiting") {
		return fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
	}
	return err
}
