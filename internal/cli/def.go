package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	sigsyaml "sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/submit/applications"
)

// definitionSet holds definitions under "kind name". Each is compiled when it is used.
type definitionSet map[string]*render.Definition

func builtinDefinitions() (definitionSet, error) {
	objects, err := install.Definitions()
	if err != nil {
		return nil, err
	}
	set := definitionSet{}
	return set, set.add(objects)
}

// add adds the definitions among objects.
func (d definitionSet) add(objects []*unstructured.Unstructured) error {
	for _, u := range objects {
		def, err := definitionOf(u)
		if err != nil {
			return err
		}
		if def != nil {
			d[def.String()] = def
		}
	}
	return nil
}

// addFrom adds the definitions of a cluster.
func (d definitionSet) addFrom(ctx context.Context, client *applications.Client, namespace string) error {
	components, traits, err := client.Definitions(ctx, namespace)
	if err != nil {
		return err
	}
	// Backwards, because the definitions of the namespace come first in the list and take
	// precedence.
	for i := len(components) - 1; i >= 0; i-- {
		def := render.OfComponent(&components[i])
		d[def.String()] = def
	}
	for i := len(traits) - 1; i >= 0; i-- {
		def := render.OfTrait(&traits[i])
		d[def.String()] = def
	}
	return nil
}

// Component implements plan.Definitions.
func (d definitionSet) Component(_, name string) (*render.Template, error) {
	return d.compile(render.Component, name)
}

// Trait implements plan.Definitions.
func (d definitionSet) Trait(_, name string) (*render.Template, error) {
	return d.compile(render.Trait, name)
}

// Policy implements plan.Definitions.
func (d definitionSet) Policy(_, name string) (*render.Template, error) {
	return d.compile(render.Policy, name)
}

func (d definitionSet) compile(kind render.Kind, name string) (*render.Template, error) {
	def, ok := d[string(kind)+" "+name]
	if !ok {
		return nil, fmt.Errorf("there is no %s %s", kind, name)
	}
	return render.Compile(def, inProcess())
}

var _ plan.Definitions = definitionSet{}

// definitionOf returns the definition in an object, or nil if the object is none. It drops fields
// that a definition does not have, as the API server does; definitionAndStrays reports them.
func definitionOf(u *unstructured.Unstructured) (*render.Definition, error) {
	def, _, err := definitionAndStrays(u)
	return def, err
}

// definitionAndStrays is definitionOf, and also returns an error strays that names fields a
// definition does not have.
func definitionAndStrays(u *unstructured.Unstructured) (def *render.Definition, strays, err error) {
	convert := func(into any) error {
		err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, into, true)
		if runtime.IsStrictDecodingError(err) {
			strays, err = err, nil
		}
		if err != nil {
			return fmt.Errorf("%s %s: %w", u.GetKind(), u.GetName(), err)
		}
		return nil
	}
	switch render.Kind(u.GetKind()) {
	case render.Component:
		var o oam.ComponentDefinition
		err = convert(&o)
		return render.OfComponent(&o), strays, err
	case render.Trait:
		var o oam.TraitDefinition
		err = convert(&o)
		return render.OfTrait(&o), strays, err
	case render.Policy:
		var o oam.PolicyDefinition
		err = convert(&o)
		return render.OfPolicy(&o), strays, err
	case render.WorkflowStep:
		var o oam.WorkflowStepDefinition
		err = convert(&o)
		return render.OfWorkflowStep(&o), strays, err
	}
	return nil, nil, nil
}

// readObjects reads objects from manifests and from CUE files with definitions.
func readObjects(s streams, files []string) ([]*unstructured.Unstructured, error) {
	if len(files) == 0 {
		return nil, usageError{errors.New("give a file, for example: -f app.yaml")}
	}
	var out []*unstructured.Unstructured
	for _, file := range files {
		var data []byte
		var err error
		if file == "-" {
			data, err = io.ReadAll(s.in)
		} else {
			data, err = os.ReadFile(file)
		}
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(file, ".cue") {
			object, err := render.ParseFile(file, data, nil)
			if err != nil {
				return nil, err
			}
			out = append(out, &unstructured.Unstructured{Object: object})
			continue
		}
		decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096)
		for {
			u := &unstructured.Unstructured{}
			if err := decoder.Decode(&u.Object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
			if len(u.Object) > 0 {
				out = append(out, u)
			}
		}
	}
	return out, nil
}

func newDef(s streams) *cobra.Command {
	return group(&cobra.Command{
		Use:   "def",
		Short: "Definitions of components and traits: check, show, render",
	}, newDefManifest(s), newDefVet(s), newDefShow(s), newDefRender(s))
}

func newDefManifest(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "manifest FILE...",
		Short: "Print definitions in files of CUE as the manifests that kubectl applies",
		Long: `Print definitions as manifests, those in files of CUE too, which kubectl does not read. Definitions for everyone belong in the
namespace vela-system. Of definitions that do not compile nothing is printed.`,
		Example: "  lockstep def manifest gpu.cue > gpu.yaml",
		Args:    minArgs(1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			objects, err := readObjects(s, args)
			if err != nil {
				return err
			}
			for _, u := range objects {
				def, err := definitionOf(u)
				if err == nil && def != nil {
					_, err = render.Compile(def, inProcess())
				}
				if err != nil {
					return err
				}
			}
			for i, u := range objects {
				if i > 0 {
					fmt.Fprintln(s.out, "---")
				}
				if err := printYAML(s.out, u.Object); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newDefVet(s streams) *cobra.Command {
	return &cobra.Command{
		Use:     "vet FILE...",
		Short:   "Check that definitions compile, in manifests or in files of CUE",
		Example: "  lockstep def vet gpu.cue definitions.yaml",
		Args:    minArgs(1, "FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			objects, err := readObjects(s, args)
			if err != nil {
				return err
			}
			var failed []error
			for _, u := range objects {
				def, strays, err := definitionAndStrays(u)
				if strays != nil {
					fmt.Fprintf(s.err, "%s %s: ignored: %v\n", u.GetKind(), u.GetName(), strays)
				}
				if err == nil && def != nil {
					_, err = render.Compile(def, inProcess())
				}
				if err != nil {
					failed = append(failed, err)
				} else if def != nil {
					fmt.Fprintf(s.out, "%s: valid\n", def)
				}
			}
			return errors.Join(failed...)
		},
	}
}

func newDefShow(s streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "The parameters of a built-in definition",
		Example: "  lockstep def show webservice\n  lockstep def show scaler -o json",
		Args:    exactArgs("NAME"),
		RunE: func(_ *cobra.Command, args []string) error {
			set, err := builtinDefinitions()
			if err != nil {
				return err
			}
			for _, kind := range []render.Kind{render.Component, render.Trait} {
				def, ok := set[string(kind)+" "+args[0]]
				if !ok {
					continue
				}
				t, err := render.Compile(def, inProcess())
				if err != nil {
					return err
				}
				parameters, err := t.Parameters()
				if err != nil {
					return err
				}
				switch output {
				case "json":
					return printJSON(s.out, parameters)
				case "yaml":
					return printYAML(s.out, parameters)
				}
				w := tabwriter.NewWriter(s.out, 0, 8, 2, ' ', 0)
				fmt.Fprintf(w, "NAME\tTYPE\tREQUIRED\tDEFAULT\tDESCRIPTION\n")
				for _, p := range parameters {
					fmt.Fprintf(w, "%s\t%s\t%t\t%s\t%s\n", p.Name, p.Type, p.Required, p.Default, p.Usage)
				}
				return w.Flush()
			}
			return fmt.Errorf("there is no built-in component or trait %s", args[0])
		},
	}
	outputFlag(cmd, &output, "json", "yaml")
	return cmd
}

func newDefRender(s streams) *cobra.Command {
	var properties string
	cmd := &cobra.Command{
		Use:     "render FILE|NAME",
		Short:   "Render a component definition with sample properties",
		Example: "  lockstep def render webservice --properties '{\"image\":\"nginx\"}'",
		Args:    exactArgs("FILE or NAME"),
	}
	cmd.Flags().StringVar(&properties, "properties", "", "the properties, as YAML or JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		set, err := builtinDefinitions()
		if err != nil {
			return err
		}
		name := args[0]
		if _, err := os.Stat(name); err == nil {
			objects, err := readObjects(s, args)
			if err != nil {
				return err
			}
			if err := set.add(objects); err != nil {
				return err
			}
			name = objects[0].GetName()
		}
		raw, err := sigsyaml.YAMLToJSON([]byte(properties))
		if err != nil {
			return usageError{fmt.Errorf("--properties: %w", err)}
		}
		component := map[string]any{"name": "sample", "type": name}
		if string(raw) != "null" {
			component["properties"] = json.RawMessage(raw)
		}
		data, err := json.Marshal(map[string]any{
			"apiVersion": "core.oam.dev/v1beta1", "kind": "Application", "metadata": map[string]any{"name": "sample", "namespace": "default"},
			"spec": map[string]any{"components": []any{component}},
		})
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			return err
		}
		return printRendered(s.out, s.err, u, set, newFetchedCharts(cmd.Context(), s.err))
	}
	return cmd
}

// inProcess returns a function that evaluates definitions and charts in this process. They are the
// user's own and the machine is the user's, so no isolation is needed.
func inProcess() render.Run {
	definitions, charts := render.InProcess(), chart.InProcess()
	return func(evaluator string, request []byte) ([]byte, error) {
		if strings.HasPrefix(evaluator, "chart.") {
			return charts(evaluator, request)
		}
		return definitions(evaluator, request)
	}
}
