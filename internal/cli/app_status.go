package cli

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

func newAppStatus(s streams) *cobra.Command {
	var output string
	var tree, pods, endpoints bool
	cmd := &cobra.Command{
		Use:     "status NAME",
		Short:   "How an application stands: phase, workflow, the health of its components",
		Example: "  lockstep app status shop\n  lockstep app status shop --tree",
		Args:    exactArgs("NAME"),
	}
	c := newAppCommand(s, cmd)
	cmd.ValidArgsFunction = first(c.names())
	outputFlag(cmd, &output, "json", "yaml", "name")
	cmd.Flags().BoolVar(&tree, "tree", false, "the objects that the application manages")
	cmd.Flags().BoolVar(&pods, "pod", false, "the pods of its workloads")
	cmd.Flags().BoolVar(&endpoints, "endpoint", false, "where its Services are reached")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		app, err := client.Get(cmd.Context(), namespace, args[0])
		if err != nil {
			return err
		}
		if output != "" {
			print, err := objectPrinter(output, c.s.out)
			if err != nil {
				return err
			}
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(app)
			if err != nil {
				return err
			}
			u := &unstructured.Unstructured{Object: content}
			u.SetGroupVersionKind(oam.GroupVersion.WithKind("Application"))
			return print(u)
		}
		switch {
		case tree:
			return printAppTree(c.s.out, app)
		case pods:
			list, err := client.Pods(cmd.Context(), app, "")
			if err != nil {
				return err
			}
			return printPods(c.s.out, list)
		case endpoints:
			list, err := client.Services(cmd.Context(), app, "")
			if err != nil {
				return err
			}
			return printEndpoints(c.s.out, list)
		}
		return printAppStatus(c.s.out, app)
	}
	return cmd
}

func printAppStatus(out io.Writer, app *oam.Application) error {
	w := &strings.Builder{}
	healthy := len(app.Status.Services) > 0
	for _, s := range app.Status.Services {
		healthy = healthy && s.Healthy
	}
	phase := string(app.Status.Phase)
	if phase == "" {
		phase = "not seen by a manager yet"
	}
	fmt.Fprintf(w, "About:\n\n  Name:       %s\n  Namespace:  %s\n  Created at: %s\n  Healthy:    %s\n  Details:    %s\n",
		app.Name, app.Namespace, app.CreationTimestamp.Format("2006-01-02 15:04:05 -0700 MST"), yesNo(healthy), phase)
	if r := app.Status.LatestRevision; r != nil {
		fmt.Fprintf(w, "  Revision:   %s\n", r.Name)
	}
	if why := notReady(app); why != "" {
		fmt.Fprintf(w, "  Problem:    %s\n", why)
	}
	for _, c := range app.Status.Conditions {
		if c.Type == oam.ConditionParsed && c.Status == "True" && c.Message != "" {
			fmt.Fprintf(w, "  Warning:    %s\n", c.Message)
		}
	}
	if f := app.Status.Workflow; f != nil {
		fmt.Fprintf(w, "\nWorkflow:\n\n  mode: %s\n  finished: %t\n  Suspend: %t\n  Terminated: %t\n  Steps\n", f.Mode, f.Finished, f.Suspend, f.Terminated)
		for _, s := range f.Steps {
			fmt.Fprintf(w, "  - id: %s\n    name: %s\n    type: %s\n    phase: %s\n", s.ID, s.Name, s.Type, s.Phase)
			if s.Message != "" {
				fmt.Fprintf(w, "    message: %s\n", s.Message)
			}
		}
	}
	if len(app.Status.Services) > 0 {
		fmt.Fprint(w, "\nServices:\n\n")
	}
	for _, s := range app.Status.Services {
		fmt.Fprintf(w, "  - Name: %s\n    Cluster: %s\n    Namespace: %s\n    Type: %s\n    Health: %s\n", s.Name, s.Cluster, s.Namespace, typeOf(app, s.Name), yesNo(s.Healthy))
		if s.Message != "" {
			fmt.Fprintf(w, "      Message: %s\n", strings.TrimSpace(s.Message))
		}
		if len(s.Traits) > 0 {
			fmt.Fprint(w, "    Traits:\n")
		}
		for _, t := range s.Traits {
			fmt.Fprintf(w, "      Type: %s\n      Health: %s\n", t.Type, yesNo(t.Healthy))
			if t.Message != "" {
				fmt.Fprintf(w, "        Message: %s\n", strings.TrimSpace(t.Message))
			}
		}
	}
	_, err := io.WriteString(out, w.String())
	return err
}

func yesNo(b bool) string {
	if b {
		return "✅"
	}
	return "❌"
}

func typeOf(app *oam.Application, component string) string {
	for _, c := range app.Spec.Components {
		if c.Name == component {
			return c.Type
		}
	}
	return ""
}

// printAppTree draws an application's objects as a tree below their clusters and namespaces. The
// own cluster comes first.
func printAppTree(out io.Writer, app *oam.Application) error {
	type place struct{ cluster, namespace string }
	byPlace := map[place][]string{}
	var places []place
	for _, r := range app.Status.AppliedResources {
		at := place{r.Cluster, r.Namespace}
		if at.cluster == oam.LocalCluster {
			at.cluster = ""
		}
		if byPlace[at] == nil {
			places = append(places, at)
		}
		byPlace[at] = append(byPlace[at], r.Kind+"/"+r.Name)
	}
	slices.SortFunc(places, func(a, b place) int {
		return cmp.Or(strings.Compare(a.cluster, b.cluster), strings.Compare(a.namespace, b.namespace))
	})
	w := &strings.Builder{}
	fmt.Fprintf(w, "%s %s/%s", app.Status.Phase, app.Namespace, app.Name)
	if why := notReady(app); why != "" {
		fmt.Fprintf(w, ": %s", why)
	}
	fmt.Fprintln(w)
	for i, at := range places {
		branch, rail := "├─ ", "│  "
		if i == len(places)-1 {
			branch, rail = "└─ ", "   "
		}
		name := at.namespace
		if name == "" {
			name = "(cluster)"
		}
		if at.cluster != "" {
			name = at.cluster + ": " + name
		}
		fmt.Fprintf(w, "%s%s\n", branch, name)
		objects := byPlace[at]
		slices.Sort(objects)
		for j, o := range objects {
			leaf := "├─ "
			if j == len(objects)-1 {
				leaf = "└─ "
			}
			fmt.Fprintf(w, "%s%s%s\n", rail, leaf, o)
		}
	}
	_, err := io.WriteString(out, w.String())
	return err
}
