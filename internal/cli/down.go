package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/localcluster/supervise"
)

func newDown(s streams) *cobra.Command {
	var name string
	var all bool
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
				if err := supervise.Down(ctx, n); err != nil {
					failed = errors.Join(failed, clusterError(n, err))
					continue
				}
				fmt.Fprintf(s.out, "Cluster %q is down.\n", n)
			}
			return failed
		},
	}
	cmd.Flags().StringVar(&name, "name", defaultCluster, "name of the cluster")
	cmd.Flags().BoolVar(&all, "all", false, "all local clusters")
	cmd.MarkFlagsMutuallyExclusive("name", "all")
	return cmd
}
