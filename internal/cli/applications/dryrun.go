package applications

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cli/command"
	"lockstep.dev/lockstep/internal/submit/applications"
)

func newDryRun(s command.Streams) *cobra.Command {
	var files []string
	var offline bool
	cmd := &cobra.Command{
		Use:   "dry-run -f FILE",
		Short: "Show the objects that applications would be made of",
		Long: `Render the applications with the definitions of the cluster, or with --offline with the built-in ones and those among the
manifests, and print the objects. Nothing is sent.`,
		Example: "  lockstep app dry-run -f shop.yaml --offline",
	}
	v := newVerb(s, cmd)
	cmd.Flags().StringSliceVarP(&files, "filename", "f", nil, "files, or - for standard input")
	cmd.Flags().BoolVar(&offline, "offline", false, "do not ask a cluster")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		objects, err := readObjects(s, append(files, args...))
		if err != nil {
			return err
		}
		var client *applications.Client
		namespace := "default"
		if !offline {
			if client, namespace, err = v.Connect(); err != nil {
				return err
			}
		}
		charts := newFetchedCharts(cmd.Context(), s.Err, inProcess())
		for _, u := range objects {
			if u.GetKind() != "Application" {
				continue
			}
			if u.GetNamespace() == "" {
				u.SetNamespace(namespace)
			}
			defs, err := definitionsIn(cmd.Context(), client, u.GetNamespace())
			if err != nil {
				return err
			}
			if err := defs.add(objects); err != nil {
				return err
			}
			if err := printRendered(s.Out, s.Err, u, defs, charts); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}

// printRendered prints the objects that an application renders to. Its error names the components
// that could not be rendered; the others are printed.
func printRendered(out, errOut io.Writer, u *unstructured.Unstructured, defs definitionSet, charts plan.Charts) error {
	var app oam.Application
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, &app, true); err != nil {
		return fmt.Errorf("application %s: %w", u.GetName(), err)
	}
	p, err := planned(&plan.Input{
		Namespace: app.Namespace, Name: app.Name, Revision: app.Name + "-v1", RevisionNum: 1, Labels: app.Labels,
		Annotations: app.Annotations, Spec: &app.Spec,
		Clusters: offline(),
		Charts:   charts, Now: time.Now(), Run: inProcess(),
	}, defs)
	if err != nil {
		return fmt.Errorf("application %s: %w", app.Name, err)
	}
	for _, w := range p.Warnings {
		fmt.Fprintf(errOut, "warning: application %s: %s\n", app.Name, w)
	}
	for _, w := range plan.StepWarnings(&app.Spec, defs.Step) {
		fmt.Fprintf(errOut, "warning: application %s: %s\n", app.Name, w.Text)
	}
	for i := range p.Components {
		comp := &p.Components[i]
		if comp.Err != nil {
			continue
		}
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
		if comp.Late == nil {
			continue
		}
		for _, n := range comp.Late.Traits {
			fmt.Fprintf(out, "---\n# trait %s: its objects are made from the component's live objects\n", comp.Traits[n].Type)
		}
	}
	var broken []error
	for _, err := range p.Broken() {
		broken = append(broken, fmt.Errorf("application %s: %w", app.Name, err))
	}
	return errors.Join(broken...)
}

// offline returns a cluster of which nothing is known but a recent version.
func offline() plan.Local {
	return plan.Local{Kinds: anyKind{}, Version: render.ClusterVersion{Major: "1", Minor: 36, GitVersion: "v1.36.0"}}
}

// anyKind tells without a cluster which kinds are namespaced: all except some well-known ones.
type anyKind struct{}

func (anyKind) Namespaced(gvk schema.GroupVersionKind) (bool, error) {
	switch gvk.Kind {
	case "Namespace", "PersistentVolume", "ClusterRole", "ClusterRoleBinding", "StorageClass", "PriorityClass", "CustomResourceDefinition", "Queue":
		return false, nil
	}
	return true, nil
}
