package cluster

import (
	"context"
	"fmt"
	"sync"
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

// Handler receives changes to the objects of one Kind, one call at a time. The objects are shared
// with the cache and must not be modified. Any of the functions may be nil.
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

// Kind is a typed watch and cache of one type. The goroutine that reads the watch also changes the
// cache and calls the handlers: with client-go's informers a change passes two queues and three
// goroutines on its way to a handler, which costs more than decoding it.
type Kind[T object] struct {
	client    rest.Interface
	resource  string
	selected  selection
	trim      func(T)
	cutShort  func() // called when the server has ended the watch early; may be nil
	store     cache.Indexer
	reflector *cache.Reflector

	mu       sync.Mutex // held while the store changes and the handlers are called
	handlers []Handler[T]
	guard    *panics.Guard
	filled   chan struct{} // closed when the first list has been stored and passed to the handlers
	fillOnce sync.Once

	apart apart[T]
}

// newKind watches resource through client. trim is applied to every object before it is stored; it
// may modify the object.
func newKind[T object](client rest.Interface, resource string, example T, trim func(T), indexers cache.Indexers) *Kind[T] {
	return newSelected(client, resource, selection{}, example, trim, indexers)
}

// selection selects the objects of a resource to watch, by label selector, field selector and
// namespace; empty selects all.
type selection struct{ labels, fields, namespace string }

func (s selection) get(client rest.Interface, resource string) *rest.Request {
	return client.Get().NamespaceIfScoped(s.namespace, s.namespace != "").Resource(resource)
}

// ListWatch lists and watches the objects of a resource that match label and field selectors, in
// one namespace, or in all if namespace is empty.
func ListWatch(client rest.Interface, resource, namespace, labels, fields string) *cache.ListWatch {
	return listWatch(client, resource, selection{labels: labels, fields: fields, namespace: namespace})
}

func listWatch(client rest.Interface, resource string, selected selection) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.LabelSelector, o.FieldSelector = selected.labels, selected.fields
			if o.ResourceVersion == "0" {
				// Version "0" returns any state in the server's cache, but a new leader must know
				// everything that was written before.
				o.ResourceVersion = ""
			}
			return selected.get(client, resource).SpecificallyVersionedParams(&o, metav1.ParameterCodec, optionsVersion).Do(ctx).Get()
		},
		WatchFuncWithContext: watchFunc(client, resource, selected),
	}
}

// newSelected watches the selected objects of a resource.
func newSelected[T object](client rest.Interface, resource string, selected selection, example T, trim func(T), indexers cache.Indexers) *Kind[T] {
	k := &Kind[T]{client: client, resource: resource, selected: selected, trim: trim, store: cache.NewIndexer(cache.MetaNamespaceKeyFunc, indexers),
		filled: make(chan struct{})}
	asked := listWatch(client, resource, selected)
	asked.WatchFuncWithContext = noting(asked.WatchFuncWithContext, func() {
		if k.cutShort != nil {
			k.cutShort()
		}
	})
	lw := cache.ToListWatcherWithWatchListSemantics(asked, client)
	k.reflector = cache.NewReflectorWithOptions(lw, example, sink[T]{k}, cache.ReflectorOptions{Name: resource, Backoff: kubeclient.WatchBackoff()})
	return k
}

// Watch prepares a watch of the objects of a resource whose labels match selector, or of all if
// selector is empty, for packages with types of their own. trim may be nil; it may modify the
// object. Nothing is read before Run.
func Watch[T object](client rest.Interface, resource, selector string, example T, trim func(T)) *Kind[T] {
	return newSelected(client, resource, selection{labels: selector}, example, trim, nil)
}

// WatchIn is Watch for the objects of one namespace.
func WatchIn[T object](client rest.Interface, resource, namespace, selector string, example T, trim func(T)) *Kind[T] {
	return newSelected(client, resource, selection{labels: selector, namespace: namespace}, example, trim, nil)
}

// Run watches until ctx is done.
func (k *Kind[T]) Run(ctx context.Context) { k.reflector.RunWithContext(ctx) }

// WaitForSync returns when every object that existed at the start has been passed to every handler,
// or with an error if ctx is done before.
func (k *Kind[T]) WaitForSync(ctx context.Context) error {
	select {
	case <-k.filled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first list of %s: %w", k.resource, context.Cause(ctx))
	}
}

// Follow registers one callback for additions and updates, and one for deletions. gone may be nil.
func (k *Kind[T]) Follow(seen, gone func(T)) {
	k.Handle(Handler[T]{Added: seen, Updated: func(_, t T) { seen(t) }, Deleted: gone})
}

// Handle registers h. Added is called for every object that already exists, then h is called for
// changes. Handlers must return quickly: the watch waits for them. They are called one after the
// other, in the order of registration.
func (k *Kind[T]) Handle(h Handler[T]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.handlers = append(k.handlers, h)
	if h.Added != nil {
		for _, t := range k.List() {
			h.Added(t)
		}
	}
	if h.Malformed != nil {
		for _, t := range k.apart.list() {
			h.Malformed(t, malformed.Of(t))
		}
	}
}

// Get returns the object, or false. namespace is empty for cluster-scoped types.
func (k *Kind[T]) Get(namespace, name string) (T, bool) {
	o, ok, err := k.store.GetByKey(keyOf(namespace, name))
	if err != nil || !ok {
		var none T
		return none, false
	}
	return o.(T), true
}

// List returns all objects, in no order.
func (k *Kind[T]) List() []T { return typed[T](k.store.List()) }

// ByIndex returns the objects that index has under value, in no order. An index that does not exist
// is a programming error and panics.
func (k *Kind[T]) ByIndex(index, value string) []T {
	objs, err := k.store.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return typed[T](objs)
}

// Store returns the underlying cache, for libraries that need one. They must not change it.
func (k *Kind[T]) Store() cache.Indexer { return k.store }

// SeenVersion returns the resource version up to which the cache is complete, or an empty one.
// Objects up to the reflector's LastSyncResourceVersion may not be in the cache yet.
func (k *Kind[T]) SeenVersion() string { return k.store.LastStoreSyncResourceVersion() }

func (k *Kind[T]) onCutShort(f func()) { k.cutShort = f }

// Guard recovers from panics of handlers: see package panics. It must be called before Run.
func (k *Kind[T]) Guard(g *panics.Guard) { k.guard = g }

// put stores a new or changed object, and calls the handlers.
func (k *Kind[T]) put(t T) error {
	k.cut(t)
	k.mu.Lock()
	defer k.mu.Unlock()
	old, existed := k.Get(t.GetNamespace(), t.GetName())
	if malformed.Of(t) != nil {
		return k.putApart(t, old, existed)
	}
	if k.staysApart(t) {
		return nil
	}
	k.apart.remove(t)
	if err := k.store.Update(t); err != nil {
		return err
	}
	k.tell(old, existed, t)
	return nil
}

// tell calls the handlers for an object that was stored in place of old, if existed.
func (k *Kind[T]) tell(old T, existed bool, t T) {
	if existed && old.GetResourceVersion() == t.GetResourceVersion() {
		return
	}
	var failed *panics.Panic
	for _, h := range k.handlers {
		p := k.call(t, func() {
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
	if failed != nil && k.mayBeApart() {
		k.setApart(t, failed)
	}
}

// call runs handle for t, and returns the panic that ended it, or nil.
func (k *Kind[T]) call(t T, handle func()) *panics.Panic {
	if k.guard == nil {
		handle()
		return nil
	}
	return k.guard.Try(k.resource, KeyOf(t), func() {
		failpoint.Hit("watch of "+k.resource, KeyOf(t))
		handle()
	})
}

// drop removes a deleted object, and calls the handlers.
func (k *Kind[T]) drop(t T) error {
	k.cut(t)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.apart.remove(t)
	_, existed := k.Get(t.GetNamespace(), t.GetName())
	if err := k.store.Delete(t); err != nil {
		return err
	}
	if existed {
		k.tellGone(t)
	}
	return nil
}

func (k *Kind[T]) tellGone(t T) {
	for _, h := range k.handlers {
		if h.Deleted != nil {
			k.call(t, func() { h.Deleted(t) })
		}
	}
}

// replace replaces all objects by those of a list, and calls the handlers for the differences.
func (k *Kind[T]) replace(list []any, version string) error {
	for _, o := range list {
		k.cut(o.(T))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	before := make(map[types.NamespacedName]T, len(list))
	for _, t := range k.List() {
		before[KeyOf(t)] = t
	}
	list, news := k.apart.replace(list, k.fingerprint)
	if err := k.store.Replace(list, version); err != nil {
		return err
	}
	for _, o := range list {
		t := o.(T)
		old, existed := before[KeyOf(t)]
		delete(before, KeyOf(t))
		k.tell(old, existed, t)
	}
	for _, t := range before {
		k.tellGone(t)
	}
	for _, t := range news {
		k.tellApart(t)
	}
	k.fillOnce.Do(func() { close(k.filled) })
	return nil
}

// cut trims an object to the fields that are kept. It may be called again for the same object.
func (k *Kind[T]) cut(t T) {
	trimMeta(t)
	if k.trim != nil && malformed.Of(t) == nil { // trim would remove the mark of a malformed object
		k.trim(t)
	}
}

// sink is a Kind as the store that a reflector fills. The reflector checks the types of the
// objects.
type sink[T object] struct{ kind *Kind[T] }

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
