package informer

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// object is implemented by every watched type.
type object interface {
	metav1.Object
	runtime.Object
}

// Handler receives changes to the objects of one Informer, one call at a time. The objects are
// shared with the cache and must not be modified. Any of the functions may be nil.
type Handler[T any] struct {
	Added   func(T)
	Updated func(old, new T)
	// Deleted gets the last state seen; changes between that state and the deletion may have been
	// missed.
	Deleted func(T)
	// Malformed is called for an object of which only the metadata can be decoded, or on which the
	// manager panicked, with the reason. The object is not in the cache: if it was, Deleted is
	// called first; when it is repaired, Added is called.
	Malformed func(T, *malformed.Error)
}

// Informer is a watch and cache of the objects of one type. The goroutine that reads the watch also
// changes the cache and calls the handlers: with client-go's informers a change passes two queues
// and three goroutines on its way to a handler, which costs more than decoding it.
type Informer[T object] struct {
	client    rest.Interface
	resource  string
	options   Options[T]
	cutShort  func() // called when the server has ended the watch early; may be nil
	store     cache.Indexer
	reflector *cache.Reflector

	mu       sync.Mutex // held while the store changes and the handlers are called
	handlers []Handler[T]
	guard    *panics.Guard
	filled   chan struct{} // closed when the first list has been stored and passed to the handlers
	fillOnce sync.Once
	absent   atomic.Pointer[string] // see Absent

	apart malformedStore[T]
}

// Options says which objects of a resource an Informer has, and what it keeps of them. The zero
// value means all objects, whole.
type Options[T any] struct {
	// Labels and Fields are selectors, Namespace is the only namespace; empty selects all.
	Labels, Fields, Namespace string
	// Trim removes the fields that nobody reads from an object before it is stored. It is not
	// called for malformed objects, and may be called again for the same object.
	Trim func(T)
	// Indexes are the indexes of ByIndex: functions that return the values of an object.
	Indexes map[string]func(T) []string
	// Optional, if not 0, means that the API server may not serve the resource: then the Informer is
	// empty, and asks again at this interval. See Absent.
	Optional time.Duration
	// Patient is for programs that run on every node. After failures a list or watch is repeated
	// after up to a minute, and the first list may return an older state from the server's cache,
	// so that thousands of informers do not overload a server that restarts.
	Patient bool
}

// get begins a request for the selected objects.
func (o *Options[T]) get(client rest.Interface, resource string) *rest.Request {
	return client.Get().NamespaceIfScoped(o.Namespace, o.Namespace != "").Resource(resource)
}

// New prepares an Informer of the objects of a resource. Nothing is read before Run. If T is
// *metav1.PartialObjectMetadata, only metadata is read, and the client must be one of
// kubeclient.Metadata.
func New[T object](client rest.Interface, resource string, o Options[T]) *Informer[T] {
	i := &Informer[T]{client: client, resource: resource, options: o, store: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers(o.Indexes)),
		filled: make(chan struct{})}
	example := reflect.New(reflect.TypeFor[T]().Elem()).Interface()
	reading := listWatch(client, resource, o)
	reading.WatchFuncWithContext = noting(reading.WatchFuncWithContext, func() {
		if i.cutShort != nil {
			i.cutShort()
		}
	})
	lw := cache.ToListWatcherWithWatchListSemantics(reading, client)
	reflector := cache.ReflectorOptions{Name: resource, Backoff: kubeclient.WatchBackoff()}
	if o.Patient {
		reflector.Backoff = nil // client-go's own
	}
	i.reflector = cache.NewReflectorWithOptions(lw, example, sink[T]{i}, reflector)
	return i
}

// indexers converts indexes to those of a store.
func indexers[T any](indexes map[string]func(T) []string) cache.Indexers {
	out := cache.Indexers{}
	for name, values := range indexes {
		out[name] = func(o any) ([]string, error) { return values(o.(T)), nil }
	}
	return out
}

// Run watches until ctx is done.
func (i *Informer[T]) Run(ctx context.Context) {
	if i.options.Optional > 0 && !i.untilServed(ctx) {
		return
	}
	i.reflector.RunWithContext(ctx)
}

// WaitForSync returns when every object that existed at the start has been passed to every handler,
// or with an error if ctx is done before.
func (i *Informer[T]) WaitForSync(ctx context.Context) error {
	select {
	case <-i.filled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first list of %s: %w", i.resource, context.Cause(ctx))
	}
}

// Follow registers one callback for additions and updates, and one for deletions. gone may be nil.
func (i *Informer[T]) Follow(seen, gone func(T)) {
	i.Handle(Handler[T]{Added: seen, Updated: func(_, t T) { seen(t) }, Deleted: gone})
}

// Handle registers h. Added is called for every object that already exists, then h is called for
// changes. Handlers must return quickly: the watch waits for them. They are called one after the
// other, in the order of registration.
func (i *Informer[T]) Handle(h Handler[T]) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.handlers = append(i.handlers, h)
	if h.Added != nil {
		for _, t := range i.List() {
			h.Added(t)
		}
	}
	if h.Malformed != nil {
		for _, t := range i.apart.list() {
			h.Malformed(t, malformed.Of(t))
		}
	}
}

// Get returns the object, or false. namespace is empty for cluster-scoped types.
func (i *Informer[T]) Get(namespace, name string) (T, bool) {
	o, ok, err := i.store.GetByKey(keyOf(namespace, name))
	if err != nil || !ok {
		var none T
		return none, false
	}
	return o.(T), true
}

// List returns all objects, in no order.
func (i *Informer[T]) List() []T { return typed[T](i.store.List()) }

// ByIndex returns the objects that index has under value, in no order. An index that does not exist
// is a programming error and panics.
func (i *Informer[T]) ByIndex(index, value string) []T {
	objs, err := i.store.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return typed[T](objs)
}

// Store returns the underlying cache, for libraries that need one. They must not change it.
func (i *Informer[T]) Store() cache.Indexer { return i.store }

// SeenVersion returns the resource version up to which the cache is complete, or an empty one.
// Objects up to the reflector's LastSyncResourceVersion may not be in the cache yet.
func (i *Informer[T]) SeenVersion() string { return i.store.LastStoreSyncResourceVersion() }

func (i *Informer[T]) onCutShort(f func()) { i.cutShort = f }

// Guard recovers from panics of handlers: see package panics. It must be called before Run.
func (i *Informer[T]) Guard(g *panics.Guard) { i.guard = g }

// put stores a new or changed object, and calls the handlers.
func (i *Informer[T]) put(t T) error {
	i.cut(t)
	i.mu.Lock()
	defer i.mu.Unlock()
	old, existed := i.Get(t.GetNamespace(), t.GetName())
	if malformed.Of(t) != nil {
		return i.putApart(t, old, existed)
	}
	if i.staysApart(t) {
		return nil
	}
	i.apart.remove(t)
	if err := i.store.Update(t); err != nil {
		return err
	}
	i.tell(old, existed, t)
	return nil
}

// tell calls the handlers for t, which was stored and, if existed, replaced old.
func (i *Informer[T]) tell(old T, existed bool, t T) {
	if existed && old.GetResourceVersion() == t.GetResourceVersion() {
		return
	}
	var failed *panics.Panic
	for _, h := range i.handlers {
		p := i.call(t, func() {
			switch {
			case existed && h.Updated != nil:
				h.Updated(old, t)
			case !existed && h.Added != nil:
				h.Added(t)
			}
		})
		if p != nil {
			failed = p
		}
	}
	if failed != nil && i.mayBeApart() {
		i.setApart(t, failed)
	}
}

// call runs handle for t, and returns the panic that ended it, or nil.
func (i *Informer[T]) call(t T, handle func()) *panics.Panic {
	if i.guard == nil {
		handle()
		return nil
	}
	return i.guard.Try(i.resource, KeyOf(t), func() {
		failpoint.Hit("watch of "+i.resource, KeyOf(t))
		handle()
	})
}

// drop removes a deleted object, and calls the handlers.
func (i *Informer[T]) drop(t T) error {
	i.cut(t)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.apart.remove(t)
	_, existed := i.Get(t.GetNamespace(), t.GetName())
	if err := i.store.Delete(t); err != nil {
		return err
	}
	if existed {
		i.tellGone(t)
	}
	return nil
}

func (i *Informer[T]) tellGone(t T) {
	for _, h := range i.handlers {
		if h.Deleted != nil {
			i.call(t, func() { h.Deleted(t) })
		}
	}
}

// replace replaces all objects by those of a list, and calls the handlers for the differences.
func (i *Informer[T]) replace(list []any, version string) error {
	for _, o := range list {
		i.cut(o.(T))
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	before := make(map[types.NamespacedName]T, len(list))
	for _, t := range i.List() {
		before[KeyOf(t)] = t
	}
	list, news := i.apart.replace(list, i.fingerprint)
	if err := i.store.Replace(list, version); err != nil {
		return err
	}
	for _, o := range list {
		t := o.(T)
		old, existed := before[KeyOf(t)]
		delete(before, KeyOf(t))
		i.tell(old, existed, t)
	}
	for _, t := range before {
		i.tellGone(t)
	}
	for _, t := range news {
		i.tellApart(t)
	}
	i.fillOnce.Do(func() { close(i.filled) })
	return nil
}

// cut trims an object to the fields that are kept.
func (i *Informer[T]) cut(t T) {
	trimMeta(t)
	if i.options.Trim != nil && malformed.Of(t) == nil { // Trim would remove the mark of a malformed object
		i.options.Trim(t)
	}
}

// sink is the store through which a reflector fills an Informer. The reflector checks the types of
// the objects.
type sink[T object] struct{ kind *Informer[T] }

func (s sink[T]) Add(o any) error                          { return s.kind.put(o.(T)) }
func (s sink[T]) Update(o any) error                       { return s.kind.put(o.(T)) }
func (s sink[T]) Delete(o any) error                       { return s.kind.drop(o.(T)) }
func (s sink[T]) Replace(list []any, version string) error { return s.kind.replace(list, version) }
func (s sink[T]) Resync() error                            { return nil }
func (s sink[T]) Bookmark(version string) error            { s.kind.store.Bookmark(version); return nil }

// Transformer trims the objects of a streamed list as they arrive.
func (s sink[T]) Transformer() cache.TransformFunc {
	return func(o any) (any, error) {
		if t, ok := o.(T); ok {
			s.kind.cut(t)
		}
		return o, nil
	}
}

func typed[T object](objs []any) []T {
	out := make([]T, len(objs))
	for i, o := range objs {
		out[i] = o.(T)
	}
	return out
}

// ListWatch lists and watches the objects of a resource that match label and field selectors, in
// one namespace, or in all if namespace is empty.
func ListWatch(client rest.Interface, resource, namespace, labels, fields string) *cache.ListWatch {
	return listWatch(client, resource, Options[object]{Labels: labels, Fields: fields, Namespace: namespace})
}

func listWatch[T any](client rest.Interface, resource string, selected Options[T]) *cache.ListWatch {
	request := func(o *metav1.ListOptions) *rest.Request {
		o.LabelSelector, o.FieldSelector = selected.Labels, selected.Fields
		r := selected.get(client, resource).SpecificallyVersionedParams(o, metav1.ParameterCodec, optionsVersion)
		if reflect.TypeFor[T]() == reflect.TypeFor[*metav1.PartialObjectMetadata]() {
			r = r.SetHeader("Accept", kubeclient.AcceptMetadata(!o.Watch))
		}
		return r
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.ResourceVersion == "0" && !selected.Patient {
				// Version "0" returns any state in the server's cache, but a new leader must know
				// everything that was written before.
				o.ResourceVersion = ""
			}
			return request(&o).Do(ctx).Get()
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			r := request(&o)
			if o.TimeoutSeconds != nil {
				r = r.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
			}
			return r.Watch(ctx)
		},
	}
}

// noting calls cutShort when a watch is requested less than watchTime after the previous one was
// granted: then the server ended the previous watch early, or the connection was lost.
func noting(watchFunc cache.WatchFuncWithContext, cutShort func()) cache.WatchFuncWithContext {
	var began time.Time // start of the last granted watch whose end has not been judged
	return func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
		if !began.IsZero() && time.Since(began) < watchTime {
			cutShort()
		}
		began = time.Time{}
		asked := time.Now()
		w, err := watchFunc(ctx, o)
		if err == nil {
			began = asked
		}
		return w, err
	}
}

// watchTime is less than the watch timeout that reflectors request.
const watchTime = 4 * time.Minute

// optionsVersion is the version in which list and watch options are encoded, whatever is listed.
var optionsVersion = schema.GroupVersion{Version: "v1"}
