package applications

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/controller"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/sandbox"
)

func TestMain(m *testing.M) {
	sandbox.Main(manager.Evaluators())
	localtest.Main(m, localtest.WithControllerManager(), localtest.WithScheduler(), localtest.WithApplications(),
		localtest.WithNodes(localcluster.Nodes{Count: 8}))
}

// world is the cluster of all cases, with an application controller.
type world struct {
	c      *localcluster.Cluster
	dyn    dynamic.Interface
	core   kubernetes.Interface
	mapper *restmapper.DeferredDiscoveryRESTMapper
	// echo is the address of a server that answers each request with the request itself, and a
	// request for .yaml with manifests.
	echo string
	// charts is the address where charts are published.
	charts string
}

var shared struct {
	once sync.Once
	w    *world
	err  error
}

func open(t testing.TB) *world {
	t.Helper()
	c := localtest.Shared(t)
	shared.once.Do(func() { shared.w, shared.err = newWorld(c) })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.w
}

func newWorld(c *localcluster.Cluster) (*world, error) {
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	writer, err := apiwriter.New(apiwriter.Config{REST: c.ManagerRESTConfig(), Scheme: scheme.Scheme, Logger: log})
	if err != nil {
		return nil, err
	}
	evaluators, err := sandbox.New(sandbox.Config{Log: log})
	if err != nil {
		return nil, err
	}
	// The cases' servers are on this machine, as if a manager had --allow-requests-to.
	requests, err := egress.New(egress.Config{Allow: []string{"127.0.0.1"}})
	if err != nil {
		return nil, err
	}
	if err := serveKinds(c); err != nil {
		return nil, err
	}
	ctl, err := controller.New(controller.Config{REST: c.ManagerRESTConfig(), Writer: writer, Log: log, Requests: requests, Evaluators: evaluators})
	if err != nil {
		return nil, err
	}
	// They run for as long as the process.
	go func() { _ = writer.Run(context.Background()) }()
	go ctl.Run(context.Background())
	cfg := rest.CopyConfig(c.RESTConfig())
	cfg.QPS = -1
	disco, err := discovery.NewDiscoveryClientForConfig(cfg)
	if err != nil {
		return nil, err
	}
	echo := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		w.Header().Set("X-Method", r.Method)
		if strings.Contains(r.URL.Path, "refuse") {
			w.WriteHeader(http.StatusForbidden)
		}
		if strings.HasSuffix(r.URL.Path, ".yaml") {
			body = []byte("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: first, namespace: theirs}\ndata: {k: v}\n---\n---\napiVersion: v1\nkind: Secret\nmetadata: {name: second}\n")
		}
		if strings.HasSuffix(r.URL.Path, "/api/v1/query") { // Prometheus
			body = fmt.Appendf(nil, `{"status":"success","data":{"resultType":"scalar","result":[1,%q]}}`, r.URL.Query().Get("query"))
		}
		if len(body) == 0 {
			body = []byte(`{"empty": true}`)
		}
		_, _ = w.Write(body)
	}))
	return &world{
		c: c, dyn: dynamic.NewForConfigOrDie(cfg), core: kubernetes.NewForConfigOrDie(cfg), mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(disco)), echo: echo.URL, charts: serveCharts(),
	}, nil
}

// terraformKind is the kind of Terraform's controller, as far as cases need it.
const terraformKind = `{"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "configurations.terraform.core.oam.dev"},
	"spec": {"group": "terraform.core.oam.dev", "scope": "Namespaced", "names": {"kind": "Configuration", "plural": "configurations", "singular": "configuration"},
	"versions": [{"name": "v1beta2", "served": true, "storage": true, "subresources": {"status": {}},
	"schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}`

// serveKinds creates the kinds that cases use, and waits until they are served: the controller looks
// for kinds that it has missed only now and then.
func serveKinds(c *localcluster.Cluster) error {
	dyn := dynamic.NewForConfigOrDie(c.RESTConfig())
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	var kinds []schema.GroupVersionResource
	for _, text := range []string{terraformKind, strings.NewReplacer("configuration", "provider", "Configuration", "Provider", "v1beta2", "v1beta1").Replace(terraformKind)} {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON([]byte(text)); err != nil {
			return err
		}
		if _, err := dyn.Resource(crds).Create(context.Background(), u, metav1.CreateOptions{}); err != nil {
			return err
		}
		plural, group, _ := strings.Cut(u.GetName(), ".")
		versions, _, _ := unstructured.NestedSlice(u.Object, "spec", "versions")
		kinds = append(kinds, schema.GroupVersionResource{Group: group, Version: versions[0].(map[string]any)["name"].(string), Resource: plural})
	}
	return wait.PollUntilContextTimeout(context.Background(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		for _, kind := range kinds {
			if _, err := dyn.Resource(kind).List(ctx, metav1.ListOptions{}); err != nil {
				return false, nil
			}
		}
		return true, nil
	})
}

// resource returns the client for an object's resource.
func (w *world) resource(u *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	m, err := w.mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
	if meta.IsNoMatchError(err) {
		w.mapper.Reset() // a case may have created the kind
		m, err = w.mapper.RESTMapping(u.GroupVersionKind().GroupKind(), u.GroupVersionKind().Version)
	}
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() != meta.RESTScopeNameNamespace {
		return w.dyn.Resource(m.Resource), nil
	}
	if u.GetNamespace() != "" {
		namespace = u.GetNamespace()
	}
	return w.dyn.Resource(m.Resource).Namespace(namespace), nil
}

// contains returns an error that names a field that wanted has and live has not.
func contains(live, wanted any, path string) error {
	switch wanted := wanted.(type) {
	case map[string]any:
		there, ok := live.(map[string]any)
		if !ok && live != nil {
			return fmt.Errorf("%s is %v, not a struct", path, live)
		}
		for k, v := range wanted {
			if err := contains(there[k], v, path+"."+k); err != nil {
				return err
			}
		}
		return nil
	case []any:
		there, ok := live.([]any)
		if !ok && len(wanted) > 0 || len(there) != len(wanted) {
			return fmt.Errorf("%s is %v, not %v", path, live, wanted)
		}
		for i := range wanted {
			if err := contains(there[i], wanted[i], fmt.Sprintf("%s[%d]", path, i)); err != nil {
				return err
			}
		}
		return nil
	case string:
		if text, ok := strings.CutPrefix(wanted, "~"); ok {
			if !strings.Contains(fmt.Sprint(live), text) {
				return fmt.Errorf("%s is %q, which lacks %q", path, live, text)
			}
			return nil
		}
	case nil:
		if live != nil {
			return fmt.Errorf("%s is %v; it should not be there", path, live)
		}
		return nil
	}
	if fmt.Sprint(live) != fmt.Sprint(wanted) {
		return fmt.Errorf("%s is %v, not %v", path, live, wanted)
	}
	return nil
}

// eventually waits until f returns nil. It waits long because many cases run at the same time.
func eventually(t testing.TB, what string, f func() error) {
	t.Helper()
	localtest.Eventually(t, what, f)
}
