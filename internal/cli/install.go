package cli

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
)

func newInstall(s streams) *cobra.Command {
	var (
		opts    install.Options
		dryRun  dryRun
		output  string
		timeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Bring Lockstep into a cluster, or up to date there",
		Long: `Bring into a cluster what Lockstep needs there: its APIs (CRDs), admission policies, access rights, its share of the API
server, the queue "default", and the built-in definitions of applications. With --image also the manager, and with
--with-agent the agents that give pods the CPUs chosen for them. There is no webhook.

What is there as it should be is left alone, so that it can be run again at any time, and after every update of lockstep.
Without --image, run 'lockstep manager' where you like. --dry-run=client prints the manifests, for review or for kubectl.

Exit codes: 0 done; 1 the cluster refused something; 2 wrong usage; 3 the --timeout ran out.`,
		Example: `  lockstep install
  lockstep install --image registry.example/lockstep:1 --executor-image registry.example/lockstep-exec:1 --with-agent
  lockstep install --dry-run=client -o yaml > lockstep.yaml
  lockstep install --dry-run=client -o name`,
		Args: noArgs,
	}
	flags := kubeFlags(cmd)
	f := cmd.Flags()
	must(f.MarkHidden("namespace")) // what is installed has its own
	f.StringVar(&opts.Image, "image", "", "image of lockstep, to run the manager in the cluster")
	f.StringVar(&opts.ExecutorImage, "executor-image", "", "image of lockstep-exec, for pods of workflows that need it")
	f.IntVar(&opts.Replicas, "replicas", 2, "managers in the cluster; one leads, the others take over")
	f.BoolVar(&opts.Agent, "with-agent", false, "run an agent on every node")
	f.BoolVar(&opts.CPUs, "cpu-policies", false, "check what is said of pods' CPUs: for agents that are installed otherwise; with --with-agent they come along")
	f.BoolVar(&opts.MultiTenant, "multi-tenant", false, "applications act with the rights of who wrote them")
	dryRun.add(cmd, `"client": print what would be installed`, dryRunClient)
	outputFlag(cmd, &output, "name", "json", "yaml")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "give up when it is not done by then")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch {
		case opts.Agent && opts.Image == "":
			return usageError{errors.New("--with-agent needs --image: the agents run from it")}
		case opts.ExecutorImage != "" && opts.Image == "":
			return usageError{errors.New("--executor-image is for a manager in the cluster: give --image too, or give it to 'lockstep manager'")}
		case opts.Replicas < 1:
			return usageError{fmt.Errorf("--replicas=%d: want at least 1", opts.Replicas)}
		}
		printer, err := objectPrinter(output, s.out)
		if err != nil {
			return err
		}
		done := func(o *unstructured.Unstructured, change install.Change) {
			if printer != nil {
				err = errors.Join(err, printer(o))
				return
			}
			fmt.Fprintf(s.out, "%s %s\n", kindAndName(o), dryRun.said(string(change)))
		}
		if dryRun.client() {
			objects, wrong := install.Objects(opts)
			if wrong != nil {
				return wrong
			}
			for _, o := range objects {
				done(o, install.Created)
			}
			return err
		}
		cfg, wrong := kubeclient.Load(*flags.KubeConfig, *flags.Context)
		if wrong != nil {
			return wrong
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		if wrong := install.Install(ctx, cfg, opts, done); wrong != nil {
			return wrong
		}
		fmt.Fprintln(s.err, "Waiting until the API server has taken in the policies ...")
		return errors.Join(err, install.AwaitApplications(ctx, cfg))
	}
	return cmd
}

// kindAndName is an object as kubectl names it: deployment.apps/lockstep-manager.
func kindAndName(o *unstructured.Unstructured) string {
	kind := strings.ToLower(o.GetKind())
	if group := o.GroupVersionKind().Group; group != "" {
		kind += "." + group
	}
	return kind + "/" + o.GetName()
}
