// Package nodeselect selects nodes of a workflow by their fields, as the flag --node-field-selector
// does:
//
//	displayName=approve
//	templateName=build,phase!=Succeeded
//	inputs.parameters.region.value=eu
package nodeselect

import (
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/fields"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// Fields are the fields that a selector may name, besides inputs.parameters.NAME.value.
var Fields = []string{"id", "name", "displayName", "type", "phase", "templateName", "templateRef.name", "templateRef.template"}

const parameterPrefix, parameterSuffix = "inputs.parameters.", ".value"

// Parse parses a selector: terms FIELD=VALUE, FIELD==VALUE and FIELD!=VALUE, separated by commas,
// all of which must hold. An empty selector matches every node.
func Parse(text string) (func(*wf.NodeStatus) bool, error) {
	s, err := fields.ParseSelector(text)
	if err != nil {
		return nil, fmt.Errorf("node field selector %q: %w", text, err)
	}
	for _, r := range s.Requirements() {
		parameter := strings.HasPrefix(r.Field, parameterPrefix) && strings.HasSuffix(r.Field, parameterSuffix)
		if !parameter && !slices.Contains(Fields, r.Field) {
			return nil, fmt.Errorf("node field selector %q: no field %q; there are %s, %sNAME%s", text, r.Field,
				strings.Join(Fields, ", "), parameterPrefix, parameterSuffix)
		}
	}
	return func(n *wf.NodeStatus) bool { return s.Matches(fieldsOf(n)) }, nil
}

func fieldsOf(n *wf.NodeStatus) fields.Set {
	set := fields.Set{
		"id": n.ID, "name": n.Name, "displayName": n.DisplayName, "type": string(n.Type), "phase": string(n.Phase),
		"templateName": n.TemplateName,
	}
	if ref := n.TemplateRef; ref != nil {
		set["templateRef.name"], set["templateRef.template"] = ref.Name, ref.Template
	}
	if n.Inputs != nil {
		for _, p := range n.Inputs.Parameters {
			if p.Value != nil {
				set[parameterPrefix+p.Name+parameterSuffix] = string(*p.Value)
			}
		}
	}
	return set
}
