// Package clusters holds the verbs of managed clusters, which are below 'lockstep cluster'. Package
// local has the verbs of local clusters.
package clusters

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	submit "lockstep.dev/lockstep/internal/submit/clusters"
)

// New returns the command 'cluster'.
func New(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:     "cluster",
		Aliases: []string{"clusters"},
		Short:   "Clusters that applications are deployed to beside this one: join, list, label, probe, detach",
	}, newJoin(s), newList(s), newLabels(s), newProbe(s), newDetach(s))
}

// verb is a verb about managed clusters.
type verb struct {
	*command.Verb[*submit.Client]
}

func newVerb(s command.Streams, cmd *cobra.Command) verb {
	v := verb{command.NewVerb(s, cmd, submit.New)}
	command.Must(cmd.Flags().MarkHidden("namespace")) // managed clusters have no namespace
	return v
}

// names returns a function that completes names of managed clusters.
func (v verb) names() cobra.CompletionFunc {
	return v.Complete(func(ctx context.Context, client *submit.Client, _ string) (names []string, err error) {
		list, _, err := client.List(ctx)
		for _, cred := range list {
			names = append(names, cred.Name)
		}
		return names, err
	})
}

// onOne returns the verb's command. It calls do for the cluster that the first argument names, and
// prints the line that do returns.
func (v verb) onOne(cmd *cobra.Command,
	do func(ctx context.Context, client *submit.Client, name string) (string, error)) *cobra.Command {
	cmd.ValidArgsFunction = command.First(v.names())
	return v.Run(func(ctx context.Context, client *submit.Client, _ string, args []string) error {
		said, err := do(ctx, client, args[0])
		if err == nil {
			_, err = fmt.Fprintln(v.Out, said)
		}
		return err
	})
}

// oneName requires exactly one argument, the name of a cluster.
func oneName(verb string) cobra.PositionalArgs {
	return command.Args(1, 1, "say which cluster: lockstep cluster "+verb+" NAME")
}

func newLabels(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "labels NAME KEY=VALUE... KEY-...",
		Aliases: []string{"label"},
		Short:   "Set the labels that placement goes by, or take them off",
		Example: "  lockstep cluster labels hz-1 region=hz old-",
		Args: command.Args(2, math.MaxInt,
			"say which cluster and which labels: lockstep cluster labels NAME KEY=VALUE"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	var set map[string]*string
	v.Check(func(args []string) (err error) {
		set, err = parseLabels(args[1:], true)
		return err
	})
	return names.Take(v.onOne(cmd, func(ctx context.Context, client *submit.Client, name string) (string, error) {
		return "cluster/" + name + " " + v.DryRun.Said("labeled"), client.Label(ctx, name, set)
	}), names.Cluster, names.First, names.Offline)
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
				return nil, command.Usagef("label %q: want KEY=VALUE", text)
			}
			out[key] = nil
		} else {
			out[key] = &value
		}
		problems := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...)
		if len(problems) > 0 {
			return nil, command.Usagef("label %q: %s", text, problems[0])
		}
	}
	return out, nil
}

func newProbe(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "probe NAME",
		Short:   "Ask a cluster whether it answers, from here",
		Example: "  lockstep cluster probe beijing",
		Args:    oneName("probe"),
	}
	return names.Take(newVerb(s, cmd).onOne(cmd,
		func(ctx context.Context, client *submit.Client, name string) (string, error) {
			cred, err := client.Get(ctx, name)
			if err != nil {
				return "", err
			}
			if err := client.Probe(ctx, cred, clusters.Gateway{}); err != nil {
				return "", fmt.Errorf("cluster %s does not answer: %w", name, err)
			}
			return "cluster " + name + " answers", nil
		}), names.Cluster)
}

func newDetach(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "detach NAME",
		Short:   "Manage a cluster no longer; what applications have there stays there",
		Example: "  lockstep cluster detach beijing",
		Args:    oneName("detach"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	return names.Take(v.onOne(cmd, func(ctx context.Context, client *submit.Client, name string) (string, error) {
		return "cluster/" + name + " " + v.DryRun.Said("detached"), client.Detach(ctx, name)
	}), names.Cluster)
}
