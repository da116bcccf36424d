package command

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/kubeclient"
)

// Verb is a command that works on a cluster through a client of type C.
type Verb[C any] struct {
	Streams
	// Kube holds kubectl's flags --kubeconfig, --context and -n.
	Kube *genericclioptions.ConfigFlags
	// DryRun is the value of --dry-run, if the verb has this flag.
	DryRun DryRun
	// Timeout bounds what Run does, if it is not zero.
	Timeout time.Duration

	cmd    *cobra.Command
	client func(*rest.Config, kubeclient.DryRun) (C, error)
}

// NewVerb returns a verb for cmd, and adds kubectl's flags to cmd. client creates the client that
// Run passes to the verb.
func NewVerb[C any](s Streams, cmd *cobra.Command, client func(*rest.Config, kubeclient.DryRun) (C, error)) *Verb[C] {
	return &Verb[C]{Streams: s, Kube: KubeFlags(cmd), cmd: cmd, client: client}
}

// Connect returns a client and the namespace to work in. It does not contact the server.
func (v *Verb[C]) Connect() (client C, namespace string, err error) {
	cfg, namespace, err := Connection(v.Kube)
	if err == nil {
		client, err = v.client(cfg, kubeclient.DryRun(v.DryRun.On()))
	}
	return client, namespace, err
}

// Run makes the verb's command call do, and returns the command. ctx ends at an interrupt and after
// Timeout.
func (v *Verb[C]) Run(do func(ctx context.Context, client C, namespace string, args []string) error) *cobra.Command {
	v.cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := v.Connect()
		if err != nil {
			return err
		}
		ctx, stop := Interruptible(cmd, v.Timeout)
		defer stop()
		return do(ctx, client, namespace, args)
	}
	return v.cmd
}

// Check makes the verb's command call check, for flags and arguments, before it connects to the
// cluster.
func (v *Verb[C]) Check(check func(args []string) error) {
	v.cmd.PreRunE = func(_ *cobra.Command, args []string) error { return check(args) }
}

// completionTimeout bounds how long completion of names may take when a user presses Tab.
const completionTimeout = 2 * time.Second

// Complete returns a function that completes arguments with the names that list returns. A name may
// have a description after a tab.
func (v *Verb[C]) Complete(list func(ctx context.Context, client C, namespace string) ([]string, error)) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(context.Background(), completionTimeout)
		defer cancel()
		client, namespace, err := v.Connect()
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		all, err := list(ctx, client, namespace)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		return slices.DeleteFunc(all, func(name string) bool {
			bare, _, _ := strings.Cut(name, "\t")
			return !strings.HasPrefix(bare, text) || slices.Contains(args, bare)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// First limits a completion to the first argument.
func First(complete cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return complete(cmd, args, text)
	}
}

// KubeFlags adds kubectl's flags that every verb with a cluster takes: --kubeconfig, --context and
// -n.
func KubeFlags(cmd *cobra.Command) *genericclioptions.ConfigFlags {
	all := genericclioptions.NewConfigFlags(true)
	flags := &genericclioptions.ConfigFlags{KubeConfig: all.KubeConfig, Context: all.Context, Namespace: all.Namespace}
	flags.AddFlags(cmd.Flags())
	return flags
}

// KubeOf returns kubectl's flags of a command to which KubeFlags has added them.
func KubeOf(cmd *cobra.Command) *genericclioptions.ConfigFlags {
	all := genericclioptions.NewConfigFlags(true)
	out := &genericclioptions.ConfigFlags{KubeConfig: all.KubeConfig, Context: all.Context, Namespace: all.Namespace}
	for name, value := range map[string]*string{"kubeconfig": out.KubeConfig, "context": out.Context, "namespace": out.Namespace} {
		if f := cmd.Flags().Lookup(name); f != nil {
			*value = f.Value.String()
		}
	}
	return out
}

// Connection returns the configuration of the cluster that kubectl's flags choose, and the
// namespace to work in.
func Connection(flags *genericclioptions.ConfigFlags) (*rest.Config, string, error) {
	cfg, err := kubeclient.Load(*flags.KubeConfig, *flags.Context)
	if err != nil {
		return nil, "", err
	}
	namespace, _, err := flags.ToRawKubeConfigLoader().Namespace()
	return cfg, namespace, err
}
