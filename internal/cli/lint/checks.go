package lint

import (
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/admission"
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

// checkApplications returns what is wrong with applications and definitions.
func checkApplications(objects []lint.Object) []lint.Problem {
	var typed []runtime.Object
	for _, o := range objects {
		if o.Content.GroupVersionKind().Group == oam.GroupVersion.Group {
			typed = append(typed, o.Typed)
		}
	}
	return applications.Lint(typed)
}
