package render

import (
	"fmt"
	"maps"
	"strings"

	"cuelang.org/go/cue"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Template is a definition, compiled. It may be used by several goroutines.
type Template struct {
	Definition *Definition

	main, health, message, details *program

	states stateMemo
}

// Compile compiles a definition. Errors are *Error.
func Compile(d *Definition) (*Template, error) {
	t := &Template{Definition: d}
	for _, part := range []struct {
		section, source string
		into            **program
	}{
		{"template", d.Template, &t.main},
		{"healthPolicy", d.Health.HealthPolicy, &t.health},
		{"customStatus", d.Health.CustomStatus, &t.message},
		{"details", d.Health.Details, &t.details},
	} {
		if strings.TrimSpace(part.source) == "" {
			continue
		}
		p, err := compileProgram(d, part.section, part.source)
		if err != nil {
			return nil, err
		}
		*part.into = p
	}
	t.states.reads = reads{}
	for _, p := range []*program{t.health, t.message, t.details} {
		if p != nil {
			t.states.reads.add(p.reads)
		}
	}
	return t, nil
}

// Use is a definition with the properties that a user gave it.
type Use struct {
	Template *Template
	// Properties are JSON, or empty.
	Properties []byte
}

// Request asks for the objects of one component.
type Request struct {
	Context   Context
	Component Use
	Traits    []Use
	// Fetch answers what traits ask of others while they are evaluated; nil where there is nobody to ask.
	Fetch Fetch
}

// Object is one object that a component is made of.
type Object struct {
	// Object is the object as the templates made it: what they left out, the name among it, is still missing.
	Object map[string]any
	// Name is the field in outputs, empty for the workload.
	Name string
	// Trait is the type of the trait that made it, empty for what the component made.
	Trait string
	// TraitIndex is the place of the trait among the component's, from 0; -1 for what the component made.
	TraitIndex int
	// Stage is when the object is made.
	Stage oam.StageType
	// ControlPlaneOnly objects go into the local cluster.
	ControlPlaneOnly bool
}

// Rendered is what a component is made of.
type Rendered struct {
	// Workload is the main object, or nil for a component that has none or leaves it to a trait.
	Workload *Object
	// Auxiliaries are the other objects: the component's first, then those of each trait, as the templates name them.
	Auxiliaries []Object
}

// Objects makes the objects of a component, its workload first. Errors are *Error.
func Objects(req *Request) ([]Object, error) {
	r, err := Render(req)
	if err != nil {
		return nil, err
	}
	if r.Workload == nil {
		return r.Auxiliaries, nil
	}
	return append([]Object{*r.Workload}, r.Auxiliaries...), nil
}

// Render makes the objects of a component. Errors are *Error.
func Render(req *Request) (*Rendered, error) {
	application := false
	for _, use := range append([]Use{req.Component}, req.Traits...) {
		application = application || use.Template.main != nil && use.Template.main.reads.context.atApplication()
	}
	values := req.Context.values(application)
	out, err := renderComponent(req.Component, values)
	if err != nil {
		return nil, err
	}
	for i, use := range req.Traits {
		if err := renderTrait(out, i, use, values, req.Fetch); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func renderComponent(use Use, values map[string]any) (*Rendered, error) {
	out := &Rendered{}
	t := use.Template
	if t.main == nil {
		return nil, &Error{Definition: t.Definition.String(), Section: "schematic", Problems: []Problem{{Message: "it has no CUE template"}}}
	}
	err := t.run(use.Properties, values, nil, nil, func(_ *instance, v cue.Value) error {
		if output := v.LookupPath(cue.ParsePath("output")); output.Exists() {
			object, err := objectOf(output)
			if err != nil {
				return err
			}
			if len(object) > 0 {
				out.Workload = &Object{Object: object, TraitIndex: -1}
			}
		}
		aux, err := outputsOf(v)
		if err != nil {
			return err
		}
		for _, o := range aux {
			o.TraitIndex = -1
			out.Auxiliaries = append(out.Auxiliaries, o)
		}
		if out.Workload == nil && len(out.Auxiliaries) == 0 {
			return fmt.Errorf("the template has no output")
		}
		return nil
	})
	return out, err
}

// renderTrait adds a trait's objects to out, and applies its patches.
func renderTrait(out *Rendered, index int, use Use, values map[string]any, fetch Fetch) error {
	t := use.Template
	d := t.Definition
	if t.main == nil {
		return &Error{Definition: d.String(), Section: "schematic", Problems: []Problem{{Message: "it has no CUE template"}}}
	}
	outputs := map[string]any{}
	for _, o := range out.Auxiliaries {
		outputs[o.Name] = o.Object
	}
	made := map[string]any{"outputs": outputs}
	if out.Workload != nil {
		made["output"] = out.Workload.Object
	}
	err := t.run(use.Properties, values, made, fetch, func(i *instance, v cue.Value) error {
		m := &merger{ctx: i.ctx}
		aux, err := outputsOf(v)
		if err != nil {
			return err
		}
		for _, o := range aux {
			o.Trait, o.TraitIndex, o.Stage, o.ControlPlaneOnly = d.Name, index, d.Stage, d.ControlPlaneOnly
			out.Auxiliaries = append(out.Auxiliaries, o)
		}
		if patch := v.LookupPath(cue.ParsePath("patch")); patch.Exists() && out.Workload != nil {
			patched, err := m.patch(out.Workload.Object, patch)
			if err != nil {
				return err
			}
			out.Workload.Object = patched
		}
		return patchOutputs(m, out, v.LookupPath(cue.ParsePath("patchOutputs")))
	})
	if err == nil && d.ManageWorkload {
		out.Workload = nil
	}
	return err
}

func patchOutputs(m *merger, out *Rendered, patches cue.Value) error {
	if !patches.Exists() {
		return nil
	}
	fields, err := patches.Fields()
	if err != nil {
		return err
	}
	for fields.Next() {
		name := fields.Selector().Unquoted()
		for i := range out.Auxiliaries {
			if out.Auxiliaries[i].Name != name {
				continue
			}
			if out.Auxiliaries[i].Object, err = m.patch(out.Auxiliaries[i].Object, fields.Value()); err != nil {
				return err
			}
		}
	}
	return nil
}

// run evaluates the main program. made are the output and outputs so far, and fetch answers requests, for traits.
func (t *Template) run(properties []byte, values, made map[string]any, fetch Fetch, use func(*instance, cue.Value) error) error {
	inputs := map[string]any{}
	if len(properties) > 0 && string(properties) != "null" {
		if err := checkProperties(properties); err != nil {
			return &Error{Definition: t.Definition.String(), Section: "properties", Problems: []Problem{{Message: err.Error()}}}
		}
		inputs["parameter"] = properties
	}
	if made != nil {
		values = maps.Clone(values)
		maps.Copy(values, made)
	}
	inputs["context"] = t.main.reads.context.of(values)
	return t.main.evaluate(inputs, func(i *instance, v cue.Value) error {
		// Before anything else: a parameter of the wrong type is an error, and to a template that asks whether an optional
		// parameter is there, it would not be.
		if problems := wrong(v); len(problems) > 0 {
			return &Error{Definition: t.Definition.String(), Section: "properties", Problems: problems}
		}
		if t.main.processes {
			var err error
			if v, err = process(i, v, fetch); err != nil {
				return explain(t.Definition, v, fmt.Errorf("processing: %w", err))
			}
		}
		if err := refused(v); err != nil {
			return err
		}
		if err := use(i, v); err != nil {
			return explain(t.Definition, v, err)
		}
		return nil
	})
}

// refused is the template's own verdict about the properties: its list errs.
func refused(v cue.Value) error {
	errs := v.LookupPath(cue.ParsePath("errs"))
	if !errs.Exists() {
		return nil
	}
	list, err := plain(errs)
	if err != nil {
		return err
	}
	var messages []string
	if list, ok := list.([]any); ok {
		for _, m := range list {
			messages = append(messages, fmt.Sprint(m))
		}
	}
	if len(messages) == 0 {
		return nil
	}
	return fmt.Errorf("%s", strings.Join(messages, "; "))
}

// wrong is what contradicts the parameters' types.
func wrong(v cue.Value) []Problem {
	return problemsOf(v.LookupPath(cue.ParsePath("parameter")).Validate(), "template")
}

// explain puts what is missing in the parameters before what follows from it.
func explain(d *Definition, v cue.Value, err error) error {
	problems := missing(v.LookupPath(cue.ParsePath("parameter")), "parameter", 0)
	if len(problems) == 0 {
		return err
	}
	return &Error{Definition: d.String(), Section: "properties", Problems: problems}
}

// missing are the parameters that must be given and are not.
func missing(v cue.Value, path string, depth int) []Problem {
	if depth > 8 || !v.Exists() {
		return nil
	}
	if v.IncompleteKind() == cue.StructKind {
		fields, err := v.Fields()
		if err != nil {
			return nil
		}
		var out []Problem
		for fields.Next() {
			out = append(out, missing(fields.Value(), path+"."+fields.Selector().String(), depth+1)...)
		}
		// A field with ! has no value until it is given.
		if all, err := v.Fields(cue.Optional(true)); err == nil {
			for all.Next() {
				if sel := all.Selector(); sel.ConstraintType() == cue.RequiredConstraint {
					out = append(out, Problem{Field: path + "." + strings.TrimSuffix(sel.String(), "!"), Message: "it must be given"})
				}
			}
		}
		return out
	}
	if depth == 0 && v.IncompleteKind() == cue.TopKind {
		return nil // nothing is declared
	}
	if def, ok := v.Default(); ok {
		v = def
	}
	if v.IncompleteKind() == cue.ListKind || v.IsConcrete() || v.Err() != nil {
		return nil
	}
	return []Problem{{Field: path, Message: fmt.Sprintf("it must be given (%v)", v.IncompleteKind())}}
}

func objectOf(v cue.Value) (map[string]any, error) {
	value, err := plain(v)
	if err != nil {
		return nil, err
	}
	object, ok := value.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s is not an object", v.Path())
	}
	return object, nil
}

func outputsOf(v cue.Value) ([]Object, error) {
	outputs := v.LookupPath(cue.ParsePath("outputs"))
	if !outputs.Exists() {
		return nil, nil
	}
	if err := outputs.Err(); err != nil {
		return nil, err
	}
	fields, err := outputs.Fields()
	if err != nil {
		return nil, err
	}
	var out []Object
	for fields.Next() {
		object, err := objectOf(fields.Value())
		if err != nil {
			return nil, err
		}
		if len(object) > 0 {
			out = append(out, Object{Object: object, Name: fields.Selector().Unquoted()})
		}
	}
	return out, nil
}
