package applications

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cli/command"
)

// NewDefinitions returns the command 'def'.
func NewDefinitions(s command.Streams) *cobra.Command {
	return command.Group(&cobra.Command{
		Use:   "def",
		Short: "Definitions of components and traits: check, show, render",
	}, newDefManifest(s), newDefVet(s), newDefShow(s), newDefRender(s))
}

func newDefManifest(s command.Streams) *cobra.Command {
	return &cobra.Command{
		Use:   "manifest FILE...",
		Short: "Print definitions in files of CUE as the manifests that kubectl applies",
		Long: `Print definitions as manifests, those in files of CUE too, which kubectl does not read. Definitions for everyone belong in the
namespace vela-system. Of definitions that do not compile nothing is printed.`,
		Example: "  lockstep def manifest gpu.cue > gpu.yaml",
		Args:    command.SomeArgs("FILE"),
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
					fmt.Fprintln(s.Out, "---")
				}
				if _, err := command.Print(s.Out, "yaml", u.Object); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newDefVet(s command.Streams) *cobra.Command {
	return &cobra.Command{
		Use:     "vet FILE...",
		Short:   "Check that definitions compile, in manifests or in files of CUE",
		Example: "  lockstep def vet gpu.cue definitions.yaml",
		Args:    command.SomeArgs("FILE"),
		RunE: func(_ *cobra.Command, args []string) error {
			objects, err := readObjects(s, args)
			if err != nil {
				return err
			}
			var failed []error
			for _, u := range objects {
				def, strays, err := definitionAndStrays(u)
				if strays != nil {
					fmt.Fprintf(s.Err, "%s %s: ignored: %v\n", u.GetKind(), u.GetName(), strays)
				}
				if err == nil && def != nil {
					_, err = render.Compile(def, inProcess())
					if err == nil {
						err = render.Vet(def)
					}
				}
				if err != nil {
					failed = append(failed, err)
				} else if def != nil {
					fmt.Fprintf(s.Out, "%s: valid\n", def)
				}
			}
			return errors.Join(failed...)
		},
	}
}

func newDefShow(s command.Streams) *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "show NAME",
		Short:   "The parameters of a built-in definition",
		Example: "  lockstep def show webservice\n  lockstep def show scaler -o json",
		Args:    command.OneArg("NAME"),
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
				if printed, err := command.Print(s.Out, output, parameters); printed {
					return err
				}
				w := command.Columns(s.Out)
				fmt.Fprintf(w, "NAME\tTYPE\tREQUIRED\tDEFAULT\tDESCRIPTION\n")
				for _, p := range parameters {
					fmt.Fprintf(w, "%s\t%s\t%t\t%s\t%s\n", p.Name, p.Type, p.Required, p.Default, p.Usage)
				}
				return w.Flush()
			}
			return fmt.Errorf("there is no built-in component or trait %s", args[0])
		},
	}
	command.OutputFlag(cmd, &output, "json", "yaml")
	return cmd
}

func newDefRender(s command.Streams) *cobra.Command {
	var properties string
	cmd := &cobra.Command{
		Use:     "render FILE|NAME",
		Short:   "Render a component definition with sample properties",
		Example: "  lockstep def render webservice --properties '{\"image\":\"nginx\"}'",
		Args:    command.OneArg("FILE or NAME"),
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
			if len(objects) == 0 {
				return fmt.Errorf("%s has no objects", name)
			}
			if err := set.add(objects); err != nil {
				return err
			}
			name = objects[0].GetName()
		}
		raw, err := sigsyaml.YAMLToJSON([]byte(properties))
		if err != nil {
			return command.Usagef("--properties: %w", err)
		}
		component := map[string]any{"name": "sample", "type": name}
		if string(raw) != "null" {
			component["properties"] = json.RawMessage(raw)
		}
		data, err := json.Marshal(map[string]any{
			"apiVersion": "core.oam.dev/v1beta1", "kind": "Application", "metadata": map[string]any{"name": "sample",
				"namespace": "default"},
			"spec": map[string]any{"components": []any{component}},
		})
		if err != nil {
			return err
		}
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(data); err != nil {
			return err
		}
		return printRendered(s.Out, s.Err, u, set, newFetchedCharts(cmd.Context(), s.Err, inProcess()))
	}
	return cmd
}
