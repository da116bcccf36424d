package workflows

import (
	"context"
	"maps"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/cli/names"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/submit/workflows"
)

// Submission holds the flags of submit that are for workflows.
type Submission struct {
	// From is the KIND/NAME of the template or cron from which a workflow is started, or empty.
	From string
	// Overrides are the changes to make to every workflow. Complete sets them.
	Overrides submit.Overrides

	parameters, labels []string
	parameterFile      string
	priority           int32
	instance           string
}

// Add adds the flags.
func (o *Submission) Add(cmd *cobra.Command, v *Verb) {
	f := cmd.Flags()
	f.StringVar(&o.From, "from", "",
		"start a workflow from workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME")
	f.StringArrayVarP(&o.parameters, "parameter", "p", nil, "NAME=VALUE of a workflow's argument")
	f.StringVar(&o.parameterFile, "parameter-file", "", "file of arguments: a YAML or JSON object")
	f.StringVar(&o.Overrides.Entrypoint, "entrypoint", "", "template of the workflow to start with")
	f.StringSliceVarP(&o.labels, "labels", "l", nil, "NAME=VALUE labels to put on workflows")
	f.StringVar(&o.Overrides.Name, "name", "", "name of the workflow")
	f.StringVar(&o.Overrides.GenerateName, "generate-name", "", "beginning of a name that the server completes")
	f.StringVar(&o.Overrides.ServiceAccount, "serviceaccount", "", "service account of the workflow's pods")
	f.Int32Var(&o.priority, "priority", 0, "priority of the workflow")
	f.StringVar(&o.instance, "instanceid", os.Getenv(instanceEnv),
		"instance of the controller that runs the workflows and crons (default $"+instanceEnv+")")
	f.Lookup("instanceid").DefValue = ""
	command.Must(cmd.RegisterFlagCompletionFunc("from", v.completeFrom))
}

// Complete checks the flags and sets Overrides.
func (o *Submission) Complete(cmd *cobra.Command) (err error) {
	to := &o.Overrides
	if to.Name != "" && to.GenerateName != "" {
		return command.Usagef("give --name or --generate-name, not both")
	}
	to.Parameters = map[string]string{}
	if o.parameterFile != "" {
		if to.Parameters, err = submit.ReadParameters(o.parameterFile); err != nil {
			return err
		}
	}
	given, err := command.KeyValues("--parameter", o.parameters)
	if err != nil {
		return err
	}
	maps.Copy(to.Parameters, given)
	if cmd.Flags().Changed("priority") {
		to.Priority = &o.priority
	}
	if to.Labels, err = command.KeyValues("--labels", o.labels); err != nil {
		return err
	}
	if faults := validation.IsValidLabelValue(o.instance); len(faults) > 0 {
		return command.Usagef("--instanceid=%s: %s", o.instance, strings.Join(faults, "; "))
	}
	return nil
}

// Instance returns the labels of workflows and crons that belong to the chosen instance of the
// controller.
func (o *Submission) Instance() map[string]string {
	if o.instance == "" {
		return nil
	}
	return map[string]string{wf.LabelInstanceID: o.instance}
}

// Workflow returns the workflow that --from starts, without Overrides.
func (o *Submission) Workflow(ctx context.Context, client *workflows.Client, namespace string) (*wf.Workflow, error) {
	kind, name, _ := strings.Cut(o.From, "/")
	switch {
	case name == "":
		return nil, command.Usagef("--from=%s: want KIND/NAME, for example workflowtemplate/build", o.From)
	case names.WorkflowTemplate.Has(kind):
		err := client.Read(ctx, workflows.Templates, namespace, name, &wf.WorkflowTemplate{})
		return submit.FromTemplate(namespace, name, false), err
	case names.ClusterWorkflowTemplate.Has(kind):
		err := client.Read(ctx, workflows.ClusterTemplates, "", name, &wf.ClusterWorkflowTemplate{})
		return submit.FromTemplate(namespace, name, true), err
	case names.CronWorkflow.Has(kind):
		return fromCron(ctx, client, namespace, name)
	}
	return nil, command.Usagef("--from=%s: want workflowtemplate/NAME, clusterworkflowtemplate/NAME or cronworkflow/NAME", o.From)
}

// completeFrom completes --from: first the kind, then the name.
func (v *Verb) completeFrom(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	kinds := map[string]objectKind{"workflowtemplate": templateKind, "clusterworkflowtemplate": clusterTemplateKind,
		"cronworkflow": cronKind}
	kind, name, slash := strings.Cut(text, "/")
	if k, known := kinds[kind]; slash && known {
		names, directive := k.names(v)(cmd, nil, name)
		for i := range names {
			names[i] = kind + "/" + names[i]
		}
		return names, directive
	}
	return []string{"workflowtemplate/", "clusterworkflowtemplate/", "cronworkflow/"}, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
}
