package install

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit"
)

// NewUninstall returns the command 'uninstall'.
func NewUninstall(s command.Streams) *cobra.Command {
	var (
		opts    install.RemoveOptions
		dryRun  command.DryRun
		yes     bool
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove from a cluster what 'lockstep install' made there",
		Long: `Remove from a cluster what 'lockstep install' made there: the manager and the agents, policies, access rights and flow
control. Running pods run on, and what applications have deployed stays.

What others made stays, also what install has taken over, and so does a namespace that holds anything of others: for example
vela-system, with credentials of clusters in it.

The APIs (CRDs) stay with all that is in them, so that an installation can go on with it later. --delete-crds removes them, and
with them ALL jobs, workflows, applications, queues and definitions; jobs' and workflows' pods end with them. It says how
many there are, and does it with --yes only.

Exit codes: 0 done, also where there was nothing to do; 1 the cluster refused something; 2 wrong usage; 3 the --timeout ran
out.`,
		Example: `  lockstep uninstall --dry-run
  lockstep uninstall
  lockstep uninstall --delete-crds --yes`,
		Args: command.NoArgs,
	}
	flags := command.KubeFlags(cmd)
	f := cmd.Flags()
	command.Must(f.MarkHidden("namespace")) // the installed objects have a namespace of their own
	f.BoolVar(&opts.CRDs, "delete-crds", false,
		"also remove the APIs, and with them every job, workflow and application")
	f.BoolVar(&yes, "yes", false, "do it: --delete-crds wants to be confirmed")
	f.BoolVar(&opts.Wait, "wait", true, "wait until all is gone")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "give up when it is not done by then")
	dryRun.AddChecked(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		cfg, err := kubeclient.Load(*flags.KubeConfig, *flags.Context)
		if err != nil {
			return err
		}
		ctx, stop := command.Interruptible(cmd, 0)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		contents, err := install.Contents(ctx, cfg)
		if err != nil {
			return err
		}
		var held []string
		for _, c := range contents {
			if c.Count > 0 {
				held = append(held, fmt.Sprintf("%d %s", c.Count, c.CRD))
			}
		}
		what := "nothing"
		if len(held) > 0 {
			what = strings.Join(held, ", ")
		}
		if opts.CRDs {
			fmt.Fprintf(s.Err, "The APIs hold %s: all of this goes with them.\n", what)
			if !yes && !dryRun.On() {
				return command.Usagef("--delete-crds: add --yes to remove the APIs and all that they hold")
			}
		}
		opts.DryRun = dryRun.On()
		err = install.Uninstall(ctx, cfg, opts, func(o *unstructured.Unstructured, kept string) {
			switch {
			case kept != "":
				fmt.Fprintf(s.Out, "%s kept: %s\n", submit.Ref(o.GroupVersionKind().GroupKind(), o.GetName()), kept)
			default:
				fmt.Fprintf(s.Out, "%s %s\n", submit.Ref(o.GroupVersionKind().GroupKind(), o.GetName()),
					dryRun.Said("deleted"))
				if o.GetKind() == "DaemonSet" {
					fmt.Fprintln(s.Err, "Pods that run on chosen CPUs stay on them: on their nodes, 'lockstep agent --release' gives all CPUs to all.")
				}
			}
		})
		if err == nil && !opts.CRDs && len(contents) > 0 {
			fmt.Fprintf(s.Err, "%d APIs stay, and hold %s: 'lockstep install' goes on with them, --delete-crds removes them.\n", len(contents), what)
		}
		return err
	}
	return cmd
}
