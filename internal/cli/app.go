package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// appCommand holds the streams and flags that the verbs about applications share.
type appCommand struct {
	s     streams
	flags *genericclioptions.ConfigFlags
	// dryRun is the value of --dry-run, if the verb has this flag.
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

// revisionsOf returns the kept revisions of an application, oldest first.
func revisionsOf(ctx context.Context, client *applications.Client, namespace, name string) ([]records.Revision, error) {
	rt, err := client.Tracker(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return records.Revisions(rt)
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

// await waits until an application runs, and prints its progress.
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

// notReady returns why an application is not ready, or "".
func notReady(app *oam.Application) string {
	for _, c := range app.Status.Conditions {
		if c.Type == oam.ConditionReady && c.Status == "False" {
			return c.Message
		}
	}
	return ""
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
		for i := range apps {
			if warnMalformed(c.s.err, &apps[i]) {
				malformed.Unmark(&apps[i])
				apps[i].Status.Phase = malformedPhase
			}
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
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", name, comp.Name, comp.Type, strings.Join(traits, ","), app.Status.Phase, health,
				strings.TrimSpace(state[comp.Name].Message), made)
		}
	}
	return w.Flush()
}

func newAppDelete(s streams) *cobra.Command {
	var opts applications.DeleteOptions
	var timeout time.Duration
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete applications and what they made",
		Long: `Delete applications, and wait until what they made is gone.

Exit codes: 0 all are deleted; 1 one of them is not there, or may not be deleted; 2 wrong usage; 3 one was still there after
--timeout.`,
		Example: "  lockstep app delete shop\n  lockstep app delete shop cart --wait=false",
		Args:    minArgs(1, "NAME"),
	}
	c := newAppCommand(s, cmd)
	c.dryRun.addChecked(cmd)
	cmd.ValidArgsFunction = c.names()
	cmd.Flags().BoolVarP(&opts.Wait, "wait", "w", true, "wait until what they made is gone")
	cmd.Flags().BoolVar(&opts.Orphan, "orphan", false, "let what they made stay")
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
			if err := client.Delete(ctx, namespace, name, opts); err != nil {
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
