package controller_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

// TestMain runs one real API server with the real controller manager and scheduler, and simulated
// nodes, for all tests.
func TestMain(m *testing.M) {
	sandbox.Main(manager.Evaluators())
	localtest.Main(m, localtest.WithControllerManager(), localtest.WithScheduler(), localtest.WithApplications(),
		localtest.WithNodes(localcluster.Nodes{Count: 4}))
}

var (
	applications = oam.GroupVersion.WithResource("applications")
	trackers     = oam.GroupVersion.WithResource("resourcetrackers")
	deployments  = schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	configMaps   = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	secrets      = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
)

// env is a namespace of the cluster for one test. A controller works on the whole cluster.
type env struct {
	testing.TB
	ns   string
	c    *localcluster.Cluster
	core kubernetes.Interface
	dyn  dynamic.Interface
}

// shared is the controller of all tests except those that stop theirs.
var shared struct {
	once     sync.Once
	registry *prometheus.Registry
	err      error
}

// elsewhere has the namespaces whose Applications the shared controller leaves to another one.
var elsewhere sync.Map

func start(t *testing.T) *env {
	e := connect(t)
	shared.once.Do(func() {
		shared.registry = prometheus.NewRegistry()
		_, shared.err = runMeasured(e.c, shared.registry, notElsewhere)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return e
}

func connect(t *testing.T) *env {
	t.Helper()
	c := localtest.Shared(t)
	e := &env{TB: t, c: c, core: kubernetes.NewForConfigOrDie(c.RESTConfig()), dyn: dynamic.NewForConfigOrDie(c.RESTConfig())}
	e.ns = localtest.Namespace(t, e.core)
	return e
}

// runController runs a controller with the manager's rights until stop is called.
func runController(c *localcluster.Cluster) (stop func(), _ error) {
	return runMeasured(c, prometheus.NewRegistry(), notElsewhere)
}

func notElsewhere(key string) bool {
	namespace, _, _ := strings.Cut(key, "/")
	_, there := elsewhere.Load(namespace)
	return !there
}

func runMeasured(c *localcluster.Cluster, registry *prometheus.Registry, owns func(key string) bool) (stop func(), _ error) {
	return runWith(c, controller.Config{IdleAfter: 20 * time.Millisecond, Metrics: registry, Owns: owns}, func(w apiwriter.Writer) apiwriter.Writer { return w })
}

// runWith completes cfg and runs a controller. The controller's writer is what through returns for
// the real one.
func runWith(c *localcluster.Cluster, cfg controller.Config, through func(apiwriter.Writer) apiwriter.Writer) (stop func(), _ error) {
	return runAt(c.ManagerRESTConfig(), cfg, through)
}

// runAt is runWith for a controller that reaches the cluster by the configuration server.
func runAt(server *rest.Config, cfg controller.Config, through func(apiwriter.Writer) apiwriter.Writer) (stop func(), _ error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelInfo}))
	writer, err := apiwriter.New(apiwriter.Config{REST: server, Scheme: scheme.Scheme, Logger: log})
	if err != nil {
		return nil, err
	}
	closeEvaluators := func() {}
	if cfg.Evaluators == nil {
		pool, err := sandbox.New(sandbox.Config{Log: log})
		if err != nil {
			return nil, err
		}
		cfg.Evaluators, closeEvaluators = pool, pool.Close
	}
	cfg.REST, cfg.Writer, cfg.Log = server, through(writer), log
	if cfg.Requests == nil { // the tests' servers are on this machine
		if cfg.Requests, err = egress.New(egress.Config{Allow: []string{"127.0.0.1"}}); err != nil {
			return nil, err
		}
	}
	ctl, err := controller.New(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(ctx) })
	running.Go(func() { ctl.Run(ctx) })
	return func() { cancel(); running.Wait(); closeEvaluators() }, nil
}

// apply creates an object, or replaces the spec, labels and annotations of an existing one.
func (e *env) apply(manifest string) *unstructured.Unstructured {
	e.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &u.Object); err != nil {
		e.Fatal(err)
	}
	u.SetNamespace(e.ns)
	plural := strings.Replace(strings.ToLower(u.GetKind())+"s", "ys", "ies", 1)
	r := e.dyn.Resource(u.GroupVersionKind().GroupVersion().WithResource(plural)).Namespace(e.ns)
	got, err := r.Apply(e.Context(), u.GetName(), u, metav1.ApplyOptions{FieldManager: "user", Force: true})
	if err != nil {
		e.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
	}
	return got
}

// app applies an Application with the given spec in YAML.
func (e *env) app(name, spec string) {
	e.Helper()
	e.apply("apiVersion: core.oam.dev/v1beta1\nkind: Application\nmetadata: {name: " + name + "}\nspec:\n" + indent(spec))
}

func indent(s string) string {
	return "  " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n  ") + "\n"
}

func (e *env) get(gvr schema.GroupVersionResource, name string) (*unstructured.Unstructured, error) {
	return e.dyn.Resource(gvr).Namespace(e.ns).Get(e.Context(), name, metav1.GetOptions{})
}

func (e *env) application(name string) *oam.Application {
	e.Helper()
	u, err := e.get(applications, name)
	if err != nil {
		e.Fatal(err)
	}
	var app oam.Application
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &app); err != nil {
		e.Fatal(err)
	}
	return &app
}

func (e *env) eventually(what string, f func() error) {
	e.Helper()
	localtest.Eventually(e, what, f)
}

// until waits until check returns nil for an Application, and returns the Application.
func (e *env) until(name string, check func(*oam.Application) error) *oam.Application {
	e.Helper()
	var app *oam.Application
	e.eventually("application "+name, func() error {
		app = e.application(name)
		if err := check(app); err != nil {
			data, _ := json.Marshal(app.Status)
			return fmt.Errorf("%w: %s", err, data)
		}
		return nil
	})
	return app
}

func inPhase(p oam.ApplicationPhase) func(*oam.Application) error {
	return func(a *oam.Application) error {
		if a.Status.Phase != p || a.Status.ObservedGeneration != a.Generation {
			return fmt.Errorf("it is %s (generation %d of %d), not %s", a.Status.Phase, a.Status.ObservedGeneration, a.Generation, p)
		}
		return nil
	}
}

// says returns a check that a condition of the Application is False and that its message contains
// all parts.
func says(t oam.ConditionType, parts ...string) func(*oam.Application) error {
	return func(a *oam.Application) error {
		for _, c := range a.Status.Conditions {
			if c.Type != t || c.Status != "False" {
				continue
			}
			for _, part := range parts {
				if !strings.Contains(c.Message, part) {
					return fmt.Errorf("the message lacks %q: %s", part, c.Message)
				}
			}
			return nil
		}
		return fmt.Errorf("there is no condition %s that is False", t)
	}
}

// gone waits until an object does not exist.
func (e *env) gone(gvr schema.GroupVersionResource, name string) {
	e.Helper()
	e.eventually(gvr.Resource+" "+name+" is gone", func() error {
		if _, err := e.get(gvr, name); err == nil {
			return fmt.Errorf("it is there")
		}
		return nil
	})
}

func (e *env) delete(gvr schema.GroupVersionResource, name string) {
	e.Helper()
	if err := e.dyn.Resource(gvr).Namespace(e.ns).Delete(e.Context(), name, metav1.DeleteOptions{}); err != nil {
		e.Fatal(err)
	}
}

// noneAwake waits until the controller with this registry has no active Application.
func (e *env) noneAwake(registry *prometheus.Registry) {
	e.Helper()
	e.eventually("none is awake", func() error {
		families, err := registry.Gather()
		for _, f := range families {
			if n := f.GetMetric()[0].GetGauge().GetValue(); f.GetName() == "lockstep_applications_awake" && n > 0 {
				err = fmt.Errorf("%v are", n)
			}
		}
		return err
	})
}

// requests returns, from the audit log, the number of the manager's requests about the namespace
// and about its Applications' trackers, by verb and resource.
func (e *env) requests() map[string]int {
	e.Helper()
	out := map[string]int{}
	for _, call := range localtest.ManagerCalls(e, e.c) {
		if call.Namespace == e.ns || call.Resource == "resourcetrackers" && strings.HasSuffix(call.Name, "-"+e.ns) {
			out[call.Verb+" "+call.Resource]++
		}
	}
	return out
}

func total(m map[string]int) int {
	n := 0
	for _, v := range slices.Collect(maps.Values(m)) {
		n += v
	}
	return n
}

// less returns the difference between two results of requests.
func less(after, before map[string]int) map[string]int {
	out := maps.Clone(after)
	for k, v := range before {
		if out[k] -= v; out[k] == 0 {
			delete(out, k)
		}
	}
	return out
}

// namespace creates another namespace.
func (e *env) namespace(name string) {
	e.Helper()
	if _, err := e.core.CoreV1().Namespaces().Create(e.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		e.Fatal(err)
	}
}

// newPool returns evaluators for the controller of a test.
func newPool(t testing.TB) *sandbox.Pool {
	t.Helper()
	p, err := sandbox.New(sandbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}
