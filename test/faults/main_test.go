package faults

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/faultproxy"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
)

// nodes and nodeCPUs are the size of the cluster. It has room for one gang of the loads at a time.
const (
	nodes    = 4
	nodeCPUs = 4
)

// TestMain runs the manager if the test binary is called as "TESTBINARY manager ...", and else the
// tests.
func TestMain(m *testing.M) { managertest.Main(m) }

// world is a control plane whose manager, a process of its own, reaches the API server through a
// proxy. When the manager ends, for whatever reason, it is started again.
type world struct {
	testing.TB
	c     *localcluster.Cluster
	proxy *faultproxy.Proxy
	core  kubernetes.Interface
	dyn   dynamic.Interface
	audit observe.Log
	pods  *ledger
	// resting holds the namespaces whose loads are at rest, and the number of the manager's writes
	// to each at that time.
	resting map[string]int
	// started is closed when the cluster exists.
	started chan struct{}

	mu    sync.Mutex
	again sync.WaitGroup
	ended bool // the manager is not started again
	up    int  // number of restarts of the manager
	died  int
}

func newWorld(t testing.TB) *world {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	w := &world{TB: t, resting: map[string]int{}, started: make(chan struct{})}
	w.c = localtest.Start(t, localtest.WithControllerManager(), localtest.WithScheduler(), localtest.WithApplications(),
		localtest.WithNodes(localcluster.Nodes{Count: nodes, CPU: fmt.Sprint(nodeCPUs), Memory: "64Gi", Pods: 100}),
		localtest.WithManager(self, "manager", "-v"), localtest.WithConfig(w.between))
	close(w.started)
	t.Cleanup(func() {
		w.mu.Lock()
		w.ended = true
		w.mu.Unlock()
		w.again.Wait()
		w.proxy.Close()
	})
	w.core, w.dyn = kubernetes.NewForConfigOrDie(w.c.RESTConfig()), dynamic.NewForConfigOrDie(w.c.RESTConfig())
	source, err := observe.FollowAudit(w.c.AuditLogPath())
	if err != nil {
		t.Fatal(err)
	}
	w.audit.Source = source
	w.pods = keepLedger(t, w.core)
	return w
}

// between puts the proxy between the manager and the API server.
func (w *world) between(c *localcluster.Config) {
	kubeconfig := filepath.Join(c.Dir, "faulty.kubeconfig")
	install, dir := c.Install, c.Dir
	c.ExtraArgs = map[localcluster.Component][]string{localcluster.Manager: {"--kubeconfig=" + kubeconfig, "--pprof"}}
	c.Install = func(ctx context.Context, cfg *rest.Config) (err error) {
		w.proxy, err = faultproxy.New(faultproxy.Config{Server: cfg,
			CertFile: filepath.Join(dir, "pki", "serving.crt"), KeyFile: filepath.Join(dir, "pki", "serving.key")})
		if err == nil {
			err = w.proxy.WriteKubeconfig(filepath.Join(dir, "manager.kubeconfig"), kubeconfig)
		}
		if err == nil {
			err = install(ctx, cfg)
		}
		return err
	}
	c.OnEvent = func(e localcluster.Event) {
		if e.Component != localcluster.Manager || e.Kind != localcluster.EventDied {
			return
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		w.died++
		if !w.ended {
			w.again.Go(w.startAgain)
		}
	}
}

// startAgain starts a manager, as a Deployment does. Faults may keep the manager from becoming
// ready: then it goes on trying, or ends.
func (w *world) startAgain() {
	select {
	case <-w.started:
	case <-w.Context().Done():
		return // there will be no cluster
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := w.c.StartComponent(ctx, localcluster.Manager); err == nil {
		w.mu.Lock()
		w.up++
		w.mu.Unlock()
	}
}

// ups returns how often a manager was started again and became ready.
func (w *world) ups() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.up
}

// restart kills the manager and waits for the next one.
func (w *world) restart() {
	w.Helper()
	n := w.ups()
	if err := w.c.Kill(localcluster.Manager); err != nil {
		w.Fatal(err)
	}
	w.awaitUp(n + 1)
}

func (w *world) awaitUp(n int) {
	w.Helper()
	localtest.Eventually(w, "the manager is started again", func() error {
		if w.ups() < n {
			return fmt.Errorf("%d times", w.ups())
		}
		return nil
	})
}

// story returns the records about a violation: the writes to a namespace as the proxy saw them, all
// writes there as the server saw them, and the manager's log about it. If LOCKSTEP_FAULT_LOGS names
// a directory, the story goes to a file there, with the manager's metrics and goroutines.
func (w *world) story(ns string) string {
	var out strings.Builder
	var first time.Time
	for _, x := range w.proxy.Writes() {
		if x.Namespace != ns && !strings.Contains(x.Name, ns) {
			continue
		}
		if first.IsZero() {
			first = x.At
		}
		lost := ""
		if x.Lost {
			lost = " (answer lost)"
		}
		fmt.Fprintf(&out, "%s +%5dms %s %s %s: %d%s\n", x.At.UTC().Format("15:04:05.000"), x.At.Sub(first).Milliseconds(), x.Verb, x.Resource, x.Name, x.Code, lost)
	}
	if err := w.audit.Collect(); err != nil {
		w.Error(err)
	}
	for _, e := range w.audit.Events {
		if e.Namespace == ns || strings.Contains(e.Name, ns) {
			fmt.Fprintf(&out, "%s server +%5dms %s %s %s %s: %d\n", e.Time.UTC().Format("15:04:05.000"), e.Time.Sub(first).Milliseconds(), e.Actor, e.Kind(),
				e.Name, e.Node, e.Code)
		}
	}
	data, _ := os.ReadFile(w.c.LogPath(localcluster.Manager))
	for line := range strings.Lines(string(data)) {
		if strings.Contains(line, ns) || strings.Contains(line, "level=ERROR") || strings.Contains(line, "managing") {
			out.WriteString(line)
		}
	}
	dir := os.Getenv("LOCKSTEP_FAULT_LOGS")
	if dir == "" {
		s := out.String()
		return s[max(0, len(s)-storyMax):]
	}
	for _, page := range []string{"/metrics", "/debug/pprof/goroutine?debug=2"} {
		if answer, err := http.Get("http://" + w.c.ManagerAddress() + page); err == nil {
			data, _ := io.ReadAll(answer.Body)
			_ = answer.Body.Close()
			out.Write(data)
		}
	}
	file := filepath.Join(dir, ns+".log")
	if err := os.WriteFile(file, []byte(out.String()), 0o600); err != nil {
		return err.Error()
	}
	return "story: " + file
}

// storyMax bounds a story in the test's log, in bytes.
const storyMax = 8 << 10

// resourceOf returns the resource of an object's kind.
func resourceOf(u *unstructured.Unstructured) schema.GroupVersionResource {
	return u.GroupVersionKind().GroupVersion().WithResource(strings.ToLower(u.GetKind()) + "s")
}

// apply creates the objects of a file in testdata. If an object exists, apply updates its spec, as
// a user would.
func (w *world) apply(ns, file string) {
	w.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		w.Fatal(err)
	}
	documents := yaml.NewYAMLToJSONDecoder(bytes.NewReader(data))
	for {
		u := &unstructured.Unstructured{}
		if documents.Decode(&u.Object) != nil || u.Object == nil {
			return
		}
		r := w.dyn.Resource(resourceOf(u)).Namespace(ns)
		localtest.Eventually(w, file, func() error {
			_, err := r.Create(w.Context(), u, metav1.CreateOptions{FieldValidation: "Strict"})
			if !errors.IsAlreadyExists(err) {
				return err
			}
			old, err := r.Get(w.Context(), u.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			old.Object["spec"] = u.Object["spec"]
			_, err = r.Update(w.Context(), old, metav1.UpdateOptions{})
			return err
		})
	}
}

func (w *world) delete(ns string, r schema.GroupVersionResource, name string) {
	w.Helper()
	if err := w.dyn.Resource(r).Namespace(ns).Delete(w.Context(), name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}
