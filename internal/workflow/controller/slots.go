package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// slots bounds how many statuses that can wait are at the writer: one that has not been handed over yet takes in what
// happens meanwhile, or turns out not to be needed.
type slots struct {
	mu      sync.Mutex
	free    int
	wake    func(types.NamespacedName)
	holds   map[types.NamespacedName]bool
	waiting map[types.NamespacedName]bool
	line    []types.NamespacedName // may have keys that do not wait any more
}

func (s *slots) init(free int, wake func(types.NamespacedName)) {
	s.free, s.wake = free, wake
	s.holds, s.waiting = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
}

// enter says whether the record may hand over its status. If not, its key is woken when it may.
func (s *slots) enter(r *record) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.holds[r.key]:
		return true
	case s.free > 0:
		s.free--
		s.holds[r.key] = true
		return true
	case !s.waiting[r.key]:
		s.waiting[r.key] = true
		s.line = append(s.line, r.key)
	}
	return false
}

// leave gives the record's slot to the next in line.
func (s *slots) leave(r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.waiting, r.key)
	if !s.holds[r.key] {
		return
	}
	delete(s.holds, r.key)
	for len(s.line) > 0 {
		next := s.line[0]
		s.line = s.line[1:]
		if s.waiting[next] {
			delete(s.waiting, next)
			s.holds[next] = true
			s.wake(next)
			return
		}
	}
	s.line = nil
	s.free++
}
