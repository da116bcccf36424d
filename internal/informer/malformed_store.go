package informer

import (
	"crypto/sha256"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// malformedStore holds the objects of an Informer of which only the metadata can be decoded, or on
// which the manager panicked. Readers of the cache never see these objects: for the controllers
// such an object does not exist, just as after a restart, and objects made for it stay.
//
//	          put, malformed            put, decodes: Added
//	(cache) ─────────────────▶ (apart) ─────────────────────▶ (cache)
//	         Deleted, Malformed    │
//	                               └── gone ──▶ (none)
type malformedStore[T object] struct {
	mu    sync.RWMutex
	byKey map[string]T
	// panicked maps the key of each object on which the manager panicked to its fingerprint.
	panicked map[string]string
}

// Malformed returns the reason why the object is set apart, or nil if it is not.
func (i *Informer[T]) Malformed(namespace, name string) *malformed.Error {
	i.apart.mu.RLock()
	defer i.apart.mu.RUnlock()
	t, found := i.apart.byKey[keyOf(namespace, name)]
	if !found {
		return nil
	}
	return malformed.Of(t)
}

// Apart returns the metadata of an object that is not in the cache because only its metadata can be
// decoded, or because the manager panicked on it. It returns false if there is no such object.
func (i *Informer[T]) Apart(namespace, name string) (T, bool) {
	i.apart.mu.RLock()
	defer i.apart.mu.RUnlock()
	t, found := i.apart.byKey[keyOf(namespace, name)]
	return t, found
}

// ListApart returns the metadata of all objects that Apart returns.
func (i *Informer[T]) ListApart() []T { return i.apart.list() }

// OnMalformed registers tell, which is called for every object that is malformed or was set apart.
func (i *Informer[T]) OnMalformed(tell func(runtime.Object, *malformed.Error)) {
	i.Handle(Handler[T]{Malformed: func(t T, why *malformed.Error) { tell(t, why) }})
}

func keyOf(namespace, name string) string {
	if namespace == "" {
		return name
	}
	return namespace + "/" + name
}

// putApart moves an object that cannot be decoded out of the cache. old is its last state in the
// cache, if existed.
func (i *Informer[T]) putApart(t, old T, existed bool) error {
	if err := i.store.Delete(t); err != nil {
		return err
	}
	// This comes before the handlers, so that a caller that no longer finds the object can find the
	// reason.
	news := i.apart.put(t)
	if existed {
		i.tellGone(old)
	}
	if news {
		i.tellApart(t)
	}
	return nil
}

func (i *Informer[T]) tellApart(t T) {
	for _, h := range i.handlers {
		if h.Malformed != nil {
			h.Malformed(t, malformed.Of(t))
		}
	}
}

// SetApart takes the object out of the cache until it is changed, because the manager panicked
// while working on it. For the controllers the object is gone: Deleted is called, and then
// Malformed. An object with another UID stays.
func (i *Informer[T]) SetApart(namespace, name string, uid types.UID, p *panics.Panic) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if t, found := i.Get(namespace, name); found && t.GetUID() == uid {
		i.setApart(t, p)
	}
}

// mayBeApart reports whether a panic of a handler sets an object apart. It returns false for pods
// and nodes, because the cluster model must count them.
func (i *Informer[T]) mayBeApart() bool { return i.resource != "pods" && i.resource != "nodes" }

// setApart is SetApart for an object that is in the store.
func (i *Informer[T]) setApart(t T, p *panics.Panic) {
	bare := reflect.New(reflect.TypeFor[T]().Elem()).Interface().(T)
	copyMeta(bare, t)
	malformed.MarkPanicked(bare, reflect.TypeFor[T]().Elem().Name(), p.Error())
	i.apart.setPanicked(bare, i.fingerprint(t))
	if err := i.putApart(bare, t, true); err != nil {
		panic(err) // keys of objects are made of their names
	}
}

// copyMeta copies the metadata of from, trimmed to the fields that package malformed keeps, to
// another object.
func copyMeta(to, from metav1.Object) {
	to.SetNamespace(from.GetNamespace())
	to.SetName(from.GetName())
	to.SetUID(from.GetUID())
	to.SetResourceVersion(from.GetResourceVersion())
	to.SetGeneration(from.GetGeneration())
	to.SetCreationTimestamp(from.GetCreationTimestamp())
	to.SetDeletionTimestamp(from.GetDeletionTimestamp())
	to.SetLabels(maps.Clone(from.GetLabels()))
	to.SetAnnotations(maps.Clone(from.GetAnnotations()))
	to.SetFinalizers(slices.Clone(from.GetFinalizers()))
	to.SetOwnerReferences(slices.Clone(from.GetOwnerReferences()))
}

// staysApart reports whether the manager panicked on the object and nothing but the conditions that
// report the panic has changed since.
func (i *Informer[T]) staysApart(t T) bool { return i.apart.stays(t, i.fingerprint) }

// fingerprint returns a hash of an object without its resource version, generation, managed fields
// and conditions. The hash changes when another client changes the object.
func (i *Informer[T]) fingerprint(t T) string {
	data, err := json.Marshal(t)
	var o map[string]any
	if err != nil || json.Unmarshal(data, &o) != nil {
		return t.GetResourceVersion()
	}
	for _, field := range []string{"resourceVersion", "generation", "managedFields"} {
		unstructured.RemoveNestedField(o, "metadata", field)
	}
	unstructured.RemoveNestedField(o, "status", "conditions")
	if status, ok := o["status"].(map[string]any); ok && len(status) == 0 {
		delete(o, "status")
	}
	data, err = json.Marshal(o)
	if err != nil {
		return t.GetResourceVersion()
	}
	sum := sha256.Sum256(data)
	return string(sum[:])
}

func (a *malformedStore[T]) setPanicked(t T, fingerprint string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.panicked == nil {
		a.panicked = map[string]string{}
	}
	a.panicked[keyOf(t.GetNamespace(), t.GetName())] = fingerprint
}

func (a *malformedStore[T]) stays(t T, fingerprint func(T) string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	key := keyOf(t.GetNamespace(), t.GetName())
	before, found := a.panicked[key]
	if !found {
		return false
	}
	if there, apart := a.byKey[key]; apart && there.GetUID() == t.GetUID() && before == fingerprint(t) {
		there = there.DeepCopyObject().(T)
		there.SetResourceVersion(t.GetResourceVersion())
		a.byKey[key] = there
		return true
	}
	delete(a.panicked, key)
	return false
}

// put stores t and reports whether it is new or has another resource version than before.
func (a *malformedStore[T]) put(t T) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.byKey == nil {
		a.byKey = map[string]T{}
	}
	key := keyOf(t.GetNamespace(), t.GetName())
	before, known := a.byKey[key]
	a.byKey[key] = t
	return !known || before.GetResourceVersion() != t.GetResourceVersion()
}

func (a *malformedStore[T]) remove(t T) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.byKey) > 0 {
		delete(a.byKey, keyOf(t.GetNamespace(), t.GetName()))
		delete(a.panicked, keyOf(t.GetNamespace(), t.GetName()))
	}
}

// replace splits a list of all objects: the store then holds those that belong apart, and others
// are the remaining objects. news are the objects of the store that are new or have another
// resource version.
func (a *malformedStore[T]) replace(list []any, fingerprint func(T) string) (others []any, news []T) {
	now := map[string]T{}
	others = slices.DeleteFunc(list, func(o any) bool {
		t := o.(T)
		if malformed.Of(t) == nil {
			if !a.stays(t, fingerprint) {
				return false
			}
			key := keyOf(t.GetNamespace(), t.GetName())
			now[key] = a.byKey[key] // only the locked Informer changes it
			return true
		}
		now[keyOf(t.GetNamespace(), t.GetName())] = t
		return true
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	for key, t := range now {
		if was, known := a.byKey[key]; !known || was.GetResourceVersion() != t.GetResourceVersion() {
			news = append(news, t)
		}
	}
	a.byKey = now
	maps.DeleteFunc(a.panicked, func(key, _ string) bool { _, there := now[key]; return !there })
	return others, news
}

func (a *malformedStore[T]) list() []T {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return slices.Collect(maps.Values(a.byKey))
}
