package controller

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// askLocks asks for locks. Where a limit is not known it is read first, and the workflow asks again then; again says that it does.
func (c *Controller) askLocks(r *record, l locks.Request, again bool) {
	if name, unknown := c.locks.unknown(l.Keys, again); unknown {
		if r.asking == nil {
			r.asking = map[string]locks.Request{}
		}
		r.asking[l.Holder] = l
		key, uid := r.key, r.uid
		c.locks.read(name, func() {
			c.loop.Post(key, uid, func(r *record) {
				if l, still := r.asking[l.Holder]; still && r.run != nil {
					c.askLocks(r, l, true)
				}
			})
		})
		return
	}
	delete(r.asking, l.Holder)
	r.events = append(r.events, engine.LockState(c.locks.table.Acquire(l)))
	r.next.fields = true
}

// limit is a semaphore's limit as far as it is known. It reads nothing: the table's lock is held.
func (k *lockKeeper) limit(namespace, configMap, key string) (int, error) {
	name := types.NamespacedName{Namespace: namespace, Name: configMap}
	k.mu.Lock()
	l := k.limits[name]
	if l == nil || !l.read {
		k.mu.Unlock()
		return 0, fmt.Errorf("ConfigMap %s is not known yet", name)
	}
	text, found := l.data[key]
	err := l.err
	k.mu.Unlock()
	if err != nil {
		return 0, fmt.Errorf("ConfigMap %s: %w", name, err)
	}
	if !found {
		return 0, fmt.Errorf("ConfigMap %s has no key %s", name, key)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil || n < 0 {
		return 0, fmt.Errorf("ConfigMap %s, key %s: its value is not a number of holders", name, key) // the value may be a secret of others
	}
	return n, nil
}

// unknown is a ConfigMap with a limit of keys that has not been read. One that could not be read is read anew, unless again.
func (k *lockKeeper) unknown(keys []string, again bool) (types.NamespacedName, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, key := range keys {
		namespace, configMap, _, found := locks.ConfigMapOf(key)
		if !found {
			continue
		}
		name := types.NamespacedName{Namespace: namespace, Name: configMap}
		l := k.limits[name]
		if l == nil || !l.read || l.err != nil && !again {
			return name, true
		}
		l.unused = 0
	}
	return types.NamespacedName{}, false
}

// read has a ConfigMap read, and done called then.
func (k *lockKeeper) read(name types.NamespacedName, done func()) {
	k.mu.Lock()
	l := k.limits[name]
	if l == nil {
		l = &limits{}
		k.limits[name] = l
	}
	l.waiting = append(l.waiting, done)
	k.mu.Unlock()
	k.reads.Wake(name)
}

// look reads a ConfigMap, and watches it from then on, as long as it is used.
func (k *lockKeeper) look(name types.NamespacedName) {
	k.mu.Lock()
	l, ctx := k.limits[name], k.ctx
	idle := l == nil || l.stop != nil && len(l.waiting) == 0
	k.mu.Unlock()
	if idle {
		k.reads.Drop(name)
		return
	}
	pause := k.reads.Get(name)
	if pause == nil {
		pause = &keyed.Pause{}
		k.reads.Put(name, pause)
	}
	if left := pause.Left(k.c.Clock.Now()); left > 0 {
		k.reads.WakeAfter(name, left)
		return
	}
	timed, cancel := context.WithTimeout(ctx, readTimeout)
	cm, err := k.c.Client.CoreV1().ConfigMaps(name.Namespace).Get(timed, name.Name, metav1.GetOptions{})
	cancel()
	if err != nil && ctx.Err() != nil {
		return
	}
	if err != nil && !refusedToRead(err) {
		now := k.c.Clock.Now()
		pause.Refused(now)
		k.c.Log.Warn("reading a ConfigMap with limits failed", "configMap", name, "error", err, "again", pause.Left(now))
		k.reads.WakeAfter(name, pause.Left(now))
		return
	}
	k.known(name, cm, err)
	k.reads.WakeAfter(name, lookAgain) // unless it is watched
}

// refusedToRead reports whether the server's answer is final: there is no such ConfigMap, or it is not for us.
func refusedToRead(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
		code != http.StatusTooManyRequests && code != http.StatusRequestTimeout && code != http.StatusUnauthorized
}

// known takes in what a ConfigMap says. Limits of one that was deleted stay as they were for those who use it.
func (k *lockKeeper) known(name types.NamespacedName, cm *corev1.ConfigMap, err error) {
	k.mu.Lock()
	l := k.limits[name]
	if l == nil {
		k.mu.Unlock()
		return
	}
	waiting := l.waiting
	l.waiting = nil
	if err == nil {
		l.data, l.err = cm.Data, nil
		if l.stop == nil && k.watches < watchesMax {
			var ctx context.Context
			ctx, l.stop = context.WithCancel(k.ctx)
			k.watches++
			go k.watch(ctx, name)
		}
	} else if !l.read || l.err != nil || len(waiting) > 0 {
		l.data, l.err = nil, err
	}
	l.read = true
	k.mu.Unlock()
	if err == nil {
		k.tell(k.table.LimitChanged(name.Namespace, name.Name))
	}
	for _, done := range waiting {
		done()
	}
}

// sweep forgets the ConfigMaps that nobody uses.
func (k *lockKeeper) sweep() {
	used := k.table.ConfigMaps()
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, l := range k.limits {
		if used[name] || len(l.waiting) > 0 {
			l.unused = 0
			continue
		}
		if l.unused++; l.unused < 2 {
			continue // somebody may be about to ask
		}
		if l.stop != nil {
			l.stop()
			k.watches--
		}
		delete(k.limits, name)
	}
}

// watch follows a ConfigMap until ctx is done.
func (k *lockKeeper) watch(ctx context.Context, name types.NamespacedName) {
	selector := fields.OneTermEqualSelector("metadata.name", name.Name).String()
	maps := k.c.Client.CoreV1().ConfigMaps(name.Namespace)
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = selector
			return maps.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = selector
			return maps.Watch(ctx, o)
		},
	}
	seen := &limitSink{changed: func(cm *corev1.ConfigMap) { k.known(name, cm, nil) }}
	cache.NewReflectorWithOptions(lw, &corev1.ConfigMap{}, seen, cache.ReflectorOptions{
		Name: "limits", Backoff: kubeclient.WatchBackoff(),
	}).RunWithContext(ctx)
}

// limitSink is what a reflector of one ConfigMap fills. It passes on each version once, and nothing of a deletion. The reflector
// alone calls it, from one goroutine.
type limitSink struct {
	changed func(*corev1.ConfigMap)
	version string // the last that was passed on
}

// Add implements cache.ReflectorStore.
func (s *limitSink) Add(o any) error {
	cm := o.(*corev1.ConfigMap)
	if cm.ResourceVersion != s.version {
		s.version = cm.ResourceVersion
		s.changed(cm)
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (s *limitSink) Update(o any) error { return s.Add(o) }

// Delete implements cache.ReflectorStore.
func (s *limitSink) Delete(any) error { return nil }

// Replace implements cache.ReflectorStore.
func (s *limitSink) Replace(list []any, _ string) error {
	for _, o := range list {
		_ = s.Add(o) // it cannot fail
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *limitSink) Resync() error { return nil }

var _ cache.ReflectorStore = (*limitSink)(nil)
