package applications

import (
	"errors"
	"strings"
	"testing"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

func TestEveryApplicationIsListed(t *testing.T) {
	shop, steps := oam.Application{}, oam.Application{}
	shop.Namespace, shop.Name, shop.Status.Phase = "a", "shop", "running"
	shop.Spec.Components = []oam.Component{{Name: "web", Type: "webservice"}, {Name: "db", Type: "worker"}}
	// The second application has no components.
	steps.Namespace, steps.Name, steps.Status.Phase = "b", "steps", "runningWorkflow"
	var out strings.Builder
	if err := printApps(&out, []oam.Application{shop, steps}, true); err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		if f := strings.Fields(line); len(f) > 2 {
			got = append(got, strings.Join(f[:3], " "))
		}
	}
	want := "NAMESPACE APP COMPONENT; a shop web; a └─ db; b steps runningWorkflow"
	if g := strings.Join(got, "; "); g != want {
		t.Errorf("%s, not %s:\n%s", g, want, out.String())
	}
}

func TestTheTreeSaysWhereObjectsAreAndWhatIsWrong(t *testing.T) {
	app := &oam.Application{}
	app.Namespace, app.Name, app.Status.Phase = "prod", "shop", "rendering"
	app.Status.Conditions = []oam.Condition{{Type: oam.ConditionReady, Status: "False", Message: "component web: no such trait"}}
	for _, cluster := range []string{"", "far", "far"} {
		o := oam.ClusterObjectReference{Cluster: cluster}
		o.Kind, o.Namespace, o.Name = "Deployment", "prod", "web"
		if cluster != "" && len(app.Status.AppliedResources) > 1 {
			o.Kind, o.Namespace, o.Name = "Namespace", "", "prod"
		}
		app.Status.AppliedResources = append(app.Status.AppliedResources, o)
	}
	var out strings.Builder
	if err := printTree(&out, app); err != nil {
		t.Fatal(err)
	}
	want := `rendering prod/shop: component web: no such trait
├─ prod
│  └─ Deployment/web
├─ far: (cluster)
│  └─ Namespace/prod
└─ far: prod
   └─ Deployment/web
`
	if out.String() != want {
		t.Errorf("%s, not\n%s", out.String(), want)
	}
}

func TestMessagesDoNotControlTheTerminal(t *testing.T) {
	const message = "a\x1b[2Jb\nc"
	app := &oam.Application{}
	app.Status.Conditions = []oam.Condition{
		{Type: oam.ConditionParsed, Status: "True", Message: message},
		{Type: oam.ConditionReady, Status: "False", Message: message},
	}
	app.Status.Workflow = &oam.WorkflowStatus{Steps: []oam.WorkflowStepStatus{{}}}
	app.Status.Workflow.Steps[0].Message = message
	app.Status.Services = []oam.ComponentStatus{{Name: "web", Message: message, Traits: []oam.TraitStatus{{Type: "t", Message: message}}}}
	app.Spec.Components = []oam.Component{{Name: "web"}}
	var out strings.Builder
	if err := errors.Join(printStatus(&out, app), printTree(&out, app), printApps(&out, []oam.Application{*app}, false)); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "\x1b") || strings.Count(out.String(), "a[2Jb c") != 7 {
		t.Errorf("%q", out.String())
	}
}
