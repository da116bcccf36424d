package install_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// kinds are the resources of the kinds in this package's test manifests.
var kinds = map[string]schema.GroupVersionResource{
	"Namespace":                      {Version: "v1", Resource: "namespaces"},
	"Secret":                         {Version: "v1", Resource: "secrets"},
	"ConfigMap":                      {Version: "v1", Resource: "configmaps"},
	"Deployment":                     {Group: "apps", Version: "v1", Resource: "deployments"},
	"CustomResourceDefinition":       {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	"ValidatingWebhookConfiguration": {Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"},
	"ClusterRole":                    {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"},
	"ClusterRoleBinding":             {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"},
	"Job":                            {Group: "batch.volcano.sh", Version: "v1alpha1", Resource: "jobs"},
	"Workflow":                       {Group: "argoproj.io", Version: "v1alpha1", Resource: "workflows"},
	"Queue":                          {Group: "scheduling.volcano.sh", Version: "v1beta1", Resource: "queues"},
	"Application":                    {Group: "core.oam.dev", Version: "v1beta1", Resource: "applications"},
	"ComponentDefinition":            {Group: "core.oam.dev", Version: "v1beta1", Resource: "componentdefinitions"},
}

func resource(cfg *rest.Config, kind, namespace string) dynamic.ResourceInterface {
	r := dynamic.NewForConfigOrDie(cfg).Resource(kinds[kind])
	if namespace == "" {
		return r
	}
	return r.Namespace(namespace)
}

// create creates the objects of manifests, each as soon as its kind is served.
func create(t *testing.T, cfg *rest.Config, manifests string) {
	t.Helper()
	for _, text := range strings.Split(manifests, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(text), &o.Object); err != nil {
			t.Fatal(err)
		}
		localtest.Eventually(t, "creating "+o.GetKind()+" "+o.GetName(), func() error {
			_, err := resource(cfg, o.GetKind(), o.GetNamespace()).Create(t.Context(), o, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
}

// there returns an object, or nil.
func there(t *testing.T, cfg *rest.Config, kind, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	o, err := resource(cfg, kind, namespace).Get(t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// anothers are the manifests of another controller for batch jobs: its own CRD, a webhook, its
// Deployment and a user's job; and of a webhook that inspects all groups and serves none.
const anothers = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: jobs.batch.volcano.sh
  annotations: {meta.helm.sh/release-name: gangs, meta.helm.sh/release-namespace: gangs-system}
  labels: {app.kubernetes.io/managed-by: Helm}
spec:
  group: batch.volcano.sh
  scope: Namespaced
  names: {kind: Job, plural: jobs, singular: job, listKind: JobList}
  versions:
  - {name: v1alpha1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: theirs, namespace: default}
spec: {anything: goes}
---
apiVersion: v1
kind: Namespace
metadata: {name: gangs-system}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: gangs, namespace: gangs-system}
spec:
  selector: {matchLabels: {app: gangs}}
  template:
    metadata: {labels: {app: gangs}}
    spec: {containers: [{name: c, image: "registry.example:5000/mirror/vc-controller-manager:v1@sha256:0000000000000000000000000000000000000000000000000000000000000000"}]}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: gangs-jobs}
webhooks:
- name: jobs.gangs.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  clientConfig: {url: "https://127.0.0.1:1/jobs"}
  rules: [{apiGroups: [batch.volcano.sh], apiVersions: ["*"], operations: [CREATE], resources: [jobs]}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingWebhookConfiguration
metadata: {name: looks-at-everything}
webhooks:
- name: all.example.com
  admissionReviewVersions: [v1]
  sideEffects: None
  failurePolicy: Ignore
  clientConfig: {url: "https://127.0.0.1:1/all"}
  rules: [{apiGroups: ["*"], apiVersions: ["*"], operations: [CREATE], resources: [configmaps]}]
---
apiVersion: v1
kind: Namespace
metadata: {name: vela-system}
---
apiVersion: v1
kind: Secret
metadata: {name: credentials-of-beijing, namespace: vela-system}
stringData: {token: secret}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: lockstep-view}
rules: []`

// bring runs Install and counts the changes.
func bring(t *testing.T, cfg *rest.Config, opts install.Options) (map[install.Change]int, error) {
	t.Helper()
	changes := map[install.Change]int{}
	err := install.Install(t.Context(), cfg, opts, func(_ *unstructured.Unstructured, c install.Change) { changes[c]++ })
	return changes, err
}

// foreign returns the findings of an error, by object.
func foreign(err error) map[string]string {
	var f *install.ForeignError
	if !errors.As(err, &f) {
		return nil
	}
	out := map[string]string{}
	for _, finding := range f.Findings {
		out[finding.Object] = finding.Problem
	}
	return out
}

// TestInstallStopsBeforeWhatOthersServe covers the whole sequence: install over a foreign
// installation, take it over, uninstall.
func TestInstallStopsBeforeWhatOthersServe(t *testing.T) {
	// The controller manager deletes namespaces.
	cfg := localtest.Start(t, localtest.WithControllerManager()).RESTConfig()
	create(t, cfg, anothers)
	before := there(t, cfg, "CustomResourceDefinition", "", "jobs.batch.volcano.sh")
	for name, opts := range map[string]install.Options{"install": {}, "dry run": {DryRun: true}} {
		changes, err := bring(t, cfg, opts)
		found := foreign(err)
		want := []string{
			"clusterrole.rbac.authorization.k8s.io/lockstep-view", "customresourcedefinition.apiextensions.k8s.io/jobs.batch.volcano.sh",
			"deployment.apps/gangs-system/gangs", "validatingwebhookconfiguration.admissionregistration.k8s.io/gangs-jobs",
		}
		if got := slices.Sorted(maps.Keys(found)); !slices.Equal(got, want) {
			t.Fatalf("%s: found %v (%v), want %v", name, got, err, want)
		}
		for object, part := range map[string]string{
			"customresourcedefinition.apiextensions.k8s.io/jobs.batch.volcano.sh":    "the Helm release gangs-system/gangs",
			"validatingwebhookconfiguration.admissionregistration.k8s.io/gangs-jobs": "each write of jobs.batch.volcano.sh",
			"deployment.apps/gangs-system/gangs":                                     "vc-controller-manager",
		} {
			if !strings.Contains(found[object], part) {
				t.Errorf("%s: of %s it says %q, without %q", name, object, found[object], part)
			}
		}
		if crd := found["customresourcedefinition.apiextensions.k8s.io/jobs.batch.volcano.sh"]; !strings.Contains(crd, "1 object") || !strings.Contains(crd, "lost") {
			t.Errorf("%s: what becomes of the objects: %q", name, crd)
		}
		if opts.DryRun != (changes[install.Created] > 100) {
			t.Errorf("%s tells of %v", name, changes)
		}
		if now := there(t, cfg, "CustomResourceDefinition", "", "jobs.batch.volcano.sh"); now.GetResourceVersion() != before.GetResourceVersion() {
			t.Errorf("%s has changed their CRD", name)
		}
		if there(t, cfg, "CustomResourceDefinition", "", "workflows.argoproj.io") != nil || there(t, cfg, "Namespace", "", "lockstep-system") != nil {
			t.Errorf("%s has installed a part", name)
		}
	}

	// Take over.
	var told []string
	if _, err := bring(t, cfg, install.Options{TakeOver: true, Found: func(f install.Finding) { told = append(told, f.Object) }}); err != nil || len(told) != 4 {
		t.Fatalf("take over: %v, told of %v", err, told)
	}
	if crd := there(t, cfg, "CustomResourceDefinition", "", "jobs.batch.volcano.sh"); crd.GetUID() != before.GetUID() || crd.GetAnnotations()[install.TakenOverAnnotation] == "" {
		t.Errorf("the CRD after it was taken over: %v", crd.GetAnnotations())
	}
	if there(t, cfg, "Job", "default", "theirs") == nil {
		t.Error("the job is gone")
	}
	if _, err := bring(t, cfg, install.Options{}); len(foreign(err)) != 2 {
		t.Errorf("the second time: %v, want the webhook and the controller alone", err)
	}
	changes, err := bring(t, cfg, install.Options{TakeOver: true})
	if err != nil || changes[install.Created]+changes[install.Configured] > 0 {
		t.Errorf("the second time: %v, %v", changes, err)
	}

	// Uninstall: the objects of the other party stay.
	kept := map[string]string{}
	err = install.Uninstall(t.Context(), cfg, install.RemoveOptions{CRDs: true, Wait: true}, func(o *unstructured.Unstructured, why string) {
		if why != "" {
			kept[o.GetName()] = why
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(kept)); !slices.Equal(got, []string{"jobs.batch.volcano.sh", "lockstep-view", "vela-system"}) {
		t.Errorf("kept is %v", kept)
	}
	for _, o := range [][3]string{
		{"CustomResourceDefinition", "", "jobs.batch.volcano.sh"}, {"Job", "default", "theirs"}, {"ClusterRole", "", "lockstep-view"},
		{"Namespace", "", "vela-system"}, {"Secret", "vela-system", "credentials-of-beijing"}, {"Deployment", "gangs-system", "gangs"},
		{"ValidatingWebhookConfiguration", "", "gangs-jobs"}, {"ValidatingWebhookConfiguration", "", "looks-at-everything"},
	} {
		if there(t, cfg, o[0], o[1], o[2]) == nil {
			t.Errorf("%s %s is gone", o[0], o[2])
		}
	}
	for _, o := range [][3]string{{"CustomResourceDefinition", "", "workflows.argoproj.io"}, {"ClusterRole", "", "lockstep-edit"}} {
		if there(t, cfg, o[0], o[1], o[2]) != nil {
			t.Errorf("%s %s is still there", o[0], o[2])
		}
	}
}

// TestWhatKubectlAppliedIsOurs checks that objects applied by kubectl from the printed manifests
// count as Install's own.
func TestWhatKubectlAppliedIsOurs(t *testing.T) {
	cfg := localtest.Start(t).RESTConfig()
	objects, err := install.Objects(install.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for i, o := range objects {
		if i%2 == 0 { // as printed by versions without the label
			o.SetLabels(nil)
		}
		if o.GetKind() == "CustomResourceDefinition" {
			if _, err := resource(cfg, o.GetKind(), "").Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := bring(t, cfg, install.Options{}); err != nil {
		t.Error(err)
	}
}
