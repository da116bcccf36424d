package install_test

import (
	"errors"
	"fmt"
	"net/http"
	"path"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// used are objects that users have in a cluster with Lockstep.
const used = `
apiVersion: v1
kind: Secret
metadata: {name: credentials-of-beijing, namespace: vela-system}
stringData: {token: secret}
---
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: kept, namespace: default, finalizers: [workflows.argoproj.io/artifact-gc]}
spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}
---
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, namespace: default, finalizers: [app.oam.dev/resource-tracker-finalizer]}
spec: {components: [{name: c, type: raw}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: of-the-shop, namespace: default, labels: {app.oam.dev/name: shop}}`

// removed returns what Uninstall reports for each object, by KIND/NAME.
func removed(t *testing.T, cfg *rest.Config, opts install.RemoveOptions) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := install.Uninstall(t.Context(), cfg, opts, func(o *unstructured.Unstructured, kept string) { out[o.GetKind()+"/"+o.GetName()] = kept })
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestUninstallRemovesWhatInstallMade(t *testing.T) {
	cfg := localtest.Start(t, localtest.WithControllerManager()).RESTConfig()
	opts := install.Options{Image: "registry.example/lockstep:1", Agent: true}
	if _, err := bring(t, cfg, opts); err != nil {
		t.Fatal(err)
	}
	if err := install.AwaitApplications(t.Context(), cfg); err != nil {
		t.Fatal(err)
	}
	create(t, cfg, used)
	objects, err := install.Objects(opts)
	if err != nil {
		t.Fatal(err)
	}
	crds := 0
	for _, o := range objects {
		if o.GetKind() == "CustomResourceDefinition" {
			crds++
		}
	}

	// A dry run reports the removals and does nothing.
	said := removed(t, cfg, install.RemoveOptions{CRDs: true, Wait: true, DryRun: true})
	if why, ok := said["Deployment/lockstep-manager"]; !ok || why != "" || said["CustomResourceDefinition/jobs.batch.volcano.sh"] != "" {
		t.Errorf("the dry run says %v", said)
	}
	for _, o := range objects {
		if kinds[o.GetKind()].Resource != "" && there(t, cfg, o.GetKind(), o.GetNamespace(), o.GetName()) == nil {
			t.Errorf("a dry run has removed %s %s", o.GetKind(), o.GetName())
		}
	}
	contents, err := install.Contents(t.Context(), cfg)
	if err != nil || len(contents) != crds {
		t.Errorf("%d CRDs of %d: %v", len(contents), crds, err)
	}
	counts := map[string]int64{}
	for _, c := range contents {
		counts[c.CRD] = c.Count
	}
	if counts["workflows.argoproj.io"] != 1 || counts["applications.core.oam.dev"] != 1 || counts["queues.scheduling.volcano.sh"] != 2 {
		t.Errorf("the CRDs hold %v", counts)
	}

	// Without the CRDs: their objects stay, and so does the namespace with the secrets of other
	// parties.
	said = removed(t, cfg, install.RemoveOptions{Wait: true})
	if why := said["Namespace/vela-system"]; !strings.Contains(why, "secrets") {
		t.Errorf("vela-system: %q", why)
	}
	if why, ok := said["Namespace/lockstep-system"]; !ok || why != "" {
		t.Errorf("lockstep-system: %q, %v", why, ok)
	}
	for _, o := range objects {
		if kinds[o.GetKind()].Resource == "" {
			continue
		}
		of := o.GetKind() == "CustomResourceDefinition" || o.GetKind() == "Queue" || strings.HasSuffix(o.GetKind(), "Definition") || o.GetName() == "vela-system"
		if now := there(t, cfg, o.GetKind(), o.GetNamespace(), o.GetName()); (now != nil) != of {
			t.Errorf("%s %s: there %v, want %v", o.GetKind(), o.GetName(), now != nil, of)
		}
	}
	if left := removed(t, cfg, install.RemoveOptions{Wait: true}); len(left) != 1 || left["Namespace/vela-system"] == "" {
		t.Errorf("the second time: %v", left)
	}
	if there(t, cfg, "Workflow", "default", "kept") == nil {
		t.Error("the workflow is gone")
	}

	// With the CRDs: objects that wait for the manager are deleted; objects that applications
	// created stay.
	said = removed(t, cfg, install.RemoveOptions{CRDs: true, Wait: true})
	if len(said) != crds+1 {
		t.Errorf("%d objects of %d: %v", len(said), crds+1, said)
	}
	for _, o := range [][3]string{{"Secret", "vela-system", "credentials-of-beijing"}, {"ConfigMap", "default", "of-the-shop"}, {"Namespace", "", "vela-system"}} {
		if there(t, cfg, o[0], o[1], o[2]) == nil {
			t.Errorf("%s %s is gone", o[0], o[2])
		}
	}
	list, err := resource(cfg, "CustomResourceDefinition", "").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) > 0 {
		t.Errorf("%d CRDs are left, %v", len(list.Items), err)
	}

	// Once the objects of other parties are gone, the namespace can be deleted, and everything can
	// be installed again.
	if err := resource(cfg, "Secret", "vela-system").Delete(t.Context(), "credentials-of-beijing", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if said := removed(t, cfg, install.RemoveOptions{CRDs: true, Wait: true}); len(said) != 1 || there(t, cfg, "Namespace", "", "vela-system") != nil {
		t.Errorf("at the end: %v", said)
	}
	localtest.Eventually(t, "a new installation", func() error {
		_, err := bring(t, cfg, opts)
		return errors.Join(err)
	})
}

// TestUninstallFreesAllObjectsAtOnce puts an object with the manager's finalizer behind a page of
// objects with finalizers of other parties, which keep the CRD.
func TestUninstallFreesAllObjectsAtOnce(t *testing.T) {
	cfg := localtest.Start(t).RESTConfig()
	opts := install.Options{}
	if _, err := bring(t, cfg, opts); err != nil {
		t.Fatal(err)
	}
	workflow := func(name, finalizer string) string {
		return fmt.Sprintf("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: %s, namespace: default, finalizers: [%s]}\n"+
			"spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}\n", name, finalizer)
	}
	var foreign []string
	for i := range 500 {
		foreign = append(foreign, workflow(fmt.Sprintf("a-%d", i), "example.com/held"))
	}
	create(t, cfg, strings.Join(foreign, "---\n")+"---\n"+workflow("z", "workflows.argoproj.io/artifact-gc"))
	removed(t, cfg, install.RemoveOptions{CRDs: true})
	if z := there(t, cfg, "Workflow", "default", "z"); z != nil && len(z.GetFinalizers()) > 0 {
		t.Errorf("the last object has the finalizers %v", z.GetFinalizers())
	}
}

// disturbing is a transport through which another client changes each workflow just before its first
// update.
type disturbing struct {
	http.RoundTripper
	disturb func(name string)
	seen    map[string]bool
}

func (d *disturbing) RoundTrip(r *http.Request) (*http.Response, error) {
	if name := path.Base(r.URL.Path); r.Method == http.MethodPut && !d.seen[name] {
		d.seen[name] = true
		d.disturb(name)
	}
	return d.RoundTripper.RoundTrip(r)
}

func TestUninstallFreesObjectsThatChangeMeanwhile(t *testing.T) {
	cfg := localtest.Start(t).RESTConfig()
	if _, err := bring(t, cfg, install.Options{}); err != nil {
		t.Fatal(err)
	}
	create(t, cfg, `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: busy, namespace: default, finalizers: [workflows.argoproj.io/artifact-gc, example.com/held]}
spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}`)
	d := &disturbing{seen: map[string]bool{}, disturb: func(name string) {
		patch := []byte(`{"metadata":{"annotations":{"changed":"meanwhile"}}}`)
		if _, err := resource(cfg, "Workflow", "default").Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}}
	disturbed := rest.CopyConfig(cfg)
	disturbed.Wrap(func(inner http.RoundTripper) http.RoundTripper { d.RoundTripper = inner; return d })
	removed(t, disturbed, install.RemoveOptions{CRDs: true})
	busy := there(t, cfg, "Workflow", "default", "busy")
	if busy == nil || len(busy.GetFinalizers()) != 1 || busy.GetFinalizers()[0] != "example.com/held" || busy.GetAnnotations()["changed"] == "" {
		t.Errorf("the workflow is left as %v", busy)
	}
}
