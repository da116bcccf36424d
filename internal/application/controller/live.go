package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/rawjson"
)

// object is a managed object as last seen.
type object struct {
	uid        types.UID
	version    uint64
	generation int64
	deleting   bool
	// untaken is set while the controller of this kind of object has not observed the object.
	untaken bool
	// owner is the Application that the labels name.
	owner      types.NamespacedName
	renderHash string
	// raw is the object as JSON, without managedFields. For an object at rest, raw is compressed by
	// packer.
	raw    []byte
	packer *alike
	// content is a hash of raw without its status, resourceVersion and generation. Objects of equal
	// content may have different hashes if they come from different encoders.
	content uint64
}

// json returns the object as JSON, without managedFields. The caller must not change the bytes.
func (o *object) json() []byte {
	if o.packer == nil {
		return o.raw
	}
	raw, _ := o.packer.unpack(o.raw) // cannot fail: pack made these bytes
	return raw
}

// live caches the managed objects of one cluster: one watch for each kind that an Application uses,
// of the objects that carry an Application's label.
type live struct {
	client  dynamic.Interface
	rest    *rest.Config
	kinds   *kinds
	log     *slog.Logger
	now     func() time.Time
	changed func(owner types.NamespacedName)

	mu      sync.Mutex
	ctx     context.Context // parent of the watches' contexts; nil while watches are stopped
	cancel  context.CancelFunc
	running sync.WaitGroup
	watches map[schema.GroupVersionKind]*kindWatch
}

// kindWatch is the watch of one kind and its store.
type kindWatch struct {
	l       *live
	gvk     schema.GroupVersionKind
	mapping *meta.RESTMapping
	// only and tell are set for a watch of one object: its key, and the function to call after each
	// change.
	only types.NamespacedName
	tell func()

	packer alike

	mu      sync.Mutex
	synced  bool
	err     error     // why it has not synced
	failing time.Time // since when lists and watches have failed
	objects map[types.NamespacedName]*object
	waiting map[types.NamespacedName]bool // Applications to enqueue when it has synced
	// gone holds the UIDs of the last objects that were deleted: an answer about one of them may
	// arrive late and must not be stored.
	gone     map[types.UID]bool
	goneRing [goneMax]types.UID
	goneNext int
}

// goneMax bounds the number of deleted objects that are remembered.
const goneMax = 1024

// bury records that an object was deleted. The caller holds mu.
func (w *kindWatch) bury(uid types.UID) {
	if w.gone == nil {
		w.gone = map[types.UID]bool{}
	}
	delete(w.gone, w.goneRing[w.goneNext])
	w.goneRing[w.goneNext] = uid
	w.goneNext = (w.goneNext + 1) % goneMax
	w.gone[uid] = true
}

// start runs the watches until stop, including those that were stopped before.
func (l *live) start(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx != nil {
		return
	}
	l.ctx, l.cancel = context.WithCancel(ctx)
	for _, w := range l.watches {
		l.running.Go(func() { w.run(l.ctx) })
	}
}

// stop ends all watches. Their stores keep what they have, which is out of date from then on.
func (l *live) stop() {
	l.mu.Lock()
	if l.ctx == nil {
		l.mu.Unlock()
		return
	}
	l.cancel()
	l.ctx = nil
	for _, w := range l.watches {
		w.mu.Lock()
		w.synced, w.err, w.failing = false, nil, time.Time{}
		w.mu.Unlock()
	}
	l.mu.Unlock()
	l.running.Wait()
}

// ready reports whether the watch of a kind has synced, and starts that watch if there is none. If
// it has not synced, the Application is enqueued when it has, or when it fails; the error says why
// it fails.
func (l *live) ready(gvk schema.GroupVersionKind, app types.NamespacedName) (bool, error) {
	l.mu.Lock()
	w, ok := l.watches[gvk]
	if !ok {
		m, err := l.kinds.mapping(gvk)
		if err != nil {
			l.mu.Unlock()
			return false, err
		}
		w = &kindWatch{l: l, gvk: gvk, mapping: m, objects: map[types.NamespacedName]*object{}, waiting: map[types.NamespacedName]bool{}}
		l.watches[gvk] = w
		if ctx := l.ctx; ctx != nil {
			l.running.Go(func() { w.run(ctx) })
		}
	}
	l.mu.Unlock()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.synced {
		w.waiting[app] = true
	}
	if w.synced {
		return true, nil
	}
	return false, w.err
}

// get returns the object as last seen, or nil.
func (l *live) get(ref plan.Ref) *object {
	w := l.watch(ref.GVK)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
}

// wrote stores the object from an answer to a write, before the watch shows it. wrote may change o.
func (l *live) wrote(gvk schema.GroupVersionKind, o apiwriter.Object) {
	w := l.watch(gvk)
	if w == nil || o == nil {
		return
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	w.put(o)
}

// alive undoes bury for an object that was read and therefore exists. The object only lost its
// label for a while, which a watch by label shows as a deletion.
func (l *live) alive(gvk schema.GroupVersionKind, uid types.UID) {
	w := l.watch(gvk)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gone, uid)
}

// watch returns the watch of a kind, or nil.
func (l *live) watch(gvk schema.GroupVersionKind) *kindWatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watches[gvk]
}

// deleted marks an object as being deleted once the server has accepted its deletion, before the
// watch shows that.
func (l *live) deleted(ref plan.Ref, uid types.UID) {
	w := l.watch(ref.GVK)
	if w == nil {
		return
	}
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.objects[key]; o != nil && o.uid == uid {
		going := *o // copy: other goroutines may hold the present one
		going.deleting = true
		w.objects[key] = &going
	}
}

// settle compresses the cached JSON of an object that is unlikely to be read soon.
func (l *live) settle(ref plan.Ref) {
	w := l.watch(ref.GVK)
	if w == nil {
		return
	}
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.objects[key]
	if o == nil || o.packer != nil {
		return
	}
	small := *o // copy: other goroutines may hold the present one
	small.raw, small.packer = w.packer.pack(o.raw), &w.packer
	w.objects[key] = &small
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

// single watches one object and calls tell after every change, until stop is called.
func (l *live) single(ref plan.Ref, tell func()) (w *kindWatch, stop func(), _ error) {
	m, err := l.kinds.mapping(ref.GVK)
	if err != nil {
		return nil, nil, err
	}
	w = &kindWatch{
		l: l, gvk: ref.GVK, mapping: m, only: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, tell: tell,
		objects: map[types.NamespacedName]*object{}, waiting: map[types.NamespacedName]bool{},
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ctx == nil {
		return nil, nil, errors.New("the cluster cannot be reached now")
	}
	ctx, cancel := context.WithCancel(l.ctx)
	l.running.Go(func() { w.run(ctx) })
	return w, cancel, nil
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
// temporary error lasts, tried enqueues the Applications that wait for the watch. Otherwise a
// manager that starts during such errors would write into every Application's status that something
// cannot be watched.
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
	o, err := newObject(u)
	if err != nil {
		w.l.log.Error("an object that cannot be read", "kind", w.gvk.Kind, "object", u.GetNamespace()+"/"+u.GetName(), "error", err)
		return
	}
	o.untaken = isWorkload(w.gvk) && !observed(o.raw)
	key := types.NamespacedName{Namespace: u.GetNamespace(), Name: u.GetName()}
	w.mu.Lock()
	before := w.objects[key]
	if before != nil && before.version >= o.version || w.gone[o.uid] {
		w.mu.Unlock()
		return
	}
	w.objects[key] = o
	w.mu.Unlock()
	w.changed(o.owner)
	if before != nil && before.owner != o.owner {
		w.changed(before.owner)
	}
}

// newObject returns u as a stored object. It removes u's managed fields.
func newObject(u apiwriter.Object) (*object, error) {
	o := &object{uid: u.GetUID(), generation: u.GetGeneration(), deleting: u.GetDeletionTimestamp() != nil, owner: ownerOf(u.GetLabels())}
	o.renderHash = u.GetLabels()[oam.RenderHashLabel]
	var err error
	if o.version, err = strconv.ParseUint(u.GetResourceVersion(), 10, 64); err != nil {
		return nil, err
	}
	if r, ok := u.(*kubeclient.Raw); ok {
		o.raw = r.JSON
	} else {
		u.SetManagedFields(nil)
		if o.raw, err = json.Marshal(u); err != nil {
			return nil, err
		}
	}
	o.content, err = contentHash(o.raw)
	return o, err
}

// isWorkload reports whether a controller observes objects of this kind and records in their status
// that it did.
func isWorkload(gvk schema.GroupVersionKind) bool {
	return gvk.Group == appsv1.GroupName && gvk.Kind != "ControllerRevision"
}

// observed reports whether an object's status has an observedGeneration.
func observed(raw []byte) bool {
	status, err := rawjson.Value(raw, "status")
	if err != nil || status == nil {
		return false
	}
	generation, err := rawjson.Value(status, "observedGeneration")
	return err == nil && generation != nil
}

var contentSeed = maphash.MakeSeed()

// contentHash returns a hash of an object without its status, resourceVersion and generation.
func contentHash(raw []byte) (uint64, error) {
	var h maphash.Hash
	h.SetSeed(contentSeed)
	var failed error
	err := rawjson.Members(raw, func(m rawjson.Member) bool {
		switch string(m.Name) {
		case "status":
		case "metadata":
			metadata := raw[m.From:m.End]
			failed = rawjson.Members(metadata, func(m rawjson.Member) bool {
				if name := string(m.Name); name != "resourceVersion" && name != "generation" {
					_, _ = h.Write(metadata[m.Start:m.End])
				}
				return true
			})
		default:
			_, _ = h.Write(raw[m.Start:m.End])
		}
		return failed == nil
	})
	return h.Sum64(), errors.Join(err, failed)
}

// ownerOf returns the Application that labels name.
func ownerOf(labels map[string]string) types.NamespacedName {
	return types.NamespacedName{Namespace: labels[oam.AppNamespaceLabel], Name: labels[oam.AppNameLabel]}
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
		w.bury(u.GetUID())
	}
	if before != nil && before.uid == u.GetUID() {
		delete(w.objects, key)
	}
	w.mu.Unlock()
	if before != nil {
		w.changed(before.owner)
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
		if !there[key] && (at == 0 || o.version <= at) {
			delete(w.objects, key)
			tell = append(tell, o.owner)
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

// readTimeout bounds one read of an object. Such reads are rare.
const readTimeout = 10 * time.Second

// read gets one object from the API server. Use it for objects that the watch does not show because
// they have no Application's label.
func (l *live) read(ctx context.Context, ref plan.Ref) (*unstructured.Unstructured, error) {
	m, err := l.kinds.mapping(ref.GVK)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	r := l.client.Resource(m.Resource)
	if ref.Namespace != "" {
		return r.Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
	}
	return r.Get(ctx, ref.Name, metav1.GetOptions{})
}
