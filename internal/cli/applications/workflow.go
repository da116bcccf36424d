package applications

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newWorkflow(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:     "workflow",
		Aliases: []string{"wf"},
		Short:   "Suspend, resume, end, repeat or take back the deployment of an application",
	},
		newWorkflowVerb(s, "suspend", "Let nothing new start until the workflow is resumed"),
		newWorkflowVerb(s, "resume", "Let a workflow go on that is suspended, by hand or by a step"),
		newWorkflowVerb(s, "terminate", "End the steps that run, and skip the others"),
		newWorkflowVerb(s, "restart", "Run the workflow again, with the definitions as they are now"),
		newRollback(s, "app workflow"),
	)
}

// newWorkflowVerb returns a verb that writes a workflow command into the application. The manager
// carries the command out.
func newWorkflowVerb(s command.Streams, verb, short string) *cobra.Command {
	var step string
	cmd := &cobra.Command{Use: verb + " NAME", Short: short, Example: "  lockstep app workflow " + verb + " shop",
		Args: command.OneArg("NAME")}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	switch verb {
	case "resume", "suspend":
		cmd.Flags().StringVar(&step, "step", "", verb+" this step alone")
	case "restart":
		cmd.Flags().StringVar(&step, "step", "", "continue with this step, which has failed, and all that come after it")
	}
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		if err := RequestWorkflow(ctx, client, namespace, args[0], verb, step); err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "application.core.oam.dev/%s workflow %s %s\n", args[0], verb, v.DryRun.Said("requested"))
		return nil
	})
}

// RequestWorkflow requests a verb of the workflow of an application, or of one step if step is not
// empty. It fails if that would have no effect.
func RequestWorkflow(ctx context.Context, client *applications.Client, namespace, name, verb, step string) error {
	app, err := client.Get(ctx, namespace, name)
	if err != nil {
		return err
	}
	if err := possible(app, verb, step); err != nil {
		return err
	}
	value := verb
	if step != "" {
		value += "/" + step
	}
	// The time makes each command different from the previous one.
	value += "@" + time.Now().UTC().Format(time.RFC3339Nano)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{oam.WorkflowCommandAnnotation: value}}})
	if err != nil {
		return err
	}
	return client.Patch(ctx, namespace, name, types.MergePatchType, patch)
}

// possible returns an error if a command about an application's workflow would have no effect.
func possible(app *oam.Application, verb, step string) error {
	w := app.Status.Workflow
	switch {
	case verb == "restart" && step == "":
		return nil
	case w == nil:
		return fmt.Errorf("application %s has not begun to be deployed: see lockstep app status %s", app.Name, app.Name)
	case w.Finished && verb != "restart":
		return fmt.Errorf("%s workflow not allowed because application %s is %s", verb, app.Name, app.Status.Phase)
	case verb == "resume" && !w.Suspend:
		return fmt.Errorf("application %s is not suspended; it is %s", app.Name, app.Status.Phase)
	case step == "":
		return nil
	}
	for st := range flow.StepsOf(w) {
		switch {
		case st.Name != step:
		case verb == "restart" && st.Phase == oam.StepFailed:
			return nil
		case verb == "restart", verb == "resume" && st.Phase != oam.StepSuspending, flow.Ended(st):
			return fmt.Errorf("%s of step %s not allowed because it is %s", verb, step, st.Phase)
		default:
			return nil
		}
	}
	if verb == "suspend" && app.Spec.Workflow != nil && slices.ContainsFunc(app.Spec.Workflow.Steps, func(s oam.WorkflowStep) bool {
		return s.Name == step || slices.ContainsFunc(s.SubSteps, func(s oam.WorkflowStepBase) bool { return s.Name == step })
	}) {
		return nil // it has not begun
	}
	return fmt.Errorf("the workflow of application %s has no step %s", app.Name, step)
}
