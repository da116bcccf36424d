package render

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// terraform is the content of schematic.terraform: a configuration of Terraform, which the controller
// of the kind Configuration applies. The references and options are defaults, which the properties of
// a component override.
type terraform struct {
	// Configuration is the configuration itself or, if Type is remote, the URL of a Git repository.
	Configuration string `json:"configuration"`
	// Type is hcl or remote; hcl by default.
	Type string `json:"type,omitempty"`
	// Path is the folder of the configuration in the repository.
	Path string `json:"path,omitempty"`

	ProviderRef                   *reference `json:"providerRef,omitempty"`
	WriteConnectionSecretToRef    *reference `json:"writeConnectionSecretToRef,omitempty"`
	GitCredentialsSecretReference *reference `json:"gitCredentialsSecretReference,omitempty"`
	CustomRegion                  string     `json:"customRegion,omitempty"`
	DeleteResource                *bool      `json:"deleteResource,omitempty"`
}

type reference struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace,omitempty"`
}

// terraformOptions are the properties of a component that are fields of the Configuration. All other
// properties are variables of the configuration.
var terraformOptions = []string{
	"providerRef", "customRegion", "deleteResource", "forceDelete", "gitCredentialsSecretReference", "inlineCredentials", "backend", "jobEnv",
}

// terraformTemplate returns the template of a component that is made of a configuration of Terraform.
func terraformTemplate(schematic []byte) (string, error) {
	t := terraform{}
	decoder := json.NewDecoder(bytes.NewReader(schematic))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&t); err != nil {
		return "", err
	}
	fields := map[string]any{}
	switch {
	case t.Configuration == "":
		return "", errors.New("configuration must be given")
	case (t.Type == "" || t.Type == "hcl") && t.Path != "":
		return "", errors.New("path is of the type remote")
	case t.Type == "" || t.Type == "hcl":
		fields["hcl"] = t.Configuration
	case t.Type == "remote":
		fields["remote"] = t.Configuration
		if t.Path != "" {
			fields["path"] = t.Path
		}
	default:
		return "", fmt.Errorf("type: there are hcl and remote, not %q", t.Type)
	}
	defaults := map[string]any{}
	add(defaults, "providerRef", t.ProviderRef)
	add(defaults, "gitCredentialsSecretReference", t.GitCredentialsSecretReference)
	add(defaults, "writeConnectionSecretToRef", t.WriteConnectionSecretToRef)
	add(defaults, "deleteResource", t.DeleteResource)
	if t.CustomRegion != "" {
		defaults["customRegion"] = t.CustomRegion
	}
	var b strings.Builder
	b.WriteString("import \"list\"\n\n")
	for _, part := range []struct {
		name  string
		value any
	}{{"_fixed", fields}, {"_defaults", defaults}, {"_options", terraformOptions}} {
		text, err := json.Marshal(part.value)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "%s: %s\n", part.name, text)
	}
	b.WriteString(terraformOutput)
	return b.String(), nil
}

// add sets a default unless it is nil.
func add[T any](defaults map[string]any, name string, value *T) {
	if value != nil {
		defaults[name] = value
	}
}

// terraformOutput is the part of the template that all such components have.
const terraformOutput = `
_secret: "writeConnectionSecretToRef"
output: {
	kind:       "Configuration"
	apiVersion: "terraform.core.oam.dev/v1beta2"
	spec: {
		_fixed
		for option in _options {
			for value in [if parameter[option] != _|_ {parameter[option]}, if parameter[option] == _|_ if _defaults[option] != _|_ {_defaults[option]}] {(option): value}
		}
		for value in [if parameter[_secret] != _|_ {parameter[_secret]}, if parameter[_secret] == _|_ if _defaults[_secret] != _|_ {_defaults[_secret]}] {
			(_secret): {
				name:      value.name
				namespace: *value.namespace | context.namespace
			}
		}
		variable: {
			for name, value in parameter if name != _secret && !list.Contains(_options, name) {(name): value}
		}
	}
}
parameter: {...}
`

// The health of a Configuration, unless its definition says another.
const (
	terraformHealth = `
_state: *context.output.status.apply.state | ""
_seen: *context.output.status.observedGeneration | 0
isHealth: _state == "Available" && (_seen == 0 || _seen == context.output.metadata.generation)
`
	terraformMessage = `
_state: *context.output.status.apply.state | "it is not applied yet"
_text: *context.output.status.apply.message | ""
message: [if _text != "" {_text}, _state][0]
`
)

// ofTerraform makes d the definition of a component that is made of a configuration of Terraform.
func (d *Definition) ofTerraform(schematic []byte) {
	d.Terraform = true
	if template, err := terraformTemplate(schematic); err != nil {
		d.Fault = "terraform: " + err.Error()
	} else {
		d.Template = template
	}
	if d.Health == (oam.DefinitionHealth{}) {
		d.Health = oam.DefinitionHealth{HealthPolicy: terraformHealth, CustomStatus: terraformMessage}
	}
}

// withoutTemplate returns the error of a definition without a template.
func (d *Definition) withoutTemplate() error {
	why := "it has no CUE template"
	if d.Fault != "" {
		why = d.Fault
	}
	return &Error{Definition: d.String(), Section: "schematic", Problems: []Problem{{Message: why}}}
}
