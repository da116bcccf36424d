package applications

import (
	"context"
	"fmt"
	"math"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newExec(s command.Streams) *cobra.Command {
	var choice podChoice
	var stdin, tty bool
	cmd := &cobra.Command{
		Use:   "exec NAME -- COMMAND...",
		Short: "Run a command in a pod of an application",
		Long: `Run a command in the first pod of the application that runs, or the one that is named.

Exit code: the command's, where it ran.`,
		Example: "  lockstep app exec shop -- ls /\n  lockstep app exec shop -c web -it -- sh",
		Args:    command.Args(2, math.MaxInt, "want an application and, after --, a command"),
	}
	v := newVerb(s, cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	choice.flags(cmd)
	f := cmd.Flags()
	f.BoolVarP(&stdin, "stdin", "i", false, "give the command what comes on standard input")
	f.BoolVarP(&tty, "tty", "t", false, "give the command a terminal")
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		pod, err := choice.one(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		o := applications.ExecOptions{Container: choice.container, Command: args[1:], Out: s.Out, Err: s.Err}
		if stdin {
			o.In = s.In
		}
		if o.Container == "" {
			o.Container = pod.Spec.Containers[0].Name
		}
		if in, ok := s.In.(*os.File); ok && tty && term.IsTerminal(int(in.Fd())) {
			before, err := term.MakeRaw(int(in.Fd()))
			if err != nil {
				return err
			}
			defer func() { _ = term.Restore(int(in.Fd()), before) }()
			o.TTY = true
		} else if tty {
			fmt.Fprintln(s.Err, "standard input is not a terminal: the command gets none")
		}
		return client.Exec(ctx, pod, o)
	}, names.First, names.Offline)
}
