package applications

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit/applications"
	"lockstep.dev/lockstep/internal/submit/workflows"
	"lockstep.dev/lockstep/internal/workflow/display"
)

func newList(s command.Streams) *cobra.Command {
	var all bool
	var selector, output string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List applications and their components",
		Example: "  lockstep app ls\n  lockstep app ls -A -l team=web -o name",
		Args:    command.NoArgs,
	}
	v := newVerb(s, cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "applications of every namespace")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector")
	command.OutputFlag(cmd, &output, "json", "yaml", "name")
	return v.Run(func(ctx context.Context, client *applications.Client, namespace string, _ []string) error {
		if all {
			namespace = ""
		}
		apps, err := client.List(ctx, namespace, selector)
		if err != nil {
			return err
		}
		for i := range apps {
			if s.Malformed(&apps[i]) {
				malformed.Unmark(&apps[i])
				apps[i].Status.Phase = workflows.Malformed
			}
		}
		if output == "" {
			return printApps(s.Out, apps, all)
		}
		out := &oam.ApplicationList{Items: apps}
		out.APIVersion, out.Kind = oam.GroupVersion.String(), "ApplicationList"
		for i := range apps {
			apps[i].APIVersion, apps[i].Kind = oam.GroupVersion.String(), "Application"
		}
		return command.PrintObject(s.Out, output, out)
	})
}

func printApps(out io.Writer, apps []oam.Application, all bool) error {
	w := command.Columns(out)
	header := "APP\tCOMPONENT\tTYPE\tTRAITS\tPHASE\tHEALTHY\tSTATUS\tCREATED-TIME\n"
	if all {
		header = "NAMESPACE\t" + header
	}
	fmt.Fprint(w, header)
	for i := range apps {
		app := &apps[i]
		state := map[string]oam.ComponentStatus{}
		for _, s := range app.Status.Services {
			state[s.Name] = s
		}
		made := app.CreationTimestamp.Format("2006-01-02 15:04:05 -0700 MST")
		if len(app.Spec.Components) == 0 { // steps of its workflow make all its objects
			if all {
				fmt.Fprintf(w, "%s\t", app.Namespace)
			}
			fmt.Fprintf(w, "%s\t\t\t\t%s\t\t\t%s\n", app.Name, app.Status.Phase, made)
		}
		for j, comp := range app.Spec.Components {
			name := app.Name
			if j > 0 {
				name = "├─"
				if j == len(app.Spec.Components)-1 {
					name = "└─"
				}
			}
			var traits []string
			for _, t := range comp.Traits {
				traits = append(traits, t.Type)
			}
			health := ""
			if s, ok := state[comp.Name]; ok {
				health = "unhealthy"
				if s.Healthy {
					health = "healthy"
				}
			}
			if all {
				fmt.Fprintf(w, "%s\t", app.Namespace)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, comp.Name, comp.Type, strings.Join(traits, ","),
				app.Status.Phase, health, display.OneLine(state[comp.Name].Message), made)
		}
	}
	return w.Flush()
}
