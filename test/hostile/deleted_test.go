package hostile

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/cli"
)

// deletedObjects have finalizers of ours, but the manager can't handle them. says is the text of
// the event about their deletion.
var deletedObjects = []struct{ name, manifest, says string }{
	{"a workflow with artifacts", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: deleted, finalizers: [workflows.argoproj.io/artifact-gc]}
spec:
  entrypoint: main
  artifactGC: {strategy: OnWorkflowDeletion}
  templates: [{name: main, container: {image: {}}}]
`, "its artifacts stay: Workflow"},
	{"a workflow whose nodes can't be unpacked", `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: packed, finalizers: [workflows.argoproj.io/artifact-gc], labels: {workflows.argoproj.io/completed: "true"}}
spec:
  entrypoint: main
  artifactGC: {strategy: OnWorkflowDeletion}
  templates: [{name: main, container: {image: busybox}}]
status: {phase: Succeeded, compressedNodes: "no base64"}
`, "its artifacts stay: "},
	{"an application", `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: deleted, finalizers: [app.oam.dev/resource-tracker-finalizer]}
spec: {components: [{name: {}, type: worker}]}
`, ""},
}

// TestMalformedObjectsCanBeDeleted checks that an object that the manager can't handle ceases to
// exist when it is deleted, and that an event says what remains.
func TestMalformedObjectsCanBeDeleted(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a cluster")
	}
	w := newWorld(t)
	w.openSchemas()
	w.startManager()
	for _, c := range deletedObjects {
		u := w.create(w.ns, c.manifest)
		w.delete(u)
		if c.says != "" {
			w.awaitEvent(u, c.says)
		}
	}

	// Applications whose tracker was damaged in two ways, and one whose tracker still decodes.
	for name, spoil := range map[string]string{
		"packed":    `{spec: {compression: {type: zstd, data: "no base64"}}}`,
		"untyped":   `{spec: {managedResources: 5}}`,
		"untouched": `{metadata: {labels: {a: b}}}`,
	} {
		app := w.create(w.ns, `
apiVersion: core.oam.dev/v1beta1
kind: Application
metadata: {name: `+name+`}
spec: {components: [{name: settings, type: k8s-objects, properties: {objects: [{apiVersion: v1, kind: ConfigMap, metadata: {name: `+name+`}}]}}]}
`)
		w.awaitPhase(app, "running", "status", "status")
		w.stopManager()
		tracker := w.trackerOf(name)
		w.merge(tracker, spoil)
		w.startManager()
		w.delete(app)
		_, err := w.core.CoreV1().ConfigMaps(w.ns).Get(t.Context(), name, metav1.GetOptions{})
		if stays := name == "untyped"; stays != (err == nil) {
			t.Errorf("%s: what the application had made: %v", name, err)
		} else if stays {
			w.awaitEvent(app, "what it has made stays, for ResourceTracker "+tracker.GetName())
		}
	}
	if err := w.canariesLive(time.Minute); err != nil {
		t.Error(err)
	}
}

// said returns an error if no event about an object contains text.
func (w *world) said(u *unstructured.Unstructured, text string) error {
	events, err := w.core.CoreV1().Events("").List(w.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(u.GetUID())})
	if err != nil {
		return err
	}
	var all []string
	for _, e := range events.Items {
		if all = append(all, e.Message); strings.Contains(e.Message, text) {
			return nil
		}
	}
	return fmt.Errorf("all that is said is %q", all)
}

// trackerOf returns the ResourceTracker of an application.
func (w *world) trackerOf(name string) *unstructured.Unstructured {
	w.Helper()
	list, err := w.dyn.Resource(oam.GroupVersion.WithResource("resourcetrackers")).List(w.Context(), metav1.ListOptions{
		LabelSelector: oam.AppNameLabel + "=" + name + "," + oam.AppNamespaceLabel + "=" + w.ns,
	})
	if err != nil || len(list.Items) != 1 {
		w.Fatalf("the tracker of %s: %d, %v", name, len(list.Items), err)
	}
	return &list.Items[0]
}

// awaitEvent waits for an event with text about an object, which may be gone.
func (w *world) awaitEvent(u *unstructured.Unstructured, text string) {
	w.Helper()
	w.eventually(u.GetKind()+" "+u.GetName()+": an event says "+text, func() error { return w.said(u, text) })
}

// TestMalformedObjectsAreListed checks that an object that does not decode keeps no other object
// out of a list.
func TestMalformedObjectsAreListed(t *testing.T) {
	if testing.Short() {
		t.Skip("it needs a cluster")
	}
	w := newWorld(t)
	w.openSchemas()
	for _, c := range malformedObjects {
		w.create(w.ns, c.manifest)
	}
	w.create(w.ns, `
apiVersion: argoproj.io/v1alpha1
kind: Workflow
metadata: {name: healthy}
spec: {entrypoint: main, templates: [{name: main, container: {image: busybox}}]}
`)
	kubeconfig := w.c.Kubeconfig()
	for line, wants := range map[string][2][]string{
		"get wf":        {{"healthy", "Pending", "image", "Malformed"}, {"Workflow " + w.ns + "/image is malformed: spec.templates[0].container.image: {} is no string"}},
		"list -o name":  {{"workflow.argoproj.io/healthy", "workflow.argoproj.io/image"}, {"is malformed"}},
		"list -o yaml":  {{"name: healthy", "name: image"}, {"is malformed"}},
		"template list": {{"malformed", "Malformed"}, {"WorkflowTemplate " + w.ns + "/malformed is malformed"}},
		"cron list":     {{"Malformed"}, {"CronWorkflow " + w.ns}},
		"app ls":        {{"malformed-status", "Malformed"}, {"Application " + w.ns + "/malformed is malformed"}},
		"get jobs":      {{"estimate"}, nil},
	} {
		var out, errs strings.Builder
		args := append(strings.Fields(line), "--kubeconfig", kubeconfig, "-n", w.ns)
		if code := cli.Run(args, strings.NewReader(""), &out, &errs); code != 0 {
			t.Errorf("lockstep %s ended with %d: %s", line, code, &errs)
		}
		for _, want := range wants[0] {
			if !strings.Contains(out.String(), want) {
				t.Errorf("lockstep %s does not print %q:\n%s", line, want, &out)
			}
		}
		for _, want := range wants[1] {
			if !strings.Contains(errs.String(), want) {
				t.Errorf("lockstep %s does not say %q:\n%s", line, want, &errs)
			}
		}
		if strings.Contains(out.String(), "lockstep.dev/ malformed") {
			t.Errorf("lockstep %s prints the mark:\n%s", line, &out)
		}
	}
}
