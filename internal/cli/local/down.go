package local

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

// NewDown returns the command 'down'.
func NewDown(s command.Streams) *cobra.Command {
	var name string
	var all bool
	var dryRun command.DryRun
	cmd := &cobra.Command{
		Use:     "down",
		Short:   "Stop a local control plane and remove everything of it",
		Example: "  lockstep down\n  lockstep down --all",
		Args:    command.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			names := []string{name}
			if all {
				var err error
				if names, err = supervise.Names(); err != nil {
					return err
				}
			}
			ctx, _, release := twoInterrupts(s.Err)
			defer release()
			var failed error
			for _, n := range names {
				if dryRun.On() {
					if state, err := supervise.Get(ctx, n); err != nil {
						failed = errors.Join(failed, clusterError(n, err))
					} else {
						fmt.Fprintf(s.Out, "Cluster %q would be stopped, and %s removed (dry run).\n", n, state.Dir)
					}
					continue
				}
				if err := supervise.Down(ctx, n); err != nil {
					failed = errors.Join(failed, clusterError(n, err))
					continue
				}
				fmt.Fprintf(s.Out, "Cluster %q is down.\n", n)
			}
			if all && !dryRun.On() {
				n, err := rig.RemoveStale()
				if n > 0 {
					fmt.Fprintf(s.Out, "Removed what killed benchmarks left: %d folders.\n", n)
				}
				failed = errors.Join(failed, err)
			}
			return failed
		},
	}
	cmd.Flags().StringVar(&name, "name", defaultCluster, "name of the cluster")
	cmd.Flags().BoolVar(&all, "all", false, "all local clusters, and what killed benchmarks left")
	dryRun.Add(cmd, "only say what would be stopped and removed", command.DryRunClient)
	cmd.MarkFlagsMutuallyExclusive("name", "all")
	return cmd
}
