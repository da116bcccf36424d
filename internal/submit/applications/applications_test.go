package applications

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

func TestMain(m *testing.M) { localtest.Main(m, localtest.WithApplications()) }

// env is a client with a namespace of its own.
type env struct {
	*testing.T
	*Client
	ns string
}

func newEnv(t *testing.T) *env {
	t.Helper()
	c, err := New(localtest.Shared(t).RESTConfig(), false)
	if err != nil {
		t.Fatal(err)
	}
	return &env{t, c, localtest.Namespace(t, c.core)}
}

func (e *env) check(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// make creates an object of Lockstep's own API, in a namespace unless namespace is empty.
func (e *env) make(resource, namespace string, o runtime.Object) {
	e.Helper()
	e.check(e.rest.Post().NamespaceIfScoped(namespace, namespace != "").Resource(resource).Body(o).Do(e.Context()).Error())
}

func (e *env) app(name string, labels map[string]string, components ...string) *oam.Application {
	e.Helper()
	app := &oam.Application{ObjectMeta: metav1.ObjectMeta{Namespace: e.ns, Name: name, Labels: labels}}
	for _, c := range components {
		app.Spec.Components = append(app.Spec.Components, oam.Component{Name: c, Type: "webservice"})
	}
	e.make("applications", e.ns, app)
	return app
}

// track creates an application's ResourceTracker.
func (e *env) track(app string, managed ...oam.ManagedResource) {
	e.Helper()
	e.make("resourcetrackers", "", &oam.ResourceTracker{
		ObjectMeta: metav1.ObjectMeta{Name: app + "-" + e.ns, Labels: map[string]string{oam.AppNameLabel: app, oam.AppNamespaceLabel: e.ns}},
		Spec:       oam.ResourceTrackerSpec{Type: oam.ResourceTrackerTypeVersioned, ManagedResources: managed},
	})
}

func (e *env) managed(apiVersion, kind, name, component, cluster string) oam.ManagedResource {
	m := oam.ManagedResource{Component: component}
	m.APIVersion, m.Kind, m.Namespace, m.Name, m.Cluster = apiVersion, kind, e.ns, name, cluster
	return m
}

func (e *env) deployment(name string) {
	e.Helper()
	labels := map[string]string{"app": name}
	_, err := e.core.AppsV1().Deployments(e.ns).Create(e.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec}},
	}, metav1.CreateOptions{})
	e.check(err)
}

var podSpec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "none"}}}

func (e *env) pod(name string, labels map[string]string) {
	e.Helper()
	_, err := e.core.CoreV1().Pods(e.ns).Create(e.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}, Spec: podSpec}, metav1.CreateOptions{})
	e.check(err)
}

func TestPodsAreThoseOfTheWorkloads(t *testing.T) {
	e := newEnv(t)
	app := e.app("shop", nil, "web", "crawl", "flow", "one", "away", "lost")
	e.track("shop",
		e.managed("apps/v1", "Deployment", "web", "web", ""), e.managed("v1", "Service", "web", "web", ""),
		e.managed("batch.volcano.sh/v1alpha1", "Job", "crawl", "crawl", ""), e.managed("argoproj.io/v1alpha1", "Workflow", "flow", "flow", ""),
		e.managed("v1", "Pod", "one", "one", ""), e.managed("apps/v1", "Deployment", "far", "away", "west"),
		e.managed("apps/v1", "Deployment", "deleted-by-hand", "lost", ""), e.managed("v1", "Pod", "deleted-by-hand", "lost", ""))
	e.deployment("web")
	for name, labels := range map[string]map[string]string{
		"web-2": {"app": "web"}, "web-1": {"app": "web"}, "crawl-0": {"volcano.sh/job-name": "crawl"},
		"flow-x": {"workflows.argoproj.io/workflow": "flow"}, "one": nil, "stranger": {"app": "other"},
	} {
		e.pod(name, labels)
	}
	_, err := e.core.CoreV1().Services(e.ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}, metav1.CreateOptions{})
	e.check(err)

	for component, want := range map[string][]string{
		"": {"web-1", "web-2", "crawl-0", "flow-x", "one"}, "web": {"web-1", "web-2"}, "crawl": {"crawl-0"}, "one": {"one"}, "lost": nil,
	} {
		pods, err := e.Pods(t.Context(), app, component)
		e.check(err)
		var names []string
		for _, p := range pods {
			names = append(names, p.Name)
		}
		if diff := cmp.Diff(want, names); diff != "" {
			t.Errorf("component %q: %s", component, diff)
		}
	}
	for component, want := range map[string]string{"away": "runs in cluster west", "none": "no component none"} {
		if _, err := e.Pods(t.Context(), app, component); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("component %q: got %v, want %q", component, err, want)
		}
	}
	for component, want := range map[string]int{"": 1, "web": 1, "crawl": 0} {
		if services, err := e.Services(t.Context(), app, component); err != nil || len(services) != want {
			t.Errorf("component %q: %d services, want %d, %v", component, len(services), want, err)
		}
	}
	fresh := e.app("fresh", nil, "web")
	if _, err := e.Pods(t.Context(), fresh, ""); err == nil || !strings.Contains(err.Error(), "fresh has not been deployed") {
		t.Errorf("one that has no tracker: %v", err)
	}
}

func TestApplicationsAreListedChangedAndDeleted(t *testing.T) {
	e, other := newEnv(t), newEnv(t)
	e.app("a", map[string]string{"team": "x"}, "web")
	e.app("b", map[string]string{"team": "y"}, "web")
	other.app("c", map[string]string{"team": "x"}, "web")
	names := func(namespace, selector string) map[string]bool {
		t.Helper()
		list, err := e.List(t.Context(), namespace, selector)
		e.check(err)
		out := map[string]bool{}
		for _, a := range list {
			out[a.Namespace+"/"+a.Name] = true
		}
		return out
	}
	if diff := cmp.Diff(map[string]bool{e.ns + "/a": true, e.ns + "/b": true}, names(e.ns, "")); diff != "" {
		t.Error(diff)
	}
	if all := names("", "team=x"); !all[e.ns+"/a"] || all[e.ns+"/b"] || !all[other.ns+"/c"] {
		t.Errorf("of all namespaces: %v", all)
	}

	patch := []byte(`{"metadata":{"labels":{"team":"z"}}}`)
	try := *e.Client
	try.dryRun = true
	e.check(try.Patch(t.Context(), e.ns, "a", types.MergePatchType, patch))
	e.check(try.Delete(t.Context(), e.ns, "a", DeleteOptions{Wait: true}))
	app, err := e.Get(t.Context(), e.ns, "a")
	if err != nil || app.Labels["team"] != "x" || app.DeletionTimestamp != nil {
		t.Errorf("after dry runs: %v, %v", app, err)
	}
	e.check(e.Patch(t.Context(), e.ns, "a", types.MergePatchType, patch))
	if app, err = e.Get(t.Context(), e.ns, "a"); err != nil || app.Labels["team"] != "z" {
		t.Errorf("after the patch: %v, %v", app, err)
	}
	// Every application has the manager's finalizer, and no manager runs here.
	release := []byte(`{"metadata":{"finalizers":null}}`)
	e.check(e.Patch(t.Context(), e.ns, "a", types.MergePatchType, release))
	e.check(e.Delete(t.Context(), e.ns, "a", DeleteOptions{Wait: true}))
	if _, err := e.Get(t.Context(), e.ns, "a"); !apierrors.IsNotFound(err) {
		t.Errorf("after its deletion: %v", err)
	}

	// The manager keeps an application's objects if it finds this finalizer.
	e.check(try.Delete(t.Context(), e.ns, "b", DeleteOptions{Orphan: true}))
	if app, err = e.Get(t.Context(), e.ns, "b"); err != nil || slices.Contains(app.Finalizers, oam.OrphanFinalizer) {
		t.Errorf("after a dry run: %v, %v", app.Finalizers, err)
	}
	e.check(e.Delete(t.Context(), e.ns, "b", DeleteOptions{Orphan: true}))
	if app, err = e.Get(t.Context(), e.ns, "b"); err != nil || app.DeletionTimestamp == nil || !slices.Contains(app.Finalizers, oam.OrphanFinalizer) {
		t.Errorf("orphaned: %v, %v", app.Finalizers, err)
	}

	// Delete waits for an application held by its finalizer, but no longer than requested.
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	if err := e.Delete(ctx, e.ns, "b", DeleteOptions{Wait: true}); err == nil || !strings.Contains(err.Error(), e.ns+"/b is still there") {
		t.Errorf("one that is held: %v", err)
	}
	gone := make(chan error, 1)
	go func() { gone <- e.Delete(t.Context(), e.ns, "b", DeleteOptions{Wait: true}) }()
	e.check(e.Patch(t.Context(), e.ns, "b", types.MergePatchType, release))
	// It may be gone before the second request.
	if err := <-gone; err != nil && !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

func TestDefinitionsAreOnesOwnAndEveryones(t *testing.T) {
	e := newEnv(t)
	_, err := e.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: oam.SystemNamespace}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	workload := oam.WorkloadTypeDescriptor{Definition: &oam.WorkloadGVK{APIVersion: "v1", Kind: "ConfigMap"}}
	for namespace, name := range map[string]string{e.ns: "mine", oam.SystemNamespace: "everyones-" + e.ns} {
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
		e.make("componentdefinitions", namespace, &oam.ComponentDefinition{ObjectMeta: meta, Spec: oam.ComponentDefinitionSpec{Workload: workload}})
		e.make("traitdefinitions", namespace, &oam.TraitDefinition{ObjectMeta: meta})
	}
	count := func(namespace string) (out map[string]int) {
		t.Helper()
		defs, err := e.Definitions(t.Context(), namespace)
		e.check(err)
		out = map[string]int{}
		for i := range defs.Components {
			out["component "+defs.Components[i].Name]++
		}
		for i := range defs.Traits {
			out["trait "+defs.Traits[i].Name]++
		}
		return out
	}
	if got := count(e.ns); got["component mine"] != 1 || got["trait mine"] != 1 || got["component everyones-"+e.ns] != 1 || got["trait everyones-"+e.ns] != 1 {
		t.Errorf("in a namespace: %v", got)
	}
	// In the system namespace, the definitions of the system namespace are the namespace's own.
	if got := count(oam.SystemNamespace); got["component mine"] != 0 || got["component everyones-"+e.ns] != 1 || got["trait everyones-"+e.ns] != 1 {
		t.Errorf("in the system namespace: %v", got)
	}
}
