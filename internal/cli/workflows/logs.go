package workflows

import (
	"context"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

func newLogs(s command.Streams) *cobra.Command {
	var (
		o       command.LogFlags
		noColor bool
	)
	cmd := &cobra.Command{
		Use:   "logs WORKFLOW [POD]",
		Short: "Print what the pods of a workflow wrote",
		Long:  "Print what the pods of a workflow wrote, each line after the name of its pod.",
		Example: `  lockstep logs hello
  lockstep logs @latest -f --grep error`,
		Args: command.Args(1, 2, "want a workflow, and maybe one of its pods"),
	}
	v := NewVerb(s, cmd)
	o.Add(cmd, "go on until the workflow is completed", "the container's run before")
	f := cmd.Flags()
	f.StringVarP(&o.Container, "container", "c", "main", "container of the pods")
	f.StringVarP(&o.Labels, "selector", "l", "", "only of pods with these labels")
	f.BoolVar(&noColor, "no-color", false, "no colours, as $NO_COLOR does")
	cmd.ValidArgsFunction = v.Names(workflows.Query{})
	v.Check(func(args []string) (err error) {
		if len(args) > 1 {
			if o.Pod, err = names.Pod.Name(args[1]); err != nil {
				return err
			}
		}
		return o.Complete()
	})
	return names.Take(v.Run(func(ctx context.Context, client *workflows.Client, namespace string, args []string) error {
		name, err := client.Name(ctx, namespace, args[0])
		if err != nil {
			return err
		}
		return client.Logs(ctx, namespace, name, o.LogOptions, command.LogLine(s.Out, !noColor && o.Pod == ""))
	}), names.Workflow, names.First)
}
