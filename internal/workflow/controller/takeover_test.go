package controller_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
	"lockstep.dev/lockstep/internal/manager/managertest"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/workflow/controller"
)

// brake delays the watches of one resource: while it holds, events from the server are not read.
type brake struct {
	resource string
	mu       sync.Mutex
	free     chan struct{} // closed while nothing is held
	// lists and gets count the answered requests for all objects and for one object.
	lists, gets atomic.Int32
}

func newBrake(resource string) *brake {
	b := &brake{resource: resource, free: make(chan struct{})}
	close(b.free)
	return b
}

// hold holds back events from now on until release.
func (b *brake) hold() (release func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free = make(chan struct{})
	return sync.OnceFunc(func() { close(b.free) })
}

func (b *brake) wrap(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		switch {
		case err != nil || r.Method != http.MethodGet:
			return answer, err
		case strings.Contains(r.URL.Path, "/"+b.resource+"/"):
			b.gets.Add(1)
			return answer, nil
		case !strings.HasSuffix(r.URL.Path, "/"+b.resource):
			return answer, nil
		case r.URL.Query().Get("watch") == "":
			b.lists.Add(1)
			return answer, nil
		}
		answer.Body = &heldBody{answer.Body, b, r}
		return answer, nil
	})
}

type heldBody struct {
	io.ReadCloser
	brake   *brake
	request *http.Request
}

func (h *heldBody) Read(p []byte) (int, error) {
	n, err := h.ReadCloser.Read(p)
	h.brake.mu.Lock()
	free := h.brake.free
	h.brake.mu.Unlock()
	select {
	case <-free:
	case <-h.request.Context().Done():
	}
	return n, err
}

// atOnce is a Placer that places every pod on one node at once.
type atOnce struct{ node string }

func (atOnce) Withdraw(string) {}

// noModel is a Model that counts nothing.
type noModel struct{}

func (noModel) Confirm(types.NamespacedName, cluster.Assumption, types.UID, string) {}
func (noModel) UpsertPod(*corev1.Pod)                                               {}
func (noModel) Forget(types.NamespacedName, cluster.Assumption)                     {}
func (noModel) Priority(string) (int32, bool)                                       { return 0, false }

func (p atOnce) Submit(g *scheduler.Gang) {
	var placed []scheduler.Assignment
	for d := range g.Demands {
		for u := range g.Demands[d].Units {
			placed = append(placed, scheduler.Assignment{Demand: d, Unit: u, Node: p.node})
		}
	}
	g.Owner.Commit(g, placed)
}

// sharer is one of two controllers that own workflows in turn.
type sharer struct {
	*controller.Controller
	informers *informer.Set
	owns      atomic.Bool
	refused   atomic.Int32 // number of times that Owns returned false
}

func (e *env) sharer(wrap func(http.RoundTripper) http.RoundTripper) *sharer {
	e.Helper()
	pool, err := sandbox.New(sandbox.Config{})
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(pool.Close)
	return e.sharerWith(wrap, pool)
}

func (e *env) sharerWith(wrap func(http.RoundTripper) http.RoundTripper, evaluators controller.Evaluators) *sharer {
	e.Helper()
	proxy, err := localtest.Proxy(e.c)
	if err != nil {
		e.Fatal(err)
	}
	e.Cleanup(proxy.Close)
	proxy.Decide(managertest.Decide)
	cfg := proxy.REST(e.c.RESTConfig())
	// The brake affects reads: lists, watches and gets. Writes do not pass a wrapped transport,
	// because package http2client makes them.
	read := rest.CopyConfig(cfg)
	if wrap != nil {
		read.Wrap(wrap)
	}
	s := &sharer{}
	informers, err := informer.NewSet(read)
	if err != nil {
		e.Fatal(err)
	}
	writer, err := apiwriter.New(apiwriter.Config{REST: cfg, Scheme: scheme.Scheme})
	if err != nil {
		e.Fatal(err)
	}
	s.informers = informers
	s.Controller, err = controller.New(controller.Config{
		Evaluators: evaluators,
		Informers:  informers, Placer: atOnce{node: localcluster.NodeName(0)}, Model: noModel{}, Writer: writer,
		Client: kubernetes.NewForConfigOrDie(read), Owns: s.isOwner, Log: localtest.Log(),
	})
	if err != nil {
		e.Fatal(err)
	}
	informers.Start(e.Context())
	if err := informers.WaitForSync(e.Context()); err != nil {
		e.Fatal(err)
	}
	s.Resume()
	go func() { _ = writer.Run(e.Context()) }()
	go s.Run(e.Context())
	return s
}

func (s *sharer) isOwner(*wf.Workflow) bool {
	owns := s.owns.Load()
	if !owns {
		s.refused.Add(1)
	}
	return owns
}

// has gives workflows to a sharer or takes them from it.
func (s *sharer) has(all bool) {
	if all {
		s.Changing()
	}
	s.owns.Store(all)
	s.Rebalance()
}

func TestTakenUpByOneWhoseWatchIsBehind(t *testing.T) {
	t.Parallel()
	c := localtest.Start(t, localtest.WithControllerManager(), localtest.WithNodes(localcluster.Nodes{Count: 1, Pods: 100}), localtest.WithInstall())
	t.Run("of workflows", func(t *testing.T) { behindWithWorkflows(t, newEnv(t, c)) })
	t.Run("of workflows that it ends", func(t *testing.T) { behindWithItsOwnEnd(t, newEnv(t, c)) })
	t.Run("of pods", func(t *testing.T) { behindWithPods(t, newEnv(t, c)) })
	t.Run("of pods that it may not read", func(t *testing.T) { behindWithForbiddenPods(t, newEnv(t, c), newEnv(t, c)) })
	t.Run("with an answer", func(t *testing.T) { behindWithAnAnswer(t, newEnv(t, c)) })
}

// behindWithAnAnswer delivers the answer to a workflow's final status while the manager does not
// own the workflow. When the manager owns it again, it continues.
func behindWithAnAnswer(t *testing.T, e *env) {
	s := e.sharer(nil)
	there, release := hold(t, http.MethodPatch, "/apis/argoproj.io/v1alpha1/namespaces/"+e.ns+"/workflows/w")
	s.has(true)
	e.submit("w", `
entrypoint: pod
podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}
templates:
- {name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: 1ms}}}`)
	e.await(there)
	s.owns.Store(false)
	before := s.refused.Load()
	release()
	e.eventually("the manager lets go of it when the answer comes", func() error {
		if s.refused.Load() == before {
			return errors.New("it has not")
		}
		return nil
	})
	s.has(true)
	e.eventually("its pod is collected", func() error {
		if n := len(e.pods("w")); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})
}

// behindWithPods moves a workflow to a manager that has not seen its running pod.
func behindWithPods(t *testing.T, e *env) {
	pods := newBrake("pods")
	first, second := e.sharer(nil), e.sharer(pods.wrap)
	release := pods.hold()
	t.Cleanup(release)
	first.has(true)
	e.submit("w", `
entrypoint: pod
templates:
- {name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: 1h}}}`)
	e.until("w", inPhase(wf.WorkflowRunning))
	e.eventually("the second manager sees that its pod runs", func() error {
		if w, found := second.informers.Workflows.Get(e.ns, "w"); found && w.Status.Nodes["w"].Phase == wf.PhaseRunning {
			return nil
		}
		return errors.New("it does not")
	})
	first.has(false)
	second.has(true)
	e.eventually("the second manager asks for the pod", func() error {
		if pods.gets.Load() == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	if _, found := second.informers.Pods.Get(e.ns, "w"); found {
		t.Fatal("the watch was to be behind")
	}
	release()
	// The manager follows the pod, and notices when another client deletes it.
	w := e.until("w", inPhase(wf.WorkflowRunning))
	e.expect(w, "W Pod Running")
	now := int64(0)
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), "w", metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
	w = e.until("w", inPhase(wf.WorkflowError))
	e.expect(w, "W Pod Error: pod deleted")
}

// behindWithForbiddenPods moves workflows of two namespaces to a manager that has not seen the pods
// and may not read the pods of one namespace: this does not delay the other namespace, and the
// server gets few requests.
func behindWithForbiddenPods(t *testing.T, closed, open *env) {
	const many = 12 // more than lookupsAtOnce
	pods := newBrake("pods")
	var forbidden, refused atomic.Int32
	forbidden.Store(1)
	first := open.sharer(nil)
	second := open.sharer(func(next http.RoundTripper) http.RoundTripper {
		next = pods.wrap(next)
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if forbidden.Load() == 0 || r.Method != http.MethodGet || !strings.Contains(r.URL.Path, "/namespaces/"+closed.ns+"/pods/") {
				return next.RoundTrip(r)
			}
			refused.Add(1)
			return &http.Response{
				StatusCode: http.StatusForbidden, Request: r, Header: http.Header{"Content-Type": {"application/json"}},
				Body: io.NopCloser(strings.NewReader(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Forbidden","code":403}`)),
			}, nil
		})
	})
	release := pods.hold()
	t.Cleanup(release)
	first.has(true)
	const spec = `
entrypoint: main
templates:
- name: main
  steps: [[{name: pod, template: pod, withSequence: {count: "%d"}}]]
- {name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: 1h}}}`
	closed.submit("w", fmt.Sprintf(spec, many))
	open.submit("w", fmt.Sprintf(spec, 1))
	for e, want := range map[*env]int{closed: many, open: 1} {
		e.eventually("the second manager sees that all pods run", func() error {
			running := 0
			if w, found := second.informers.Workflows.Get(e.ns, "w"); found {
				for _, n := range w.Status.Nodes {
					if n.Type == wf.NodePod && n.Phase == wf.PhaseRunning {
						running++
					}
				}
			}
			if running != want {
				return fmt.Errorf("%d", running)
			}
			return nil
		})
	}
	first.has(false)
	second.has(true)
	open.eventually("the second manager asks for the pods that it may not read", func() error {
		if n := refused.Load(); n < many {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	open.eventually("the second manager asks for the pod that it may read", func() error {
		if pods.gets.Load() == 0 {
			return errors.New("it has not")
		}
		return nil
	})
	if n := refused.Load(); n > 10*many {
		t.Errorf("what is refused is asked for %d times", n)
	}
	// Pods that may be read again are requested again and followed.
	forbidden.Store(0)
	open.eventually("the second manager asks for the others again", func() error {
		if n := pods.gets.Load(); n < 1+many {
			return fmt.Errorf("%d answers", n)
		}
		return nil
	})
	release()
	now := int64(0)
	for _, e := range []*env{closed, open} {
		list := e.pods("w")
		if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), list[0].Name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Fatal(err)
		}
		e.eventually("the second manager knows what that means", func() error {
			w, err := e.get("w")
			if err == nil && !strings.Contains(table(w), "Pod Error: pod deleted") {
				err = errors.New(table(w))
			}
			return err
		})
	}
}

// behindWithItsOwnEnd reconciles a finished workflow whose pod is collected before the watch shows
// its end.
func behindWithItsOwnEnd(t *testing.T, e *env) {
	created := e.keepLedger()
	workflows := newBrake("workflows")
	s := e.sharer(workflows.wrap)
	s.has(true)
	const spec = `
entrypoint: pod
podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}
templates:
- {name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: `
	e.submit("w", spec+"1h}}}")
	e.eventually("its pod runs", func() error {
		if pods := e.pods("w"); len(pods) != 1 || pods[0].Status.Phase != corev1.PodRunning {
			return fmt.Errorf("%d pods", len(pods))
		}
		return nil
	})
	release := workflows.hold()
	t.Cleanup(release)
	end := []byte(`{"status":{"phase":"Succeeded"}}`)
	if _, err := e.core.CoreV1().Pods(e.ns).Patch(t.Context(), "w", types.MergePatchType, end, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	e.until("w", inPhase(wf.WorkflowSucceeded))
	e.eventually("its pod is collected", func() error {
		if n := len(e.pods("w")); n > 0 {
			return fmt.Errorf("%d pods", n)
		}
		_, known := s.informers.Pods.Get(e.ns, "w")
		if known {
			return errors.New("the manager does not see it")
		}
		return nil
	})
	s.Rebalance()
	if w, found := s.informers.Workflows.Get(e.ns, "w"); !found || w.Status.Phase.Completed() {
		t.Fatal("the watch was to be behind")
	}
	release()
	e.submit("next", spec+"1ms}}}")
	e.until("next", inPhase(wf.WorkflowSucceeded))
	e.until("w", inPhase(wf.WorkflowSucceeded))
	created.check(t)
}

// behindWithWorkflows moves workflows whose pods were collected to a manager whose watch does not
// show their progress yet.
func behindWithWorkflows(t *testing.T, e *env) {
	created := map[string]int{}
	var mu sync.Mutex
	pods, err := e.core.CoreV1().Pods(e.ns).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for event := range pods.ResultChan() {
			if p, ok := event.Object.(*corev1.Pod); ok && event.Type == watch.Added {
				mu.Lock()
				created[p.Labels[wf.LabelWorkflow]]++
				mu.Unlock()
			}
		}
	}()
	workflows := newBrake("workflows")
	first, second := e.sharer(nil), e.sharer(workflows.wrap)
	first.has(true)

	//   1. Two workflows progress as far as they can; the second manager has seen only that they
	//      exist.
	const spec = `
entrypoint: main
podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}
templates:
- {name: pod, container: {image: pause, command: [sh]}, metadata: {annotations: {lockstep.dev/sim-duration: 1ms}}}
- name: main
  steps: `
	behind := func(name string) func() error {
		return func() error {
			if w, found := second.informers.Workflows.Get(e.ns, name); !found || w.Status.Phase != "" {
				return fmt.Errorf("found %t", found)
			}
			return nil
		}
	}
	first.owns.Store(false)
	e.submit("over", spec+`[[{name: one, template: pod}]]`)
	e.submit("half", spec+`[[{name: one, template: pod}], [{name: wait, template: wait}], [{name: two, template: pod}]]
- {name: wait, suspend: {}}`)
	for _, name := range []string{"over", "half"} {
		e.eventually("the second manager sees "+name, behind(name))
	}
	release := workflows.hold()
	t.Cleanup(release)
	first.has(true)
	e.until("over", inPhase(wf.WorkflowSucceeded))
	e.until("half", func(w *wf.Workflow) error {
		for _, n := range w.Status.Nodes {
			if n.Type == wf.NodeSuspend && n.Phase == wf.PhaseRunning {
				return nil
			}
		}
		return errors.New("it does not wait yet")
	})
	e.eventually("the pods are collected", func() error {
		list, err := e.core.CoreV1().Pods(e.ns).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are left", len(list.Items))
		}
		return err
	})
	//   2. The second manager owns them now.
	lists := workflows.lists.Load()
	first.has(false)
	second.has(true)
	e.eventually("the second manager asks how far they are", func() error {
		if workflows.lists.Load() == lists {
			return errors.New("it has not")
		}
		return nil
	})
	for _, name := range []string{"over", "half"} {
		if err := behind(name)(); err != nil {
			t.Fatalf("the watch was to be behind: %s: %v", name, err)
		}
	}
	release()
	//   3. It continues where the first manager stopped.
	e.patch("half", `{"spec":{"suspend":false}}`)
	w := e.until("half", func(w *wf.Workflow) error {
		for _, n := range w.Status.Nodes {
			if n.Type == wf.NodeSuspend {
				return nil
			}
		}
		return errors.New("no pause")
	})
	for id, n := range w.Status.Nodes {
		if n.Type == wf.NodeSuspend {
			e.patch("half", fmt.Sprintf(`{"status":{"nodes":{%q:{"phase":"Succeeded"}}}}`, id))
		}
	}
	e.until("half", inPhase(wf.WorkflowSucceeded))
	e.until("over", inPhase(wf.WorkflowSucceeded))
	mu.Lock()
	defer mu.Unlock()
	if created["over"] != 1 || created["half"] != 2 {
		t.Errorf("pods created: %v; want 1 for the one that was over and 2 for the other", created)
	}
}
