package applications

import (
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit"
	"lockstep.dev/lockstep/internal/submit/applications"
	"lockstep.dev/lockstep/internal/workflow/display"
)

func newUp(s command.Streams) *cobra.Command {
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
	v := newVerb(s, cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "files, folders, URLs or - for standard input")
	cmd.Flags().BoolVarP(&wait, "wait", "w", false, "wait until the applications run")
	cmd.Flags().DurationVar(&timeout, "timeout", 5*time.Minute, "how long to wait")
	command.OutputFlag(cmd, &output, "name", "json", "yaml")
	v.DryRun.AddPrinted(cmd, "sent")
	v.Check(func(args []string) error {
		if files = append(files, args...); len(files) == 0 {
			return command.Usagef("say what to deploy, for example: lockstep app up -f app.yaml")
		}
		return nil
	})
	return v.Run(func(ctx context.Context, client *applications.Client, _ string, _ []string) error {
		objects, err := submit.Read(v.Kube, files, true)
		if err != nil {
			return err
		}
		warn(ctx, s, client, objects)
		sent, err := command.Send(ctx, s, objects, v.DryRun, output)
		if err == nil {
			err = command.Refused(len(objects)-len(sent), len(objects))
		}
		if err != nil {
			return err
		}
		if !wait || v.DryRun.On() {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		for _, o := range objects {
			if u, ok := o.Object().(*unstructured.Unstructured); ok && u.GetKind() == "Application" {
				if err := Await(ctx, s.Err, client, u.GetNamespace(), u.GetName(), u.GetGeneration()); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// definitionsAmong returns the objects that are in this namespace, or in vela-system, whose definitions
// everyone may use. An application uses no definitions of other namespaces.
func definitionsAmong(objects []*submit.Object, namespace string) []*unstructured.Unstructured {
	var out []*unstructured.Unstructured
	for _, o := range objects {
		if u, ok := o.Object().(*unstructured.Unstructured); ok && (u.GetNamespace() == namespace || u.GetNamespace() == oam.SystemNamespace) {
			out = append(out, u)
		}
	}
	return out
}

// warn prints warnings about types without a definition, and about properties that definitions do
// not know. What a user may not read of the cluster's definitions is left out: the application's
// condition Parsed has all warnings.
func warn(ctx context.Context, s command.Streams, client *applications.Client, objects []*submit.Object) {
	known := map[string]definitionSet{}
	for _, o := range objects {
		u, ok := o.Object().(*unstructured.Unstructured)
		var app oam.Application
		if !ok || u.GetKind() != "Application" || runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &app) != nil {
			continue
		}
		defs := known[app.Namespace]
		if defs == nil {
			var err error
			if defs, err = definitionsIn(ctx, client, app.Namespace); err != nil {
				continue
			}
			if err := defs.add(definitionsAmong(objects, app.Namespace)); err != nil {
				continue
			}
			known[app.Namespace] = defs
		}
		for _, u := range unknownTypes(&app.Spec, defs) {
			fmt.Fprintf(s.Err, "warning: application %s: %s\n", app.Name, u.text(defs))
		}
		for _, w := range slices.Concat(plan.Warnings(app.Namespace, &app.Spec, defs), plan.StepWarnings(&app.Spec, defs.Step)) {
			fmt.Fprintf(s.Err, "warning: application %s: %s\n", app.Name, w.Text)
		}
	}
}

// Await waits until an application runs in the given generation, and prints its progress.
func Await(ctx context.Context, errOut io.Writer, client *applications.Client, namespace, name string, generation int64) error {
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
			fmt.Fprintf(errOut, "%s/%s: %s\n", namespace, name, state)
			said = state
		}
		if app.Status.ObservedGeneration >= generation && app.Status.Phase == oam.PhaseRunning {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("application %s/%s does not run: see 'lockstep app status %s -n %s': %w", namespace, name,
				name, namespace, ctx.Err())
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// notReady returns why an application is not ready, in one line, or "".
func notReady(app *oam.Application) string {
	for _, c := range app.Status.Conditions {
		if c.Type == oam.ConditionReady && c.Status == "False" {
			return display.OneLine(c.Message)
		}
	}
	return ""
}
