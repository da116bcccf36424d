package cluster

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// object is what every watched type is.
type object interface {
	metav1.Object
	runtime.Object
}

// Handler is told of changes to the objects of one Kind, one call at a time. The objects are shared with the cache and
// must not be modified. Any of the functions may be nil.
type Handler[T any] struct {
	Added   func(T)
	Updated func(old, new T)
	Deleted func(T) // the last state seen; what happened between it and the deletion may have been missed
}

// Kind is a typed view of the cache of one type.
type Kind[T object] struct {
	client   rest.Interface
	resource string
	selected selection
	informer cache.SharedIndexInformer
	handlers []cache.ResourceEventHandlerRegistration
	// first are the handlers from before the start: they are told one after the other, in the order in which they came. The
	// informer has two goroutines for each handler that it knows of, and wakes both for every event.
	first   []Handler[T]
	started atomic.Bool
}

// newKind watches resource through client. trim is applied to every object before it is stored; it may modify it.
func newKind[T object](client rest.Interface, resource string, example T, trim func(T), indexers cache.Indexers) *Kind[T] {
	return newSelected(client, resource, selection{}, example, trim, indexers)
}

// selection is which objects of a resource are watched, by selectors of labels and fields and by namespace; empty: all.
type selection struct{ labels, fields, namespace string }

func (s selection) get(client rest.Interface, resource string) *rest.Request {
	return client.Get().NamespaceIfScoped(s.namespace, s.namespace != "").Resource(resource)
}

// ListWatch lists and watches those objects of a resource that selectors of labels and fields leave, in one namespace or, when
// that is empty, in all.
func ListWatch(client rest.Interface, resource, namespace, labels, fields string) *cache.ListWatch {
	return listWatch(client, resource, selection{labels: labels, fields: fields, namespace: namespace})
}

func listWatch(client rest.Interface, resource string, selected selection) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = selected.labels, selected.fields
			return selected.get(client, resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).Do(ctx).Get()
		},
		WatchFuncWithContext: watchFunc(client, resource, selected),
	}
}

// newSelected watches the selected objects of a resource.
func newSelected[T object](client rest.Interface, resource string, selected selection, example T, trim func(T), indexers cache.Indexers) *Kind[T] {
	lw := cache.ToListWatcherWithWatchListSemantics(listWatch(client, resource, selected), client)
	inf := cache.NewSharedIndexInformer(lw, example, 0, indexers)
	err := inf.SetTransform(func(o any) (any, error) {
		if t, ok := o.(T); ok {
			trimMeta(t)
			if trim != nil {
				trim(t)
			}
		}
		return o, nil
	})
	if err != nil {
		panic(err) // only a running informer refuses
	}
	return &Kind[T]{client: client, resource: resource, selected: selected, informer: inf}
}

// Watch prepares a watch of those objects of a resource whose labels match selector, or of all, for parts that bring
// their own types. trim may be nil; it may modify the object. Nothing is read before Run.
func Watch[T object](client rest.Interface, resource, selector string, example T, trim func(T)) *Kind[T] {
	return newSelected(client, resource, selection{labels: selector}, example, trim, nil)
}

// WatchIn is Watch of the objects of one namespace.
func WatchIn[T object](client rest.Interface, resource, namespace, selector string, example T, trim func(T)) *Kind[T] {
	return newSelected(client, resource, selection{labels: selector, namespace: namespace}, example, trim, nil)
}

// Run watches until ctx is done.
func (k *Kind[T]) Run(ctx context.Context) { k.run(ctx) }

// Synced says that everything that existed at the start has been handed to every handler.
func (k *Kind[T]) Synced() bool { return k.synced() }

// Handle registers h. It is called for every object that exists already as Added, then for changes. What it does must not take
// long: handlers that are registered before the start take turns.
func (k *Kind[T]) Handle(h Handler[T]) error {
	if k.started.Load() {
		return k.register(func() []Handler[T] { return []Handler[T]{h} })
	}
	if k.first = append(k.first, h); len(k.first) > 1 {
		return nil
	}
	return k.register(func() []Handler[T] { return k.first })
}

// register has the informer tell handlers.
func (k *Kind[T]) register(handlers func() []Handler[T]) error {
	reg, err := k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			for _, h := range handlers() {
				if h.Added != nil {
					h.Added(o.(T))
				}
			}
		},
		UpdateFunc: func(old, new any) {
			o, n := old.(T), new.(T)
			if o.GetResourceVersion() == n.GetResourceVersion() {
				return
			}
			for _, h := range handlers() {
				if h.Updated != nil {
					h.Updated(o, n)
				}
			}
		},
		DeleteFunc: func(o any) {
			if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
				o = gone.Obj
			}
			t, ok := o.(T)
			for _, h := range handlers() {
				if ok && h.Deleted != nil {
					h.Deleted(t)
				}
			}
		},
	})
	if err != nil {
		return fmt.Errorf("registering a handler: %w", err)
	}
	k.handlers = append(k.handlers, reg)
	return nil
}

// Get returns the object, or false. namespace is empty for cluster-scoped types.
func (k *Kind[T]) Get(namespace, name string) (T, bool) {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	o, ok, err := k.informer.GetIndexer().GetByKey(key)
	if err != nil || !ok {
		var none T
		return none, false
	}
	return o.(T), true
}

// List returns every object, in no order.
func (k *Kind[T]) List() []T { return typed[T](k.informer.GetIndexer().List()) }

// ByIndex returns the objects that index files under value, in no order. An index that does not exist is a programming
// error and panics.
func (k *Kind[T]) ByIndex(index, value string) []T {
	objs, err := k.informer.GetIndexer().ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return typed[T](objs)
}

// Informer is the informer underneath, for libraries that want one.
func (k *Kind[T]) Informer() cache.SharedIndexInformer { return k.informer }

// SeenVersion is the resource version up to which the cache has caught up, or empty. What the watch has brought (the informer's
// own LastSyncResourceVersion) may wait in a queue for seconds before Get shows it.
func (k *Kind[T]) SeenVersion() string { return k.informer.GetIndexer().LastStoreSyncResourceVersion() }

// synced says that everything that existed at the start has been handed to every handler.
func (k *Kind[T]) synced() bool {
	for _, h := range k.handlers {
		if !h.HasSynced() {
			return false
		}
	}
	return k.informer.HasSynced()
}

func (k *Kind[T]) run(ctx context.Context) {
	k.started.Store(true)
	k.informer.RunWithContext(ctx)
}

func typed[T object](objs []any) []T {
	out := make([]T, len(objs))
	for i, o := range objs {
		out[i] = o.(T)
	}
	return out
}

func watchFunc(client rest.Interface, resource string, selected selection) func(context.Context, metav1.ListOptions) (watch.Interface, error) {
	return func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		o.Watch, o.LabelSelector, o.FieldSelector = true, selected.labels, selected.fields
		req := selected.get(client, resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion)
		if o.TimeoutSeconds != nil {
			req = req.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
		}
		return req.Watch(ctx)
	}
}

// optionsVersion is the version that list and watch options are encoded in, whatever is listed.
var optionsVersion = schema.GroupVersion{Version: "v1"}
