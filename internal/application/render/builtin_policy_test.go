package render_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// parametersPolicy is the text of config/policies/application-parameters.yaml. KNOWN are the parameters
// of each built-in definition and the types of their values, and NEEDED those that must be given. Each
// definition has one text, because the API server makes the tables anew for each application.
const parametersPolicy = `# Warnings about applications with properties that a built-in definition does not have, of another type, or without one that
# it needs. Whoever applies the application sees them; it is accepted. Definitions of one's own are not known here: the
# application's condition Parsed has all warnings. The tables are generated from the definitions, by
# go test ./internal/application/render -run TestParametersPolicy -update
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: application-parameters.lockstep.dev
spec:
  failurePolicy: Ignore
  matchConstraints:
    resourceRules:
    - apiGroups: [core.oam.dev]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [applications]
  matchConditions:
  - name: changed
    expression: "has(object.spec) && (oldObject == null || !has(oldObject.spec) || object.spec != oldObject.spec)"
  variables:
  - name: known
    expression: >-
      {
KNOWN
      }
  - name: needed
    expression: >-
      {
NEEDED
      }
  # The letters of types in known; * is any.
  - name: names
    expression: "{'s': 'a string', 'i': 'a whole number', 'd': 'a number', 'b': 'true or false', 'l': 'a list', 'm': 'fields', 'n': 'null'}"
  # Policies may add properties, and inputs set them.
  - name: overridden
    expression: "has(object.spec.policies) && object.spec.policies.exists(p, p.type == 'override')"
  - name: components
    expression: "has(object.spec.components) ? object.spec.components.filter(c, has(c.type)) : []"
  - name: steps
    expression: >-
      has(object.spec.workflow) && has(object.spec.workflow.steps) ? object.spec.workflow.steps.filter(s, has(s.type)) : []
VARIABLES
  validations:
  - expression: "variables.wrongComponents == ''"
    messageExpression: "variables.wrongComponents"
  - expression: "variables.wrongTraits == ''"
    messageExpression: "variables.wrongTraits"
  - expression: "variables.wrongSteps == ''"
    messageExpression: "variables.wrongSteps"
  - expression: "variables.wrongSubSteps == ''"
    messageExpression: "variables.wrongSubSteps"
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: application-parameters.lockstep.dev
spec:
  policyName: application-parameters.lockstep.dev
  validationActions: [Warn]
`

// wrongProperties is the expression of what is wrong with the properties of X, in one text. KIND is its
// kind in the tables, WHO is an expression that names it, and FILLED one that says whether others may
// set its properties.
const wrongProperties = `(!has(X.properties) || !(('KIND/' + X.type) in variables.known) ? [] :
        X.properties.filter(k, !ENTRY.contains(' ' + k + ':')).map(k, WHO + ': the built-in ' + X.type + ' has no property ' + k) +
        X.properties.filter(k, ENTRY.contains(' ' + k + ':') && !ENTRY.contains(' ' + k + ':* ') && !ENTRY.contains(' ' + k + ':' + TYPE + ' ')).map(k,
        WHO + ': ' + k + ' of the built-in ' + X.type + ' is ' +
        variables.names[ENTRY.substring(ENTRY.indexOf(' ' + k + ':') + size(k) + 2, ENTRY.indexOf(' ' + k + ':') + size(k) + 3)] +
        ', not ' + variables.names[TYPE])) +
        (('KIND/' + X.type) in variables.needed && !FILLED ? variables.needed['KIND/' + X.type].split(' ').filter(k,
        !has(X.properties) || !(k in X.properties)).map(k, WHO + ': the built-in ' + X.type + ' needs the property ' + k) : [])`

// letterOf is the letter of the type of property k of X.
const letterOf = `(type(X.properties[k]) == string ? 's' : type(X.properties[k]) == int ? 'i' : type(X.properties[k]) == double ? 'd' :
        type(X.properties[k]) == bool ? 'b' : type(X.properties[k]) == list ? 'l' : type(X.properties[k]) == map ? 'm' : 'n')`

func wrongOf(x, kind, who, filled string) string {
	return strings.NewReplacer("X", x, "KIND", kind, "WHO", who, "FILLED", filled).Replace(strings.NewReplacer("TYPE", letterOf, "ENTRY", "variables.known['KIND/' + X.type]").Replace(wrongProperties))
}

// TestParametersPolicy compares the policy with the parameters of the built-in definitions.
func TestParametersPolicy(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	letters := map[string]string{"string": "s", "int": "id", "number": "id", "float": "id", "bool": "b", "list": "l", "struct": "m", "null": "n"}
	kinds := map[string]string{"ComponentDefinition": "component", "TraitDefinition": "trait", "WorkflowStepDefinition": "step"}
	var known, needed []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		kind, called, _ := strings.Cut(name, " ")
		if kinds[kind] == "" || len(all[name].Unused([]byte(`{"misspelt": 1}`))) == 0 {
			continue
		}
		parameters, err := all[name].Parameters()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortStableFunc(parameters, func(x, y render.Parameter) int { return strings.Compare(x.Name, y.Name) })
		var has, needs []string
		for _, p := range parameters {
			if strings.ContainsAny(p.Name, ".[") {
				continue
			}
			types := ""
			for _, one := range strings.Split(strings.Trim(p.Type, "()"), "|") {
				if letters[one] == "" {
					types = "*"
					break
				}
				types += letters[one]
			}
			for _, letter := range types {
				has = append(has, fmt.Sprintf("%s:%c", p.Name, letter))
			}
			if p.Required && (p.Type == "string" || p.Type == "int" || p.Type == "bool") {
				needs = append(needs, p.Name)
			}
		}
		for _, extra := range hiddenParameters(t, all[name], parameters) {
			has = append(has, extra+":*")
		}
		key := fmt.Sprintf("        '%s/%s': ", kinds[kind], called)
		known = append(known, key+"' "+strings.Join(append(has, "'"), " "))
		if len(needs) > 0 {
			needed = append(needed, key+"'"+strings.Join(needs, " ")+"'")
		}
	}
	var variables strings.Builder
	variable := func(name, expression string) {
		fmt.Fprintf(&variables, "  - name: %s\n    expression: >-\n      %s\n", name, expression)
	}
	variable("wrongComponents", "variables.components.map(c, ("+wrongOf("c", "component", "'component ' + c.name", "(variables.overridden || has(c.inputs))")+
		").join('; ')).filter(s, s != '').join('; ')")
	variable("wrongTraits", "variables.components.filter(c, has(c.traits)).map(c, c.traits.filter(t, has(t.type)).map(t, ("+
		wrongOf("t", "trait", "'component ' + c.name", "(variables.overridden || has(c.inputs))")+
		").join('; ')).filter(s, s != '').join('; ')).filter(s, s != '').join('; ')")
	step := func(x string) string {
		return "(" + wrongOf(x, "step", "'step ' + (has("+x+".name) ? "+x+".name : "+x+".type)", "has("+x+".inputs)") + ").join('; ')"
	}
	variable("wrongSteps", "variables.steps.map(s, "+step("s")+").filter(w, w != '').join('; ')")
	variable("wrongSubSteps", "variables.steps.filter(s, has(s.subSteps)).map(s, s.subSteps.filter(b, has(b.type)).map(b, "+step("b")+
		").filter(w, w != '').join('; ')).filter(w, w != '').join('; ')")
	text := strings.NewReplacer("KNOWN", strings.Join(known, ",\n"), "NEEDED", strings.Join(needed, ",\n"),
		"VARIABLES\n", variables.String()).Replace(parametersPolicy)
	compareWith(t, "../../../config/policies/application-parameters.yaml", text)
}

// hiddenParameters returns the parameters that are not listed, because their authors hide them.
func hiddenParameters(t *testing.T, template *render.Template, listed []render.Parameter) []string {
	t.Helper()
	var out []string
	for _, name := range []string{"port", "addRevisionLabel"} {
		properties, err := json.Marshal(map[string]any{name: 1})
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(listed, func(p render.Parameter) bool { return p.Name == name }) && len(template.Unused(properties)) == 0 {
			out = append(out, name)
		}
	}
	return out
}
