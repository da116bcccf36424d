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

	"lockstep.dev/lockstep/internal/contain"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
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
	// Malformed is told of an object of which nothing but the metadata can be decoded, and why. It is not in the cache: if it
	// was, Deleted is called first, and Added when it is mended.
	Malformed func(T, *malformed.Error)
}

// Kind is a typed view of the cache of one type. The goroutine that reads the watch also changes the cache and tells the
// handlers: with client-go's informers a change goes through two queues and three goroutines on its way to a handler, which
// costs more than reading it.
type Kind[T object] struct {
	client    rest.Interface
	resource  string
	selected  selection
	trim      func(T)
	cutShort  func() // is called when the server has ended the watch before its time; may be nil
	store     cache.Indexer
	reflector *cache.Reflector

	mu       sync.Mutex // held while the store changes and the handlers are told of it
	handlers []Handler[T]
	guard    *contain.Guard
	filled   chan struct{} // closed when the first list has been stored and told
	fillOnce sync.Once

	apart apart[T]
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
			if o.ResourceVersion == "0" {
				// Any state that the server's cache happens to have: who begins to lead has to know all that was written before.
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
func (k *Kind[T]) Run(ctx context.Context) { k.reflector.RunWithContext(ctx) }

// WaitForSync returns when everything that existed at the start has been handed to every handler, or with an error when ctx
// is done before.
func (k *Kind[T]) WaitForSync(ctx context.Context) error {
	select {
	case <-k.filled:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the first list of %s: %w", k.resource, context.Cause(ctx))
	}
}

// Follow is Handle for those to whom an object that is new and one that has changed are the same. gone may be nil.
func (k *Kind[T]) Follow(seen, gone func(T)) {
	k.Handle(Handler[T]{Added: seen, Updated: func(_, t T) { seen(t) }, Deleted: gone})
}

// Handle registers h. It is called for every object that exists already as Added, then for changes. What it does must not take
// long: the watch waits for it, and handlers take turns, in the order in which they came.
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

// List returns every object, in no order.
func (k *Kind[T]) List() []T { return typed[T](k.store.List()) }

// ByIndex returns the objects that index files under value, in no order. An index that does not exist is a programming
// error and panics.
func (k *Kind[T]) ByIndex(index, value string) []T {
	objs, err := k.store.ByIndex(index, value)
	if err != nil {
		panic(err)
	}
	return typed[T](objs)
}

// Store is the cache underneath, for libraries that want one. They must not change it.
func (k *Kind[T]) Store() cache.Indexer { return k.store }

// SeenVersion is the resource version up to which the cache has caught up, or empty. What the watch has brought (the reflector's
// LastSyncResourceVersion) may not be there yet.
func (k *Kind[T]) SeenVersion() string { return k.store.LastStoreSyncResourceVersion() }

func (k *Kind[T]) onCutShort(f func()) { k.cutShort = f }

// Guard has handlers that panic recovered from: see contain. It comes before Run.
func (k *Kind[T]) Guard(g *contain.Guard) { k.guard = g }

// put stores an object that is new or has changed, and tells of it.
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

// tell tells the handlers of an object that was stored in place of old, if that existed.
func (k *Kind[T]) tell(old T, existed bool, t T) {
	if existed && old.GetResourceVersion() == t.GetResourceVersion() {
		return
	}
	var failed *contain.Panic
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

// call tells a handler of t, and returns the panic that it ended with.
func (k *Kind[T]) call(t T, handle func()) *contain.Panic {
	if k.guard == nil {
		handle()
		return nil
	}
	return k.guard.Try(k.resource, KeyOf(t), func() {
		failpoint.Hit("watch of "+k.resource, KeyOf(t))
		handle()
	})
}

// drop removes an object that is gone, and tells of it.
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

// replace stores what a list has in place of everything, and tells of the differences.
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

// cut leaves of an object what is kept of it. It may have been cut before.
func (k *Kind[T]) cut(t T) {
	trimMeta(t)
	if k.trim != nil && malformed.Of(t) == nil { // or the mark would be gone, too
		k.trim(t)
	}
}

// sink is a Kind as what fills it sees it: the type of what it is handed is the reflector's to check.
type sink[T object] struct{ kind *Kind[T] }

func (s sink[T]) Add(o any) error                          { return s.kind.put(o.(T)) }
func (s sink[T]) Update(o any) error                       { return s.kind.put(o.(T)) }
func (s sink[T]) Delete(o any) error                       { return s.kind.drop(o.(T)) }
func (s sink[T]) Replace(list []any, version string) error { return s.kind.replace(list, version) }
func (s sink[T]) Resync() error                            { return nil }
func (s sink[T]) Bookmark(version string) error            { s.kind.store.Bookmark(version); return nil }

// Transformer has a list that is streamed cut as it comes, before all of it is there.
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

// noting calls cutShort when a watch is asked for soon after one that was granted: the server ended that one, although it was
// asked for a watch of at least watchTime, or the connection was lost.
func noting(watchFunc cache.WatchFuncWithContext, cutShort func()) cache.WatchFuncWithContext {
	var began time.Time // of the watch that was granted last, and whose end has not been judged
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

// watchTime is less than what reflectors ask for.
const watchTime = 4 * time.Minute

// optionsVersion is the version that list and watch options are encoded in, whatever is listed.
var optionsVersion = schema.GroupVersion{Version: "v1"}
