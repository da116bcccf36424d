package lint

import (
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/admission"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cli/applications"
	"lockstep.dev/lockstep/internal/lint"
	"lockstep.dev/lockstep/internal/migrate"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// checks returns the checks of the kinds.
func checks() (*lint.Options, error) {
	rules, err := admission.New(config.CRDs(), config.Policies())
	if err != nil {
		return nil, err
	}
	return &lint.Options{
		Refused: func(o lint.Object) (out []lint.Problem) {
			refusals, err := rules.Check(o.Content)
			if err != nil {
				return []lint.Problem{{Object: o.Typed, Message: err.Error()}}
			}
			for _, r := range refusals {
				out = append(out, lint.Problem{Object: o.Typed, Field: r.Field, Message: r.String()})
			}
			return out
		},
		Check: func(objects []lint.Object) []lint.Problem {
			return append(append(checkWorkflows(objects), checkApplications(objects)...), checkJobs(objects)...)
		},
	}, nil
}

// checkWorkflows returns the problems that the engine of workflows finds.
func checkWorkflows(objects []lint.Object) (out []lint.Problem) {
	typed := make([]runtime.Object, len(objects))
	for i, o := range objects {
		typed[i] = o.Typed
	}
	for _, p := range engine.Lint(typed, nil, template.InProcess()) {
		out = append(out, lint.Problem{Object: p.Object, Field: p.Field, Message: p.String(), Warning: p.Warning})
	}
	return out
}

// checkJobs returns what the controllers of jobs, queues and their relatives do not accept, and the
// fields that have no effect. These are errors if the object does not start because of them.
func checkJobs(objects []lint.Object) (out []lint.Problem) {
	for _, o := range objects {
		if err := migrate.Invalid(o.Typed); err != nil {
			field, _, _ := strings.Cut(err.Error(), ": ")
			out = append(out, lint.Problem{Object: o.Typed, Field: field, Message: err.Error()})
		}
		for _, f := range migrate.WithoutEffect(o.Typed) {
			out = append(out, lint.Problem{Object: o.Typed, Field: f.Field, Message: f.Field + ": " + f.Text, Warning: !f.Holds})
		}
	}
	return out
}

// checkApplications returns what is found by rendering applications and compiling definitions.
func checkApplications(objects []lint.Object) (out []lint.Problem) {
	var contents []*unstructured.Unstructured
	var checked []lint.Object
	for _, o := range objects {
		if o.Content.GroupVersionKind().Group == oam.GroupVersion.Group {
			contents, checked = append(contents, o.Content), append(checked, o)
		}
	}
	if len(contents) == 0 {
		return nil
	}
	for i, err := range applications.Check(contents) {
		if err != nil {
			out = append(out, problems(checked[i], err)...)
		}
	}
	return out
}

// sections are the fields of definitions whose text is CUE, by the names that errors have for them.
var sections = map[string]string{
	"template": "spec.schematic.cue.template", "healthPolicy": "spec.status.healthPolicy", "customStatus": "spec.status.customStatus",
}

// problems returns the problems of an error about an application or a definition, with the places that
// the error names.
func problems(o lint.Object, err error) (out []lint.Problem) {
	var ofPlan *plan.Error
	var ofDefinition *render.Error
	app, isApp := o.Typed.(*oam.Application)
	switch {
	case isApp && errors.As(err, &ofPlan):
		for i := range app.Spec.Components {
			if app.Spec.Components[i].Name == ofPlan.Component {
				return []lint.Problem{{Object: o.Typed, Field: fmt.Sprintf("spec.components[%d]", i), Message: ofPlan.Error()}}
			}
		}
		return []lint.Problem{{Object: o.Typed, Message: ofPlan.Error()}}
	case !isApp && errors.As(err, &ofDefinition) && len(ofDefinition.Problems) > 0:
		field := sections[ofDefinition.Section]
		for _, p := range ofDefinition.Problems {
			text := p.Message
			if p.Field != "" {
				text = p.Field + ": " + text
			}
			out = append(out, lint.Problem{Object: o.Typed, Field: field, Line: p.Line, Message: ofDefinition.Section + ": " + text})
		}
		return out
	}
	return []lint.Problem{{Object: o.Typed, Message: err.Error()}}
}
