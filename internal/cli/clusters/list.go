package clusters

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/cli/command"
	submit "lockstep.dev/lockstep/internal/submit/clusters"
)

func newList(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "The managed clusters, and whether they answer from here",
		Example: "  lockstep cluster list\n  lockstep cluster list -o wide",
		Args:    command.NoArgs,
	}
	v := newVerb(s, cmd)
	command.WordFlag(cmd, &output, "output", "o",
		"name, json, yaml, or wide, which asks each cluster whether it is there", "name", "json", "yaml", "wide")
	return v.Run(func(ctx context.Context, client *submit.Client, _ string, _ []string) error {
		list, problems, err := client.List(ctx)
		if err != nil {
			return err
		}
		for _, p := range problems {
			fmt.Fprintln(s.Err, p)
		}
		if printed, err := command.Print(s.Out, output, managedClusters(list)); printed {
			return err
		}
		if output == "name" {
			for _, cred := range list {
				fmt.Fprintf(s.Out, "cluster/%s\n", cred.Name)
			}
			return nil
		}
		w := command.Columns(s.Out)
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
				if err := client.Probe(ctx, cred, clusters.Gateway{}); err != nil {
					answers = err.Error()
				}
				fmt.Fprintf(w, "\t%s", answers)
			}
			fmt.Fprintln(w)
		}
		return w.Flush()
	})
}

// managedCluster is the printed form of a managed cluster, without its credential.
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
		out[i] = managedCluster{Name: c.Name, Alias: c.Alias, Type: string(c.Type), Endpoint: c.Endpoint,
			Gateway: c.Gateway, Labels: c.Labels}
	}
	return map[string]any{"schemaVersion": "v1", "clusters": out}
}
