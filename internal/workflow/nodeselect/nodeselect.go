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
	return func(n *wf.NodeStatus) bool { return s.Matches(view{n}) }, nil
}

// view presents a node's fields to a selector.
type view struct{ *wf.NodeStatus }

func (v view) Has(field string) bool { return v.Get(field) != "" }

func (v view) Get(field string) string {
	switch field {
	case "id":
		return v.ID
	case "name":
		return v.Name
	case "displayName":
		return v.DisplayName
	case "type":
		return string(v.Type)
	case "phase":
		return string(v.Phase)
	case "templateName":
		return v.TemplateName
	}
	if v.TemplateRef != nil {
		switch field {
		case "templateRef.name":
			return v.TemplateRef.Name
		case "templateRef.template":
			return v.TemplateRef.Template
		}
	}
	name, ok := strings.CutPrefix(field, parameterPrefix)
	if !ok || v.Inputs == nil {
		return ""
	}
	name = strings.TrimSuffix(name, parameterSuffix)
	for i := range v.Inputs.Parameters {
		if p := &v.Inputs.Parameters[i]; p.Name == name && p.Value != nil {
			return string(*p.Value)
		}
	}
	return ""
}
