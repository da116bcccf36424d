package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/kubeclient"
	submit "lockstep.dev/lockstep/internal/submit/clusters"
)

// clusterCommand holds the streams and flags that the verbs about managed clusters share.
type clusterCommand struct {
	s     streams
	flags *genericclioptions.ConfigFlags
	// dryRun is the value of --dry-run, if the verb has this flag.
	dryRun dryRun
}

func newClusterCommand(s streams, cmd *cobra.Command) *clusterCommand {
	c := &clusterCommand{s: s, flags: kubeFlags(cmd)}
	must(cmd.Flags().MarkHidden("namespace")) // managed clusters have no namespace
	return c
}

func newCluster(s streams) *cobra.Command {
	return group(&cobra.Command{
		Use:     "cluster",
		Aliases: []string{"clusters"},
		Short:   "Clusters that applications are deployed to beside this one: join, list, label, probe, detach",
	}, newClusterJoin(s), newClusterList(s), newClusterLabels(s), newClusterProbe(s), newClusterDetach(s))
}

func (c *clusterCommand) connect() (*submit.Client, error) {
	cfg, err := kubeclient.Load(*c.flags.KubeConfig, *c.flags.Context)
	if err != nil {
		return nil, err
	}
	client, err := submit.New(cfg)
	if err != nil {
		return nil, err
	}
	client.DryRun = kubeclient.DryRun(c.dryRun.on())
	return client, nil
}

// names completes names of managed clusters.
func (c *clusterCommand) names() cobra.CompletionFunc {
	return completion(func(ctx context.Context) ([]string, error) {
		client, err := c.connect()
		if err != nil {
			return nil, err
		}
		list, _, err := client.List(ctx)
		var names []string
		for _, cred := range list {
			names = append(names, cred.Name)
		}
		return names, err
	})
}

// oneName requires exactly one argument, the name of a cluster.
func oneName(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usageError{fmt.Errorf("say which cluster: lockstep cluster %s NAME", cmd.Name())}
	}
	return nil
}

func newClusterJoin(s streams) *cobra.Command {
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
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usageError{errors.New("say how the cluster is reached: lockstep cluster join KUBECONFIG --name NAME")}
			}
			return nil
		},
	}
	c := newClusterCommand(s, cmd)
	c.dryRun.addChecked(cmd)
	cmd.Flags().StringVar(&name, "name", "", "name of the cluster; required")
	cmd.Flags().StringVar(&alias, "alias", "", "what people call it")
	cmd.Flags().StringVar(&context, "of-context", "", "context of KUBECONFIG (default its current one)")
	cmd.Flags().StringSliceVar(&labels, "labels", nil, "labels for placement, KEY=VALUE")
	cmd.Flags().BoolVar(&gateway, "through-gateway", false, "the manager reaches it through its cluster gateway")
	cmd.Flags().BoolVar(&unchecked, "unchecked", false, "do not try first whether the cluster can be reached from here")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		set, err := parseLabels(labels, false)
		if err != nil {
			return usageError{err}
		}
		cfg, err := kubeclient.Load(args[0], context)
		if err != nil {
			return err
		}
		if name == "" {
			return usageError{errors.New("--name: a managed cluster needs a name")}
		}
		cred, err := clusters.FromREST(name, cfg)
		if err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		cred.Alias, cred.Gateway = alias, gateway
		for k, v := range set {
			cred.Labels[k] = *v
		}
		client, err := c.connect()
		if err != nil {
			return err
		}
		if !unchecked && !gateway {
			if err := client.Probe(cmd.Context(), cred, clusters.Gateway{}); err != nil {
				return fmt.Errorf("cluster %s does not answer at %s: %w; --unchecked joins it all the same", name, cred.Endpoint, err)
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
		fmt.Fprintf(s.out, "cluster/%s %s\n", name, c.dryRun.said(verb))
		return nil
	}
	return cmd
}

// parseLabels parses KEY=VALUE. If off is true, KEY- is also allowed: it removes the label, and its
// value in the result is nil.
func parseLabels(texts []string, off bool) (map[string]*string, error) {
	out := map[string]*string{}
	for _, text := range texts {
		key, value, given := strings.Cut(text, "=")
		if !given {
			var dash bool
			if key, dash = strings.CutSuffix(text, "-"); !dash || !off {
				return nil, fmt.Errorf("label %q: want KEY=VALUE", text)
			}
			out[key] = nil
		} else {
			out[key] = &value
		}
		problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			return nil, fmt.Errorf("label %q: %s", text, problems[0])
		}
	}
	return out, nil
}

func newClusterList(s streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "The managed clusters, and whether they answer from here",
		Example: "  lockstep cluster list\n  lockstep cluster list -o wide",
		Args:    noArgs,
	}
	c := newClusterCommand(s, cmd)
	wordFlag(cmd, &output, "output", "o", "name, json, yaml, or wide, which asks each cluster whether it is there", "name", "json", "yaml", "wide")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, err := c.connect()
		if err != nil {
			return err
		}
		list, problems, err := client.List(cmd.Context())
		if err != nil {
			return err
		}
		for _, p := range problems {
			fmt.Fprintln(s.err, p)
		}
		switch output {
		case "name":
			for _, cred := range list {
				fmt.Fprintf(s.out, "cluster/%s\n", cred.Name)
			}
			return nil
		case "json":
			return printJSON(s.out, managedClusters(list))
		case "yaml":
			return printYAML(s.out, managedClusters(list))
		}
		w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
		header, local := "CLUSTER\tALIAS\tTYPE\tENDPOINT\tLABELS", "local\t\tInternal\t-\t"
		if output == "wide" {
			header, local = header+"\tANSWERS", local+"\ttrue"
		}
		fmt.Fprintf(w, "%s\n%s\n", header, local)
		for _, cred := range list {
			endpoint := cred.Endpoint
			if cred.Gateway {
				endpoint = "(gateway)"
			}
			var labels []string
			for _, k := range slices.Sorted(maps.Keys(cred.Labels)) {
				labels = append(labels, k+"="+cred.Labels[k])
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s", cred.Name, cred.Alias, cred.Type, endpoint, strings.Join(labels, ","))
			if output == "wide" {
				answers := "true"
				if err := client.Probe(cmd.Context(), cred, clusters.Gateway{}); err != nil {
					answers = err.Error()
				}
				fmt.Fprintf(w, "\t%s", answers)
			}
			fmt.Fprintln(w)
		}
		return w.Flush()
	}
	return cmd
}

// managedCluster is the printed form of a managed cluster. It holds no credential.
type managedCluster struct {
	Name     string            `json:"name"`
	Alias    string            `json:"alias,omitempty"`
	Type     string            `json:"type"`
	Endpoint string            `json:"endpoint,omitempty"`
	Gateway  bool              `json:"gateway,omitempty"`
	Labels   map[string]string `json:"labels,omitempty"`
}

func managedClusters(list []*clusters.Credential) map[string]any {
	out := make([]managedCluster, len(list))
	for i, c := range list {
		out[i] = managedCluster{Name: c.Name, Alias: c.Alias, Type: string(c.Type), Endpoint: c.Endpoint, Gateway: c.Gateway, Labels: c.Labels}
	}
	return map[string]any{"schemaVersion": "v1", "clusters": out}
}

func newClusterLabels(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "labels NAME KEY=VALUE... KEY-...",
		Aliases: []string{"label"},
		Short:   "Set the labels that placement goes by, or take them off",
		Example: "  lockstep cluster labels hz-1 region=hz old-",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return usageError{errors.New("say which cluster and which labels: lockstep cluster labels NAME KEY=VALUE")}
			}
			return nil
		},
	}
	var set map[string]*string
	cmd.PreRunE = func(_ *cobra.Command, args []string) (err error) {
		if set, err = parseLabels(args[1:], true); err != nil {
			return usageError{err}
		}
		return nil
	}
	return onOneCluster(s, cmd, "labeled", func(ctx context.Context, client *submit.Client, args []string) error {
		return client.Label(ctx, args[0], set)
	})
}

func newClusterProbe(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "probe NAME",
		Short:   "Ask a cluster whether it answers, from here",
		Example: "  lockstep cluster probe beijing",
		Args:    oneName,
	}
	return onOneCluster(s, cmd, "", func(ctx context.Context, client *submit.Client, args []string) error {
		cred, err := client.Get(ctx, args[0])
		if err != nil {
			return err
		}
		if err := client.Probe(ctx, cred, clusters.Gateway{}); err != nil {
			return fmt.Errorf("cluster %s does not answer: %w", args[0], err)
		}
		return nil
	})
}

// onOneCluster makes cmd act on the cluster that its first argument names, and then print done. If
// done is empty, the verb changes nothing: it has no --dry-run, and prints that the cluster
// answers.
func onOneCluster(s streams, cmd *cobra.Command, done string, do func(ctx context.Context, client *submit.Client, args []string) error) *cobra.Command {
	c := newClusterCommand(s, cmd)
	cmd.ValidArgsFunction = first(c.names())
	if done != "" {
		c.dryRun.addChecked(cmd)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, err := c.connect()
		if err != nil {
			return err
		}
		if err := do(cmd.Context(), client, args); err != nil {
			return err
		}
		if done == "" {
			fmt.Fprintf(s.out, "cluster %s answers\n", args[0])
			return nil
		}
		fmt.Fprintf(s.out, "cluster/%s %s\n", args[0], c.dryRun.said(done))
		return nil
	}
	return cmd
}

func newClusterDetach(s streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "detach NAME",
		Short:   "Manage a cluster no longer; what applications have there stays there",
		Example: "  lockstep cluster detach beijing",
		Args:    oneName,
	}
	return onOneCluster(s, cmd, "detached", func(ctx context.Context, client *submit.Client, args []string) error {
		return client.Detach(ctx, args[0])
	})
}
