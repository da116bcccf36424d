package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// appCommand is what the verbs about applications share.
type appCommand struct {
	s     streams
	flags *genericclioptions.ConfigFlags
	// dryRun is --dry-run, where the verb has it.
	dryRun dryRun
}

func newAppCommand(s streams, cmd *cobra.Command) *appCommand {
	return &appCommand{s: s, flags: kubeFlags(cmd)}
}

func newApp(s streams) *cobra.Command {
	return group(&cobra.Command{
		Use:     "app",
		Aliases: []string{"apps", "application"},
		Short:   "Applications: deploy, watch, preview and delete",
	}, newAppUp(s), newAppStatus(s), newAppList(s), newAppDryRun(s), newAppDiff(s), newAppRevisions(s), newAppRollback(s, "app"), newAppWorkflow(s),
		newAppLogs(s), newAppExec(s), newAppPortForward(s), newAppDelete(s))
}

func (c *appCommand) connect() (*applications.Client, string, error) {
	cfg, namespace, err := where(c.flags)
	if err != nil {
		return nil, "", err
	}
	client, err := applications.New(cfg)
	if err != nil {
		return nil, "", err
	}
	client.DryRun = kubeclient.DryRun(c.dryRun.on())
	return client, namespace, nil
}

// names completes names of applications.
func (c *appCommand) names() cobra.CompletionFunc {
	return completion(func(ctx context.Context) ([]string, error) {
		client, namespace, err := c.connect()
		if err != nil {
			return nil, err
		}
		apps, err := client.List(ctx, namespace, "")
		var all []string
		for i := range apps {
			all = append(all, apps[i].Name+"\t"+string(apps[i].Status.Phase))
		}
		return all, err
	})
}

// revisionsOf are the last states of an application, oldest first.
func revisionsOf(ctx context.Context, client *applications.Client, namespace, name string) ([]controller.Revision, error) {
	rt, err := client.Tracker(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return controller.Revisions(rt)
}

func newAppUp(s streams) *cobra.Command {
	var files []string
	var output string
	var wait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "up -f FILE",
		Short: "Deploy applications, or change them",
		Long: `Apply the manifests. With --wait, wait until every application among them runs and is healthy.

Exit codes: 0 all was sent, and with --wait every application runs; 1 a manifest was refused; 2 wrong usage; 3 an application
did not come to run within --timeout.`,
		Example: "  lockstep app up -f shop.yaml --wait\n  lockstep app up -f shop.yaml --dry-run=server",
	}
	c := newAppCommand(s, cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "files, folders, URLs or - for standard input")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait until the applications run")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	outputFlag(cmd, &output, "name", "json", "yaml")
	c.dryRun.add(cmd, `"client": print what would be sent; "server": have it checked and nothing kept`, dryRunClient, dryRunServer)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		files = append(files, args...)
		if len(files) == 0 {
			return usageError{errors.New("say what to deploy, for example: lockstep app up -f app.yaml")}
		}
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		objects, err := submit.Read(c.flags, namespace, *c.flags.Namespace != "", files, true)
		if err != nil {
			return err
		}
		sent, err := send(cmd.Context(), c.s, objects, c.dryRun, output)
		if err == nil {
			err = refused(len(objects)-len(sent), len(objects))
		}
		if err != nil {
			return err
		}
		if !wait || c.dryRun.on() {
			return nil
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		for _, o := range objects {
			if u, ok := o.Object().(*unstructured.Unstructured); ok && u.GetKind() == "Application" {
				if err := c.await(ctx, client, u.GetNamespace(), u.GetName(), u.GetGeneration()); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return cmd
}

// await waits until an application runs, and says on the way how far it is.
func (c *appCommand) await(ctx context.Context, client *applications.Client, namespace, name string, generation int64) error {
	said := ""
	for {
		app, err := client.Get(ctx, namespace, name)
		if err != nil {
			return err
		}
		state := string(app.Status.Phase)
		if why := notReady(app); why != "" {
			state += ": " + why
		}
		if state != said && state != "" {
			fmt.Fprintf(c.s.err, "%s/%s: %s\n", namespace, name, state)
			said = state
		}
		if app.Status.ObservedGeneration >= generation && app.Status.Phase == oam.PhaseRunning {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("application %s/%s does not run: see 'lockstep app status %s -n %s': %w", namespace, name, name, namespace, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// notReady is why an application is not ready, or empty.
func notReady(app *oam.Application) string {
	for _, c := range app.Status.Conditions {
		if c.Type == oam.ConditionReady && c.Status == "False" {
			return c.Message
		}
	}
	return ""
}

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

// printAppTree draws the objects, below their namespaces.
func printAppTree(out io.Writer, app *oam.Application) error {
	byNamespace := map[string][]string{}
	for _, r := range app.Status.AppliedResources {
		byNamespace[r.Namespace] = append(byNamespace[r.Namespace], r.Kind+"/"+r.Name)
	}
	var namespaces []string
	for ns := range byNamespace {
		namespaces = append(namespaces, ns)
	}
	slices.Sort(namespaces)
	w := &strings.Builder{}
	fmt.Fprintf(w, "%s %s/%s\n", app.Status.Phase, app.Namespace, app.Name)
	for i, ns := range namespaces {
		branch, rail := "├─ ", "│  "
		if i == len(namespaces)-1 {
			branch, rail = "└─ ", "   "
		}
		name := ns
		if name == "" {
			name = "(cluster)"
		}
		fmt.Fprintf(w, "%s%s\n", branch, name)
		objects := byNamespace[ns]
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

func newAppList(s streams) *cobra.Command {
	var all bool
	var selector, output string
	cmd := &cobra.Command{
		Use:     "ls",
		Aliases: []string{"list"},
		Short:   "List applications and their components",
		Example: "  lockstep app ls\n  lockstep app ls -A -l team=web -o name",
		Args:    noArgs,
	}
	c := newAppCommand(s, cmd)
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "applications of every namespace")
	cmd.Flags().StringVarP(&selector, "selector", "l", "", "label selector")
	outputFlag(cmd, &output, "json", "yaml", "name")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		if all {
			namespace = ""
		}
		apps, err := client.List(cmd.Context(), namespace, selector)
		if err != nil {
			return err
		}
		if output == "" {
			return printApps(c.s.out, apps, all)
		}
		out := &oam.ApplicationList{Items: apps}
		out.APIVersion, out.Kind = oam.GroupVersion.String(), "ApplicationList"
		for i := range apps {
			apps[i].APIVersion, apps[i].Kind = oam.GroupVersion.String(), "Application"
		}
		print, err := objectPrinter(output, c.s.out)
		if err != nil {
			return err
		}
		return print(out)
	}
	return cmd
}

func printApps(out io.Writer, apps []oam.Application, all bool) error {
	w := tabwriter.NewWriter(out, 0, 8, 2, ' ', 0)
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
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, comp.Name, comp.Type, strings.Join(traits, ","), app.Status.Phase, health,
				strings.TrimSpace(state[comp.Name].Message), app.CreationTimestamp.Format("2006-01-02 15:04:05 -0700 MST"))
		}
	}
	return w.Flush()
}

func newAppDelete(s streams) *cobra.Command {
	var noWait bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete applications and what they made",
		Long: `Delete applications, and wait until what they made is gone.

Exit codes: 0 all are deleted; 1 one of them is not there, or may not be deleted; 2 wrong usage; 3 one was still there after
--timeout.`,
		Example: "  lockstep app delete shop\n  lockstep app delete shop cart --no-wait",
		Args:    minArgs(1, "NAME"),
	}
	c := newAppCommand(s, cmd)
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = c.names()
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return when the deletion has begun")
	cmd.Flags().DurationVar(&timeout, "timeout", 2*time.Minute, "how long to wait")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		ctx, stop := interruptible(cmd)
		defer stop()
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		var failed []error
		for _, name := range args {
			if err := client.Delete(ctx, namespace, name, !noWait); err != nil {
				failed = append(failed, err)
				continue
			}
			fmt.Fprintf(c.s.out, "application.core.oam.dev/%s %s\n", name, c.dryRun.said("deleted"))
		}
		return errors.Join(failed...)
	}
	return cmd
}

func newAppRevisions(s streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "revisions NAME",
		Aliases: []string{"history", "revision"},
		Short:   "The last states that an application had, oldest first",
		Example: "  lockstep app revisions shop\n  lockstep app revisions shop -o yaml",
		Args:    exactArgs("NAME"),
	}
	c := newAppCommand(s, cmd)
	cmd.ValidArgsFunction = first(c.names())
	outputFlag(cmd, &output, "json", "yaml", "name")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		client, namespace, err := c.connect()
		if err != nil {
			return err
		}
		all, err := revisionsOf(cmd.Context(), client, namespace, args[0])
		if err != nil {
			return err
		}
		switch output {
		case "json":
			return printJSON(c.s.out, all)
		case "yaml":
			return printYAML(c.s.out, all)
		case "name":
			for _, r := range all {
				fmt.Fprintln(c.s.out, r.Name)
			}
			return nil
		}
		w := tabwriter.NewWriter(c.s.out, 0, 8, 2, ' ', 0)
		fmt.Fprint(w, "NAME\tPUBLISH_VERSION\tHASH\tBEGIN_TIME\n")
		for _, r := range all {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", r.Name, r.PublishVersion, r.Hash, r.Created.Format("2006-01-02 15:04:05"))
		}
		return w.Flush()
	}
	return cmd
}

func newAppDryRun(s streams) *cobra.Command {
	var files []string
	var offline bool
	cmd := &cobra.Command{
		Use:   "dry-run -f FILE",
		Short: "Show the objects that applications would be made of",
		Long: `Render the applications with the definitions of the cluster, or with --offline with the built-in ones and those among the
manifests, and print the objects. Nothing is sent.`,
		Example: "  lockstep app dry-run -f shop.yaml --offline",
	}
	c := newAppCommand(s, cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "files, or - for standard input")
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask a cluster")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		objects, err := readObjects(c.s, append(files, args...))
		if err != nil {
			return err
		}
		defs, err := builtinDefinitions()
		if err != nil {
			return err
		}
		namespace := "default"
		if !offline {
			client, ns, err := c.connect()
			if err != nil {
				return err
			}
			namespace = ns
			if err := defs.addFrom(cmd.Context(), client, namespace); err != nil {
				return err
			}
		}
		if err := defs.add(objects); err != nil {
			return err
		}
		charts := newFetchedCharts(cmd.Context(), c.s.err)
		for _, u := range objects {
			if u.GetKind() != "Application" {
				continue
			}
			if u.GetNamespace() == "" {
				u.SetNamespace(namespace)
			}
			if err := printRendered(c.s.out, c.s.err, u, defs, charts); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// printRendered prints the objects that an application is made of.
func printRendered(out, errOut io.Writer, u *unstructured.Unstructured, defs definitionSet, charts plan.Charts) error {
	var app oam.Application
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &app, true); err != nil {
		return fmt.Errorf("application %s: %w", u.GetName(), err)
	}
	p, err := plan.Make(&plan.Input{
		Namespace: app.Namespace, Name: app.Name, Revision: app.Name + "-v1", RevisionNum: 1, Labels: app.Labels,
		Annotations: app.Annotations, Spec: &app.Spec,
		Clusters: plan.Local{Kinds: anyKind{}, Version: render.ClusterVersion{Major: "1", Minor: 36, GitVersion: "v1.36.0"}},
		Charts:   charts, Now: time.Now(),
	}, defs)
	if err != nil {
		return fmt.Errorf("application %s: %w", app.Name, err)
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(errOut, "warning: application %s: %s\n", app.Name, w)
	}
	for i := range p.Components {
		comp := &p.Components[i]
		fmt.Fprintf(out, "---\n# Application(%s) -- Component(%s)\n", app.Name, comp.Name)
		for _, at := range comp.Resources {
			r := &p.Resources[at]
			text, err := yaml.JSONToYAML(r.JSON)
			if err != nil {
				return err
			}
			what := "workload"
			if r.Output != "" {
				what = "outputs." + r.Output
			}
			if r.Trait != "" {
				what = "trait " + r.Trait + ", " + what
			}
			fmt.Fprintf(out, "---\n# %s\n%s", what, text)
		}
	}
	return nil
}

// anyKind takes every kind for one of namespaces, but for those of Kubernetes that are not.
type anyKind struct{}

func (anyKind) Namespaced(gvk schema.GroupVersionKind) (bool, error) {
	switch gvk.Kind {
	case "Namespace", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "StorageClass", "PriorityClass", "CustomResourceDefinition", "Queue":
		return false, nil
	}
	return true, nil
}
