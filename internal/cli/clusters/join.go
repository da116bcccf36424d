package clusters

import (
	"fmt"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/kubeclient"
)

func newJoin(s command.Streams) *cobra.Command {
	var name, context, alias string
	var labels []string
	var gateway, unchecked bool
	cmd := &cobra.Command{
		Use:   "join KUBECONFIG",
		Short: "Let applications be deployed to another cluster",
		Long: `Register the cluster that a kubeconfig names: its address and credential go into a Secret of the namespace vela-system.
The credential must be a token or a certificate; the manager acts in the cluster with its rights. Joining again under the
same name replaces how the cluster is reached.`,
		Example: "  lockstep cluster join hz.kubeconfig --name hz-1 --labels region=hz,stage=prod",
		Args:    command.Args(1, 1, "say how the cluster is reached: lockstep cluster join KUBECONFIG --name NAME"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster; required")
	cmd.Flags().StringVar(&alias, "alias", "", "what people call it")
	cmd.Flags().StringVar(&context, "of-context", "", "context of KUBECONFIG (default its current one)")
	cmd.Flags().StringSliceVar(&labels, "labels", nil, "labels for placement, KEY=VALUE")
	cmd.Flags().BoolVar(&gateway, "through-gateway", false, "the manager reaches it through its cluster gateway")
	cmd.Flags().BoolVar(&unchecked, "unchecked", false, "do not try first whether the cluster can be reached from here")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		set, err := parseLabels(labels, false)
		if err != nil {
			return err
		}
		cfg, err := kubeclient.Load(args[0], context)
		if err != nil {
			return err
		}
		if name == "" {
			return command.Usagef("--name: a managed cluster needs a name")
		}
		cred, err := clusters.FromREST(name, cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		cred.Alias, cred.Gateway = alias, gateway
		for k, v := range set {
			cred.Labels[k] = *v
		}
		client, _, err := v.Connect()
		if err != nil {
			return err
		}
		if !unchecked && !gateway {
			if err := client.Probe(cmd.Context(), cred, clusters.Gateway{}); err != nil {
				return fmt.Errorf("cluster %s does not answer at %s: %w; --unchecked joins it all the same", name,
					cred.Endpoint, err)
			}
		}
		replaced, err := client.Join(cmd.Context(), cred)
		if err != nil {
			return err
		}
		verb := "joined"
		if replaced {
			verb = "replaced"
		}
		fmt.Fprintf(s.Out, "cluster/%s %s\n", name, v.DryRun.Said(verb))
		return nil
	}
	return cmd
}
