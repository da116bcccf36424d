package observe

import (
	"maps"
	"sync"
)

// Seen stores the state of each object that a watch has shown, by namespace and name. Its zero
// value is empty. It is safe for concurrent use.
type Seen[V any] struct {
	lock sync.Mutex
	by   map[string]map[string]V
}

// Note changes the state of an object. change gets V's zero value for a new object.
func (s *Seen[V]) Note(namespace, name string, change func(V) V) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.by == nil {
		s.by = map[string]map[string]V{}
	}
	if s.by[namespace] == nil {
		s.by[namespace] = map[string]V{}
	}
	s.by[namespace][name] = change(s.by[namespace][name])
}

// Forget removes an object.
func (s *Seen[V]) Forget(namespace, name string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	delete(s.by[namespace], name)
}

// Count counts a namespace's objects that match.
func (s *Seen[V]) Count(namespace string, match func(V) bool) int {
	s.lock.Lock()
	defer s.lock.Unlock()
	n := 0
	for _, v := range s.by[namespace] {
		if match(v) {
			n++
		}
	}
	return n
}

// In returns a copy of the states of a namespace's objects, by name.
func (s *Seen[V]) In(namespace string) map[string]V {
	s.lock.Lock()
	defer s.lock.Unlock()
	return maps.Clone(s.by[namespace])
}
