package objects

import (
	"fmt"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubectl/pkg/cmd/util"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit"
)

func newQueue(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{Use: "queue", Short: "Create, close and open queues; 'get queues' lists them"},
		newQueueCreate(s),
		newQueueOrder(s, "close", "Let queues take no new jobs; those that are in them go on"),
		newQueueOrder(s, "open", "Let closed queues take jobs again"))
}

func newQueueCreate(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create a queue",
		Example: "  lockstep queue create research --weight 2 --capability cpu=64,memory=256Gi\n  lockstep queue create nlp --parent research --dry-run",
		Args:    command.OneArg("NAME"),
		// A new name cannot be completed.
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	kube := command.KubeFlags(cmd)
	var dry command.DryRun
	var weight int32
	var parent string
	limits := map[string]*[]string{"capability": {}, "deserved": {}, "guarantee": {}}
	dry.AddChecked(cmd)
	f := cmd.Flags()
	f.Int32Var(&weight, "weight", 1, "share of the cluster, relative to other queues'")
	f.StringVar(&parent, "parent", "", "the queue that this one is in; root by default")
	f.StringSliceVar(limits["capability"], "capability", nil, "resources that its jobs have at most, for example cpu=64,memory=256Gi")
	f.StringSliceVar(limits["deserved"], "deserved", nil, "resources that it gets back from other queues that use them")
	f.StringSliceVar(limits["guarantee"], "guarantee", nil, "resources that are kept for it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		q := &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: args[0]}}
		q.Spec.Weight, q.Spec.Parent = weight, parent
		for flag, to := range map[string]*corev1.ResourceList{
			"capability": &q.Spec.Capability, "deserved": &q.Spec.Deserved, "guarantee": &q.Spec.Guarantee.Resource,
		} {
			amounts, err := command.KeyValues("--"+flag, *limits[flag])
			if err != nil {
				return err
			}
			for name, amount := range amounts {
				n, err := resource.ParseQuantity(amount)
				if err != nil || n.Sign() < 0 {
					return command.Usagef("--%s %s=%s: want an amount such as 64 or 256Gi", flag, name, amount)
				}
				if *to == nil {
					*to = corev1.ResourceList{}
				}
				(*to)[corev1.ResourceName(name)] = n
			}
		}
		rest, _, err := command.Connection(kube)
		if err != nil {
			return err
		}
		ctx, stop := command.Interruptible(cmd, 0)
		defer stop()
		err = submit.CreateQueue(ctx, rest, q, kubeclient.DryRun(dry.On()))
		if err == nil {
			fmt.Fprintf(s.Out, "%s %s\n", submit.Ref(queueKind, args[0]), dry.Said("created"))
		}
		return err
	}
	return names.Take(cmd, names.Queue)
}

func newQueueOrder(s command.Streams, verb, short string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     verb + " NAME...",
		Short:   short,
		Example: "  lockstep queue " + verb + " research",
		Args:    command.SomeArgs("NAME"),
	}
	kube := command.KubeFlags(cmd)
	var dry command.DryRun
	dry.AddChecked(cmd)
	f := util.NewFactory(kube)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		return completesObjects(f)(cmd, append([]string{"queue"}, args...), text)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if _, err := factory(kube); err != nil {
			return err
		}
		return order(cmd, s, kube, names.InFull(append([]string{"queue"}, args...)), "", verb, dry)
	}
	return names.Take(cmd, names.Queue)
}
