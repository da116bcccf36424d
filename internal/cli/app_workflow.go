package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/records"
)

func newAppWorkflow(s streams) *cobra.Command {
	return group(&cobra.Command{
		Use:     "workflow",
		Aliases: []string{"wf"},
		Short:   "Suspend, resume, end, repeat or take back the deployment of an application",
	},
		newAppWorkflowVerb(s, "suspend", "Let nothing new start until the workflow is resumed"),
		newAppWorkflowVerb(s, "resume", "Let a workflow go on that is suspended, by hand or by a step"),
		newAppWorkflowVerb(s, "terminate", "End the steps that run, and skip the others"),
		newAppWorkflowVerb(s, "restart", "Run the workflow again, with the definitions as they are now"),
		newAppRollback(s, "app workflow"),
	)
}

// newAppWorkflowVerb returns a verb that writes a workflow command into the application for the
// manager to carry out.
func newAppWorkflowVerb(s streams, verb, short string) *cobra.Command {
	var step string
	cmd := &cobra.Command{Use: verb + " NAME", Short: short, Example: "  lockstep app workflow " + verb + " shop", Args: exactArgs("NAME")}
	c := newAppCommand(s, cmd)
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = first(c.names())
	if verb == "resume" {
		cmd.Flags().StringVar(&step, "step", "", "resume this step alone")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		app, err := client.Get(cmd.Context(), namespace, args[0])
		if err != nil {
			return err
		}
		if err := possible(app, verb); err != nil {
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
		if err := client.Patch(cmd.Context(), namespace, args[0], types.MergePatchType, patch); err != nil {
			return err
		}
		fmt.Fprintf(c.s.out, "application.core.oam.dev/%s workflow %s %s\n", args[0], verb, c.dryRun.said("requested"))
		return nil
	}
	return cmd
}

// possible returns why a command about an application's workflow would have no effect, or nil.
func possible(app *oam.Application, verb string) error {
	w := app.Status.Workflow
	switch {
	case verb == "restart":
		return nil
	case w == nil:
		return fmt.Errorf("application %s has not begun to be deployed: see lockstep app status %s", app.Name, app.Name)
	case w.Finished:
		return fmt.Errorf("%s workflow not allowed because application %s is %s", verb, app.Name, app.Status.Phase)
	case verb == "resume" && !w.Suspend:
		return fmt.Errorf("application %s is not suspended; it is %s", app.Name, app.Status.Phase)
	}
	return nil
}

// newAppRollback returns the verb rollback, which two parent commands have.
func newAppRollback(s streams, of string) *cobra.Command {
	var revision string
	cmd := &cobra.Command{
		Use:     "rollback NAME",
		Short:   "Deploy an earlier revision again",
		Long:    "Give the application the spec of an earlier revision, the one before the present one by default.",
		Example: "  lockstep " + of + " rollback shop\n  lockstep " + of + " rollback shop --revision shop-v3",
		Args:    exactArgs("NAME"),
	}
	c := newAppCommand(s, cmd)
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = first(c.names())
	cmd.Flags().StringVar(&revision, "revision", "", "the revision, as lockstep app revisions lists it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		all, err := revisionsOf(cmd.Context(), client, namespace, args[0])
		if err != nil {
			return err
		}
		to, err := chosenRevision(all, revision)
		if err != nil {
			return err
		}
		app, err := client.Get(cmd.Context(), namespace, args[0])
		if err != nil {
			return err
		}
		change := []map[string]any{{"op": "replace", "path": "/spec", "value": to.Spec}}
		if app.Annotations[oam.PublishVersionAnnotation] != "" {
			change = append(change, map[string]any{"op": "replace",
				"path":  "/metadata/annotations/" + strings.ReplaceAll(oam.PublishVersionAnnotation, "/", "~1"),
				"value": to.Name + "-again-" + time.Now().UTC().Format("20060102150405")})
		}
		patch, err := json.Marshal(change)
		if err != nil {
			return err
		}
		if err := client.Patch(cmd.Context(), namespace, args[0], types.JSONPatchType, patch); err != nil {
			return err
		}
		fmt.Fprintf(c.s.out, "application.core.oam.dev/%s %s\n", args[0], c.dryRun.said("rolled back to "+to.Name))
		return nil
	}
	return cmd
}

// chosenRevision returns the revision called name. Without a name it returns the one before the
// last.
func chosenRevision(revisions []records.Revision, name string) (*records.Revision, error) {
	if name == "" {
		if len(revisions) < 2 {
			return nil, errors.New("there is no earlier revision")
		}
		return &revisions[len(revisions)-2], nil
	}
	for i := range revisions {
		if revisions[i].Name == name {
			return &revisions[i], nil
		}
	}
	return nil, fmt.Errorf("there is no revision %s any more: see lockstep app revisions", name)
}
