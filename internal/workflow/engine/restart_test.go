package engine

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// TestPodsThatAreFurtherThanTheStatus loses every status but keeps the pods: the run continues from
// the pods, in any order of their events.
func TestPodsThatAreFurtherThanTheStatus(t *testing.T) {
	w := &wf.Workflow{}
	err := yaml.Unmarshal([]byte(`
metadata: {name: w}
spec:
  entrypoint: main
  templates:
  - name: main
    steps: [[{name: a, template: t}], [{name: b, template: t}], [{name: c, template: t}], [{name: d, template: t}]]
  - name: t
    container: {image: i}
`), w)
	if err != nil {
		t.Fatal(err)
	}
	var events []Event
	for _, name := range []string{"w[0].a", "w[1].b", "w[2].c"} {
		events = append(events, PodState{NodeID: wf.NodeID("w", name), Phase: corev1.PodSucceeded})
	}
	for _, reversed := range []bool{false, true} {
		if reversed {
			slices.Reverse(events)
		}
		out := New(w.DeepCopy(), Config{Evaluate: template.InProcess()}).Step(time.Unix(1000, 0), events...)
		if len(out.Create) != 1 || out.Create[0].NodeName != "w[3].d" {
			t.Errorf("reversed %t: asked for %+v, want the pod of w[3].d only", reversed, out.Create)
		}
	}
}
