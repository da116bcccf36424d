package cli

import (
	"strings"
	"testing"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

func TestEveryApplicationIsListed(t *testing.T) {
	shop, steps := oam.Application{}, oam.Application{}
	shop.Namespace, shop.Name, shop.Status.Phase = "a", "shop", "running"
	shop.Spec.Components = []oam.Component{{Name: "web", Type: "webservice"}, {Name: "db", Type: "worker"}}
	steps.Namespace, steps.Name, steps.Status.Phase = "b", "steps", "runningWorkflow" // without components
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
