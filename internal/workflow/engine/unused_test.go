package engine_test

import (
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// TestAGangOfPodsWithClaimsIsNamed checks that a workflow says where lockstep.dev/gang has no effect.
func TestAGangOfPodsWithClaimsIsNamed(t *testing.T) {
	const text = `
metadata: {name: w, namespace: default}
spec:
  entrypoint: main
  templates:
  - name: main
    metadata: {METADATA: {lockstep.dev/gang: all}}
    VOLUMES
    container: {image: busybox, command: ["true"]}
`
	const ephemeral = `volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}}]`
	for name, tc := range map[string]struct{ metadata, volumes, want string }{
		"an ephemeral volume":      {"annotations", ephemeral, "templates.main.metadata.annotations.lockstep.dev/gang"},
		"in a label":               {"labels", ephemeral, "metadata.labels.lockstep.dev/gang"},
		"a resource claim":         {"annotations", `resourceClaims: [{name: gpu, resourceClaimName: one}]`, "placed one by one"},
		"a volume that they share": {"annotations", `volumes: [{name: v, emptyDir: {}}]`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := &wf.Workflow{}
			if err := yaml.UnmarshalStrict([]byte(strings.NewReplacer("METADATA", tc.metadata, "VOLUMES", tc.volumes).Replace(text)), w); err != nil {
				t.Fatal(err)
			}
			engine.New(w, engine.Config{Evaluate: template.InProcess()}).Step(time.Unix(0, 0))
			said := ""
			for _, c := range w.Status.Conditions {
				if c.Type == wf.ConditionSpecWarning {
					said = c.Message
				}
			}
			if tc.want == "" && said != "" || !strings.Contains(said, tc.want) {
				t.Errorf("the condition says %q, want %q", said, tc.want)
			}
		})
	}
}

// TestFieldsOfPodsAreNamed checks that a workflow says which fields have no effect where no pod is.
func TestFieldsOfPodsAreNamed(t *testing.T) {
	for spec, want := range map[string]string{
		`steps: [[{name: a, template: leaf}]]`:      "no effect: templates.main.daemon, templates.main.nodeSelector, templates.main.sidecars",
		`dag: {tasks: [{name: a, template: leaf}]}`: "no effect: templates.main.daemon, templates.main.nodeSelector, templates.main.sidecars",
		`suspend: {}`: "no effect: templates.main.daemon, templates.main.nodeSelector, templates.main.sidecars",
		`container: {image: busybox, command: [true]}`: "",
	} {
		w := &wf.Workflow{}
		text := "entrypoint: main\ntemplates:\n- {name: main, nodeSelector: {a: b}, daemon: true, sidecars: [{name: s, image: a}], " + spec + "}\n- {name: leaf, suspend: {}}"
		if err := yaml.Unmarshal([]byte(strings.ReplaceAll(text, "[true]", `["true"]`)), &w.Spec); err != nil {
			t.Fatal(err)
		}
		w.Name = "w"
		engine.New(w, engine.Config{Evaluate: template.InProcess()}).Step(time.Unix(0, 0))
		said := ""
		for _, c := range w.Status.Conditions {
			if c.Type == wf.ConditionSpecWarning {
				said = c.Message
			}
		}
		if said != want {
			t.Errorf("%s: the condition says %q, want %q", spec, said, want)
		}
	}
}
