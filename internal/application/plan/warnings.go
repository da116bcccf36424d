package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// warn adds warnings about properties that a template does not know.
func (p *Plan) warn(where string, t *render.Template, properties []byte) {
	for _, w := range warningsOf(where, "", t, properties) {
		p.Warn(w.Text)
	}
}

// Warning is about one property that the definition does not know.
type Warning struct {
	// Field is the path of the property in the spec: components[0].properties.ports[0].expos.
	Field string
	Text  string
}

// warningsOf returns warnings about properties that a template does not know. where says whose they
// are, and at is the path of their owner in the spec.
func warningsOf(where, at string, t *render.Template, properties []byte) []Warning {
	var out []Warning
	for _, name := range t.Unused(properties) {
		out = append(out, Warning{at + ".properties." + name,
			fmt.Sprintf("%s: properties.%s has no effect: %s does not know it", where, name, t.Definition)})
	}
	for _, path := range t.Undeclared(properties) {
		field, _, _ := strings.Cut(path, " (") // a name that is meant follows
		out = append(out, Warning{at + ".properties." + field, fmt.Sprintf("%s: properties.%s is not declared by %s", where, path, t.Definition)})
	}
	return out
}

// Warnings returns warnings about properties of components and traits that their definitions do not
// know. It leaves out what has no definition in defs.
func Warnings(namespace string, spec *oam.ApplicationSpec, defs Definitions) []Warning {
	var out []Warning
	for i := range spec.Components {
		c := &spec.Components[i]
		at := fmt.Sprintf("components[%d]", i)
		if t, err := defs.Component(namespace, c.Type); err == nil {
			out = append(out, warningsOf("component "+c.Name, at, t, RawOf(c.Properties))...)
		}
		for j, trait := range c.Traits {
			if t, err := defs.Trait(namespace, trait.Type); err == nil {
				in := fmt.Sprintf("traits[%d]", j)
				out = append(out, warningsOf("component "+c.Name+": "+in, at+"."+in, t, RawOf(trait.Properties))...)
			}
		}
	}
	return out
}

// StepWarnings returns warnings about properties of workflow steps that their definitions do not know.
// definition returns the compiled definition with a name, or an error; steps without one are left out.
func StepWarnings(spec *oam.ApplicationSpec, definition func(name string) (*render.Template, error)) []Warning {
	var out []Warning
	step := func(at string, s *oam.WorkflowStepBase) {
		if t, err := definition(s.Type); err == nil {
			out = append(out, warningsOf("step "+cmp.Or(s.Name, at), at, t, RawOf(s.Properties))...)
		}
	}
	if spec.Workflow == nil {
		return nil
	}
	for i := range spec.Workflow.Steps {
		at, s := fmt.Sprintf("workflow.steps[%d]", i), &spec.Workflow.Steps[i]
		step(at, &s.WorkflowStepBase)
		for j := range s.SubSteps {
			step(fmt.Sprintf("%s.subSteps[%d]", at, j), &s.SubSteps[j])
		}
	}
	return out
}

// Warn adds a warning, once.
func (p *Plan) Warn(text string) {
	if !slices.Contains(p.Warnings, text) {
		p.Warnings = append(p.Warnings, text)
	}
}
