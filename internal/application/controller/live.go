package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/rawjson"
)

// object is a managed object as it was last seen.
type object struct {
	uid        types.UID
	version    uint64
	generation int64
	deleting   bool
	// untaken says that those who run objects of this kind have not seen it yet.
	untaken bool
	// owner is the application that the labels name.
	owner      types.NamespacedName
	renderHash string
	// raw is the object as JSON, without managedFields; of an object at rest it is packed, by packer.
	raw    []byte
	packer *alike
	// content is a hash of raw, less what changes without anybody having changed what the object is to be. Objects of equal
	// content may have different hashes, when they come from different encoders.
	content uint64
}

// json is the object as JSON, without managedFields. It is not to be changed.
func (o *object) json() []byte {
	if o.packer == nil {
		return o.raw
	}
	raw, _ := o.packer.unpack(o.raw) // it was packed here, from memory to memory
	return raw
}

// live is what is known of managed objects: one watch for each kind that an application has, of the objects that carry
// an application's label.
type live struct {
	client  dynamic.Interface
	rest    *rest.Config
	kinds   *kinds
	log     *slog.Logger
	now     func() time.Time
	changed func(owner types.NamespacedName)

	mu      sync.Mutex
	ctx     context.Context // of the watches; nil while they are not to run
	cancel  context.CancelFunc
	running sync.WaitGroup
	watches map[schema.GroupVersionKind]*kindWatch
}

// kindWatch is the watch of one kind, and its store.
type kindWatch struct {
	l       *live
	gvk     schema.GroupVersionKind
	mapping *meta.RESTMapping
	// only and tell are of watches of one object.
	only types.NamespacedName
	tell func()

	packer alike

	mu      sync.Mutex
	synced  bool
	err     error     // why it has not
	failing time.Time // since when it has not been answered
	objects map[types.NamespacedName]*object
	waiting map[types.NamespacedName]bool // applications to tell when it has synced
	// gone are the last objects seen to be deleted: an answer about one of them may come after that.
	gone     map[types.UID]bool
	goneRing [goneMax]types.UID
	goneNext int
}

// goneMax bounds what is remembered of deleted objects.
const goneMax = 1024

// bury remembers that an object has been deleted. The caller holds mu.
func (w *kindWatch) bury(uid types.UID) {
	if w.gone == nil {
		w.gone = map[types.UID]bool{}
	}
	delete(w.gone, w.goneRing[w.goneNext])
	w.goneRing[w.goneNext] = uid
	w.goneNext = (w.goneNext + 1) % goneMax
	w.gone[uid] = true
}

// start lets watches run until stop, those among them that have been stopped.
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

// stop ends all watches. What they have shown stays, and is not up to date.
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

// ready says whether all objects of a kind are known; if not, the application is told when they are, or when it is known
// why they cannot be.
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

// get is the object as last seen, or nil.
func (l *live) get(ref plan.Ref) *object {
	w := l.watch(ref.GVK)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
}

// wrote takes in what the server answered to a write, ahead of the watch. It may change it.
func (l *live) wrote(gvk schema.GroupVersionKind, o apiwriter.Object) {
	w := l.watch(gvk)
	if w == nil || o == nil {
		return
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	w.put(o)
}

// alive takes back that an object has been deleted: it was read, and so has only lost its label for a while, which watches
// show in the same way.
func (l *live) alive(gvk schema.GroupVersionKind, uid types.UID) {
	w := l.watch(gvk)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gone, uid)
}

// watch is that of a kind, or nil.
func (l *live) watch(gvk schema.GroupVersionKind) *kindWatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watches[gvk]
}

// deleted takes in that the server has accepted an object's deletion, ahead of the watch.
func (l *live) deleted(ref plan.Ref, uid types.UID) {
	w := l.watch(ref.GVK)
	if w == nil {
		return
	}
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.objects[key]; o != nil && o.uid == uid {
		going := *o // others may hold the one that is there
		going.deleting = true
		w.objects[key] = &going
	}
}

// settle packs what is known of an object that nobody is expected to ask for soon.
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
	small := *o // others may hold the one that is there
	small.raw, small.packer = w.packer.pack(o.raw), &w.packer
	w.objects[key] = &small
}

func (w *kindWatch) run(ctx context.Context) {
	client, err := kubeclient.ForRaw(kubeclient.ForWatch(w.l.rest), nil, w.gvk.GroupVersion())
	if err != nil {
		w.tried(ctx, err) // nothing that the server says makes a difference
		return
	}
	labels, only := oam.AppNameLabel, ""
	if w.only.Name != "" {
		labels, only = "", fields.OneTermEqualSelector(metav1.ObjectNameField, w.only.Name).String()
	}
	asked := cluster.ListWatch(client, w.mapping.Resource.Resource, w.only.Namespace, labels, only)
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

// single watches one object. It tells of every change, until stop.
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

// changed tells who is to know of a change of an object of an application.
func (w *kindWatch) changed(owner types.NamespacedName) {
	if w.tell != nil {
		w.tell()
		return
	}
	w.l.changed(owner)
}

// tried notes whether the objects could be asked for, and tells those that wait when they could not.
func (w *kindWatch) tried(ctx context.Context, err error) {
	if ctx.Err() != nil {
		return
	}
	w.mu.Lock()
	now := w.l.now()
	if w.failing.IsZero() {
		w.failing = now
	}
	if err != nil && now.Sub(w.failing) < passing(err) {
		w.mu.Unlock()
		return // it is asked for again soon
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

// Troubles of the server or the connection are not told for passingMax: a manager that starts while there are any would write
// into the status of each application that something cannot be watched, and then that it can. A server that has just started
// forbids everything until it has read the cluster's roles, which takes it forbiddenMax at most.
const (
	passingMax   = 30 * time.Second
	forbiddenMax = 10 * time.Second
)

// passing returns for how long an error may well be over at the next attempt.
func passing(err error) time.Duration {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return passingMax // of the connection
	}
	code := status.Status().Code
	switch {
	case code >= http.StatusInternalServerError, code == http.StatusTooManyRequests, code == http.StatusGone:
		return passingMax
	case code == http.StatusForbidden:
		return forbiddenMax
	}
	return 0
}

// put stores u unless something newer is known.
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

// newObject takes an object's managed fields off.
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

// isWorkload says whether objects of a kind are taken up by a controller that says so.
func isWorkload(gvk schema.GroupVersionKind) bool {
	return gvk.Group == appsv1.GroupName && gvk.Kind != "ControllerRevision"
}

// observed says whether an object's status is of any generation.
func observed(raw []byte) bool {
	status, err := rawjson.Value(raw, "status")
	if err != nil || status == nil {
		return false
	}
	generation, err := rawjson.Value(status, "observedGeneration")
	return err == nil && generation != nil
}

var contentSeed = maphash.MakeSeed()

// contentHash is a hash of an object without its status, version and generation.
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

// ownerOf is the application that labels name.
func ownerOf(labels map[string]string) types.NamespacedName {
	return types.NamespacedName{Namespace: labels[oam.AppNamespaceLabel], Name: labels[oam.AppNameLabel]}
}

// What follows makes a kindWatch the store that a Reflector fills.

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
		// What was written after the list was made is not missing from it.
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

// readTimeout bounds the rare reads of single objects.
const readTimeout = 10 * time.Second

// read asks the API server for one object, which the watch does not have: it is not labelled as an application's.
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
