package admission_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/admission"
)

func newRules(t *testing.T) *admission.Rules {
	t.Helper()
	rules, err := admission.New(config.CRDs(), config.Policies())
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

func check(t *testing.T, rules *admission.Rules, manifest string) string {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		t.Fatalf("%v in\n%s", err, manifest)
	}
	list, err := rules.Check(u)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, r := range list {
		lines = append(lines, r.String())
	}
	return strings.Join(lines, "\n")
}

// TestRefusals has a case for each kind of rule. test/rules compares many more with the API server.
func TestRefusals(t *testing.T) {
	rules := newRules(t)
	const tasks = `tasks: [{name: w, replicas: 2, template: {spec: {containers: [{name: c, image: i}]}}}]`
	for what, c := range map[string]struct{ manifest, want string }{
		"a good job":   {`{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: j, namespace: ns}, spec: {` + tasks + `}}`, ""},
		"another kind": {`{apiVersion: v1, kind: Service, metadata: {name: j}, spec: {nonsense: 1}}`, ""},
		"an unknown field": {`{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q}, spec: {wieght: 1}}`,
			"spec.wieght: unknown field"},
		"an unknown field of the metadata": {`{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q, lables: {}}}`,
			"metadata.lables: unknown field"},
		"a bad name":       {`{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: Q}}`, "metadata.name: Invalid value"},
		"a generated name": {`{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {generateName: j-}, spec: {` + tasks + `}}`, ""},
		"the schema": {`{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q}, spec: {weight: 0}}`,
			"spec.weight: Invalid value: 0"},
		"a rule of the CRD": {`{apiVersion: scheduling.volcano.sh/v1beta1, kind: PodGroup, metadata: {name: g},
			spec: {networkTopology: {highestTierAllowed: 1, highestTierName: rack}}}`, "spec.networkTopology.highestTierName: Invalid value: highestTierAllowed and"},
		"a policy": {`{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, metadata: {name: j}, spec: {minAvailable: 3, ` + tasks + `}}`,
			"spec.minAvailable: must not be greater than the replicas of all tasks together"},
		"a status where it has a resource of its own": {`{apiVersion: scheduling.volcano.sh/v1beta1, kind: Queue, metadata: {name: q}, status: {x: 1}}`, ""},
		"publishVersion with autoUpdate": {`{apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: a,
			annotations: {app.oam.dev/publishVersion: v1, app.oam.dev/autoUpdate: "true"}}, spec: {components: [{name: c, type: webservice}]}}`,
			"app.oam.dev/autoUpdate"},
		"a version and the name of a revision": {`{apiVersion: core.oam.dev/v1beta1, kind: TraitDefinition, metadata: {name: t,
			annotations: {definitionrevision.oam.dev/name: 1.0.0}}, spec: {version: 1.0.0}}`, "only one of them can be set"},
		"a version": {`{apiVersion: core.oam.dev/v1beta1, kind: PolicyDefinition, metadata: {name: p}, spec: {version: 1.0.0}}`, ""},
		"the name of a revision": {`{apiVersion: core.oam.dev/v1beta1, kind: WorkflowStepDefinition, metadata: {name: s,
			annotations: {definitionrevision.oam.dev/name: 1.0.0}}, spec: {}}`, ""},
		"two workloads": {`{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: c},
			spec: {workload: {type: jobs.batch, definition: {apiVersion: apps/v1, kind: Deployment}}}}`,
			"spec.workload.type: jobs.batch is of another API group than spec.workload.definition, apps/v1"},
		"two workloads, one of the core group": {`{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: c},
			spec: {workload: {type: deployments.apps, definition: {apiVersion: v1, kind: Pod}}}}`, "spec.workload.type"},
		"one workload in two ways": {`{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: c},
			spec: {workload: {type: deployments.apps, definition: {apiVersion: apps/v1, kind: Deployment}}}}`, ""},
		"a workload that its template tells": {`{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: c},
			spec: {workload: {type: autodetects.core.oam.dev, definition: {apiVersion: apps/v1, kind: Deployment}}}}`, ""},
		"a package that there is not": {`{apiVersion: core.oam.dev/v1beta1, kind: WorkflowStepDefinition, metadata: {name: s},
			spec: {schematic: {cue: {template: "import \"vela/doesnotexist\"\n\nx: doesnotexist.#X"}}}}`,
			`spec.schematic.cue.template: builtin package "vela/doesnotexist" undefined; there are vela/op, vela/kube`},
		"a package in a list that there is not": {`{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: c},
			spec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: "import (\n\t\"strings\"\n\tk \"vela/kubes\"\n)\n\noutput: {}"}}}}`, `builtin package "vela/kubes" undefined`},
		"packages that there are": {`{apiVersion: core.oam.dev/v1beta1, kind: WorkflowStepDefinition, metadata: {name: s},
			spec: {schematic: {cue: {template: "import (\n\t\"vela/op\"\n\t\"vela/kube\"\n)\n\nimport \"vela/http\"\n\nx: op.#Steps"}}}}`, ""},
		"texts that are no packages": {`{apiVersion: core.oam.dev/v1beta1, kind: TraitDefinition, metadata: {name: t},
			spec: {schematic: {cue: {template: "// \"vela/none\" is not imported\nx: \"vela/none\"\ny: [\n\t\"vela/none\",\n]"}}}}`, ""},
	} {
		if got := check(t, rules, c.manifest); !strings.Contains(got, c.want) || c.want == "" && got != "" {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
}

// TestExamplesAreAccepted checks all manifests of examples/, which tests also run.
func TestExamplesAreAccepted(t *testing.T) {
	rules := newRules(t)
	n := 0
	err := filepath.WalkDir("../../examples", func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, doc := range strings.Split("\n"+string(data), "\n---") {
			if got := check(t, rules, doc); got != "" {
				t.Errorf("%s: %s", path, got)
			}
			n++
		}
		return nil
	})
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
}
