package objects

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/kubectl/pkg/cmd/delete"

	"lockstep.dev/lockstep/internal/cli/command"
)

// propagations are the values of --cascade.
var propagations = map[string]metav1.DeletionPropagation{
	"background": metav1.DeletePropagationBackground,
	"foreground": metav1.DeletePropagationForeground,
	"orphan":     metav1.DeletePropagationOrphan,
}

// deletion returns the verb delete for all kinds but workflows.
func deletion(s command.Streams) *branch {
	o := delete.DeleteOptions{IOStreams: streams(s)}
	cascade := "background"
	return &branch{
		about: `With another kind (delete job/hello, delete queue research) it does what kubectl delete does, and waits until the objects are
gone.

Exit codes: 0 all were deleted; 1 one was not; 2 wrong usage; 3 the --timeout ran out.`,
		both: []string{"all", "all-namespaces", "dry-run", "field-selector", "selector"},
		add: func(f *pflag.FlagSet) {
			f.StringVar(&cascade, "cascade", cascade, "what becomes of the objects that belong to those deleted: background|foreground|orphan")
			f.BoolVar(&o.ForceDeletion, "force", false, "with --grace-period=0: do not wait for the node to end a pod")
			f.IntVar(&o.GracePeriod, "grace-period", -1, "seconds that pods have to end; -1 is their own")
			f.BoolVar(&o.IgnoreNotFound, "ignore-not-found", false, "an object that does not exist is no error")
			f.BoolVar(&o.WaitForDeletion, "wait", true, "wait until the objects are gone")
			f.DurationVar(&o.Timeout, "timeout", 0, "give up waiting after this time; 0 waits for ever")
		},
		selected: selects,
		run: func(cmd *cobra.Command, kube *genericclioptions.ConfigFlags, args []string) error {
			f := cmd.Flags()
			var known bool
			if o.CascadingStrategy, known = propagations[cascade]; !known {
				return command.Usagef("--cascade=%s: want background, foreground or orphan", cascade)
			}
			o.LabelSelector, o.FieldSelector = f.Lookup("selector").Value.String(), f.Lookup("field-selector").Value.String()
			o.DeleteAll, o.DeleteAllNamespaces = isSet(f, "all"), isSet(f, "all-namespaces")
			kubectl, err := factory(kube)
			if err != nil {
				return err
			}
			if err := o.Complete(kubectl, args, cmd); err != nil {
				return command.Usage(err)
			}
			if err := o.Validate(); err != nil {
				return command.Usage(err)
			}
			return timeUp(o.RunDelete(kubectl))
		},
	}
}

// selects reports whether a flag selects objects, so that none needs to be named.
func selects(f *pflag.FlagSet) bool {
	return f.Changed("selector") || f.Changed("field-selector") || isSet(f, "all")
}

func isSet(f *pflag.FlagSet, name string) bool {
	set, err := f.GetBool(name)
	return err == nil && set
}
