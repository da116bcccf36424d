package applications

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/lint"
)

// Lint returns the problems of the applications and definitions among objects. Applications use the
// built-in definitions and those among the objects.
func Lint(objects []runtime.Object) []lint.Problem {
	l := &linter{}
	for _, o := range objects {
		if app, ok := o.(*oam.Application); ok {
			l.apps = append(l.apps, app)
		} else if def := definitionIn(o); def != nil {
			l.own = append(l.own, def)
			l.definition(o, def)
		}
	}
	if len(l.apps) == 0 {
		return l.problems
	}
	var err error
	if l.defs, err = builtinDefinitions(); err != nil {
		return append(l.problems, lint.Problem{Object: l.apps[0], Message: err.Error()})
	}
	for _, def := range l.own {
		l.defs[def.String()] = def
	}
	for _, app := range l.apps {
		l.application(app)
	}
	return l.problems
}

type linter struct {
	apps     []*oam.Application
	own      []*render.Definition
	defs     definitionSet
	problems []lint.Problem
}

// definitionIn returns the definition in an object, or nil.
func definitionIn(o runtime.Object) *render.Definition {
	switch o := o.(type) {
	case *oam.ComponentDefinition:
		return render.OfComponent(o)
	case *oam.TraitDefinition:
		return render.OfTrait(o)
	case *oam.PolicyDefinition:
		return render.OfPolicy(o)
	case *oam.WorkflowStepDefinition:
		return render.OfWorkflowStep(o)
	}
	return nil
}

func (l *linter) add(o runtime.Object, field string, warning bool, format string, args ...any) {
	l.problems = append(l.problems, lint.Problem{Object: o, Field: field, Warning: warning, Message: fmt.Sprintf(format, args...)})
}

// definition checks a definition.
func (l *linter) definition(o runtime.Object, def *render.Definition) {
	_, err := render.Compile(def, inProcess())
	if err == nil {
		err = render.Vet(def)
	}
	if err == nil {
		return
	}
	field := "spec.schematic"
	var e *render.Error
	if errors.As(err, &e) {
		switch e.Section {
		case "template":
			field = "spec.schematic.cue.template"
		case "healthPolicy", "customStatus", "details":
			field = "spec.status." + e.Section
		}
	}
	if e == nil || len(e.Problems) == 0 {
		l.add(o, field, false, "%s", err)
		return
	}
	for _, p := range e.Problems {
		text := p.Message
		if p.Field != "" {
			text = p.Field + ": " + text
		}
		l.problems = append(l.problems, lint.Problem{Object: o, Field: field, Line: p.Line, Message: e.Section + ": " + text})
	}
}

// application checks an application.
func (l *linter) application(app *oam.Application) {
	for _, w := range slices.Concat(plan.Warnings(app.Namespace, &app.Spec, l.defs), plan.StepWarnings(&app.Spec, l.defs.Step)) {
		l.add(app, "spec."+w.Field, true, "%s", w.Text)
	}
	unknown := l.types(app)
	if app.Spec.Workflow != nil && app.Spec.Workflow.Ref == "" {
		if _, err := flow.Compile(app.Spec.Workflow); err != nil {
			field, _, _ := strings.Cut(err.Error(), ":")
			field, _, _ = strings.Cut(field, " (")
			l.add(app, "spec."+field, false, "%s", err)
		}
	}
	policies := slices.DeleteFunc(slices.Clone(app.Spec.Policies), func(p oam.AppPolicy) bool {
		return p.Type == plan.TypeTopology || p.Type == plan.TypeReplication || unknown[string(render.Policy)+" "+p.Type]
	})
	l.plan(app, &oam.ApplicationSpec{Policies: policies})
	components := l.rendered(app, unknown)
	good := true
	for i := range components {
		alone := components[i]
		alone.DependsOn = nil
		good = l.plan(app, &oam.ApplicationSpec{Components: []oam.Component{alone}}) && good
	}
	if good { // what is wrong with all of them together
		l.plan(app, &oam.ApplicationSpec{Components: components})
	}
}

// plan plans a part of an application, and reports whether that works.
func (l *linter) plan(app *oam.Application, spec *oam.ApplicationSpec) bool {
	p, err := planned(&plan.Input{
		Namespace: app.Namespace, Name: app.Name, Revision: app.Name + "-v1", RevisionNum: 1, Labels: app.Labels, Annotations: app.Annotations,
		Spec: spec, Whole: &app.Spec, Clusters: offline(), Now: time.Now(), Run: inProcess(),
	}, l.defs)
	failed := p.Broken()
	if err != nil {
		var e *plan.Error
		if !errors.As(err, &e) {
			e = &plan.Error{Err: err}
		}
		failed = []*plan.Error{e}
	}
	good := true
	for _, e := range failed {
		if !errors.Is(e, plan.ErrNotYet) {
			good = false
			l.add(app, place(app, e), false, "%s", e)
		}
	}
	return good
}

// types reports types without a definition, and returns them as "kind name". A cluster may have what is
// not built in.
func (l *linter) types(app *oam.Application) map[string]bool {
	unknown := map[string]bool{}
	for _, u := range unknownTypes(&app.Spec, l.defs) {
		unknown[string(u.kind)+" "+u.name] = true
		if why := render.Unsupported(u.kind, u.name); why != nil {
			l.add(app, "spec."+u.field, false, "%s %s: %s", u.kind, u.name, why)
		} else if !strings.Contains(u.name, "@") {
			l.add(app, "spec."+u.field, true, "%s %s is neither built in nor among these manifests", u.kind, u.name)
		}
	}
	return unknown
}

// rendered returns the components that can be rendered without a cluster: those whose definitions are
// known, which take no inputs, and which are not made of charts or of existing objects. With override
// policies there are none, because components may lack properties.
func (l *linter) rendered(app *oam.Application, unknown map[string]bool) []oam.Component {
	if slices.ContainsFunc(app.Spec.Policies, func(p oam.AppPolicy) bool { return p.Type == plan.TypeOverride || p.Type == plan.TypeEnvBinding }) {
		return nil
	}
	gone := map[string]bool{}
	var out []oam.Component
	for _, c := range app.Spec.DeepCopy().Components {
		def := l.defs[string(render.Component)+" "+c.Type]
		if def == nil || def.Chart || def.Refers || len(c.Inputs) > 0 ||
			slices.ContainsFunc(c.Traits, func(t oam.Trait) bool { return unknown[string(render.Trait)+" "+t.Type] }) {
			gone[c.Name] = true
			continue
		}
		out = append(out, c)
	}
	for i := range out {
		c := &out[i]
		c.DependsOn = slices.DeleteFunc(c.DependsOn, func(name string) bool { return gone[name] })
	}
	return out
}

// place returns the path of the field that an error is about, as exactly as the error says.
func place(app *oam.Application, e *plan.Error) string {
	if field, _, _ := strings.Cut(e.Error(), " "); strings.HasPrefix(field, "spec.") {
		return strings.TrimSuffix(field, ":")
	}
	i := slices.IndexFunc(app.Spec.Components, func(c oam.Component) bool { return c.Name == e.Component })
	if i < 0 {
		return "spec"
	}
	at := fmt.Sprintf("spec.components[%d]", i)
	var of *render.Error
	if !errors.As(e.Err, &of) {
		return at
	}
	if name, ok := strings.CutPrefix(of.Definition, string(render.Trait)+" "); ok {
		j := slices.IndexFunc(app.Spec.Components[i].Traits, func(t oam.Trait) bool { return t.Type == name })
		if j < 0 {
			return at
		}
		at += fmt.Sprintf(".traits[%d]", j)
	}
	if len(of.Problems) > 0 {
		if path, ok := strings.CutPrefix(of.Problems[0].Field, "parameter."); ok {
			at += ".properties" + indexed(path)
		}
	}
	return at
}

// indexed writes a path such as ports.0.port as .ports[0].port.
func indexed(path string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(path, ".") {
		if _, err := strconv.Atoi(part); err == nil {
			b.WriteString("[" + part + "]")
		} else {
			b.WriteString("." + part)
		}
	}
	return b.String()
}
