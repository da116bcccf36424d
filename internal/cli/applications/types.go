package applications

import (
	"fmt"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/spelling"
)

// unknownType is a type that an application names and that has no definition.
type unknownType struct {
	field string // path in the spec
	owner string // what has the type, for people
	kind  render.Kind
	name  string
}

// unknownTypes returns the types in a spec that have no definition in defs. A type with @ names a
// revision; without the definition itself it is unknown, too.
func unknownTypes(spec *oam.ApplicationSpec, defs definitionSet) []unknownType {
	var out []unknownType
	check := func(kind render.Kind, name, field, owner string) {
		base, _, _ := strings.Cut(name, "@")
		if defs[string(kind)+" "+name] == nil && (base == name || defs[string(kind)+" "+base] == nil) {
			out = append(out, unknownType{field + ".type", owner, kind, name})
		}
	}
	for i := range spec.Components {
		c, at := &spec.Components[i], fmt.Sprintf("components[%d]", i)
		check(render.Component, c.Type, at, "component "+c.Name)
		for j := range c.Traits {
			in := fmt.Sprintf("traits[%d]", j)
			check(render.Trait, c.Traits[j].Type, at+"."+in, "component "+c.Name+": "+in)
		}
	}
	for i := range spec.Policies {
		if p := &spec.Policies[i]; !plan.BuiltIn(p.Type) {
			check(render.Policy, p.Type, fmt.Sprintf("policies[%d]", i), "policy "+p.Name)
		}
	}
	if spec.Workflow == nil {
		return out
	}
	step := func(s *oam.WorkflowStepBase, at string) {
		if s.Type != flow.TypeGroup && s.Type != flow.TypeSuspend {
			check(render.WorkflowStep, s.Type, at, "step "+s.Name)
		}
	}
	for i := range spec.Workflow.Steps {
		s, at := &spec.Workflow.Steps[i], fmt.Sprintf("workflow.steps[%d]", i)
		step(&s.WorkflowStepBase, at)
		for j := range s.SubSteps {
			step(&s.SubSteps[j], fmt.Sprintf("%s.subSteps[%d]", at, j))
		}
	}
	return out
}

// text says that there is no such type, why if it is known, and what may be meant.
func (u *unknownType) text(defs definitionSet) string {
	text := fmt.Sprintf("%s: there is no %s %s", u.owner, u.kind, u.name)
	if why := render.Unsupported(u.kind, u.name); why != nil {
		return text + ": " + why.Error()
	}
	best, meant := len(u.name)/3+1, ""
	for name := range defs {
		name, ok := strings.CutPrefix(name, string(u.kind)+" ")
		if d := spelling.Distance(u.name, name); ok && (d < best || d == best && name < meant) {
			best, meant = d, name
		}
	}
	if meant != "" {
		text += " (" + meant + "?)"
	}
	return text
}
