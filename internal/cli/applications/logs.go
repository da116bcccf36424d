package applications

import (
	"context"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newLogs(s command.Streams) *cobra.Command {
	var o command.LogFlags
	var choice podChoice
	cmd := &cobra.Command{
		Use:     "logs NAME",
		Short:   "Print what the pods of an application wrote",
		Long:    "Print what the pods of an application wrote, each line after the name of its pod.",
		Example: "  lockstep app logs shop\n  lockstep app logs shop -c web -f --tail 10",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	choice.flags(cmd)
	o.Add(cmd, "go on as long as the pods write", "the containers' run before")
	v.Check(func([]string) error { return o.Complete() })
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		o.Container = choice.container
		pods, err := choice.pods(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		return client.Logs(ctx, pods, o.LogOptions, command.LogLine(s.Out, len(pods) > 1))
	})
}
