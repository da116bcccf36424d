package applications

import (
	"context"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// New returns the command 'app'.
func New(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:     "app",
		Aliases: []string{"apps", "application"},
		Short:   "Applications: deploy, watch, preview and delete",
	}, newUp(s), newStatus(s), newList(s), newDryRun(s), newDiff(s), newRevisions(s), newRollback(s, "app"), newWorkflow(s),
		newLogs(s), newExec(s), newPortForward(s), newDelete(s))
}

// verb is a verb about applications.
type verb struct {
	*command.Verb[*applications.Client]
}

// newVerb returns a verb for cmd, and adds kubectl's flags to cmd.
func newVerb(s command.Streams, cmd *cobra.Command) verb {
	return verb{command.NewVerb(s, cmd, applications.New)}
}

// onNamed does the same as Run for a verb that takes applications by name.
func (v verb) onNamed(do func(ctx context.Context, client *applications.Client, namespace string, args []string) error,
	options ...names.Option) *cobra.Command {
	return names.Take(v.Run(do), names.Application, options...)
}

// names returns a function that completes names of applications.
func (v verb) names() cobra.CompletionFunc {
	return v.Complete(func(ctx context.Context, client *applications.Client, namespace string) (all []string,
		err error) {
		apps, err := client.List(ctx, namespace, "")
		for i := range apps {
			all = append(all, apps[i].Name+"\t"+string(apps[i].Status.Phase))
		}
		return all, err
	})
}
