package render_test

import (
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestParametersOfTheWrongTypeAreRefused checks that a parameter of the wrong type is an error. A
// template that tests whether an optional parameter exists would otherwise silently ignore it.
func TestParametersOfTheWrongTypeAreRefused(t *testing.T) {
	for name, c := range map[string]struct{ component, props, want string }{
		"a number for a text":        {"webservice", `{"image": "nginx", "cpu": 1}`, "parameter.cpu"},
		"deep in a list":             {"webservice", `{"image": "nginx", "env": [{"name": "A", "value": "a"}, {"name": "B", "value": 5}]}`, "parameter.env.1.value"},
		"a value that is none of":    {"webservice", `{"image": "nginx", "imagePullPolicy": "Often"}`, "parameter.imagePullPolicy"},
		"nothing where there may be": {"webservice", `{"image": "nginx", "cmd": null}`, "parameter.cmd"},
	} {
		t.Run(name, func(t *testing.T) {
			at := render.Context{Name: "web", Namespace: "prod", AppName: "shop", AppRevision: "shop-v1", Revision: "0123abcd"}
			_, err := render.Render(&render.Request{Context: at, Component: use(t, render.Component, c.component, []byte(c.props))})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v; want %s in it", err, c.want)
			}
		})
	}
}

// TestDefaultsFromTheContextAreDefaults checks that a parameter whose default comes from the context
// is not listed as required.
func TestDefaultsFromTheContextAreDefaults(t *testing.T) {
	for _, step := range []string{"create-config", "depends-on-app", "list-config"} {
		parameters, err := use(t, render.WorkflowStep, step, nil).Template.Parameters()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range parameters {
			if p.Name == "namespace" && p.Required || p.Name == "name" && !p.Required {
				t.Errorf("%s: %s: required is %v", step, p.Name, p.Required)
			}
		}
	}
}
