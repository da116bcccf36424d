package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// parametersPolicy is the text of the policy application-parameters.lockstep.dev. KNOWN are the
// parameters of each definition and the types of their values, and NEEDED those that must be given.
// Each definition has one text, because the API server makes the tables anew for each application.
const parametersPolicy = `apiVersion: admissionregistration.k8s.io/v1
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
UNKNOWN  - expression: "variables.wrongComponents == ''"
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

// wrongProperties is the expression of what is wrong with the properties of X, in one text. KIND is
// its kind in the tables, WHO is an expression that names it, and FILLED one that says whether
// others may set its properties.
const wrongProperties = `(!has(X.properties) || !(('KIND/' + X.type) in variables.known) ? [] :
        X.properties.filter(k, !ENTRY.contains(' ' + k + ':')).map(k, WHO + ': THE' + X.type + ' has no property ' + k) +
        X.properties.filter(k, ENTRY.contains(' ' + k + ':') && !ENTRY.contains(' ' + k + ':* ') && !ENTRY.contains(' ' + k + ':' + TYPE + ' ')).map(k,
        WHO + ': ' + k + ' of THE' + X.type + ' is ' +
        variables.names[ENTRY.substring(ENTRY.indexOf(' ' + k + ':') + size(k) + 2, ENTRY.indexOf(' ' + k + ':') + size(k) + 3)] +
        ', not ' + variables.names[TYPE])) +
        (('KIND/' + X.type) in variables.needed && !FILLED ? variables.needed['KIND/' + X.type].split(' ').filter(k,
        !has(X.properties) || !(k in X.properties)).map(k, WHO + ': THE' + X.type + ' needs the property ' + k) : [])`

// letterOf is the letter of the type of property k of X.
const letterOf = `(type(X.properties[k]) == string ? 's' : type(X.properties[k]) == int ? 'i' : type(X.properties[k]) == double ? 'd' :
        type(X.properties[k]) == bool ? 'b' : type(X.properties[k]) == list ? 'l' : type(X.properties[k]) == map ? 'm' : 'n')`

// missingType is the expression of whether X has a type without a definition, or with a revision that
// the definition does not have. A revision is named by the beginning of a version, too.
const missingType = `(!TYPES.contains(' ' + X.type.split('@')[0] + ' ') && !TYPES.contains(' ' + request.namespace + '/' + X.type.split('@')[0] + ' ')) ||
        (X.type.contains('@') && [X.type.replace('@v', '@')].exists(v, ![' ', ' ' + request.namespace + '/'].exists(p,
        VERSIONS.contains(p + v + ' ') || VERSIONS.contains(p + v + '.'))))`

func wrongOf(x, kind, who, filled, the string) string {
	return strings.NewReplacer("X", x, "KIND", kind, "WHO", who, "FILLED", filled, "THE", the).Replace(
		strings.NewReplacer("TYPE", letterOf, "ENTRY", "variables.known['KIND/' + X.type]").Replace(wrongProperties))
}

// PolicyInput is what ParametersPolicy makes a policy from.
type PolicyInput struct {
	// Head is a comment at the beginning.
	Head string
	// The precedes the name of a definition in messages: "the built-in ", or empty.
	The string
	// Templates are the definitions whose parameters are checked, by kind and name.
	Templates map[string]*Template
	// Types has all names of definitions by kind: NAME, or NAMESPACE/NAME of those that only a
	// namespace has. If it is nil, types without a definition are not warned of.
	Types map[Kind][]string
	// Versions has the revisions of these definitions by kind: NAME@REVISION or
	// NAMESPACE/NAME@REVISION, without the v that may precede a revision.
	Versions map[Kind][]string
}

// letters are the letters of the types of values in the tables of the policy.
var letters = map[string]string{"string": "s", "int": "id", "number": "id", "float": "id", "bool": "b", "list": "l", "struct": "m", "null": "n"}

// tableKinds are the kinds whose parameters the policy checks, by their names in its tables.
var tableKinds = map[Kind]string{Component: "component", Trait: "trait", WorkflowStep: "step"}

// ParametersPolicy returns the manifest of the ValidatingAdmissionPolicy that warns of properties
// that definitions do not have, and its binding. Definitions that do not know their parameters are
// left out.
func ParametersPolicy(in *PolicyInput) (string, error) {
	var known, needed []string
	for _, name := range slices.Sorted(maps.Keys(in.Templates)) {
		kind, called, _ := strings.Cut(name, " ")
		template := in.Templates[name]
		if tableKinds[Kind(kind)] == "" || len(template.Unused([]byte(`{"misspelt": 1}`))) == 0 {
			continue
		}
		has, needs, err := tableOf(template)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		if strings.ContainsAny(strings.Join(has, ""), "'\"\\ \t\r\n") {
			continue // such names would be part of the expressions
		}
		key := fmt.Sprintf("        '%s/%s': ", tableKinds[Kind(kind)], called)
		known = append(known, key+"' "+strings.Join(append(has, "'"), " "))
		if len(needs) > 0 {
			needed = append(needed, key+"'"+strings.Join(needs, " ")+"'")
		}
	}
	variables, unknown := variablesOf(in)
	return in.Head + strings.NewReplacer("KNOWN", strings.Join(known, ",\n"), "NEEDED", strings.Join(needed, ",\n"),
		"VARIABLES\n", variables, "UNKNOWN", unknown).Replace(parametersPolicy), nil
}

// tableOf returns the parameters of a definition with the letters of their types, and those that
// must be given.
func tableOf(t *Template) (has, needs []string, _ error) {
	parameters, err := t.Parameters()
	if err != nil {
		return nil, nil, err
	}
	slices.SortStableFunc(parameters, func(x, y Parameter) int { return strings.Compare(x.Name, y.Name) })
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
	hidden, err := hiddenParameters(t, parameters)
	for _, extra := range hidden {
		has = append(has, extra+":*")
	}
	return has, needs, err
}

// hiddenParameters returns the parameters that are not listed, because their authors hide them.
func hiddenParameters(t *Template, listed []Parameter) ([]string, error) {
	var out []string
	for _, name := range []string{"port", "addRevisionLabel"} {
		properties, err := json.Marshal(map[string]any{name: 1})
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(listed, func(p Parameter) bool { return p.Name == name }) && len(t.Unused(properties)) == 0 {
			out = append(out, name)
		}
	}
	return out, nil
}

// variablesOf returns the variables of the policy that say what is wrong, and the validations of
// types without a definition.
func variablesOf(in *PolicyInput) (variables, unknown string) {
	var b strings.Builder
	variable := func(name, expression string) {
		fmt.Fprintf(&b, "  - name: %s\n    expression: >-\n      %s\n", name, expression)
	}
	variable("wrongComponents", "variables.components.map(c, ("+wrongOf("c", "component", "'component ' + c.name", "(variables.overridden || has(c.inputs))", in.The)+
		").join('; ')).filter(s, s != '').join('; ')")
	variable("wrongTraits", "variables.components.filter(c, has(c.traits)).map(c, c.traits.filter(t, has(t.type)).map(t, ("+
		wrongOf("t", "trait", "'component ' + c.name", "(variables.overridden || has(c.inputs))", in.The)+
		").join('; ')).filter(s, s != '').join('; ')).filter(s, s != '').join('; ')")
	step := func(x string) string {
		return "(" + wrongOf(x, "step", "'step ' + (has("+x+".name) ? "+x+".name : "+x+".type)", "has("+x+".inputs)", in.The) + ").join('; ')"
	}
	variable("wrongSteps", "variables.steps.map(s, "+step("s")+").filter(w, w != '').join('; ')")
	variable("wrongSubSteps", "variables.steps.filter(s, has(s.subSteps)).map(s, s.subSteps.filter(b, has(b.type)).map(b, "+step("b")+
		").filter(w, w != '').join('; ')).filter(w, w != '').join('; ')")
	if in.Types == nil {
		return b.String(), ""
	}
	missing := func(x string, kind Kind) string {
		return strings.NewReplacer("X", x, "TYPES", "variables.types['"+string(kind)+"']", "VERSIONS", "variables.versions['"+string(kind)+"']").Replace(missingType)
	}
	table := func(names map[Kind][]string) string {
		var rows []string
		for _, kind := range slices.Sorted(maps.Keys(in.Types)) {
			rows = append(rows, fmt.Sprintf("        '%s': ' %s '", kind, strings.Join(slices.Sorted(slices.Values(names[kind])), " ")))
		}
		return "{\n" + strings.Join(rows, ",\n") + "\n      }"
	}
	variable("types", table(in.Types))
	variable("versions", table(in.Versions))
	variable("unknownComponents", "variables.components.filter(c, "+missing("c", Component)+").map(c, 'component ' + c.name + ': there is no "+string(Component)+" ' + c.type).join('; ')")
	variable("unknownTraits", "variables.components.filter(c, has(c.traits)).map(c, c.traits.filter(t, has(t.type)).filter(t, "+missing("t", Trait)+
		").map(t, 'component ' + c.name + ': there is no "+string(Trait)+" ' + t.type).join('; ')).filter(s, s != '').join('; ')")
	variable("unknownPolicies", "has(object.spec.policies) ? object.spec.policies.filter(p, has(p.type)).filter(p, "+missing("p", Policy)+
		").map(p, 'there is no "+string(Policy)+" ' + p.type).join('; ') : ''")
	nameless := func(x string) string {
		return "'step ' + (has(" + x + ".name) ? " + x + ".name : " + x + ".type) + ': there is no " + string(WorkflowStep) + " ' + " + x + ".type"
	}
	variable("unknownSteps", "variables.steps.filter(s, "+missing("s", WorkflowStep)+").map(s, "+nameless("s")+").join('; ')")
	variable("unknownSubSteps", "variables.steps.filter(s, has(s.subSteps)).map(s, s.subSteps.filter(b, has(b.type)).filter(b, "+missing("b", WorkflowStep)+
		").map(b, "+nameless("b")+").join('; ')).filter(w, w != '').join('; ')")
	for _, name := range []string{"unknownComponents", "unknownTraits", "unknownPolicies", "unknownSteps", "unknownSubSteps"} {
		unknown += fmt.Sprintf("  - expression: \"variables.%[1]s == ''\"\n    messageExpression: \"variables.%[1]s\"\n", name)
	}
	return b.String(), unknown
}
