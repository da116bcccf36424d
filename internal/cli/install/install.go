// Package install holds the verbs install and uninstall.
package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/scheduler/config"
	"lockstep.dev/lockstep/internal/submit"
)

// New returns the command 'install'.
func New(s command.Streams) *cobra.Command {
	var (
		opts    install.Options
		dryRun  command.DryRun
		output  string
		timeout time.Duration

		schedulerConfig, cpus string
	)
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Bring Lockstep into a cluster, or up to date there",
		Long: `Bring into a cluster what Lockstep needs there: its APIs (CRDs), admission policies, access rights, its share of the API
server, the queue "default", and the built-in definitions of applications. With --image also the manager, and with
--with-agent the agents that give pods the CPUs chosen for them. There is no webhook.

Applications act with the rights of whoever wrote them. Where the API server can't record that, before Kubernetes 1.36, they are
off, and are no part of the roles edit and admin.

What is there as it should be is left alone, so that it can be run again at any time, and after every update of lockstep.
Without --image, run 'lockstep manager' where you like. --dry-run=client prints the manifests, for review or for kubectl;
--dry-run=server has the cluster check them, and names what stands in the way.

Where others serve our kinds (their CRDs, webhooks or controllers are there), it names them, changes nothing and ends with
code 4. --take-over goes on: their CRDs are replaced, the objects stay. 'lockstep uninstall' takes back what install made.

Exit codes: 0 done; 1 the cluster refused something; 2 wrong usage; 3 the --timeout ran out; 4 others serve our kinds, and
nothing was changed.`,
		Example: `  lockstep install
  lockstep install --image registry.example/lockstep:1 --executor-image registry.example/lockstep-exec:1 --with-agent
  lockstep install --dry-run=client -o yaml > lockstep.yaml
  lockstep install --dry-run=client -o name`,
		Args: command.NoArgs,
	}
	flags := command.KubeFlags(cmd)
	f := cmd.Flags()
	command.Must(f.MarkHidden("namespace")) // the installed objects have a namespace of their own
	f.StringVar(&opts.Image, "image", "", "image of lockstep, to run the manager in the cluster")
	f.StringVar(&opts.ExecutorImage, "executor-image", "", "image of lockstep-exec, for pods of workflows that need it")
	f.StringVar(&schedulerConfig, "scheduler-config", "",
		"file with a scheduler configuration in Volcano's format for the manager in the cluster (see 'lockstep migrate check')")
	f.StringVar(&opts.WorkflowConfigMap, "workflow-configmap", "",
		"ConfigMap with the configuration of Argo's workflow controller, NAMESPACE/NAME (default lockstep-system/workflow-controller-configmap)")
	f.BoolVar(&opts.JobPodGroups, "job-podgroups", false, "let the manager keep a PodGroup for each Job, for clients that list them")
	f.IntVar(&opts.PodsOfWaitingJobs, "pods-of-waiting-jobs", 0,
		"let the manager create the pods of Jobs that wait for room before there are nodes for them, for autoscalers, as long as fewer pods than this wait so")
	f.IntVar(&opts.Replicas, "replicas", 2, "managers in the cluster; one leads, the others take over")
	f.BoolVar(&opts.Agent, "with-agent", false, "run an agent on every node")
	f.StringArrayVar(&opts.AgentArgs, "agent-arg", nil,
		"further argument of the agents, such as --reserved-percent=5 or --take-over-kubelet (repeatable)")
	f.StringVar(&cpus, "cpu-policies", "",
		"check what is said of pods' CPUs, and give pods that ask for CPUs and name no scheduler Lockstep's: in namespaces with the "+
			"label cpu.lockstep.dev/scheduler=lockstep (namespace, implied by --with-agent), or in all but those with =none (cluster)")
	f.Lookup("cpu-policies").NoOptDefVal = "namespace"
	command.ApplicationFlags(cmd, &opts.AllowRequestsTo, &opts.ActAsManager)
	f.BoolVar(&opts.AnyKind, "any-kind", false,
		"let the manager read and delete objects of every kind, for applications that were deployed by a controller that is cluster-admin")
	f.BoolVar(&opts.RefuseUnservedKinds, "refuse-unserved-kinds", false,
		"refuse definitions with an output of a kind that the cluster does not serve; the API server then watches all ConfigMaps")
	f.BoolVar(&opts.TakeOver, "take-over", false, "go on where others serve our kinds, and replace their CRDs")
	dryRun.AddPrinted(cmd, "installed")
	command.OutputFlag(cmd, &output, "name", "json", "yaml")
	f.DurationVar(&timeout, "timeout", 2*time.Minute, "give up when it is not done by then")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		switch cpus {
		case "":
		case "namespace":
			opts.CPUs = true
		case "cluster":
			opts.CPUsEverywhere = true
		default:
			return command.Usagef("--cpu-policies=%s: want namespace or cluster", cpus)
		}
		switch {
		case len(opts.AgentArgs) > 0 && !opts.Agent:
			return command.Usagef("--agent-arg is for the agents: give --with-agent too")
		case opts.Agent && opts.Image == "":
			return command.Usagef("--with-agent needs --image: the agents run from it")
		case opts.ExecutorImage != "" && opts.Image == "":
			return command.Usagef("--executor-image is for a manager in the cluster: give --image too, or give it to 'lockstep manager'")
		case len(opts.AllowRequestsTo) > 0 && opts.Image == "":
			return command.Usagef("%s is for a manager in the cluster: give --image too, or give it to 'lockstep manager'", egress.Flag)
		case schedulerConfig != "" && opts.Image == "":
			return command.Usagef("--scheduler-config is for a manager in the cluster: give --image too, or give it to 'lockstep manager'")
		case opts.JobPodGroups && opts.Image == "":
			return command.Usagef("--job-podgroups is for a manager in the cluster: give --image too, or give it to 'lockstep manager'")
		case opts.PodsOfWaitingJobs < 0:
			return command.Usagef("--pods-of-waiting-jobs=%d: want at least 0", opts.PodsOfWaitingJobs)
		case opts.PodsOfWaitingJobs > 0 && opts.Image == "":
			return command.Usagef("--pods-of-waiting-jobs is for a manager in the cluster: give --image too, or give it to 'lockstep manager'")
		case opts.WorkflowConfigMap != "" && opts.Image == "":
			return command.Usagef("--workflow-configmap is for a manager in the cluster: give --image too, or give it to 'lockstep manager'")
		case opts.Replicas < 1:
			return command.Usagef("--replicas=%d: want at least 1", opts.Replicas)
		}
		if _, err := egress.New(egress.Config{Allow: opts.AllowRequestsTo}); err != nil {
			return command.Usage(err)
		}
		if schedulerConfig != "" {
			data, err := os.ReadFile(schedulerConfig)
			if err == nil {
				_, _, err = config.Parse(data)
			}
			if err != nil {
				return command.Usagef("--scheduler-config %s: %w", schedulerConfig, err)
			}
			opts.SchedulerConfig = string(data)
		}
		printer, err := command.ObjectPrinter(output, s.Out)
		if err != nil {
			return err
		}
		done := func(o *unstructured.Unstructured, change install.Change) {
			if printer != nil {
				err = errors.Join(err, printer(o))
				return
			}
			fmt.Fprintf(s.Out, "%s %s\n", submit.Ref(o.GroupVersionKind().GroupKind(), o.GetName()),
				dryRun.Said(string(change)))
		}
		if dryRun.Client() {
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
		ctx, stop := command.Interruptible(cmd, 0)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		opts.DryRun = dryRun.Server()
		opts.Found = func(f install.Finding) { fmt.Fprintf(s.Err, "Taking over: %s: %s\n", f.Object, f.Problem) }
		if wrong := install.Install(ctx, cfg, opts, done); wrong != nil {
			return wrong
		}
		if opts.DryRun {
			return err
		}
		records, wrong := install.RecordsAuthors(ctx, cfg)
		if wrong != nil {
			return wrong
		}
		if text := rightsNotice(opts.ActAsManager, records); text != "" {
			fmt.Fprintln(s.Err, text)
		}
		fmt.Fprintln(s.Err, "Waiting until the API server has taken in the policies ...")
		return errors.Join(err, install.AwaitApplications(ctx, cfg))
	}
	return cmd
}

// rightsNotice returns the warning about the rights that applications act with.
func rightsNotice(asManager, records bool) string {
	switch {
	case asManager:
		return `WARNING: applications act with the manager's rights. Whoever may write an application may have anything made that the manager
may make, which is as much as an administrator may. The roles edit and admin therefore do not include applications: bind the
ClusterRole lockstep-application-edit to those whom you trust with that.`
	case !records:
		return `WARNING: this API server can't record who writes an application (Kubernetes from 1.36 on can), so applications can't act with
their authors' rights. They are off, and the roles edit and admin do not include them; jobs and workflows are not concerned.
An administrator can bring the server up to date and install again, or install with --applications-act-as-manager, which
lets whoever may write an application have anything made that the manager may make.`
	}
	return ""
}
