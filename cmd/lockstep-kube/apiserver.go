package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	apiserver "k8s.io/kubernetes/cmd/kube-apiserver/app"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	api "k8s.io/kubernetes/pkg/apis/core"

	"lockstep.dev/lockstep/internal/localcluster"
)

// newAPIServerCommand returns a command that runs kube-apiserver with its own flags and one
// additional admission plugin. It does not use kube-apiserver's own command, which does not expose
// the options in which plugins are registered.
func newAPIServerCommand() *cobra.Command {
	opts := options.NewServerRunOptions()
	opts.Admission.GenericAdmission.Plugins.Register(localcluster.AuditPlugin, func(io.Reader) (admission.Interface, error) {
		return podAudit{}, nil
	})
	// Admission copies the list of plugins that are off by default, so appending to the shared
	// slice is not enough.
	plugins := opts.Admission.GenericAdmission
	plugins.RecommendedPluginOrder = append(plugins.RecommendedPluginOrder[:len(plugins.RecommendedPluginOrder):len(plugins.RecommendedPluginOrder)], localcluster.AuditPlugin)
	plugins.DefaultOffPlugins = plugins.DefaultOffPlugins.Clone().Insert(localcluster.AuditPlugin)

	ctx := server.SetupSignalContext()
	gates := opts.GenericServerRunOptions.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	cmd := &cobra.Command{
		Use:          "kube-apiserver",
		Short:        "kube-apiserver, which can show in its audit log which node a pod has",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		PersistentPreRunE: func(*cobra.Command, []string) error {
			return opts.GenericServerRunOptions.ComponentGlobalsRegistry.Set()
		},
		RunE: func(*cobra.Command, []string) error {
			if err := logsapi.ValidateAndApply(opts.Logs, gates); err != nil {
				return err
			}
			completed, err := opts.Complete(ctx)
			if err != nil {
				return err
			}
			if errs := completed.Validate(); len(errs) != 0 {
				return errors.NewAggregate(errs)
			}
			gates.(featuregate.MutableFeatureGate).AddMetrics()
			opts.GenericServerRunOptions.ComponentGlobalsRegistry.AddMetrics()
			return apiserver.Run(ctx, completed)
		},
	}
	cmd.SetContext(ctx)
	sets := opts.Flags()
	globalflag.AddGlobalFlags(sets.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, flags := range sets.FlagSets {
		cmd.Flags().AddFlagSet(flags)
	}
	return cmd
}

// podAudit annotates audit events with a pod's name, node and end; see localcluster.AuditPlugin. It
// runs after all other plugins and refuses nothing.
type podAudit struct{}

var _ admission.ValidationInterface = podAudit{}

func (podAudit) Handles(op admission.Operation) bool {
	return op == admission.Create || op == admission.Update
}

func (podAudit) Validate(_ context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().Group != api.GroupName || a.GetResource().Resource != "pods" {
		return nil
	}
	if a.GetOperation() == admission.Update {
		pod, isPod := a.GetObject().(*api.Pod)
		old, wasPod := a.GetOldObject().(*api.Pod)
		if isPod && wasPod && ended(pod) && !ended(old) {
			return a.AddAnnotation(localcluster.AuditEnded, string(pod.Status.Phase))
		}
		return nil
	}
	var name, node string
	switch object := a.GetObject().(type) {
	case *api.Pod:
		if a.GetSubresource() != "" {
			return nil
		}
		name, node = object.Name, object.Spec.NodeName
	case *api.Binding:
		name, node = object.Name, object.Target.Name
	default:
		return nil
	}
	if err := a.AddAnnotation(localcluster.AuditName, name); err != nil {
		return err
	}
	if node == "" {
		return nil
	}
	return a.AddAnnotation(localcluster.AuditNode, node)
}

func ended(pod *api.Pod) bool {
	return pod.Status.Phase == api.PodSucceeded || pod.Status.Phase == api.PodFailed
}
