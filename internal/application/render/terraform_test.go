package render_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// terraformDefinition returns the template of a ComponentDefinition with this schematic.terraform.
func terraformDefinition(t *testing.T, schematic string) *render.Template {
	t.Helper()
	var o oam.ComponentDefinition
	text := "metadata: {name: db}\nspec: {workload: {definition: {apiVersion: terraform.core.oam.dev/v1beta2, kind: Configuration}}, schematic: {terraform: " + schematic + "}}"
	if err := yaml.UnmarshalStrict([]byte(text), &o); err != nil {
		t.Fatal(err)
	}
	template, err := render.Compile(render.OfComponent(&o), render.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	return template
}

func TestComponentsOfTerraform(t *testing.T) {
	for name, c := range map[string]struct{ schematic, properties, spec, fails string }{
		"a configuration, and the variables that are given": {
			schematic:  `{configuration: 'variable "size" {}'}`,
			properties: `{size: 1, tags: [a, b], on: false}`,
			spec:       `{hcl: 'variable "size" {}', variable: {size: 1, tags: [a, b], on: false}}`,
		},
		"no properties": {schematic: `{configuration: a, type: hcl}`, spec: `{hcl: a, variable: {}}`},
		"a repository, and what the definition says of the Configuration": {
			schematic: `{configuration: "https://git/r", type: remote, path: db, providerRef: {name: aws, namespace: ns}, customRegion: eu, deleteResource: false,
				gitCredentialsSecretReference: {name: git, namespace: ns}, writeConnectionSecretToRef: {name: out}}`,
			properties: `{size: 1}`,
			spec: `{remote: "https://git/r", path: db, providerRef: {name: aws, namespace: ns}, customRegion: eu, deleteResource: false,
				gitCredentialsSecretReference: {name: git, namespace: ns}, writeConnectionSecretToRef: {name: out, namespace: default}, variable: {size: 1}}`,
		},
		"properties take the place of what the definition says, and are no variables": {
			schematic:  `{configuration: a, providerRef: {name: aws, namespace: ns}, deleteResource: true, writeConnectionSecretToRef: {name: out}}`,
			properties: `{providerRef: {name: gcp}, deleteResource: false, forceDelete: true, customRegion: us, jobEnv: {A: b}, writeConnectionSecretToRef: {name: mine, namespace: other}, size: 1}`,
			spec: `{hcl: a, providerRef: {name: gcp}, deleteResource: false, forceDelete: true, customRegion: us, jobEnv: {A: b},
				writeConnectionSecretToRef: {name: mine, namespace: other}, variable: {size: 1}}`,
		},
		"text that CUE would read": {schematic: `{configuration: "a = \"\\(b)\" # \"\"\""}`, spec: `{hcl: "a = \"\\(b)\" # \"\"\"", variable: {}}`},
		"no configuration":         {schematic: `{path: a}`, fails: "ComponentDefinition db, schematic: terraform: configuration must be given"},
		"an unknown type":          {schematic: `{configuration: a, type: json}`, fails: `type: there are hcl and remote, not "json"`},
		"a path of no repository":  {schematic: `{configuration: a, path: b}`, fails: "path is of the type remote"},
		"a field that is none":     {schematic: `{configuration: a, provider: b}`, fails: `unknown field "provider"`},
		"a field of another type":  {schematic: `{configuration: [a]}`, fails: "cannot unmarshal array"},
	} {
		t.Run(name, func(t *testing.T) {
			template := terraformDefinition(t, c.schematic)
			properties, err := yaml.YAMLToJSON([]byte(c.properties))
			if err != nil {
				t.Fatal(err)
			}
			if c.properties == "" {
				properties = nil
			}
			out, err := render.Render(&render.Request{Context: render.Context{Name: "db", Namespace: "default", AppName: "shop"},
				Component: render.Use{Template: template, Properties: properties}})
			if c.fails != "" {
				if err == nil || !strings.Contains(err.Error(), c.fails) {
					t.Errorf("%v, not %s", err, c.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var want any
			if err := yaml.Unmarshal([]byte("{apiVersion: terraform.core.oam.dev/v1beta2, kind: Configuration, spec: "+c.spec+"}"), &want); err != nil {
				t.Fatal(err)
			}
			var got any
			text, err := yaml.Marshal(out.Workload.Object)
			if err == nil {
				err = yaml.Unmarshal(text, &got)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestHealthOfTerraform(t *testing.T) {
	template := terraformDefinition(t, `{configuration: a}`)
	for name, c := range map[string]struct {
		live    string
		healthy bool
		message string
	}{
		"it is new":             {`{metadata: {generation: 1}}`, false, "it is not applied yet"},
		"it is being applied":   {`{metadata: {generation: 1}, status: {observedGeneration: 1, apply: {state: ProvisioningAndChecking, message: "soon"}}}`, false, "soon"},
		"it is applied":         {`{metadata: {generation: 1}, status: {observedGeneration: 1, apply: {state: Available, message: "done"}}}`, true, "done"},
		"an older controller":   {`{metadata: {generation: 2}, status: {apply: {state: Available}}}`, true, "Available"},
		"it has changed since":  {`{metadata: {generation: 2}, status: {observedGeneration: 1, apply: {state: Available}}}`, false, "Available"},
		"it cannot be applied":  {`{metadata: {generation: 1}, status: {apply: {state: ConfigurationApplyFailed, message: "no credentials"}}}`, false, "no credentials"},
		"it is being destroyed": {`{metadata: {generation: 1}, status: {apply: {state: ConfigurationDestroying}}}`, false, "ConfigurationDestroying"},
	} {
		t.Run(name, func(t *testing.T) {
			live, err := yaml.YAMLToJSON([]byte(c.live))
			if err != nil {
				t.Fatal(err)
			}
			s, err := template.State(&render.Live{Output: live})
			if err != nil {
				t.Fatal(err)
			}
			if s.Healthy != c.healthy || s.Message != c.message {
				t.Errorf("healthy %t, message %q", s.Healthy, s.Message)
			}
		})
	}
}
