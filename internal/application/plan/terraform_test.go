package plan_test

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// TestComponentsOfTerraformCanBeLeftOut plans an application whose component depends on a database that
// is made of a configuration of Terraform.
func TestComponentsOfTerraformCanBeLeftOut(t *testing.T) {
	defs := loadBuiltin(t)
	var o oam.ComponentDefinition
	const database = `{metadata: {name: database}, spec: {workload: {type: autodetects.core.oam.dev}, schematic: {terraform: {configuration: a}}}}`
	if err := yaml.UnmarshalStrict([]byte(database), &o); err != nil {
		t.Fatal(err)
	}
	var err error
	if defs["component-database"], err = render.Compile(render.OfComponent(&o), render.InProcess()); err != nil {
		t.Fatal(err)
	}
	spec := specOf(t, `
components:
- {name: db, type: database}
- {name: web, type: worker, dependsOn: [db, other], properties: {image: a}}
- {name: other, type: worker, properties: {image: a}}
`)
	for name, c := range map[string]struct {
		leaves          bool
		components      []string
		left, dependsOn []string
	}{
		"all":               {false, []string{"db", "web", "other"}, nil, []string{"db", "other"}},
		"without Terraform": {true, []string{"web", "other"}, []string{"db"}, []string{"other"}},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := plan.Make(&plan.Input{Namespace: "ns", Name: "shop", Spec: spec, LeavesTerraform: c.leaves,
				Clusters: plan.Local{Kinds: everyKind{}, Version: render.ClusterVersion{Major: "1", Minor: 36}}}, defs)
			if err != nil {
				t.Fatal(err)
			}
			var names, dependsOn []string
			for i := range p.Components {
				names = append(names, p.Components[i].Name)
				if p.Components[i].Name == "web" {
					dependsOn = p.Components[i].DependsOn
				}
			}
			if !slices.Equal(names, c.components) || !slices.Equal(p.Left, c.left) || !slices.Equal(dependsOn, c.dependsOn) {
				t.Errorf("components %v, left out %v, web depends on %v", names, p.Left, dependsOn)
			}
		})
	}
	if !slices.Equal(spec.Components[1].DependsOn, []string{"db", "other"}) {
		t.Errorf("the spec has changed: %v", spec.Components[1].DependsOn)
	}
}
