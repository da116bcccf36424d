package applications

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cli/command"
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

// definitionsIn returns the definitions that applications of a namespace can use: the built-in ones
// and, unless client is nil, those of the cluster.
func definitionsIn(ctx context.Context, client *applications.Client, namespace string) (definitionSet, error) {
	set, err := builtinDefinitions()
	if err == nil && client != nil {
		err = set.addFrom(ctx, client, namespace)
	}
	return set, err
}

// addFrom adds the definitions of a cluster.
func (d definitionSet) addFrom(ctx context.Context, client *applications.Client, namespace string) error {
	defs, err := client.Definitions(ctx, namespace)
	if err != nil {
		return err
	}
	addEach(d, defs.Workloads, render.OfWorkload)
	addEach(d, defs.Components, render.OfComponent)
	addEach(d, defs.Traits, render.OfTrait)
	addEach(d, defs.Policies, render.OfPolicy)
	addEach(d, defs.Steps, render.OfWorkflowStep)
	return nil
}

// addEach adds definitions of one kind. Those of the namespace come first in the list and take
// precedence, so they are added last.
func addEach[T any](d definitionSet, list []T, definition func(*T) *render.Definition) {
	for i := len(list) - 1; i >= 0; i-- {
		def := definition(&list[i])
		d[def.String()] = def
	}
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

// GlobalPolicies implements plan.GivingPolicies.
func (d definitionSet) GlobalPolicies(string) []string {
	var global []*render.Definition
	for _, def := range d {
		if def.Global && def.OfApplication {
			global = append(global, def)
		}
	}
	slices.SortFunc(global, func(a, b *render.Definition) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Name, b.Name))
	})
	var out []string
	for _, def := range global {
		out = append(out, def.Name)
	}
	return out
}

// Revision implements plan.GivingPolicies. What will be the newest revision is not known here.
func (d definitionSet) Revision(*render.Definition) (name string, number int64) { return "", 0 }

// planned plans an application with the labels and annotations that policies give it.
func planned(in *plan.Input, defs interface {
	plan.Definitions
	plan.GivingPolicies
}) (*plan.Plan, error) {
	given, err := plan.GivenBy(in, defs)
	if err != nil {
		return nil, err
	}
	given.On(in)
	return plan.Make(in, defs)
}

// Step returns the compiled definition of a workflow step.
func (d definitionSet) Step(name string) (*render.Template, error) {
	return d.compile(render.WorkflowStep, name)
}

// errNoDefinition is the error for a name that no definition has.
var errNoDefinition = errors.New("there is no")

func (d definitionSet) compile(kind render.Kind, name string) (*render.Template, error) {
	return d.compileBy(inProcess(), kind, name)
}

// compileBy compiles a definition by run.
func (d definitionSet) compileBy(run render.Run, kind render.Kind, name string) (*render.Template, error) {
	def, ok := d[string(kind)+" "+name]
	if !ok {
		return nil, errors.Join(fmt.Errorf("%w %s %s", errNoDefinition, kind, name), render.Unsupported(kind, name))
	}
	return render.Compile(def, run)
}

var _ plan.Definitions = definitionSet{}

// definitionOf returns the definition in an object, or nil if the object is no definition. It drops
// unknown fields, as the API server does.
func definitionOf(u *unstructured.Unstructured) (*render.Definition, error) {
	def, _, err := definitionAndStrays(u)
	return def, err
}

// definitionAndStrays does the same as definitionOf. If there are unknown fields, strays is an
// error that names them.
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
func readObjects(s command.Streams, files []string) ([]*unstructured.Unstructured, error) {
	if len(files) == 0 {
		return nil, command.Usagef("give a file, for example: -f app.yaml")
	}
	var out []*unstructured.Unstructured
	for _, file := range files {
		var data []byte
		var err error
		if file == "-" {
			data, err = io.ReadAll(s.In)
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

// inProcess returns a function that evaluates definitions and charts in this process. No isolation
// is needed, because both they and the machine are the user's own.
func inProcess() render.Run {
	definitions, charts := render.InProcess(), chart.InProcess()
	return func(evaluator string, request []byte) ([]byte, error) {
		if strings.HasPrefix(evaluator, "chart.") {
			return charts(evaluator, request)
		}
		return definitions(evaluator, request)
	}
}
