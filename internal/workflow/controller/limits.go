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
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/locks"
)

// askLocks requests locks for a holder. If a limit is unknown, its ConfigMap is read first, and
// then askLocks runs once more with again set.
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
	if err := c.locks.database.refuses(l); err != nil {
		r.events = append(r.events, engine.LockState{Holder: l.Holder, Err: err, Message: err.Error()})
		return
	}
	r.events = append(r.events, engine.LockState(c.locks.table.Acquire(l)))
	c.locks.database.wake()
	r.next.fields = true
}

// limit returns the known limit of a semaphore. It reads nothing from the server, because the
// caller holds the table's mutex.
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
		// The value is not quoted: it may be another user's secret.
		return 0, fmt.Errorf("ConfigMap %s, key %s: its value is not a number of holders", name, key)
	}
	return n, nil
}

// unknown returns a ConfigMap that has to be read before the limits of keys are known. It returns
// false if there is none. A ConfigMap that could not be read is returned too, unless again is true.
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

// read queues a read of a ConfigMap and registers done to be called when the ConfigMap has been
// read.
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

// look reads a ConfigMap and starts to watch it, unless watchesMax is reached. It drops the key if
// the ConfigMap is watched or no longer used.
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
		pause = &controlloop.Backoff{}
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
		pause.Failed(now)
		k.c.Log.Warn("reading a ConfigMap with limits failed", "configMap", name, "error", err, "again", pause.Left(now))
		k.reads.WakeAfter(name, pause.Left(now))
		return
	}
	k.known(name, cm, err)
	k.reads.WakeAfter(name, lookAgain) // a watched ConfigMap is not read again
}

// refusedToRead reports whether an error is a final answer of the server: the ConfigMap does not
// exist, or may not be read.
func refusedToRead(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError &&
		code != http.StatusTooManyRequests && code != http.StatusRequestTimeout && code != http.StatusUnauthorized
}

// known takes in the content of a ConfigMap, or the error from reading it. The limits of a deleted
// ConfigMap stay in force for workflows that use them.
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
		k.database.wake()
	}
	for _, done := range waiting {
		done()
	}
}

// sweep drops ConfigMaps that two consecutive sweeps found unused.
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
			continue // a workflow may be about to use it
		}
		if l.stop != nil {
			l.stop()
			k.watches--
		}
		delete(k.limits, name)
	}
}

// watch watches one ConfigMap until ctx is done.
func (k *lockKeeper) watch(ctx context.Context, name types.NamespacedName) {
	i := informer.New(k.c.Client.CoreV1().RESTClient(), "configmaps", informer.Options[*corev1.ConfigMap]{
		Namespace: name.Namespace, Fields: fields.OneTermEqualSelector("metadata.name", name.Name).String(),
	})
	i.Follow(func(cm *corev1.ConfigMap) { k.known(name, cm, nil) }, nil)
	i.Run(ctx)
}
