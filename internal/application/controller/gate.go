package controller

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// beginningMax is how many applications may be on their way to being deployed for the first time. Enough to keep the
// writer busy; with more, each would only be ready later, and what they are made of would lie in memory meanwhile.
const beginningMax = 24

// gate lets applications begin in the order in which they came, a number of them at a time. Those that have begun are
// through when no write of theirs is under way, whatever they wait for then.
type gate struct {
	mu      sync.Mutex
	begun   map[types.NamespacedName]bool
	waiting []types.NamespacedName
	waits   map[types.NamespacedName]bool // those in waiting that still want in
}

// enter says whether an application may go on. If not, it is next after those that wait already.
func (g *gate) enter(k types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun[k] {
		return true
	}
	if len(g.begun) < beginningMax {
		if g.begun == nil {
			g.begun, g.waits = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
		}
		g.begun[k] = true
		delete(g.waits, k)
		return true
	}
	if !g.waits[k] {
		g.waits[k] = true
		g.waiting = append(g.waiting, k)
	}
	return false
}

// leave lets the next one in and returns it.
func (g *gate) leave(k types.NamespacedName) (next types.NamespacedName, ok bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waits, k)
	if !g.begun[k] {
		return next, false
	}
	delete(g.begun, k)
	for len(g.waiting) > 0 {
		next, g.waiting = g.waiting[0], g.waiting[1:]
		if g.waits[next] {
			delete(g.waits, next)
			g.begun[next] = true
			return next, true
		}
	}
	return next, false
}
