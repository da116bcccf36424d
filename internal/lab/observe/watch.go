package observe

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/analyse"
)

// Watch collects events from watches of one namespace's jobs and pods, timed by the client's clock.
type Watch struct {
	jobs   string
	lock   sync.Mutex
	events []analyse.Event
	// synced is true when the watches have begun, and relists counts the lists since then.
	synced  bool
	relists int
	cancel  context.CancelFunc
	wait    []func()
}

// StartWatch watches namespace until Close. It returns when the watches have synced.
func StartWatch(ctx context.Context, cfg *rest.Config, namespace string, jobs schema.GroupVersionResource) (*Watch, error) {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{jobs: jobs.GroupResource().String(), cancel: cancel}
	cfg = rest.CopyConfig(cfg)
	cfg.Wrap(func(through http.RoundTripper) http.RoundTripper { return counter{through, w} })
	client, err := kubeclient.Clientset(cfg)
	if err != nil {
		cancel()
		return nil, err
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		cancel()
		return nil, err
	}
	pods := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	others := dynamicinformer.NewFilteredDynamicSharedInformerFactory(dyn, 0, namespace, nil)
	w.wait = []func(){pods.Shutdown, others.Shutdown}
	podInformer, jobInformer := pods.Core().V1().Pods().Informer(), others.ForResource(jobs).Informer()
	if _, err := podInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { w.pod(nil, o.(*corev1.Pod)) },
		UpdateFunc: func(old, o any) { w.pod(old.(*corev1.Pod), o.(*corev1.Pod)) },
		DeleteFunc: w.gone,
	}); err != nil {
		return nil, err
	}
	if _, err := jobInformer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		w.add(analyse.Event{Verb: "create", Resource: w.jobs, Namespace: namespace, Name: o.(*unstructured.Unstructured).GetName()})
	}}); err != nil {
		return nil, err
	}
	pods.Start(ctx.Done())
	others.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), podInformer.HasSynced, jobInformer.HasSynced) {
		w.Close()
		return nil, fmt.Errorf("watch namespace %s: %w", namespace, context.Cause(ctx))
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	w.synced = true
	return w, nil
}

// counter counts the requests of a watch that list everything, from the beginning or as the first
// events of a watch: between the end of the watch before and the list, changes may have been missed,
// and the times of others are wrong.
type counter struct {
	through http.RoundTripper
	w       *Watch
}

func (c counter) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	if query.Get("watch") == "" || query.Get("sendInitialEvents") == "true" {
		c.w.lock.Lock()
		if c.w.synced {
			c.w.relists++
		}
		c.w.lock.Unlock()
	}
	return c.through.RoundTrip(r)
}

// Lost implements Source.
func (w *Watch) Lost() string {
	w.lock.Lock()
	defer w.lock.Unlock()
	if w.relists == 0 {
		return ""
	}
	return "the watch was interrupted and had to list everything again"
}

// pod turns one change of a pod into the events that explain it.
func (w *Watch) pod(old, pod *corev1.Pod) {
	e := analyse.Event{Verb: "create", Resource: "pods", Namespace: pod.Namespace, Name: pod.Name}
	if old == nil {
		e.Node = pod.Spec.NodeName
		w.add(e)
	} else if old.Spec.NodeName == "" && pod.Spec.NodeName != "" {
		e.Sub, e.Node = "binding", pod.Spec.NodeName
		w.add(e)
	}
	if finished(pod) && (old == nil || !finished(old)) {
		e.Verb, e.Sub = "finish", ""
		w.add(e)
	}
}

func finished(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

func (w *Watch) gone(o any) {
	if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unknown.Obj
	}
	if pod, ok := o.(*corev1.Pod); ok {
		w.add(analyse.Event{Verb: "delete", Resource: "pods", Namespace: pod.Namespace, Name: pod.Name})
	}
}

func (w *Watch) add(e analyse.Event) {
	e.Actor, e.Code = Other, 200
	e.Time = time.Now()
	e.Received = e.Time
	w.lock.Lock()
	defer w.lock.Unlock()
	w.events = append(w.events, e)
}

// Next returns the events since the last call.
func (w *Watch) Next() ([]analyse.Event, error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	out := w.events
	w.events = nil
	return out, nil
}

// Close ends the watches.
func (w *Watch) Close() error {
	w.cancel()
	for _, wait := range w.wait {
		wait()
	}
	return nil
}
