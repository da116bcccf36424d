package applications

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// These tests make the requests that KubeVela's command line makes, and read of the answers what it
// reads: the same resources, labels, annotations and fields. What is done to pods (logs, exec,
// port-forward) needs nodes that run containers; here it ends with the pod that they would use.

// vela is a user of KubeVela's command line in one namespace.
type vela struct {
	*testing.T
	w  *world
	ns string
}

func asVela(t *testing.T) *vela {
	w := open(t)
	return &vela{T: t, w: w, ns: localtest.Namespace(t, w.core)}
}

var (
	velaApplications = oam.GroupVersion.WithResource("applications")
	velaRevisions    = oam.GroupVersion.WithResource("applicationrevisions")
	velaTrackers     = oam.GroupVersion.WithResource("resourcetrackers")
)

// apply applies a manifest of an Application.
func (v *vela) apply(manifest string) {
	v.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		v.Fatal(err)
	}
	if _, err := v.w.dyn.Resource(velaApplications).Namespace(v.ns).Apply(v.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "user", Force: true}); err != nil {
		v.Fatal(err)
	}
}

// beside applies a manifest of another object.
func (v *vela) beside(manifest string) {
	v.Helper()
	object := map[string]any{}
	if err := yaml.Unmarshal([]byte(manifest), &object); err != nil {
		v.Fatal(err)
	}
	(&run{T: v.T, w: v.w, ns: v.ns}).apply(object)
}

func (v *vela) get(r schema.GroupVersionResource, name string) *unstructured.Unstructured {
	v.Helper()
	u, err := v.w.dyn.Resource(r).Namespace(v.ns).Get(v.Context(), name, metav1.GetOptions{})
	if err != nil {
		v.Fatal(err)
	}
	return u
}

// until waits until an Application has a phase and a revision.
func (v *vela) until(app, phase, revision string) *unstructured.Unstructured {
	v.Helper()
	var u *unstructured.Unstructured
	eventually(v, app+" is "+phase+" as "+revision, func() (err error) {
		if u, err = v.w.dyn.Resource(velaApplications).Namespace(v.ns).Get(v.Context(), app, metav1.GetOptions{}); err != nil {
			return err
		}
		status, _ := u.Object["status"].(map[string]any)
		return contains(status, map[string]any{
			"status": phase, "observedGeneration": u.GetGeneration(), "latestRevision": map[string]any{"name": revision},
		}, "status")
	})
	return u
}

// trackers lists the trackers of an Application. current is the one of the Application's present
// state; history has the others.
func (v *vela) trackers(app *unstructured.Unstructured) (current *unstructured.Unstructured, history []*unstructured.Unstructured) {
	v.Helper()
	list, err := v.w.dyn.Resource(velaTrackers).List(v.Context(), metav1.ListOptions{
		LabelSelector: oam.AppNameLabel + "=" + app.GetName() + "," + oam.AppNamespaceLabel + "=" + v.ns,
	})
	if err != nil {
		v.Fatal(err)
	}
	for i := range list.Items {
		rt := &list.Items[i]
		if uid := rt.GetLabels()[oam.AppUIDLabel]; uid != string(app.GetUID()) {
			v.Fatalf("tracker %s is of the application %s", rt.GetName(), uid)
		}
		if packed, _, _ := unstructured.NestedString(rt.Object, "spec", "compression", "type"); packed != "" {
			v.Fatalf("the list of tracker %s would be unpacked as %s", rt.GetName(), packed)
		}
		if kind, _, _ := unstructured.NestedString(rt.Object, "spec", "type"); kind != "versioned" {
			v.Fatalf("tracker %s is %s", rt.GetName(), kind)
		}
		generation, _, _ := unstructured.NestedInt64(rt.Object, "spec", "applicationGeneration")
		is := generation == app.GetGeneration()
		if version := app.GetAnnotations()[oam.PublishVersionAnnotation]; version != "" {
			is = rt.GetAnnotations()[oam.PublishVersionAnnotation] == version
		}
		if is {
			current = rt
		} else {
			history = append(history, rt)
		}
	}
	return current, history
}

// tree returns the objects of an Application, as CLUSTER COMPONENT TRAIT KIND/NAME.
func (v *vela) tree(app *unstructured.Unstructured) []string {
	v.Helper()
	current, _ := v.trackers(app)
	if current == nil {
		return nil
	}
	var out []string
	resources, _, _ := unstructured.NestedSlice(current.Object, "spec", "managedResources")
	for _, r := range resources {
		m := r.(map[string]any)
		text := func(field string) string { s, _ := m[field].(string); return s }
		if m["deleted"] == true {
			continue
		}
		live := &unstructured.Unstructured{}
		live.SetAPIVersion(text("apiVersion"))
		live.SetKind(text("kind"))
		at, err := v.w.resource(live, text("namespace"))
		if err != nil {
			v.Fatal(err)
		}
		if live, err = at.Get(v.Context(), text("name"), metav1.GetOptions{}); err != nil {
			v.Fatal(err)
		}
		if of := live.GetLabels()[oam.AppComponentLabel]; of != text("component") {
			v.Errorf("%s %s is of the component %s", live.GetKind(), live.GetName(), of)
		}
		cluster := text("cluster")
		if cluster == "" {
			cluster = "local"
		}
		out = append(out, strings.Join(strings.Fields(cluster+" "+text("component")+" "+text("trait")+" "+text("kind")+"/"+text("name")), " "))
	}
	slices.Sort(out)
	return out
}

// view reads a view, as the command line does before it evaluates it.
func (v *vela) view(name string) {
	v.Helper()
	m, err := v.w.core.CoreV1().ConfigMaps(oam.SystemNamespace).Get(v.Context(), name, metav1.GetOptions{})
	if err != nil || !strings.Contains(m.Data["template"], "parameter: {") || !strings.Contains(m.Data["template"], "status: {") {
		v.Errorf("view %s: %v: %+v", name, err, m)
	}
}

// pods returns the names of the pods of a component: those that its Deployment selects.
func (v *vela) pods(app *unstructured.Unstructured, component string) []string {
	v.Helper()
	v.view("component-pod-view")
	var out []string
	for _, line := range v.tree(app) {
		name, ok := strings.CutPrefix(line, "local "+component+" Deployment/")
		if !ok {
			continue
		}
		d, err := v.w.core.AppsV1().Deployments(v.ns).Get(v.Context(), name, metav1.GetOptions{})
		if err != nil {
			v.Fatal(err)
		}
		list, err := v.w.core.CoreV1().Pods(v.ns).List(v.Context(), metav1.ListOptions{LabelSelector: metav1.FormatLabelSelector(d.Spec.Selector)})
		if err != nil {
			v.Fatal(err)
		}
		for i := range list.Items {
			out = append(out, list.Items[i].Name)
		}
	}
	return out
}

// revisions lists the revisions of an Application, oldest first, as NAME PUBLISHVERSION SUCCEEDED
// STATUS. The status is NotStart without a workflow.
func (v *vela) revisions(app string) []string {
	v.Helper()
	list, err := v.w.dyn.Resource(velaRevisions).Namespace(v.ns).List(v.Context(), metav1.ListOptions{LabelSelector: oam.AppNameLabel + "=" + app})
	if err != nil {
		v.Fatal(err)
	}
	number := func(u unstructured.Unstructured) int {
		n, _ := strconv.Atoi(u.GetName()[strings.LastIndex(u.GetName(), "-v")+2:])
		return n
	}
	slices.SortFunc(list.Items, func(a, b unstructured.Unstructured) int { return number(a) - number(b) })
	var out []string
	for _, r := range list.Items {
		if r.GetLabels()[oam.AppRevisionHashLabel] == "" {
			v.Errorf("revision %s has no hash", r.GetName())
		}
		succeeded, _, _ := unstructured.NestedBool(r.Object, "status", "succeeded")
		workflow, started, _ := unstructured.NestedMap(r.Object, "status", "workflow")
		status := "NotStart"
		switch {
		case !started:
		case workflow["startTime"] == nil:
			v.Errorf("the workflow of revision %s has no beginning", r.GetName())
		case succeeded:
			status = "Succeeded"
		case workflow["terminated"] == true || workflow["suspend"] == true || workflow["finished"] == true:
			status = "Failed"
		default:
			status = "Executing"
		}
		out = append(out, strings.Join(strings.Fields(fmt.Sprint(r.GetName(), " ", r.GetAnnotations()[oam.PublishVersionAnnotation], " ", succeeded, " ", status)), " "))
	}
	return out
}

// unpacked returns the spec of a revision after its compressed part has been merged into it.
func (v *vela) unpacked(r *unstructured.Unstructured) map[string]any {
	v.Helper()
	spec, _, _ := unstructured.NestedMap(r.Object, "spec")
	kind, _, _ := unstructured.NestedString(spec, "compression", "type")
	data, _, _ := unstructured.NestedString(spec, "compression", "data")
	if kind == "" {
		return spec
	}
	raw, err := base64.StdEncoding.DecodeString(data)
	if err != nil || kind != "gzip" {
		v.Fatalf("packed as %s: %v", kind, err)
	}
	z, err := gzip.NewReader(bytes.NewReader(raw))
	if err != nil {
		v.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		v.Fatal(err)
	}
	if err := json.Unmarshal(text, &spec); err != nil {
		v.Fatal(err)
	}
	return spec
}

// update replaces an object, or its status, as a client with Go types does: on condition of its
// version, and only with the fields that its types have.
func (v *vela) update(r schema.GroupVersionResource, u *unstructured.Unstructured, subresource ...string) error {
	at := v.w.dyn.Resource(r).Namespace(u.GetNamespace())
	if r == velaTrackers {
		spec, _, _ := unstructured.NestedMap(u.Object, "spec")
		known := func(m map[string]any, fields ...string) {
			maps.DeleteFunc(m, func(k string, _ any) bool { return !slices.Contains(fields, k) })
		}
		known(spec, "type", "applicationGeneration", "managedResources", "compression")
		if packed, ok := spec["compression"].(map[string]any); ok {
			known(packed, "type", "data")
		}
		for _, m := range spec["managedResources"].([]any) {
			known(m.(map[string]any), "cluster", "creator", "apiVersion", "kind", "namespace", "name", "component", "trait", "raw", "deleted", "skipGC")
		}
		u.Object = map[string]any{"apiVersion": u.Object["apiVersion"], "kind": u.Object["kind"], "metadata": u.Object["metadata"], "spec": spec}
	}
	_, err := at.Update(v.Context(), u, metav1.UpdateOptions{}, subresource...)
	return err
}

// mergeStatus writes the whole object as a merge patch of its status.
func (v *vela) mergeStatus(app *unstructured.Unstructured) {
	v.Helper()
	data, err := json.Marshal(app.Object)
	if err == nil {
		_, err = v.w.dyn.Resource(velaApplications).Namespace(v.ns).Patch(v.Context(), app.GetName(), types.MergePatchType, data, metav1.PatchOptions{}, "status")
	}
	if err != nil {
		v.Fatal(err)
	}
}

// changed reads an Application, changes it and writes it, again after a conflict.
func (v *vela) changed(app string, change func(*unstructured.Unstructured), subresource ...string) *unstructured.Unstructured {
	v.Helper()
	var u *unstructured.Unstructured
	eventually(v, app+" is written", func() error {
		u = v.get(velaApplications, app)
		change(u)
		return v.update(velaApplications, u, subresource...)
	})
	return v.get(velaApplications, app)
}

// freeze makes the controller leave an Application alone, and changes its spec and publishVersion.
func (v *vela) freeze(app string, spec any, version string) *unstructured.Unstructured {
	v.Helper()
	return v.changed(app, func(u *unstructured.Unstructured) {
		annotations := u.GetAnnotations()
		if annotations == nil {
			annotations = map[string]string{}
		}
		annotations["app.oam.dev/controller-version-require"] = "Disabled"
		annotations[oam.PublishVersionAnnotation] = version
		u.SetAnnotations(annotations)
		u.Object["spec"] = spec
	})
}

func (v *vela) unfreeze(app string) {
	v.Helper()
	v.changed(app, func(u *unstructured.Unstructured) {
		annotations := u.GetAnnotations()
		delete(annotations, "app.oam.dev/controller-version-require")
		u.SetAnnotations(annotations)
	})
}

const velaShop = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec:
  components:
  - name: web
    type: webservice
    properties: {image: "nginx:%s", ports: [{port: 80, expose: true}]}
    traits: [{type: scaler, properties: {replicas: 2}}]
  - name: settings
    type: k8s-objects
    properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {tag: "%s"}}]}
`

func velaShopOf(tag string) string { return fmt.Sprintf(velaShop, tag, tag) }

// TestClientsFindTheObjectsOfAnApplication makes the requests of status --tree, status --pod, status
// --endpoint, logs, exec and port-forward.
func TestClientsFindTheObjectsOfAnApplication(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	v.apply(velaShopOf("1"))
	app := v.until("shop", "running", "shop-v1")
	want := []string{"local settings ConfigMap/settings", "local web Deployment/web", "local web Service/web"}
	if got := v.tree(app); !slices.Equal(got, want) {
		t.Errorf("the tree is %q, want %q", got, want)
	}
	for _, view := range []string{"component-service-view", "service-endpoints-view", "application-resource-tree-view", "service-applied-resources-view", "application-revision-view"} {
		v.view(view)
	}
	pods := v.pods(app, "web")
	if len(pods) != 2 {
		t.Errorf("the pods are %q", pods)
	}
	for _, name := range pods {
		if p, err := v.w.core.CoreV1().Pods(v.ns).Get(t.Context(), name, metav1.GetOptions{}); err != nil || len(p.Spec.Containers) != 1 {
			t.Errorf("pod %s: %v", name, err)
		}
	}
	// An update that makes no new object, and one that removes an object.
	v.apply(velaShopOf("2"))
	app = v.until("shop", "running", "shop-v2")
	eventually(v, "the tree of the second revision", func() error {
		if got := v.tree(app); !slices.Equal(got, want) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	v.apply(strings.Split(velaShopOf("2"), "  - name: settings")[0])
	app = v.until("shop", "running", "shop-v3")
	eventually(v, "the tree without settings", func() error {
		if got := v.tree(app); !slices.Equal(got, want[1:]) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	// A spec that was changed and changed back while the application was paused.
	for _, change := range []string{"3", "2"} {
		v.apply(strings.Replace(strings.Split(velaShopOf(change), "  - name: settings")[0], "name: shop", `name: shop, labels: {controller.core.oam.dev/pause: "true"}`, 1))
	}
	v.apply(strings.Split(velaShopOf("2"), "  - name: settings")[0])
	app = v.until("shop", "running", "shop-v3")
	eventually(v, "the tree of the generation", func() error {
		if got := v.tree(app); !slices.Equal(got, want[1:]) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	eventually(v, "one tracker of the third revision", func() error {
		rt, history := v.trackers(app)
		if rt == nil || rt.GetLabels()[oam.AppRevisionLabel] != "shop-v3" || len(history) != 0 {
			return fmt.Errorf("it is %v, and there are %d others", rt, len(history))
		}
		return nil
	})
}

// TestClientsReadRevisions makes the requests of revision list, revision get, live-diff and up
// --revision.
func TestClientsReadRevisions(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	v.apply(velaShopOf("1"))
	v.until("shop", "running", "shop-v1")
	v.apply(velaShopOf("2"))
	app := v.until("shop", "running", "shop-v2")
	if got, want := v.revisions("shop"), []string{"shop-v1 true Succeeded", "shop-v2 true Succeeded"}; !slices.Equal(got, want) {
		t.Errorf("the revisions are %q, want %q", got, want)
	}
	// What live-diff compares an Application with: the revision that the status names.
	name, _, _ := unstructured.NestedString(app.Object, "status", "latestRevision", "name")
	spec := v.unpacked(v.get(velaRevisions, name))
	if err := contains(spec, map[string]any{"application": map[string]any{"metadata": map[string]any{"name": "shop"}, "spec": app.Object["spec"]}}, "spec"); err != nil {
		t.Error(err)
	}
	for kind, definition := range map[string]string{"componentDefinitions": "webservice", "traitDefinitions": "scaler"} {
		text, _, _ := unstructured.NestedString(spec, kind, definition, "spec", "schematic", "cue", "template")
		if !strings.Contains(text, "parameter: ") {
			t.Errorf("%s has no %s: %v", name, definition, spec[kind])
		}
	}

	// up shop --revision shop-v1 --publish-version again
	old := v.get(velaRevisions, "shop-v1")
	spec, _, _ = unstructured.NestedMap(old.Object, "spec", "application", "spec")
	v.freeze("shop", spec, "again")
	next := old.DeepCopy()
	next.SetName("shop-v3")
	next.SetAnnotations(map[string]string{oam.PublishVersionAnnotation: "again"})
	next.SetResourceVersion("")
	next.SetUID("")
	if _, err := v.w.dyn.Resource(velaRevisions).Namespace(v.ns).Create(t.Context(), next, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	v.changed("shop", func(u *unstructured.Unstructured) {
		u.Object["status"] = map[string]any{"latestRevision": map[string]any{"name": "shop-v3", "revision": int64(3), "revisionHash": next.GetLabels()[oam.AppRevisionHashLabel]}}
	}, "status")
	if tag, _, _ := unstructured.NestedString(v.get(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "settings").Object, "data", "tag"); tag != "2" {
		t.Errorf("an application that is frozen was deployed: %s", tag)
	}
	v.unfreeze("shop")
	app = v.until("shop", "running", "shop-v3")
	eventually(v, "the first revision's objects", func() error {
		return contains(v.get(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "settings").Object, map[string]any{"data": map[string]any{"tag": "1"}}, "settings")
	})
	eventually(v, "the revisions", func() error {
		if got, want := v.revisions("shop"), []string{"shop-v1 true Succeeded", "shop-v2 true Succeeded", "shop-v3 again true Succeeded"}; !slices.Equal(got, want) {
			return fmt.Errorf("they are %q, want %q", got, want)
		}
		return nil
	})
	if got := v.tree(app); len(got) != 3 {
		t.Errorf("the tree is %q", got)
	}
	if run, _, _ := unstructured.NestedString(app.Object, "status", "workflow", "appRevision"); strings.Contains(run, "#") {
		t.Errorf("it was deployed twice: %s", run)
	}
}

// TestARevisionIsOfTheApplicationThatExists deletes an Application and creates it again, before the
// garbage collector deletes the revision of the first one.
func TestARevisionIsOfTheApplicationThatExists(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	const manifest = "{apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: again}, spec: {components: [{name: again, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: again}}]}}]}}"
	for range 3 {
		v.apply(manifest)
		app := v.until("again", "running", "again-v1")
		eventually(v, "its revision", func() error {
			r, err := v.w.dyn.Resource(velaRevisions).Namespace(v.ns).Get(t.Context(), "again-v1", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if owners := r.GetOwnerReferences(); len(owners) != 1 || owners[0].UID != app.GetUID() || r.GetDeletionTimestamp() != nil {
				return fmt.Errorf("its owners are %+v", owners)
			}
			return nil
		})
		if err := v.w.dyn.Resource(velaApplications).Namespace(v.ns).Delete(t.Context(), "again", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(v, "the application is gone", func() error {
			if _, err := v.w.dyn.Resource(velaApplications).Namespace(v.ns).Get(t.Context(), "again", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	}
}

const velaSteps = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop, annotations: {app.oam.dev/publishVersion: %s}}
spec:
  components:
  - {name: settings, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}, data: {tag: "%s"}}]}}
  workflow:
    steps:
    - {name: consent, type: suspend}
    - {name: deploy, type: apply-component, properties: {component: settings}}
`

// setSteps sets the phase, and the reason, of all steps in a phase.
func setSteps(app *unstructured.Unstructured, from, to, reason string) {
	steps, _, _ := unstructured.NestedSlice(app.Object, "status", "workflow", "steps")
	for _, s := range steps {
		if step := s.(map[string]any); step["phase"] == from {
			step["phase"] = to
			if reason != "" {
				step["reason"] = reason
			}
		}
	}
	_ = unstructured.SetNestedSlice(app.Object, steps, "status", "workflow", "steps")
}

// setStep sets the phase of one step.
func setStep(app *unstructured.Unstructured, name, phase string) {
	steps, _, _ := unstructured.NestedSlice(app.Object, "status", "workflow", "steps")
	for _, s := range steps {
		if step := s.(map[string]any); step["name"] == name {
			step["phase"] = phase
		}
	}
	_ = unstructured.SetNestedSlice(app.Object, steps, "status", "workflow", "steps")
}

func setWorkflow(app *unstructured.Unstructured, field string, value any) {
	_ = unstructured.SetNestedField(app.Object, value, "status", "workflow", field)
}

// TestClientsCommandWorkflows makes the requests of workflow resume, restart, terminate and
// rollback.
func TestClientsCommandWorkflows(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	resume := func() {
		t.Helper()
		app := v.get(velaApplications, "shop")
		setWorkflow(app, "suspend", false)
		setSteps(app, "suspending", "running", "")
		v.mergeStatus(app)
	}
	v.apply(fmt.Sprintf(velaSteps, "one", "1"))
	v.until("shop", "workflowSuspending", "shop-v1")
	resume()
	app := v.until("shop", "running", "shop-v1")
	if got := v.tree(app); !slices.Equal(got, []string{"local settings ConfigMap/settings"}) {
		t.Errorf("the tree is %q", got)
	}

	// Restart.
	v.changed("shop", func(u *unstructured.Unstructured) {
		unstructured.RemoveNestedField(u.Object, "status", "workflow")
	}, "status")
	v.until("shop", "workflowSuspending", "shop-v1")
	resume()
	v.until("shop", "running", "shop-v1")

	// Terminate the next version.
	v.apply(fmt.Sprintf(velaSteps, "two", "2"))
	app = v.until("shop", "workflowSuspending", "shop-v2")
	setWorkflow(app, "terminated", true)
	setWorkflow(app, "suspend", false)
	setSteps(app, "suspending", "failed", "Terminate")
	v.mergeStatus(app)
	app = v.until("shop", "workflowTerminated", "shop-v2")
	eventually(v, "the revisions", func() error {
		if got, want := v.revisions("shop"), []string{"shop-v1 one true Succeeded", "shop-v2 two false Failed"}; !slices.Equal(got, want) {
			return fmt.Errorf("they are %q, want %q", got, want)
		}
		return nil
	})

	// Roll back to the last revision that has succeeded: its tracker must be there.
	current, history := v.trackers(app)
	at := slices.IndexFunc(append(history, current), func(rt *unstructured.Unstructured) bool {
		return rt != nil && rt.GetLabels()[oam.AppRevisionLabel] == "shop-v1"
	})
	if at < 0 {
		t.Fatalf("no tracker is of shop-v1: %v %v", current, history)
	}
	rt := append(history, current)[at]
	succeeded := v.get(velaRevisions, "shop-v1")
	spec, _, _ := unstructured.NestedMap(succeeded.Object, "spec", "application", "spec")
	workflow, _, _ := unstructured.NestedMap(succeeded.Object, "status", "workflow")
	app = v.freeze("shop", spec, "one")
	v.changed("shop", func(u *unstructured.Unstructured) {
		status := u.Object["status"].(map[string]any)
		status["workflow"], status["services"], status["appliedResources"] = workflow, []any{}, []any{}
		status["latestRevision"] = map[string]any{"name": "shop-v1", "revision": int64(1), "revisionHash": succeeded.GetLabels()[oam.AppRevisionHashLabel]}
	}, "status")
	_ = unstructured.SetNestedField(rt.Object, app.GetGeneration(), "spec", "applicationGeneration")
	if err := v.update(velaTrackers, rt); err != nil {
		t.Fatal(err)
	}
	v.unfreeze("shop")
	if err := v.w.dyn.Resource(velaRevisions).Namespace(v.ns).Delete(t.Context(), "shop-v2", metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	v.until("shop", "workflowSuspending", "shop-v3")
	resume()
	app = v.until("shop", "running", "shop-v3")
	if got := v.tree(app); !slices.Equal(got, []string{"local settings ConfigMap/settings"}) {
		t.Errorf("the tree after the rollback is %q", got)
	}
	eventually(v, "the objects of the first revision", func() error {
		return contains(v.get(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, "settings").Object, map[string]any{"data": map[string]any{"tag": "1"}}, "settings")
	})
}

// TestClientsSuspendAWorkflow makes the request of workflow suspend while a step runs.
func TestClientsSuspendAWorkflow(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	v.apply(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec:
  components: []
  workflow:
    steps:
    - {name: wait, type: depends-on-app, properties: {name: another, namespace: ` + v.ns + `}}
    - {name: message, type: print-message-in-status, properties: {message: done}}
`)
	eventually(v, "the step runs", func() error {
		steps, _, _ := unstructured.NestedSlice(v.get(velaApplications, "shop").Object, "status", "workflow", "steps")
		if len(steps) == 0 || steps[0].(map[string]any)["phase"] != "running" {
			return fmt.Errorf("the steps are %v", steps)
		}
		return nil
	})
	app := v.get(velaApplications, "shop")
	setWorkflow(app, "suspend", true)
	setSteps(app, "running", "suspending", "")
	v.mergeStatus(app)
	v.until("shop", "workflowSuspending", "shop-v1")
	v.apply("{apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: another}, spec: {components: [{name: m, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}]}}]}}")
	v.until("another", "running", "another-v1")
	app = v.until("shop", "workflowSuspending", "shop-v1")
	setWorkflow(app, "suspend", false)
	setSteps(app, "suspending", "running", "")
	v.mergeStatus(app)
	v.until("shop", "running", "shop-v1")
}

// TestClientsSuspendAStep checks 'workflow suspend --step' and 'workflow resume --step': the client
// marks one of the steps that run.
func TestClientsSuspendAStep(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	another := "properties: {name: another, namespace: " + v.ns + "}"
	v.apply(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec:
  components: []
  workflow:
    mode: {steps: DAG}
    steps:
    - {name: one, type: depends-on-app, ` + another + `}
    - {name: two, type: depends-on-app, ` + another + `}
`)
	phases := func(want string) {
		v.Helper()
		eventually(v, "the steps are "+want, func() error {
			steps, _, _ := unstructured.NestedSlice(v.get(velaApplications, "shop").Object, "status", "workflow", "steps")
			got := ""
			for _, s := range steps {
				got += fmt.Sprint(s.(map[string]any)["phase"], " ")
			}
			if got != want {
				return fmt.Errorf("they are %s", got)
			}
			return nil
		})
	}
	phases("running running ")
	app := v.get(velaApplications, "shop")
	setWorkflow(app, "suspend", true)
	setStep(app, "one", "suspending")
	v.mergeStatus(app)
	phases("suspending running ")
	v.apply("{apiVersion: core.oam.dev/v1beta1, kind: Application, metadata: {name: another}, spec: {components: [{name: m, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: m}}]}}]}}")
	phases("suspending succeeded ")
	app = v.until("shop", "workflowSuspending", "shop-v1")
	setWorkflow(app, "suspend", false)
	setStep(app, "one", "running")
	v.mergeStatus(app)
	v.until("shop", "running", "shop-v1")
}

// TestClientsRestartAStep checks 'workflow restart --step': the client removes the failed step, and
// those after it, from the status of a workflow that has ended.
func TestClientsRestartAStep(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	v.beside(`
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: gate}
spec:
  schematic:
    cue:
      template: |
        import "vela/op"
        read: op.#Read & {value: {apiVersion: "v1", kind: "ConfigMap", metadata: name: "gate"}}
        if read.value.data.open == "no" {
          fail: op.#Fail & {message: "the gate is closed"}
        }
        parameter: {}
`)
	gate := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	v.beside("{apiVersion: v1, kind: ConfigMap, metadata: {name: gate}, data: {open: \"no\"}}")
	v.apply(`
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: shop}
spec:
  components: [{name: settings, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: settings}}]}}]
  workflow:
    steps:
    - {name: before, type: print-message-in-status, properties: {message: once}}
    - {name: gate, type: gate}
    - {name: after, type: apply-component, properties: {component: settings}}
`)
	app := v.until("shop", "workflowFailed", "shop-v1")
	begun := func(app *unstructured.Unstructured) (out []any) {
		steps, _, _ := unstructured.NestedSlice(app.Object, "status", "workflow", "steps")
		for _, s := range steps {
			out = append(out, s.(map[string]any)["firstExecuteTime"])
		}
		return out
	}
	first := begun(app)
	if _, err := v.w.dyn.Resource(gate).Namespace(v.ns).Patch(t.Context(), "gate", types.MergePatchType, []byte(`{"data":{"open":"yes"}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	v.changed("shop", func(u *unstructured.Unstructured) {
		for _, field := range []string{"terminated", "suspend", "finished"} {
			setWorkflow(u, field, false)
		}
		unstructured.RemoveNestedField(u.Object, "status", "workflow", "endTime")
		steps, _, _ := unstructured.NestedSlice(u.Object, "status", "workflow", "steps")
		_ = unstructured.SetNestedSlice(u.Object, steps[:1], "status", "workflow", "steps")
	}, "status")
	app = v.until("shop", "running", "shop-v1")
	if again := begun(app); len(first) != 3 || len(again) != 3 || again[0] != first[0] {
		t.Errorf("the steps began at %v, and after the restart at %v", first, again)
	}
}

// TestClientsDebugAWorkflow checks what 'debug' and 'workflow logs' read of an Application with the
// policy debug: the values of each step, and where its logs are. Another Application has neither.
func TestClientsDebugAWorkflow(t *testing.T) {
	t.Parallel()
	v := asVela(t)
	configMaps := schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	v.beside(`
apiVersion: core.oam.dev/v1beta1
kind: WorkflowStepDefinition
metadata: {name: logged}
spec:
  schematic:
    cue:
      template: |
        import "vela/op"
        made: op.#Apply & {value: {apiVersion: "v1", kind: "ConfigMap", metadata: name: parameter.name}}
        log: op.#Log & {source: resources: [{namespace: context.namespace, labelSelector: app: parameter.name}]}
        parameter: name: string
`)
	const app = `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: %[1]s}
spec:
  components: [{name: %[1]s, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: %[1]s-part}}]}}]
  policies: %[2]s
  workflow:
    steps:
    - {name: first, type: logged, properties: {name: %[1]s-first}, outputs: [{name: given, valueFrom: made.value.metadata.name}]}
    - {name: part, type: apply-component, properties: {component: %[1]s}}
    - {name: second, type: logged, properties: {name: %[1]s-second}}
`
	v.apply(fmt.Sprintf(app, "plain", "[]"))
	v.apply(fmt.Sprintf(app, "shop", "[{name: debug, type: debug}]"))
	plain, shop := v.until("plain", "running", "plain-v1"), v.until("shop", "running", "shop-v1")
	if _, there, _ := unstructured.NestedMap(plain.Object, "status", "workflow", "contextBackend"); there {
		t.Error("an application without the policy has a contextBackend")
	}
	if list, err := v.w.core.CoreV1().ConfigMaps(v.ns).List(t.Context(), metav1.ListOptions{LabelSelector: oam.AppNameLabel + "=plain"}); err != nil || len(list.Items) != 3 {
		t.Errorf("the application without the policy has %d ConfigMaps, %v", len(list.Items), err)
	}

	// 'workflow logs --step' reads the ConfigMap that the status names.
	backend, _, _ := unstructured.NestedString(shop.Object, "status", "workflow", "contextBackend", "name")
	data, _, _ := unstructured.NestedStringMap(v.get(configMaps, backend).Object, "data")
	var components map[string]string
	if err := json.Unmarshal([]byte(data["components"]), &components); err != nil {
		t.Errorf("components: %v", err)
	}
	if !strings.Contains(data["vars"], "shop-first") {
		t.Errorf("vars: %s", data["vars"])
	}
	var logs map[string]struct {
		Data   bool
		Source struct {
			Resources []struct {
				Namespace     string
				LabelSelector map[string]string
			}
		}
	}
	if err := json.Unmarshal([]byte(data["logConfig"]), &logs); err != nil {
		t.Fatalf("logConfig: %v", err)
	}
	for _, step := range []string{"first", "second"} {
		if r := logs[step].Source.Resources; len(r) != 1 || r[0].Namespace != v.ns || r[0].LabelSelector["app"] != "shop-"+step {
			t.Errorf("logs of the step %s: %+v", step, logs)
		}
	}

	// 'debug --step' reads the ConfigMap of the step's ID.
	steps, _, _ := unstructured.NestedSlice(shop.Object, "status", "workflow", "steps")
	if len(steps) != 3 {
		t.Fatalf("steps: %v", steps)
	}
	for i, want := range []string{"shop-first", "shop", "shop-second"} {
		id := steps[i].(map[string]any)["id"].(string)
		text, _, _ := unstructured.NestedString(v.get(configMaps, "shop-"+id+"-debug").Object, "data", "debug")
		var shown struct {
			Parameter map[string]string
			Made      struct{ Value map[string]any }
		}
		if err := json.Unmarshal([]byte(text), &shown); err != nil {
			t.Errorf("the step %d: %v: %s", i, err, text)
		}
		if shown.Parameter["name"] != want && shown.Parameter["component"] != want {
			t.Errorf("the step %d: %s", i, text)
		}
		if i != 1 && shown.Made.Value["metadata"].(map[string]any)["name"] != want {
			t.Errorf("what the step %d has made: %s", i, text)
		}
	}
	if err := v.w.dyn.Resource(velaApplications).Namespace(v.ns).Delete(t.Context(), "shop", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(v, "the ConfigMaps go with the application", func() error {
		list, err := v.w.core.CoreV1().ConfigMaps(v.ns).List(t.Context(), metav1.ListOptions{LabelSelector: oam.AppNameLabel + "=shop"})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d are there", len(list.Items))
		}
		return err
	})
}
