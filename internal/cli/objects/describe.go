package objects

import (
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/kubectl/pkg/cmd/describe"
	"k8s.io/kubectl/pkg/cmd/events"
	"k8s.io/kubectl/pkg/cmd/util"
	"k8s.io/kubectl/pkg/util/completion"

	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
)

func newDescribe(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "describe KIND [NAME_PREFIX]",
		Short:   "Show all about objects, with their events",
		Example: "  lockstep describe job hello\n  lockstep describe queue/research",
	}
	kube := command.KubeFlags(cmd)
	f := util.NewFactory(kube)
	flags := describe.NewDescribeFlags(f, streams(s))
	cmd.Flags().StringVarP(&flags.Selector, "selector", "l", "", "label selector")
	cmd.Flags().BoolVarP(&flags.AllNamespaces, "all-namespaces", "A", false, "objects of every namespace")
	cmd.Flags().BoolVar(&flags.DescriberSettings.ShowEvents, "show-events", true, "show the events of a single object")
	cmd.ValidArgsFunction = completesObjects(f)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return command.Usagef("say what to describe, for example: lockstep describe job hello")
		}
		if _, err := factory(kube); err != nil {
			return err
		}
		o, err := flags.ToOptions("lockstep", names.InFull(args))
		if err != nil {
			return err
		}
		o.ShowEventsExplicitlySet = cmd.Flags().Changed("show-events")
		return o.Run()
	}
	return cmd
}

func newEvents(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:     "events [KIND NAME]",
		Short:   "List events, of one object or of a namespace",
		Long:    "List events, of one object or of a namespace. An interrupted -w ends with exit code 1, as kubectl's does.",
		Example: "  lockstep events job/hello\n  lockstep events wf hello -w\n  lockstep events -A --types Warning",
	}
	kube := command.KubeFlags(cmd)
	flags := events.NewEventsFlags(kube, streams(s))
	flags.PrintFlags.AddFlags(cmd)
	command.CompleteWords(cmd, "output", flags.PrintFlags.AllowedFormats()...)
	cmd.Flags().BoolVarP(&flags.Watch, "watch", "w", false, "list, and then show every further event")
	cmd.Flags().BoolVarP(&flags.AllNamespaces, "all-namespaces", "A", false, "events of every namespace")
	cmd.Flags().StringSliceVar(&flags.FilterTypes, "types", nil, "only events of these types: Normal, Warning")
	cmd.Flags().BoolVar(&flags.NoHeaders, "no-headers", false, "no line of headings")
	cmd.ValidArgsFunction = completesObjects(util.NewFactory(kube))
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		switch args = names.InFull(args); {
		case len(args) == 2 && !strings.Contains(args[0], "/"):
			flags.ForObject = args[0] + "/" + args[1]
		case len(args) == 1 && strings.Contains(args[0], "/"):
			flags.ForObject = args[0]
		case len(args) > 0:
			return command.Usagef("want one object, as KIND NAME or KIND/NAME")
		}
		if _, err := factory(kube); err != nil {
			return err
		}
		if _, err := flags.PrintFlags.ToPrinter(); err != nil {
			return command.Usage(err)
		}
		o, err := flags.ToOptions()
		if err != nil {
			return err
		}
		if err := o.Validate(); err != nil {
			return command.Usage(err)
		}
		return o.Run()
	}
	return cmd
}

// completesObjects returns a function that completes kinds, and then names of objects.
func completesObjects(f util.Factory) cobra.CompletionFunc {
	complete := completion.ResourceTypeAndNameCompletionFunc(f)
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		return complete(cmd, names.InFull(args), text)
	}
}
