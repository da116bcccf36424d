package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"cuelang.org/go/cue"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Template is a compiled definition and the facts about its source. It holds no CUE: its Run
// evaluates, possibly in another process. A Template is safe for concurrent use.
type Template struct {
	Definition *Definition

	run  Run
	wire json.RawMessage // the definition, as evaluators receive it
	main *facts          // nil if the definition has no template

	hasState bool
	states   stateMemo
}

// facts are properties of a program's source.
type facts struct {
	Reads   *inputUse
	Wording stringUse
	// Declared has the declared properties, and Selected the sorted names that are selected of values.
	Declared *declared `json:",omitempty"`
	Selected []string  `json:",omitempty"`
	// Processes is set if a trait sends requests, or a component renders charts, before it can be
	// evaluated.
	Processes bool
}

// Compile compiles a definition. run compiles it, and evaluates it unless a request has its own
// Run. Errors of the definition are *Error.
func Compile(d *Definition, run Run) (*Template, error) {
	t := &Template{Definition: d, run: run}
	var err error
	if t.wire, err = json.Marshal(d); err != nil {
		return nil, err
	}
	var answer compileAnswer
	if err := ask(run, evaluatorCompile, &compileRequest{t.wire}, &answer); err != nil {
		return nil, err
	}
	t.main, t.hasState, t.states.reads = answer.Main, answer.HasState, answer.State
	return t, nil
}

// Use is a definition with the properties that a user gave for it.
type Use struct {
	Template *Template
	// Properties is JSON, or empty.
	Properties []byte
}

// Request is the input of Render: one component.
type Request struct {
	Context   Context
	Component Use
	Traits    []Use
	// Fetch answers the requests that traits send while they are evaluated. If nil, such traits
	// fail.
	Fetch Fetch
	// Live is what LivePart returns for the traits and the component's live objects. If nil, late
	// traits make no objects.
	Live []byte
	// Run evaluates. If nil, the Run that compiled the component's definition is used.
	Run Run
}

// Object is one object of a component.
type Object struct {
	// Object is the object as the templates made it. Fields that they left out, such as the name,
	// are still missing.
	Object exactMap
	// Name is the object's name in outputs, or empty for the workload.
	Name string
	// Trait is the type of the trait that made the object, or empty if the component made it.
	Trait string
	// TraitIndex is the index of that trait in the component, or -1.
	TraitIndex int
	// Stage says when the object is created.
	Stage oam.StageType
	// ControlPlaneOnly objects are deployed to the local cluster.
	ControlPlaneOnly bool
}

// Rendered is the result of Render.
type Rendered struct {
	// Workload is the main object, or nil if the component has none or a trait manages it.
	Workload *Object
	// Auxiliaries are the other objects: the component's first, then those of each trait, in the
	// order of the templates.
	Auxiliaries []Object
	// Late has the indexes of the late traits that have made no objects, because the request has no
	// live objects.
	Late []int `json:",omitempty"`
}

// Objects returns the component's objects, the workload first.
func (r *Rendered) Objects() []Object {
	if r.Workload == nil {
		return r.Auxiliaries
	}
	return append([]Object{*r.Workload}, r.Auxiliaries...)
}

// Render renders a component. Errors of its definitions and properties are *Error.
func Render(req *Request) (*Rendered, error) {
	uses := append([]Use{req.Component}, req.Traits...)
	wire := renderRequest{Context: req.Context, Live: req.Live}
	application := false
	for _, use := range uses {
		application = application || use.Template.main != nil && use.Template.main.Reads.Context.atApplication()
		wire.Uses = append(wire.Uses, wireUse{use.Template.wire, string(use.Properties)})
	}
	if !application {
		wire.Context.Components, wire.Context.Policies, wire.Context.Workflow = nil, nil, nil
	}
	run := req.Run
	if run == nil {
		run = req.Component.Template.run
	}
	var failed error
	asked := ""
	for range fetchesMax {
		var answer renderAnswer
		err := ask(run, evaluatorRender, &wire, &answer)
		var e *Error
		if errors.As(err, &e) && errors.Is(e.Cause, errFetch) {
			e.Cause = fmt.Errorf("%s: %w", asked, failed) // callers may test for the error
		}
		if err != nil {
			return nil, err
		}
		if answer.Missing == nil {
			return &answer.Rendered, nil
		}
		if asked = "processing"; answer.Missing.Chart != "" {
			asked = helmPackage
		}
		told := wireAnswer{Request: *answer.Missing}
		var value map[string]any
		if failed = errors.New("requests cannot be sent here"); req.Fetch != nil {
			value, failed = req.Fetch(answer.Missing)
		}
		if failed != nil {
			told.Failed = failed.Error()
		} else {
			told.Value = value
		}
		wire.Answers = append(wire.Answers, told)
	}
	return nil, fmt.Errorf("more than %d requests", fetchesMax)
}

// fetchesMax bounds the requests of a component's traits.
const fetchesMax = 64

// render renders a component.
func (e *Engine) render(req *renderRequest) (*Rendered, error) {
	application := false
	var uses []evaluated
	for _, use := range req.Uses {
		t, err := e.template(use.Definition)
		if err != nil {
			return nil, err
		}
		uses = append(uses, evaluated{t, []byte(use.Properties)})
		application = application || t.main != nil && t.main.Reads.Context.atApplication()
	}
	if len(uses) == 0 {
		return nil, errors.New("there is no component")
	}
	values := req.Context.values(application)
	out, err := renderComponent(uses[0], values, req.fetch)
	if err != nil {
		return nil, err
	}
	live, err := decodeMap(req.Live)
	if err != nil && len(req.Live) > 0 {
		return nil, err
	}
	for i, use := range uses[1:] {
		if err := renderTrait(out, i, use, values, live, req.fetch); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func renderComponent(use evaluated, values map[string]any, fetch Fetch) (*Rendered, error) {
	out := &Rendered{}
	t := use.template
	if t.main == nil {
		return nil, t.def.withoutTemplate()
	}
	err := t.run(use.properties, values, nil, fetch, func(_ *instance, v cue.Value) error {
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
		if out.Workload == nil && len(out.Auxiliaries) == 0 && !t.def.OfApplication {
			return fmt.Errorf("the template has no output")
		}
		return nil
	})
	return out, err
}

// renderTrait adds a trait's objects to out, and applies the trait's patches. live has the live objects
// for late traits, or is nil.
func renderTrait(out *Rendered, index int, use evaluated, values, live map[string]any, fetch Fetch) error {
	t := use.template
	d := t.def
	if t.main == nil {
		return d.withoutTemplate()
	}
	outputs := map[string]any{}
	for _, o := range out.Auxiliaries {
		outputs[o.Name] = map[string]any(o.Object)
	}
	made := map[string]any{"outputs": outputs}
	if out.Workload != nil {
		made["output"] = map[string]any(out.Workload.Object)
	}
	late := t.late(out)
	if late && live == nil {
		out.Late = append(out.Late, index)
		return nil
	}
	if late {
		made = overlaid(made, live)
	}
	err := t.run(use.properties, values, made, fetch, func(i *instance, v cue.Value) error {
		if late && patches(v) {
			return errors.New("a trait that reads live objects cannot patch those that it is made for")
		}
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

// run evaluates the main program and calls use with the result. made has the output and outputs so
// far, and is set for traits only. fetch answers requests.
func (t *evaluable) run(properties []byte, values, made map[string]any, fetch Fetch,
	use func(*instance, cue.Value) error) error {
	inputs := map[string]any{}
	if len(properties) > 0 && string(properties) != "null" {
		if err := checkProperties(properties); err != nil {
			return &Error{Definition: t.def.String(), Section: "properties", Problems: []Problem{{Message: err.Error()}}}
		}
		inputs["parameter"] = properties
	}
	if made != nil {
		values = maps.Clone(values)
		maps.Copy(values, made)
	}
	inputs["context"] = t.main.Reads.Context.of(values)
	return t.main.evaluate(inputs, func(i *instance, v cue.Value) error {
		// Check types first: a template that tests whether an optional parameter exists would not
		// see a parameter of the wrong type, and there would be no error.
		if problems := wrong(v); len(problems) > 0 {
			return &Error{Definition: t.def.String(), Section: "properties", Problems: problems}
		}
		if t.main.Processes {
			var err error
			if t.def.Kind == Trait {
				if v, err = process(i, v, fetch); err != nil {
					err = fmt.Errorf("processing: %w", err)
				}
			} else if v, err = charts(i, v, fetch); err != nil {
				err = fmt.Errorf("%s: %w", helmPackage, err)
			}
			if err != nil {
				return explain(t.def, v, err)
			}
		}
		if err := refused(v); err != nil {
			return err
		}
		if err := use(i, v); err != nil {
			return explain(t.def, v, err)
		}
		return nil
	})
}

// refused returns an error if the template rejects the properties with its list errs.
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

// wrong returns the parameters' type errors.
func wrong(v cue.Value) []Problem {
	return problemsOf(v.LookupPath(cue.ParsePath("parameter")).Validate(), "template")
}

// explain returns the errors of missing parameters if there are any, because err follows from them.
// Otherwise it returns err.
func explain(d *Definition, v cue.Value, err error) error {
	problems := missing(v.LookupPath(cue.ParsePath("parameter")), "parameter", 0)
	if len(problems) == 0 {
		return err
	}
	return &Error{Definition: d.String(), Section: "properties", Problems: problems}
}

// missing returns the required parameters that are not given.
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
