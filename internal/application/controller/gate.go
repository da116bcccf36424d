package controller

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// How many applications may be on their way to being deployed for the first time: as many as keep the server busy. With more,
// each would only be ready later, what they are made of would lie in memory meanwhile, and the statuses of those that are done
// would wait with everybody else's writes. How many that is depends on how far the clusters are, so it is tried out.
const (
	beginningMin = 8
	beginningMax = 64
	// crowded is how long a write takes where requests wait for each other.
	crowded = 40 * time.Millisecond
)

// gate lets applications begin in the order in which they came, a number of them at a time. Those that have begun are
// through when no write of theirs is under way and what they made has been taken up, whatever they wait for then; and when a
// cluster does not answer, for which nobody else is to wait.
type gate struct {
	mu      sync.Mutex
	more    float64 // places beyond beginningMin
	begun   map[types.NamespacedName]bool
	waiting []types.NamespacedName
	waits   map[types.NamespacedName]bool // those in waiting that still want in
}

// places is how many may have begun. The caller holds mu.
func (g *gate) places() int { return beginningMin + int(g.more) }

// enter says whether an application may go on. If not, it is next after those that wait already.
func (g *gate) enter(k types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.begun[k] {
		return true
	}
	if len(g.begun) < g.places() && len(g.waits) == 0 {
		if g.begun == nil {
			g.begun, g.waits = map[types.NamespacedName]bool{}, map[types.NamespacedName]bool{}
		}
		g.begun[k] = true
		return true
	}
	if !g.waits[k] {
		g.waits[k] = true
		g.waiting = append(g.waiting, k)
	}
	return false
}

// has says whether an application has begun and is not through.
func (g *gate) has(k types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun[k]
}

// leave lets the next ones in and returns them. lag is how long writes take at present.
func (g *gate) leave(k types.NamespacedName, lag time.Duration) (next []types.NamespacedName) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.waits, k)
	if g.begun[k] {
		delete(g.begun, k)
		g.adapt(lag)
	}
	for len(g.waiting) > 0 && len(g.begun) < g.places() {
		first := g.waiting[0]
		g.waiting = g.waiting[1:]
		if g.waits[first] {
			delete(g.waits, first)
			g.begun[first] = true
			next = append(next, first)
		}
	}
	return next
}

// adapt makes the gate wider or narrower, by one place in the time in which all places change hands.
func (g *gate) adapt(lag time.Duration) {
	step := 1 / float64(g.places())
	if lag > crowded {
		step = -step
	}
	if len(g.waits) > 0 || step < 0 { // who does not wait needs no place
		g.more = min(max(g.more+step, 0), beginningMax-beginningMin)
	}
}
