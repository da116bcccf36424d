package objects

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/dictcodec"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// kindWatch is the watch of one kind and its store. It is no informer.Informer, because its store also
// takes the answers to writes, and refuses answers about objects that were deleted.
type kindWatch struct {
	l       *ManagedObjects
	gvk     schema.GroupVersionKind
	mapping *meta.RESTMapping
	// only and tell are set for a watch of one object. only is its key; tell is called after each
	// change.
	only types.NamespacedName
	tell func()

	packer dictcodec.Codec

	mu      sync.Mutex
	synced  bool
	err     error     // why it has not synced
	failing time.Time // since when lists and watches have failed
	objects map[types.NamespacedName]*Object
	waiting map[types.NamespacedName]bool // Applications to enqueue when it has synced
	// gone holds the UIDs of the last objects that were deleted: an answer about one of them may
	// arrive late and must not be stored.
	gone     map[types.UID]bool
	goneRing [goneMax]types.UID
	goneNext int
}

// goneMax bounds the number of deleted objects that are remembered.
const goneMax = 1024

// markDeleted records that an object was deleted. The caller holds mu.
func (w *kindWatch) markDeleted(uid types.UID) {
	if w.gone == nil {
		w.gone = map[types.UID]bool{}
	}
	delete(w.gone, w.goneRing[w.goneNext])
	w.goneRing[w.goneNext] = uid
	w.goneNext = (w.goneNext + 1) % goneMax
	w.gone[uid] = true
}

func (w *kindWatch) run(ctx context.Context) {
	client, err := kubeclient.ForRaw(kubeclient.ForWatch(w.l.rest), nil, w.gvk.GroupVersion())
	if err != nil {
		w.tried(ctx, err) // retrying cannot help
		return
	}
	labels, only := oam.AppNameLabel, ""
	if w.only.Name != "" {
		labels, only = "", fields.OneTermEqualSelector(metav1.ObjectNameField, w.only.Name).String()
	}
	asked := informer.ListWatch(client, w.mapping.Resource.Resource, w.only.Namespace, labels, only)
	lw := cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := asked.ListWithContextFunc(ctx, o)
			w.tried(ctx, err)
			return list, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			events, err := asked.WatchFuncWithContext(ctx, o)
			w.tried(ctx, err)
			return events, err
		},
	}, w.l.client)
	r := cache.NewReflectorWithOptions(lw, &kubeclient.Raw{}, w, cache.ReflectorOptions{
		Name: "applications/" + w.mapping.Resource.Resource, Backoff: kubeclient.WatchBackoff(),
	})
	r.RunWithContext(ctx)
}

// changed calls tell, or enqueues the Application that owns a changed object.
func (w *kindWatch) changed(owner types.NamespacedName) {
	if w.tell != nil {
		w.tell()
		return
	}
	w.l.changed(owner)
}

// tried records the outcome of a list or watch request. If requests fail for longer than a
// temporary error lasts, tried enqueues the Applications that wait for the watch.
func (w *kindWatch) tried(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	now := w.l.now()
	if w.failing.IsZero() {
		w.failing = now
	}
	if err != nil && now.Sub(w.failing) < kubeclient.TransientMax(err) {
		w.mu.Unlock()
		return // the reflector retries soon
	}
	news := err != nil && w.err == nil && !w.synced
	w.err = nil
	if err == nil {
		w.failing = time.Time{}
	} else {
		w.err = fmt.Errorf("%s cannot be watched: %w", w.mapping.Resource.Resource, err)
		if apierrors.IsForbidden(err) {
			w.err = &ErrNoRight{Resource: w.mapping.Resource.GroupResource(), Err: w.err}
		}
	}
	var tell []types.NamespacedName
	if news {
		for app := range w.waiting {
			tell = append(tell, app)
		}
		if w.tell != nil {
			tell = append(tell, types.NamespacedName{})
		}
	}
	w.mu.Unlock()
	for _, app := range tell {
		w.changed(app)
	}
}

// put stores u unless the store has a newer version or u was deleted.
func (w *kindWatch) put(u apiwriter.Object) {
	o, err := NewObject(u)
	if err != nil {
		w.l.log.Error("an object that cannot be read", "kind", w.gvk.Kind, "object", u.GetNamespace()+"/"+u.GetName(), "error", err)
		return
	}
	o.Unobserved = isWorkload(w.gvk) && !observed(o.raw)
	key := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	w.mu.Lock()
	before := w.objects[key]
	if before != nil && before.Version >= o.Version || w.gone[o.Uid] {
		w.mu.Unlock()
		return
	}
	w.objects[key] = o
	w.mu.Unlock()
	w.changed(o.Owner)
	if before != nil && before.Owner != o.Owner {
		w.changed(before.Owner)
	}
}

// The following methods make kindWatch the store of a Reflector.

// Add implements cache.ReflectorStore.
func (w *kindWatch) Add(o any) error {
	w.put(o.(*kubeclient.Raw))
	return nil
}

// Update implements cache.ReflectorStore.
func (w *kindWatch) Update(o any) error { return w.Add(o) }

// Delete implements cache.ReflectorStore.
func (w *kindWatch) Delete(o any) error {
	u, ok := o.(*kubeclient.Raw)
	if !ok {
		return nil
	}
	key := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	w.mu.Lock()
	before := w.objects[key]
	if u.GetLabels()[oam.AppNameLabel] != "" {
		w.markDeleted(u.GetUID())
	}
	if before != nil && before.Uid == u.GetUID() {
		delete(w.objects, key)
	}
	w.mu.Unlock()
	if before != nil {
		w.changed(before.Owner)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (w *kindWatch) Replace(list []any, version string) error {
	at, _ := strconv.ParseUint(version, 10, 64)
	there := map[types.NamespacedName]bool{}
	for _, item := range list {
		u := item.(*kubeclient.Raw)
		there[types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}] = true
		w.put(u)
	}
	var tell []types.NamespacedName
	w.mu.Lock()
	for key, o := range w.objects {
		// An object that was written after the list was made is not missing from the list.
		if !there[key] && (at == 0 || o.Version <= at) {
			delete(w.objects, key)
			tell = append(tell, o.Owner)
		}
	}
	w.synced, w.err = true, nil
	for app := range w.waiting {
		tell = append(tell, app)
	}
	if w.tell != nil {
		tell = append(tell, types.NamespacedName{})
	}
	clear(w.waiting)
	w.mu.Unlock()
	for _, app := range tell {
		w.changed(app)
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (w *kindWatch) Resync() error { return nil }

var _ cache.ReflectorStore = (*kindWatch)(nil)
