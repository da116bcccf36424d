package applications

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// revisionsOf returns the kept revisions of an application, oldest first.
func revisionsOf(ctx context.Context, client *applications.Client,
	namespace, name string) ([]records.Revision, error) {
	rt, err := client.Tracker(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return records.Revisions(rt)
}

func newRevisions(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "revisions NAME",
		Aliases: []string{"history", "revision"},
		Short:   "The last states that an application had, oldest first",
		Example: "  lockstep app revisions shop\n  lockstep app revisions shop -o yaml",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	command.OutputFlag(cmd, &output, "json", "yaml", "name")
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		all, err := revisionsOf(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		if printed, err := command.Print(s.Out, output, all); printed {
			return err
		}
		if output == "name" {
			for _, r := range all {
				fmt.Fprintln(s.Out, r.Name)
			}
			return nil
		}
		w := command.Columns(s.Out)
		fmt.Fprint(w, "NAME\tPUBLISH_VERSION\tHASH\tBEGIN_TIME\n")
		for _, r := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, r.PublishVersion, r.Hash,
				r.Created.Format("2006-01-02 15:04:05"))
		}
		return w.Flush()
	})
}

// newRollback returns the verb rollback, which two parent commands have.
func newRollback(s command.Streams, of string) *cobra.Command {
	var revision string
	cmd := &cobra.Command{
		Use:     "rollback NAME",
		Short:   "Deploy an earlier revision again",
		Long:    "Give the application the spec of an earlier revision, the one before the present one by default.",
		Example: "  lockstep " + of + " rollback shop\n  lockstep " + of + " rollback shop --revision shop-v3",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	v.DryRun.AddChecked(cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	cmd.Flags().StringVar(&revision, "revision", "", "the revision, as lockstep app revisions lists it")
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		all, err := revisionsOf(ctx, client, namespace, args[0])
		if err != nil {
			return err
		}
		to, err := chosenRevision(all, revision)
		if err != nil {
			return err
		}
		app, err := client.Get(ctx, namespace, args[0])
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
		if err := client.Patch(ctx, namespace, args[0], types.JSONPatchType, patch); err != nil {
			return err
		}
		fmt.Fprintf(s.Out, "application.core.oam.dev/%s %s\n", args[0], v.DryRun.Said("rolled back to "+to.Name))
		return nil
	})
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
