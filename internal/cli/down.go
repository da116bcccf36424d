package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

func newDown(s streams) *cobra.Command {
	var name string
	var all bool
	var dryRun dryRun
	cmd := &cobra.Command{
		Use:     "down",
		Short:   "Stop a local control plane and remove everything of it",
		Example: "  lockstep down\n  lockstep down --all",
		Args:    noArgs,
		RunE: func(*cobra.Command, []string) error {
			names := []string{name}
			if all {
				var err error
				if names, err = supervise.Names(); err != nil {
					return err
				}
			}
			ctx, _, release := twoInterrupts(s.err)
			defer release()
			var failed error
			for _, n := range names {
				if dryRun.on() {
					if state, err := supervise.Get(ctx, n); err != nil {
						failed = errors.Join(failed, clusterError(n, err))
					} else {
						fmt.Fprintf(s.out, "Cluster %q would be stopped, and %s removed (dry run).\n", n, state.Dir)
					}
					continue
				}
				if err := supervise.Down(ctx, n); err != nil {
					failed = errors.Join(failed, clusterError(n, err))
					continue
				}
				fmt.Fprintf(s.out, "Cluster %q is down.\n", n)
			}
			if all && !dryRun.on() {
				n, err := rig.RemoveStale()
				if n > 0 {
					fmt.Fprintf(s.out, "Removed what killed benchmarks left: %d folders.\n", n)
				}
				failed = errors.Join(failed, err)
			}
			return failed
		},
	}
	cmd.Flags().StringVar(&name, "name", defaultCluster, "name of the cluster")
	cmd.Flags().BoolVar(&all, "all", false, "all local clusters, and what killed benchmarks left")
	dryRun.add(cmd, "only say what would be stopped and removed", dryRunClient)
	cmd.MarkFlagsMutuallyExclusive("name", "all")
	return cmd
}
