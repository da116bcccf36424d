package controller

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// lockKeeper keeps the table of locks, and tells workflows what they were granted.
type lockKeeper struct {
	c     *Controller
	table *locks.Table

	mu     sync.Mutex
	limits map[types.NamespacedName]*limits
	// ghosts are workflows that are gone while pods of theirs run under locks, by their UID.
	ghosts map[types.UID]types.NamespacedName
	ctx    context.Context
}

// limits is a ConfigMap that holds limits of semaphores, watched from the first time that one is asked for.
type limits struct {
	data map[string]string
	err  error
}

func newLockKeeper(c *Controller) *lockKeeper {
	k := &lockKeeper{
		c: c, limits: map[types.NamespacedName]*limits{}, ghosts: map[types.UID]types.NamespacedName{}, ctx: context.Background(),
	}
	k.table = locks.New(k.limit)
	return k
}

// run watches until ctx is done.
func (k *lockKeeper) run(ctx context.Context) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.ctx = ctx
	for name := range k.limits {
		go k.watch(name)
	}
}

// restore takes over what a workflow holds by its status.
func (k *lockKeeper) restore(w *wf.Workflow) {
	if k.c.Leads && w.Status.Synchronization != nil {
		k.table.Restore(w.Status.Synchronization)
	}
}

// tell gives workflows their answers.
func (k *lockKeeper) tell(states []locks.State) {
	for _, s := range states {
		namespace, name := locks.WorkflowOf(s.Holder)
		k.c.loop.Post(types.NamespacedName{Namespace: namespace, Name: name}, keyed.Anyone, func(r *record) {
			if r.run != nil {
				r.events = append(r.events, engine.LockState(s))
			}
		})
	}
}

// abandon releases the locks of a workflow that is gone. While pods of it run, they are held for them.
func (k *lockKeeper) abandon(key types.NamespacedName, uid types.UID, elsewhere bool) {
	if elsewhere {
		return
	}
	if k.podsRun(uid) {
		k.mu.Lock()
		k.ghosts[uid] = key
		k.mu.Unlock()
		return
	}
	k.tell(k.table.Forget(key.Namespace, key.Name))
}

func (k *lockKeeper) podsRun(uid types.UID) bool {
	for _, p := range k.c.Informers.Pods.ByIndex(cluster.PodsByController, string(uid)) {
		if !ended(p) {
			return true
		}
	}
	return false
}

// podSeen releases the locks of a workflow that is gone with the last of its pods.
func (k *lockKeeper) podSeen(uid types.UID, key types.NamespacedName, gone bool) {
	if !gone {
		return
	}
	k.mu.Lock()
	_, ghost := k.ghosts[uid]
	k.mu.Unlock()
	if !ghost || k.podsRun(uid) {
		return
	}
	k.mu.Lock()
	delete(k.ghosts, uid)
	k.mu.Unlock()
	if w, found := k.c.Informers.Workflows.Get(key.Namespace, key.Name); !found || w.UID == uid {
		k.tell(k.table.Forget(key.Namespace, key.Name))
	}
}

// readTimeout bounds the first look at a ConfigMap.
const readTimeout = 5 * time.Second

// limit is a semaphore's limit as it is now.
func (k *lockKeeper) limit(namespace, configMap, key string) (int, error) {
	name := types.NamespacedName{Namespace: namespace, Name: configMap}
	k.mu.Lock()
	l := k.limits[name]
	k.mu.Unlock()
	if l == nil {
		l = k.read(name)
	}
	if l.err != nil {
		return 0, fmt.Errorf("ConfigMap %s: %w", name, l.err)
	}
	text, found := l.data[key]
	if !found {
		return 0, fmt.Errorf("ConfigMap %s has no key %s", name, key)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("ConfigMap %s, key %s: '%s' is not a number of holders", name, key, text)
	}
	return n, nil
}

// read looks at a ConfigMap for the first time, and watches it from then on.
func (k *lockKeeper) read(name types.NamespacedName) *limits {
	ctx, cancel := context.WithTimeout(k.context(), readTimeout)
	defer cancel()
	l := &limits{}
	cm, err := k.c.Client.CoreV1().ConfigMaps(name.Namespace).Get(ctx, name.Name, metav1.GetOptions{})
	if err != nil {
		l.err = err
	} else {
		l.data = cm.Data
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if there := k.limits[name]; there != nil {
		return there
	}
	k.limits[name] = l
	go k.watch(name)
	return l
}

func (k *lockKeeper) context() context.Context {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ctx
}

// watch follows a ConfigMap.
func (k *lockKeeper) watch(name types.NamespacedName) {
	selector := fields.OneTermEqualSelector("metadata.name", name.Name).String()
	maps := k.c.Client.CoreV1().ConfigMaps(name.Namespace)
	informer := cache.NewSharedInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return maps.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return maps.Watch(ctx, o)
		},
	}, &corev1.ConfigMap{}, 0)
	changed := func(o any) { k.changed(name, o.(*corev1.ConfigMap).Data) }
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) },
	})
	if err != nil {
		k.c.Log.Error("watching a ConfigMap with limits failed", "configMap", name, "error", err)
		return
	}
	informer.RunWithContext(k.context())
}

func (k *lockKeeper) changed(name types.NamespacedName, data map[string]string) {
	k.mu.Lock()
	k.limits[name] = &limits{data: data}
	k.mu.Unlock()
	k.tell(k.table.LimitChanged(name.Namespace, name.Name))
}
