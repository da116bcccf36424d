package applications

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newDelete(s command.Streams) *cobra.Command {
	var opts applications.DeleteOptions
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete applications and what they made",
		Long: `Delete applications, and wait until what they made is gone.

Exit codes: 0 all are deleted; 1 one of them is not there, or may not be deleted; 2 wrong usage; 3 one was still there after
--timeout.`,
		Example: "  lockstep app delete shop\n  lockstep app delete shop cart --wait=false",
		Args:    command.SomeArgs("NAME"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = v.names()
	cmd.Flags().BoolVarP(&opts.Wait, "wait", "w", true, "wait until what they made is gone")
	cmd.Flags().BoolVar(&opts.Orphan, "orphan", false, "let what they made stay")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		var failed []error
		for _, name := range args {
			if err := client.Delete(ctx, namespace, name, opts); err != nil {
				failed = append(failed, err)
				continue
			}
			fmt.Fprintf(s.Out, "application.core.oam.dev/%s %s\n", name, v.DryRun.Said("deleted"))
		}
		return errors.Join(failed...)
	})
}
