package applications

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
	"lockstep.dev/lockstep/internal/workflow/display"
)

// printPods prints the table of 'app status --pod'.
func printPods(out io.Writer, pods []corev1.Pod) error {
	w := command.Columns(out)
	fmt.Fprint(w, "CLUSTER\tCOMPONENT\tPOD NAME\tNAMESPACE\tPHASE\tCREATE TIME\tREVISION\tHOST\n")
	for _, p := range pods {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", oam.LocalCluster, p.Labels[oam.AppComponentLabel], p.Name,
			p.Namespace, p.Status.Phase,
			p.CreationTimestamp.Format(time.DateTime), p.Labels[oam.AppRevisionLabel], p.Spec.NodeName)
	}
	return w.Flush()
}

// printEndpoints prints the addresses and ports of an application's Services.
func printEndpoints(out io.Writer, services []corev1.Service) error {
	w := command.Columns(out)
	fmt.Fprint(w, "CLUSTER\tCOMPONENT\tREF(KIND/NAMESPACE/NAME)\tENDPOINT\tINNER\n")
	for _, s := range services {
		hosts, inner := []string{s.Name + "." + s.Namespace}, true
		if s.Spec.Type == corev1.ServiceTypeLoadBalancer && len(s.Status.LoadBalancer.Ingress) > 0 {
			hosts, inner = nil, false
			for _, i := range s.Status.LoadBalancer.Ingress {
				hosts = append(hosts, i.Hostname+i.IP)
			}
		}
		for _, host := range hosts {
			for _, p := range s.Spec.Ports {
				fmt.Fprintf(w, "%s\t%s\tService/%s/%s\t%s:%d\t%t\n", oam.LocalCluster, s.Labels[oam.AppComponentLabel],
					s.Namespace, s.Name,
					strings.TrimSpace(host), p.Port, inner)
			}
		}
	}
	return w.Flush()
}

func newStatus(s command.Streams) *cobra.Command {
	var output string
	var tree, pods, endpoints bool
	cmd := &cobra.Command{
		Use:     "status NAME",
		Short:   "How an application stands: phase, workflow, the health of its components",
		Example: "  lockstep app status shop\n  lockstep app status shop --tree",
		Args:    command.OneArg("NAME"),
	}
	v := newVerb(s, cmd)
	cmd.ValidArgsFunction = command.First(v.names())
	command.OutputFlag(cmd, &output, "json", "yaml", "name")
	cmd.Flags().BoolVar(&tree, "tree", false, "the objects that the application manages")
	cmd.Flags().BoolVar(&pods, "pod", false, "the pods of its workloads")
	cmd.Flags().BoolVar(&endpoints, "endpoint", false, "where its Services are reached")
	return v.onNamed(func(ctx context.Context, client *applications.Client, namespace string, args []string) error {
		app, err := client.Get(ctx, namespace, args[0])
		if err != nil {
			return err
		}
		if output != "" {
			content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(app)
			if err != nil {
				return err
			}
			u := &unstructured.Unstructured{Object: content}
			u.SetGroupVersionKind(oam.GroupVersion.WithKind("Application"))
			return command.PrintObject(s.Out, output, u)
		}
		switch {
		case tree:
			return printTree(s.Out, app)
		case pods:
			list, err := client.Pods(ctx, app, "")
			if err != nil {
				return err
			}
			return printPods(s.Out, list)
		case endpoints:
			list, err := client.Services(ctx, app, "")
			if err != nil {
				return err
			}
			return printEndpoints(s.Out, list)
		}
		return printStatus(s.Out, app)
	})
}

func printStatus(out io.Writer, app *oam.Application) error {
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
			fmt.Fprintf(w, "  Warning:    %s\n", display.OneLine(c.Message))
		}
	}
	if f := app.Status.Workflow; f != nil {
		fmt.Fprintf(w, "\nWorkflow:\n\n  mode: %s\n  finished: %t\n  Suspend: %t\n  Terminated: %t\n  Steps\n", f.Mode,
			f.Finished, f.Suspend, f.Terminated)
		for _, s := range f.Steps {
			fmt.Fprintf(w, "  - id: %s\n    name: %s\n    type: %s\n    phase: %s\n", s.ID, s.Name, s.Type, s.Phase)
			if s.Message != "" {
				fmt.Fprintf(w, "    message: %s\n", display.OneLine(s.Message))
			}
		}
	}
	if len(app.Status.Services) > 0 {
		fmt.Fprint(w, "\nServices:\n\n")
	}
	for _, s := range app.Status.Services {
		fmt.Fprintf(w, "  - Name: %s\n    Cluster: %s\n    Namespace: %s\n    Type: %s\n    Health: %s\n", s.Name,
			s.Cluster, s.Namespace, typeOf(app, s.Name), yesNo(s.Healthy))
		if s.Message != "" {
			fmt.Fprintf(w, "      Message: %s\n", display.OneLine(s.Message))
		}
		if len(s.Traits) > 0 {
			fmt.Fprint(w, "    Traits:\n")
		}
		for _, t := range s.Traits {
			fmt.Fprintf(w, "      Type: %s\n      Health: %s\n", t.Type, yesNo(t.Healthy))
			if t.Message != "" {
				fmt.Fprintf(w, "        Message: %s\n", display.OneLine(t.Message))
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

// printTree draws an application's objects as a tree below their clusters and namespaces. The local
// cluster comes first.
func printTree(out io.Writer, app *oam.Application) error {
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
