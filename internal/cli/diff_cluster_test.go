package cli_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

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

// TestDryRunSeesWhatPoliciesGive renders a template that reads a label of a global policy.
func TestDryRunSeesWhatPoliciesGive(t *testing.T) {
	file := filepath.Join(t.TempDir(), "shop.yaml")
	const manifests = `
apiVersion: core.oam.dev/v1beta1
kind: PolicyDefinition
metadata: {name: centre}
spec: {scope: Application, global: true, schematic: {cue: {template: 'output: labels: "example.com/centre": context.appName'}}}
---
apiVersion: core.oam.dev/v1beta1
kind: ComponentDefinition
metadata: {name: page}
spec:
  workload: {definition: {apiVersion: v1, kind: ConfigMap}}
  schematic: {cue: {template: 'output: {apiVersion: "v1", kind: "ConfigMap", data: centre: context.appLabels["example.com/centre"]}'}}
---
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec: {components: [{name: front, type: page}]}`
	if err := os.WriteFile(file, []byte(manifests), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, out, errOut := run(localtest.Shared(t), "app", "dry-run", "-f", file, "--offline"); code != 0 || !strings.Contains(out, "centre: shop") {
		t.Errorf("exit code %d\n%s\n%s", code, out, errOut)
	}
}

// TestThePolicyOfACluster checks the warnings of the API server with the policy that def policy
// prints from the cluster's definitions.
func TestThePolicyOfACluster(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	apply := func(text string, more ...string) (string, string) {
		t.Helper()
		file := filepath.Join(dir, "manifest.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errOut := run(c, append([]string{"submit", "-f", file}, more...)...)
		if code != 0 {
			t.Fatalf("exit code %d\n%s\n%s", code, out, errOut)
		}
		return out, errOut
	}
	apply(`
{apiVersion: v1, kind: Namespace, metadata: {name: with-policy}}
---
{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: gpu-job, namespace: vela-system},
 spec: {workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: "output: {apiVersion: \"v1\", kind: \"ConfigMap\", data: {a: parameter.image, b: \"\\(parameter.gpus)\"}}\nparameter: {image: string, gpus: *1 | int}"}}}}
---
{apiVersion: core.oam.dev/v1beta1, kind: ComponentDefinition, metadata: {name: versioned, namespace: with-policy},
 spec: {version: 1.4.2, workload: {type: autodetects.core.oam.dev}, schematic: {cue: {template: "output: {apiVersion: \"v1\", kind: \"ConfigMap\"}"}}}}
---
{apiVersion: core.oam.dev/v1beta1, kind: DefinitionRevision, metadata: {name: versioned-v1.4.2, namespace: with-policy, labels: {componentdefinition.oam.dev/name: versioned}},
 spec: {revision: 1, revisionHash: a, definitionType: Component, componentDefinition: {metadata: {name: versioned}, spec: {workload: {type: autodetects.core.oam.dev}}}}}
---
{apiVersion: core.oam.dev/v1beta1, kind: TraitDefinition, metadata: {name: local-trait, namespace: with-policy}, spec: {schematic: {cue: {template: "patch: {}"}}}}
---
{apiVersion: core.oam.dev/v1beta1, kind: TraitDefinition, metadata: {name: scaler, namespace: with-policy}, spec: {schematic: {cue: {template: "patch: metadata: labels: a: parameter.other\nparameter: other: string"}}}}
`)
	code, policy, errOut := run(c, "def", "policy")
	if code != 0 {
		t.Fatalf("exit code %d\n%s", code, errOut)
	}
	apply(policy)
	t.Cleanup(func() { // other tests know the policy of the built-in definitions
		if err := install.Apply(context.Background(), c.RESTConfig()); err != nil {
			t.Error(err)
		}
	})
	app := `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: a, namespace: with-policy}
spec:
  components:
  - {name: good, type: gpu-job@v1, properties: {image: a, gpus: 2}, traits: [{type: local-trait}, {type: scaler, properties: {other: x}}]}
  - {name: bad, type: gpu-job, properties: {gpu: 2, gpus: many}}
  - {name: none, type: webservce, traits: [{type: scalar}]}
  - {name: found, type: versioned@v1.4}
  - {name: full, type: versioned@1.4.2}
  - {name: late, type: versioned@1.5}
  - {name: never, type: gpu-job@v9}
  policies: [{name: p, type: topology, properties: {clusters: [local]}}, {name: q, type: topologie}]
  workflow: {steps: [{name: s, type: deploi}, {name: g, type: step-group, subSteps: [{name: b, type: suspend}, {name: x, type: supend}]}]}
`
	wants := []string{
		"component late: there is no ComponentDefinition versioned@1.5", "component never: there is no ComponentDefinition gpu-job@v9",
		"component none: there is no ComponentDefinition webservce", "component none: there is no TraitDefinition scalar", "there is no PolicyDefinition topologie",
		"step s: there is no WorkflowStepDefinition deploi", "step x: there is no WorkflowStepDefinition supend",
		"component bad: gpu-job has no property gpu", "component bad: gpus of gpu-job is a whole number, not a string", "component bad: gpu-job needs the property image",
	}
	h := &warnings{}
	cfg := rest.CopyConfig(c.RESTConfig())
	cfg.WarningHandler = h
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(app), &u.Object); err != nil {
		t.Fatal(err)
	}
	apps := dynamic.NewForConfigOrDie(cfg).Resource(schema.GroupVersionResource{Group: "core.oam.dev", Version: "v1beta1", Resource: "applications"})
	localtest.Eventually(t, "the API server warns as the policy says", func() error {
		h.text = ""
		_, err := apps.Namespace("with-policy").Create(t.Context(), u, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		for _, want := range wants {
			if !strings.Contains(h.text, want) {
				return fmt.Errorf("%q is not in\n%s", want, h.text)
			}
		}
		return nil
	})
	for _, text := range []string{"component good", "component found", "component full", "local-trait", "step b", "step g", "PolicyDefinition topology;", "built-in"} {
		if strings.Contains(h.text, text) {
			t.Errorf("it warns of %s:\n%s", text, h.text)
		}
	}
}

// warnings keeps the warnings of the API server.
type warnings struct{ text string }

// HandleWarningHeader implements rest.WarningHandler.
func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.text += text + ";\n" }

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
  workflow: {steps: [{name: all, type: deploy, properties: {police: [a]}}, {name: group, type: step-group, subSteps: [{name: sub, type: supend}, {name: cli, type: nocli}]}]}
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
		"warning: application shop: step cli: there is no WorkflowStepDefinition nocli",
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
