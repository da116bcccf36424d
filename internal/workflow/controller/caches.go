package controller

import (
	"encoding/json"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// caches reads and writes the ConfigMaps that hold memoized outputs. It remembers a stored entry
// until the watch shows it, so that the next lookup finds it.
type caches struct {
	controller *Controller
	mu         sync.Mutex
	fresh      map[cacheKey]string
}

type cacheKey struct {
	types.NamespacedName
	key string
}

// freshMax bounds the entries remembered until the watch shows them.
const freshMax = 10_000

const cacheType = "Cache"

// lookup answers a cache lookup of the engine.
func (k *caches) lookup(namespace string, l engine.CacheLookup) engine.CacheAnswer {
	key := cacheKey{types.NamespacedName{Namespace: namespace, Name: l.ConfigMap}, l.Key}
	cm, found := k.controller.Informers.ConfigMaps.Get(namespace, l.ConfigMap)
	if found && cm.Labels[wf.LabelConfigMapType] != cacheType {
		return engine.CacheAnswer{NodeID: l.NodeID, Err: fmt.Errorf("ConfigMap %s is not a cache: label %s is not %s", key, wf.LabelConfigMapType, cacheType)}
	}
	k.mu.Lock()
	text, known := k.fresh[key]
	if found && known && cm.Data[l.Key] == text {
		delete(k.fresh, key)
	}
	k.mu.Unlock()
	if known {
		return l.Answer(text, true)
	}
	if !found {
		return l.Answer("", false)
	}
	text, known = cm.Data[l.Key]
	return l.Answer(text, known)
}

// store writes the outputs of a node into a cache ConfigMap, and creates the ConfigMap if it does
// not exist.
func (k *caches) store(r *record, s engine.CacheStore) {
	key := cacheKey{types.NamespacedName{Namespace: r.key.Namespace, Name: s.ConfigMap}, s.Key}
	entry := s.Entry()
	k.mu.Lock()
	if k.fresh == nil || len(k.fresh) >= freshMax {
		k.fresh = map[cacheKey]string{}
	}
	k.fresh[key] = entry
	k.mu.Unlock()
	c, of := k.controller, r.object
	m := apiwriter.Meta{Owner: ownerKey(r.key), Reason: "memoize"}
	about := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	// The patch tests the type label so that it changes only caches: the watch shows only
	// ConfigMaps of the types Cache and Parameter, so the labels of others are unknown here.
	isCache := apiwriter.PatchOp{Op: "test", Path: "/metadata/labels/" + escape(wf.LabelConfigMapType), Value: cacheType}
	failed := func(err error) {
		if apierrors.IsInvalid(err) {
			err = fmt.Errorf("it is not a cache: label %s is not %s: %w", wf.LabelConfigMapType, cacheType, err)
		}
		if err != nil {
			c.Log.Warn("keeping outputs in a cache failed", "configMap", key.NamespacedName, "key", s.Key, "error", err)
			c.Writer.Event(of, corev1.EventTypeWarning, "OutputsNotKept", shortened(fmt.Sprintf("memoize: ConfigMap %s, key %s: %v", key.Name, s.Key, err)))
		}
	}
	patch := func(done func(error), then ...apiwriter.PatchOp) {
		data, err := json.Marshal(append([]apiwriter.PatchOp{isCache}, then...))
		if err != nil {
			done(err)
			return
		}
		c.Writer.Patch(m, about, types.JSONPatchType, data, func(_ apiwriter.Object, err error) { done(err) })
	}
	write := func(otherwise func(error)) {
		patch(func(err error) {
			if !apierrors.IsInvalid(err) {
				otherwise(err)
				return
			}
			// The ConfigMap is not a cache, or it has no data yet.
			patch(otherwise, apiwriter.PatchOp{Op: "test", Path: "/data"},
				apiwriter.PatchOp{Op: "add", Path: "/data", Value: map[string]string{s.Key: entry}})
		}, apiwriter.PatchOp{Op: "add", Path: "/data/" + s.Key, Value: entry})
	}
	write(func(err error) {
		if !apierrors.IsNotFound(err) {
			failed(err)
			return
		}
		made := about.DeepCopy()
		made.Labels = map[string]string{wf.LabelConfigMapType: cacheType}
		made.Data = map[string]string{s.Key: entry}
		c.Writer.Create(m, made, func(_ apiwriter.Object, err error) {
			if apierrors.IsAlreadyExists(err) {
				write(failed)
				return
			}
			failed(err)
		})
	})
}
