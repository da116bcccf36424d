package cron

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/cache"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// workflows is a cache of the metadata of the workflows that crons have started, indexed by the UID
// of their cron. It is not a shared informer because that supports no backoff: see
// kubeclient.WatchBackoff.
type workflows struct {
	cache.Indexer
	reflector *cache.Reflector
	// changed is called for every workflow that is added, changed or deleted, after the cache shows
	// it.
	changed func(metav1.Object)

	fillOnce sync.Once
	filled   chan struct{} // closed after the initial list
}

func newWorkflows(client metadata.Interface, changed func(metav1.Object)) *workflows {
	w := &workflows{
		Indexer: cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{byCron: indexByCron}), changed: changed, filled: make(chan struct{}),
	}
	all := client.Resource(wf.GroupVersion.WithResource("workflows")).Namespace(metav1.NamespaceAll)
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector = wf.LabelCronWorkflow
			return all.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = wf.LabelCronWorkflow
			return all.Watch(ctx, o)
		},
	}, client)
	w.reflector = cache.NewReflectorWithOptions(lw, &metav1.PartialObjectMetadata{}, w, cache.ReflectorOptions{
		Name: "workflows of crons", Backoff: kubeclient.WatchBackoff(),
	})
	return w
}

// indexByCron indexes workflows by the UID of the cron that controls them.
func indexByCron(o any) ([]string, error) {
	if owner := metav1.GetControllerOf(o.(metav1.Object)); owner != nil && owner.Kind == "CronWorkflow" {
		return []string{string(owner.UID)}, nil
	}
	return nil, nil
}

// of returns the workflows that a cron controls.
func (w *workflows) of(cron *wf.CronWorkflow) ([]any, error) {
	return w.ByIndex(byCron, string(cron.UID))
}

// version returns the resource version of the cache.
func (w *workflows) version() string { return w.reflector.LastSyncResourceVersion() }

// The following methods make workflows the store of its reflector.

// Add implements cache.ReflectorStore.
func (w *workflows) Add(o any) error { return w.Update(o) }

// Update implements cache.ReflectorStore.
func (w *workflows) Update(o any) error {
	m := o.(metav1.Object)
	m.SetManagedFields(nil) // nobody reads them here
	if err := w.Indexer.Update(o); err != nil {
		return err
	}
	w.changed(m)
	return nil
}

// Delete implements cache.ReflectorStore.
func (w *workflows) Delete(o any) error {
	if err := w.Indexer.Delete(o); err != nil {
		return err
	}
	w.changed(o.(metav1.Object))
	return nil
}

// Replace implements cache.ReflectorStore.
func (w *workflows) Replace(list []any, version string) error {
	before := w.List()
	for _, o := range list {
		o.(metav1.Object).SetManagedFields(nil)
	}
	if err := w.Indexer.Replace(list, version); err != nil {
		return err
	}
	// deleted, changed or unchanged: reconciling a cron costs little
	for _, o := range append(before, list...) {
		w.changed(o.(metav1.Object))
	}
	w.fillOnce.Do(func() { close(w.filled) })
	return nil
}
