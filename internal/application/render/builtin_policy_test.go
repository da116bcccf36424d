package render_test

import (
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// parametersHead is the comment of config/policies/application-parameters.yaml.
const parametersHead = `# Warnings about applications with properties that a built-in definition does not have, of another type, or without one that
# it needs. Whoever applies the application sees them; it is accepted. Definitions of one's own are not known here: the
# application's condition Parsed has all warnings, and lockstep def policy prints this policy for all definitions of a
# cluster. The tables are generated from the definitions, by
# go test ./internal/application/render -run TestParametersPolicy -update
`

// TestParametersPolicy compares the policy with the parameters of the built-in definitions.
func TestParametersPolicy(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	text, err := render.ParametersPolicy(&render.PolicyInput{Head: parametersHead, The: "the built-in ", Templates: all})
	if err != nil {
		t.Fatal(err)
	}
	compareWith(t, "../../../config/policies/application-parameters.yaml", text)
}
