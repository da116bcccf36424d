package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestDiffReadsTheNamespaceOfTheManifest compares an application of another namespace than the
// current one. Its definition is in that namespace, and its objects depend on its labels.
func TestDiffReadsTheNamespaceOfTheManifest(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	const app = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, namespace: elsewhere, labels: {team: TEAM}}
spec: {components: [{name: front, type: page}]}`
	group := schema.GroupVersion{Group: "core.oam.dev", Version: "v1beta1"}
	create(t, c, map[string]schema.GroupVersionResource{
		"Namespace": {Version: "v1", Resource: "namespaces"}, "Application": group.WithResource("applications"),
		"ComponentDefinition": group.WithResource("componentdefinitions"),
	}, `
apiVersion: v1
kind: Namespace
metadata: {name: elsewhere}
---
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: page, namespace: elsewhere}
spec:
  workload: {definition: {apiVersion: v1, kind: ConfigMap}}
  schematic:
    cue:
      template: |
        output: {apiVersion: "v1", kind: "ConfigMap", data: team: context.appLabels.team}
        parameter: {}
---`+strings.ReplaceAll(app, "TEAM", "red"))
	file := filepath.Join(t.TempDir(), "shop.yaml")
	for team, want := range map[string][]string{
		"red":  {"application shop: no change", "objects of shop: no change"},
		"blue": {"application shop: no change", "-  team: red\n+  team: blue\n"},
	} {
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(app, "TEAM", team)), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errOut := run(c, "app", "diff", "-f", file)
		for _, text := range want {
			if code != 0 || !strings.Contains(out, text) {
				t.Errorf("team %s: exit code %d, %q is not in\n%s\n%s", team, code, text, out, errOut)
			}
		}
		if code, out, errOut := run(c, "app", "dry-run", "-f", file); code != 0 || !strings.Contains(out, "team: "+team) {
			t.Errorf("dry-run: %d %s %s", code, out, errOut)
		}
	}
}

// TestDryRunNamesComponentsThatCannotBeRendered renders an application of which one component has no
// definition.
func TestDryRunNamesComponentsThatCannotBeRendered(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.yaml")
	const app = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec: {components: [{name: front, type: webservice, properties: {image: a}}, {name: back, type: gpu}], workflow: {steps: [{name: s, type: suspend, properties: {time: 1s}}]}}`
	if err := os.WriteFile(file, []byte(app), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errOut := run(localtest.Shared(t), "app", "dry-run", "-f", file, "--offline")
	if code != 1 || !strings.Contains(out, "kind: Deployment") || !strings.Contains(errOut, "component back: there is no ComponentDefinition gpu") ||
		!strings.Contains(errOut, "step s: properties.time has no effect") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errOut)
	}
}

// TestUpWarnsOfMisspeltProperties checks that up names the properties that definitions do not know, of
// built-in definitions and of the cluster's.
func TestUpWarnsOfMisspeltProperties(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "shop.yaml")
	const manifests = `
apiVersion: v1
kind: Namespace
metadata: {name: misspelt}
---
apiVersion: core.oam.dev/v1beta1
kind: TraitDefinition
metadata: {name: own, namespace: misspelt}
spec: {schematic: {cue: {template: "patch: metadata: labels: a: parameter.inner.name\nparameter: inner: name: string"}}}
---
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, namespace: misspelt}
spec:
  components:
  - name: web
    type: webservice
    properties: {image: x, imag: y, ports: [{port: 80, expos: true}]}
    traits: [{type: own, properties: {inner: {name: a, nam: b}}}, {type: nobody-has-it}]
  - {name: misspelt, type: webservce}
  - {name: late, type: among@v1}
  policies: [{name: p, type: nobodys}, {name: q, type: topology}]
  workflow: {steps: [{name: all, type: deploy, properties: {police: [a]}}, {name: group, type: step-group, subSteps: [{name: sub, type: supend}, {name: cli, type: vela-cli}]}]}
---
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: among, namespace: misspelt}
spec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: "output: {apiVersion: \"v1\", kind: \"ConfigMap\"}"}}}`
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	run(c, "app", "up", "-f", file) // now the cluster has the trait
	code, out, errOut := run(c, "app", "up", "-f", file)
	for _, want := range []string{
		"warning: application shop: component web: properties.imag has no effect: ComponentDefinition webservice does not know it",
		"warning: application shop: component web: properties.ports[0].expos (expose?) is not declared by ComponentDefinition webservice",
		"warning: application shop: component web: traits[0]: properties.inner.nam (name?) is not declared by TraitDefinition own",
		"warning: application shop: component web: traits[1]: there is no TraitDefinition nobody-has-it\n",
		"warning: application shop: component misspelt: there is no ComponentDefinition webservce (webservice?)",
		"warning: application shop: policy p: there is no PolicyDefinition nobodys\n",
		"warning: application shop: step sub: there is no WorkflowStepDefinition supend (suspend?)",
		"warning: application shop: step cli: there is no WorkflowStepDefinition vela-cli: ",
		"warning: application shop: step all: properties.police has no effect: WorkflowStepDefinition deploy does not know it",
	} {
		if code != 0 || !strings.Contains(errOut, want) {
			t.Errorf("exit code %d, %q is not in\n%s\n%s", code, want, out, errOut)
		}
	}
	if n := strings.Count(errOut, "there is no"); n != 5 {
		t.Errorf("%d types are said to be unknown, want 5:\n%s", n, errOut)
	}
}
