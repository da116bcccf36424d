package plan_test

import (
	"errors"
	"fmt"
	"testing"

	"lockstep.dev/lockstep/internal/application/plan"
)

func object(component, name string) string {
	return fmt.Sprintf("- {name: %s, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %s}}]}}\n", component, name)
}

// TestAComponentThatCannotBeRenderedLeavesTheOthers checks that an error in one component does not
// stop the others from being planned, and that an error of the whole application does.
func TestAComponentThatCannotBeRenderedLeavesTheOthers(t *testing.T) {
	defs := loadBuiltin(t)
	const bad = "- {name: bad, type: webservice, properties: {}}\n"
	for name, c := range map[string]struct {
		components string
		objects    int // -1: there is no plan
		broken     string
	}{
		"a parameter is missing":          {object("one", "a") + bad + object("two", "b"), 2, "bad"},
		"a type is missing":               {"- {name: bad, type: none}\n" + object("one", "a"), 1, "bad"},
		"a trait is missing":              {"- {name: bad, type: worker, properties: {image: i}, traits: [{type: none}]}\n" + object("one", "a"), 1, "bad"},
		"an object of two components":     {object("one", "a") + object("bad", "a"), 1, "bad"},
		"no component can be rendered":    {bad, -1, ""},
		"a component depends on none":     {object("one", "a") + "- {name: bad, type: worker, dependsOn: [none], properties: {image: i}}\n", -1, ""},
		"all components can be rendered":  {object("one", "a") + object("two", "b"), 2, ""},
		"the first cannot, others follow": {bad + object("one", "a"), 1, "bad"},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := plan.Make(&plan.Input{Namespace: "ns", Name: "shop", Revision: "shop-v1", RevisionNum: 1,
				Spec: specOf(t, "components:\n"+c.components), Clusters: plan.Local{Kinds: everyKind{}}}, defs)
			var e *plan.Error
			if c.objects < 0 {
				if !errors.As(err, &e) || p != nil {
					t.Fatalf("%v, %v", p, err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			broken := ""
			for _, err := range p.Broken() {
				broken += err.Component
			}
			if len(p.Resources) != c.objects || broken != c.broken {
				t.Errorf("%d objects, broken are %q: %v", len(p.Resources), broken, p.Broken())
			}
			for i := range p.Components {
				for _, at := range p.Components[i].Resources {
					if p.Resources[at].Component != p.Components[i].Name {
						t.Errorf("%s has an object of %s", p.Components[i].Name, p.Resources[at].Component)
					}
				}
			}
		})
	}
}

// TestABrokenComponentReplacesNoOther checks that a component which an earlier step has deployed stays
// in the merged plan when a later step cannot render it.
func TestABrokenComponentReplacesNoOther(t *testing.T) {
	good := &plan.Plan{Components: []plan.Component{{Name: "web", Workload: 0, Resources: []int{0}}}, Resources: []plan.Resource{{Component: "web"}}}
	bad := &plan.Plan{Components: []plan.Component{{Name: "web", Workload: -1, Err: &plan.Error{Err: errors.New("bad")}}}}
	for _, parts := range [][]*plan.Plan{{good, bad}, {bad, good}} {
		if p := plan.Merge(parts, &plan.Policies{}); len(p.Components) != 1 || len(p.Components[0].Resources) != 1 || len(p.Broken()) > 0 {
			t.Errorf("%+v", p)
		}
	}
}
