package objects

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
)

// ManagedObjects caches the managed objects of one cluster. It has one watch for each kind that an
// Application uses, of the objects that carry an Application's label.
type ManagedObjects struct {
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

// start runs the watches, including those that stop stopped before, until stop is called.
func (l *ManagedObjects) start(ctx context.Context) {
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

// stop ends all watches and waits for them. Their stores keep the objects, which are out of date
// from then on.
func (l *ManagedObjects) stop() {
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

// Ready reports whether the watch of a kind has synced, and starts that watch if there is none. If
// it has not synced, the Application is enqueued when it has, or when it fails; the error says why
// it fails.
func (l *ManagedObjects) Ready(gvk schema.GroupVersionKind, app types.NamespacedName) (bool, error) {
	w := l.watch(gvk)
	if w == nil {
		m, err := l.kinds.Mapping(gvk) // without mu: it may wait for the API server
		if err != nil {
			return false, err
		}
		w = l.add(gvk, m)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.synced {
		return true, nil
	}
	w.waiting[app] = true
	return false, w.err
}

// add returns the watch of a kind, and starts it if there is none.
func (l *ManagedObjects) add(gvk schema.GroupVersionKind, m *meta.RESTMapping) *kindWatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.watches[gvk]
	if w == nil {
		w = &kindWatch{
			l: l, gvk: gvk, mapping: m,
			objects: map[types.NamespacedName]*Object{}, waiting: map[types.NamespacedName]bool{},
		}
		l.watches[gvk] = w
		if ctx := l.ctx; ctx != nil {
			l.running.Go(func() { w.run(ctx) })
		}
	}
	return w
}

// Get returns the object as last seen, or nil.
func (l *ManagedObjects) Get(ref plan.Ref) *Object {
	w := l.watch(ref.GVK)
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.objects[types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}]
}

// Put stores the object from an answer to a write, before the watch shows it. Put may change o.
func (l *ManagedObjects) Put(gvk schema.GroupVersionKind, o apiwriter.Object) {
	w := l.watch(gvk)
	if w == nil || o == nil {
		return
	}
	o.GetObjectKind().SetGroupVersionKind(gvk)
	w.put(o)
}

// Unbury undoes markDeleted for an object that was read and therefore exists. The object only lost
// its label for a while, which a watch by label shows as a deletion.
func (l *ManagedObjects) Unbury(gvk schema.GroupVersionKind, uid types.UID) {
	w := l.watch(gvk)
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.gone, uid)
}

// watch returns the watch of a kind, or nil.
func (l *ManagedObjects) watch(gvk schema.GroupVersionKind) *kindWatch {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.watches[gvk]
}

// MarkDeleted marks an object as being deleted once the server has accepted its deletion, before
// the watch shows that.
func (l *ManagedObjects) MarkDeleted(ref plan.Ref, uid types.UID) {
	l.change(ref, func(_ *kindWatch, o *Object) { o.Deleting = o.Deleting || o.Uid == uid })
}

// Pack compresses the cached JSON of an object that is unlikely to be read soon.
func (l *ManagedObjects) Pack(ref plan.Ref) {
	l.change(ref, func(w *kindWatch, o *Object) {
		if o.packer == nil {
			o.raw, o.packer = w.packer.Pack(o.raw), &w.packer
		}
	})
}

// change replaces an object by a changed copy, because other goroutines may hold the present one.
func (l *ManagedObjects) change(ref plan.Ref, change func(*kindWatch, *Object)) {
	w := l.watch(ref.GVK)
	if w == nil {
		return
	}
	key := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
	w.mu.Lock()
	defer w.mu.Unlock()
	if o := w.objects[key]; o != nil {
		changed := *o
		change(w, &changed)
		w.objects[key] = &changed
	}
}

// single watches one object, whose kind has the mapping m. It calls tell after every change, until
// stop is called.
func (l *ManagedObjects) single(ref plan.Ref, m *meta.RESTMapping, tell func()) (w *kindWatch, stop func(), _ error) {
	w = &kindWatch{
		l: l, gvk: ref.GVK, mapping: m, only: types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}, tell: tell,
		objects: map[types.NamespacedName]*Object{}, waiting: map[types.NamespacedName]bool{},
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

// ReadTimeout bounds one read of an object. Such reads are rare.
const ReadTimeout = 10 * time.Second

// Read gets one object from the API server. Use it for objects that the watch does not show because
// they have no Application's label.
func (l *ManagedObjects) Read(ctx context.Context, ref plan.Ref) (*unstructured.Unstructured, error) {
	m, err := l.kinds.Mapping(ref.GVK)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ReadTimeout)
	defer cancel()
	return l.client.Resource(m.Resource).Namespace(ref.Namespace).Get(ctx, ref.Name, metav1.GetOptions{})
}
