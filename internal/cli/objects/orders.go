package objects

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cli/applications"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit"
	submitapps "lockstep.dev/lockstep/internal/submit/applications"
)

// Kinds that take orders, or have logs.
var (
	jobKind         = batch.GroupVersion.WithKind("Job").GroupKind()
	queueKind       = scheduling.GroupVersion.WithKind("Queue").GroupKind()
	applicationKind = oam.GroupVersion.WithKind("Application").GroupKind()
)

// jobActions are the actions of Commands to Jobs that verbs order; queueActions those to Queues.
var (
	jobActions = map[string]bus.Action{
		"suspend": bus.AbortJobAction, "resume": bus.ResumeJobAction, "stop": bus.TerminateJobAction,
		"terminate": bus.TerminateJobAction, "restart": bus.RestartJobAction,
	}
	queueActions = map[string]bus.Action{"open": bus.OpenQueueAction, "close": bus.CloseQueueAction}
)

// ordering returns a verb that orders something of jobs and applications.
func ordering(s command.Streams, verb string) *branch {
	meaning := map[string]string{
		"suspend":   "A job's pods are deleted, and it keeps its place for 'resume'; an application's workflow starts nothing new.",
		"resume":    "A job that was suspended is run again; an application's workflow goes on.",
		"stop":      "A job is ended for good, and its pods are deleted; an application's workflow is ended.",
		"terminate": "A job is ended for good, and its pods are deleted; an application's workflow is ended.",
	}
	return &branch{
		about: "Batch jobs and applications are taken, too (" + verb + " job/hello, app/shop). " + meaning[verb],
		both:  []string{"dry-run", "selector"},
		selected: func(f *pflag.FlagSet) bool {
			return f.Changed("selector")
		},
		run: func(cmd *cobra.Command, kube *genericclioptions.ConfigFlags, args []string) error {
			f := cmd.Flags()
			return order(cmd, s, kube, args, f.Lookup("selector").Value.String(), verb, command.DryRun(f.Lookup("dry-run").Value.String()))
		},
	}
}

func newRestart(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "restart KIND NAME...",
		Short: "Run jobs, or the workflows of applications, again",
		Long: `Run jobs again from their beginning, or the workflows of applications. A workflow is run again by 'lockstep retry' and
'lockstep resubmit'.`,
		Example: "  lockstep restart job/hello\n  lockstep restart app shop",
	}
	var dry command.DryRun
	var selector string
	kube := command.KubeFlags(cmd)
	dry.AddChecked(cmd)
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 || len(args) == 1 && !strings.Contains(args[0], "/") && selector == "" {
			return command.Usagef("say what to restart, for example: lockstep restart job/hello")
		}
		if _, err := factory(kube); err != nil {
			return err
		}
		return order(cmd, s, kube, names.InFull(args), selector, "restart", dry)
	}
	return cmd
}

// order orders verb of the objects that args and selector choose.
func order(cmd *cobra.Command, s command.Streams, kube *genericclioptions.ConfigFlags, args []string, selector, verb string, dry command.DryRun) error {
	objects, err := submit.Find(kube, args, selector)
	if err != nil {
		return err
	}
	ctx, stop := command.Interruptible(cmd, 0)
	defer stop()
	failed := 0
	for _, o := range objects {
		if err := orderOne(ctx, kube, o, verb, dry); err != nil {
			failed++
			fmt.Fprintf(s.Err, "lockstep: %s: %v\n", o.Ref(), err)
			continue
		}
		fmt.Fprintf(s.Out, "%s %s %s\n", o.Ref(), verb, dry.Said("requested"))
	}
	if failed > 0 {
		return fmt.Errorf("%s failed for %d of %d objects", verb, failed, len(objects))
	}
	return nil
}

func orderOne(ctx context.Context, kube *genericclioptions.ConfigFlags, o *submit.Object, verb string, dry command.DryRun) error {
	rest, _, err := command.Connection(kube)
	if err != nil {
		return err
	}
	namespace, name := o.Name()
	switch kind := o.Kind(); kind {
	case jobKind, queueKind:
		actions := jobActions
		if kind == queueKind {
			actions = queueActions
		}
		action, known := actions[verb]
		if !known {
			return unordered(verb, kind)
		}
		return submit.Order(ctx, rest, o, action, kubeclient.DryRun(dry.On()))
	case applicationKind:
		if verb == "stop" {
			verb = "terminate"
		}
		if !slices.Contains([]string{"suspend", "resume", "terminate", "restart"}, verb) {
			return unordered(verb, kind)
		}
		client, err := submitapps.New(rest, kubeclient.DryRun(dry.On()))
		if err != nil {
			return err
		}
		return applications.RequestWorkflow(ctx, client, namespace, name, verb, "")
	default:
		return unordered(verb, kind)
	}
}

func unordered(verb string, kind schema.GroupKind) error {
	return command.Usagef("there is no %s for the kind %s", verb, kind)
}
