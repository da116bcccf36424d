package applications

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow/flowtest"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// state is what an application must reach.
type state struct {
	// Phase is the application's phase. If it is empty, it means running, unless Says is set.
	Phase string `json:"phase,omitempty"`
	// Steps are the states of the workflow's steps, as name=phase/reason.
	Steps string `json:"steps,omitempty"`
	// Says holds parts of the messages of conditions that are False, by condition type.
	Says map[string]string `json:"says,omitempty"`
	// Status is a part of the status.
	Status map[string]any `json:"status,omitempty"`
}

// stage is an action of users, and its expected result.
type stage struct {
	Apply    []map[string]any `json:"apply,omitempty"`
	App      map[string]any   `json:"app,omitempty"`
	Merge    []map[string]any `json:"merge,omitempty"` // parts of objects that are changed by hand
	Delete   []string         `json:"delete,omitempty"`
	Command  string           `json:"command,omitempty"` // to the workflow
	Annotate map[string]any   `json:"annotate,omitempty"`
	// Refused is a part of the API server's message if it rejects the application.
	Refused string `json:"refused,omitempty"`

	Wait    *state           `json:"wait,omitempty"`
	Objects []map[string]any `json:"objects,omitempty"`
	Missing []string         `json:"missing,omitempty"`
	// Gone is true if the application must no longer exist.
	Gone bool `json:"gone,omitempty"`
}

// testCase is one case.
type testCase struct {
	Name   string           `json:"name"`
	About  string           `json:"about,omitempty"`
	Before []map[string]any `json:"before,omitempty"`
	stage  `json:",inline"`
	Then   []stage `json:"then,omitempty"`
}

// files returns the cases as texts, by name. The texts still contain ${ns}.
func files(t testing.TB) map[string]string {
	t.Helper()
	names, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(names) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	out := map[string]string{}
	for _, file := range names {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var list []map[string]any
		if err := yaml.UnmarshalStrict(data, &list); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, c := range list {
			name := fmt.Sprint(c["name"])
			text, err := yaml.Marshal(c)
			if err != nil {
				t.Fatal(err)
			}
			if out[name] != "" {
				t.Fatalf("two cases are called %s", name)
			}
			out[name] = string(text)
		}
	}
	return out
}

func TestCases(t *testing.T) {
	w := open(t)
	all := files(t)
	for name, text := range all {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := localtest.Namespace(t, w.core)
			var c testCase
			text = strings.NewReplacer("${ns}", ns, "${echo}", w.echo, "${charts}", w.charts, "${oci}", strings.Replace(w.charts, "http://", "oci://", 1)).Replace(text)
			if err := yaml.UnmarshalStrict([]byte(text), &c); err != nil {
				t.Fatal(err)
			}
			r := &run{T: t, w: w, ns: ns, name: "app"}
			for _, o := range c.Before {
				r.apply(o)
			}
			r.stage(&c.stage)
			for i := range c.Then {
				r.at = fmt.Sprintf("then[%d]: ", i)
				r.stage(&c.Then[i])
			}
		})
	}
}

// run is a running case.
type run struct {
	*testing.T
	w    *world
	ns   string
	name string
	at   string
}

func (r *run) stage(s *stage) {
	r.Helper()
	for _, o := range s.Apply {
		r.apply(o)
	}
	var generation int64
	if s.App != nil {
		u, err := r.send(s.App)
		if s.Refused != "" {
			if err == nil || !strings.Contains(err.Error(), s.Refused) {
				r.Fatalf("%sthe API server says %v, not %q", r.at, err, s.Refused)
			}
			return
		}
		if err != nil {
			r.Fatal(r.at, err)
		}
		generation = u.GetGeneration()
	}
	for _, o := range s.Merge {
		r.patch(o)
	}
	for _, ref := range s.Delete {
		r.delete(ref)
	}
	if s.Command != "" {
		r.annotate(map[string]any{oam.WorkflowCommandAnnotation: s.Command + "@" + r.at})
	}
	if s.Annotate != nil {
		r.annotate(s.Annotate)
	}
	if s.Gone {
		eventually(r, r.at+"the application is gone", func() error {
			_, err := r.get(&unstructured.Unstructured{Object: map[string]any{"apiVersion": oam.GroupVersion.String(), "kind": "Application", "metadata": map[string]any{"name": r.name}}})
			if !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	} else if s.App != nil || s.Wait != nil {
		r.wait(s.Wait, generation)
	}
	for _, o := range s.Objects {
		r.expect(o)
	}
	for _, ref := range s.Missing {
		u := object(ref)
		eventually(r, r.at+ref+" is missing", func() error {
			if _, err := r.get(u); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	}
}

// kinds holds the API versions of kinds that cases use without one.
var kinds = map[string]string{
	"Deployment": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1", "CronJob": "batch/v1", "ConfigMap": "v1",
	"Secret": "v1", "Service": "v1", "Pod": "v1", "Ingress": "networking.k8s.io/v1", "Application": "core.oam.dev/v1beta1", "Policy": "core.oam.dev/v1alpha1",
	"ComponentDefinition": "core.oam.dev/v1beta1", "TraitDefinition": "core.oam.dev/v1beta1", "PersistentVolumeClaim": "v1",
	"ApplicationRevision": "core.oam.dev/v1beta1", "WorkloadDefinition": "core.oam.dev/v1beta1", "DefinitionRevision": "core.oam.dev/v1beta1",
}

// object returns an object with the kind and name in Kind/name.
func object(ref string) *unstructured.Unstructured {
	kind, name, _ := strings.Cut(ref, "/")
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": kinds[kind], "kind": kind, "metadata": map[string]any{"name": name}}}
}

// complete adds the API version if a case omits it.
func complete(o map[string]any) *unstructured.Unstructured {
	if o["apiVersion"] == nil {
		o["apiVersion"] = kinds[fmt.Sprint(o["kind"])]
	}
	return &unstructured.Unstructured{Object: o}
}

func (r *run) get(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	at, err := r.w.resource(u, r.ns)
	if err != nil {
		return nil, err
	}
	return at.Get(r.Context(), u.GetName(), metav1.GetOptions{})
}

func (r *run) put(u *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	at, err := r.w.resource(u, r.ns)
	if err != nil {
		return nil, err
	}
	u.SetNamespace("")
	if namespaced(u) {
		u.SetNamespace(r.ns)
	}
	return at.Apply(r.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "user", Force: true})
}

// namespaced reports whether an object that a case applies is namespaced.
func namespaced(u *unstructured.Unstructured) bool {
	return !slices.Contains([]string{"Namespace", "ClusterRole", "ClusterRoleBinding"}, u.GetKind())
}

func (r *run) apply(o map[string]any) {
	r.Helper()
	u := complete(o)
	at, err := r.w.resource(u, r.ns)
	if err == nil {
		if !namespaced(u) || u.GetNamespace() != "" {
			_, err = at.Create(r.Context(), u, metav1.CreateOptions{})
		} else {
			_, err = r.put(u)
		}
	}
	if err != nil && !apierrors.IsAlreadyExists(err) {
		r.Fatalf("%s%s %s: %v", r.at, u.GetKind(), u.GetName(), err)
	}
}

// send applies the application.
func (r *run) send(app map[string]any) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{Object: app}
	u.SetAPIVersion(oam.GroupVersion.String())
	u.SetKind("Application")
	if u.GetName() == "" {
		u.SetName("app")
	}
	r.name = u.GetName()
	return r.put(u)
}

func (r *run) patch(o map[string]any) {
	r.Helper()
	u := complete(o)
	at, err := r.w.resource(u, r.ns)
	if err != nil {
		r.Fatal(err)
	}
	subresource := []string(nil)
	if u.Object["status"] != nil {
		subresource = []string{"status"}
	}
	data, err := json.Marshal(u.Object)
	if err == nil {
		_, err = at.Patch(r.Context(), u.GetName(), types.MergePatchType, data, metav1.PatchOptions{}, subresource...)
	}
	if err != nil {
		r.Fatalf("%s%s %s: %v", r.at, u.GetKind(), u.GetName(), err)
	}
}

func (r *run) delete(ref string) {
	r.Helper()
	u := object(ref)
	at, err := r.w.resource(u, r.ns)
	if err == nil {
		err = at.Delete(r.Context(), u.GetName(), metav1.DeleteOptions{})
	}
	if err != nil {
		r.Fatalf("%s%s: %v", r.at, ref, err)
	}
}

func (r *run) annotate(annotations map[string]any) {
	r.Helper()
	r.patch(map[string]any{"kind": "Application", "metadata": map[string]any{"name": r.name, "annotations": annotations}})
}

// wait waits until the application is as the case expects.
func (r *run) wait(s *state, generation int64) {
	r.Helper()
	if s == nil {
		s = &state{}
	}
	var app oam.Application
	eventually(r, r.at+"the application", func() error {
		u, err := r.get(object("Application/" + r.name))
		if err != nil {
			return err
		}
		data, err := json.Marshal(u.Object)
		if err == nil {
			app = oam.Application{}
			err = json.Unmarshal(data, &app)
		}
		if err != nil {
			return err
		}
		status, _, _ := unstructured.NestedMap(u.Object, "status")
		err = s.met(&app, status, generation)
		if err != nil {
			text, _ := json.Marshal(status)
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	})
}

func (s *state) met(app *oam.Application, status map[string]any, generation int64) error {
	if app.Status.ObservedGeneration < generation {
		return errors.New("it has not been looked at")
	}
	phase := s.Phase
	if phase == "" && s.Says == nil {
		phase = "running"
	}
	if phase != "" && string(app.Status.Phase) != phase {
		return fmt.Errorf("it is %s, not %s", app.Status.Phase, phase)
	}
	if s.Steps != "" {
		if got := flowtest.Steps(app.Status.Workflow); got != s.Steps {
			return fmt.Errorf("the steps are %s, not %s", got, s.Steps)
		}
	}
	for condition, text := range s.Says {
		at := slices.IndexFunc(app.Status.Conditions, func(c oam.Condition) bool { return string(c.Type) == condition && c.Status == "False" })
		if at < 0 {
			return fmt.Errorf("condition %s is not False", condition)
		}
		for part := range strings.SplitSeq(text, " ... ") {
			if m := app.Status.Conditions[at].Message; !strings.Contains(m, part) {
				return fmt.Errorf("condition %s says %q, which lacks %q", condition, m, part)
			}
		}
	}
	return contains(status, s.Status, "status")
}

// expect waits until an object has the fields that the case expects.
func (r *run) expect(o map[string]any) {
	r.Helper()
	u := complete(o)
	eventually(r, r.at+u.GetKind()+" "+u.GetName(), func() error {
		live, err := r.get(u)
		if err != nil {
			return err
		}
		return contains(live.Object, u.Object, u.GetKind())
	})
}
