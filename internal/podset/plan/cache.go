package plan

import (
	"crypto/sha256"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

// Cache replaces equal plans of different owners by one object, because the scheduler compiles a
// pod class once per object. The uses of a plan are counted, and a plan is dropped with its last
// use. Cache is safe for concurrent use.
type Cache struct {
	mu    sync.Mutex
	byKey map[[sha256.Size]byte]*entry
	keyOf map[*corev1.Pod][sha256.Size]byte
}

type entry struct {
	plan *corev1.Pod
	uses int
}

// NewCache returns an empty cache.
func NewCache() *Cache {
	return &Cache{byKey: map[[sha256.Size]byte]*entry{}, keyOf: map[*corev1.Pod][sha256.Size]byte{}}
}

// Share returns the object for all plans equal to p, and counts a use of it.
func (c *Cache) Share(p *corev1.Pod) *corev1.Pod {
	// The encoding is canonical for equal content: the generated marshaller sorts map keys.
	b, err := p.Marshal()
	if err != nil {
		return p // the plan cannot be shared, which is harmless
	}
	key := sha256.Sum256(b)
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byKey[key]
	if e == nil {
		e = &entry{plan: p}
		c.byKey[key], c.keyOf[p] = e, key
	}
	e.uses++
	return e.plan
}

// Release ends one use of a plan returned by Share. It ignores nil.
func (c *Cache) Release(p *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key, ok := c.keyOf[p]
	if !ok {
		return
	}
	if e := c.byKey[key]; e.uses > 1 {
		e.uses--
		return
	}
	delete(c.byKey, key)
	delete(c.keyOf, p)
}
