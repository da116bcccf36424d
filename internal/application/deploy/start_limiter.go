package deploy

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Bounds on the number of Applications that may be deployed for the first time at the same time: as
// many as keep the server busy. More would make each one ready later, keep their plans in memory
// meanwhile, and let the statuses of finished ones wait among all other writes. The best number
// depends on the distance to the clusters, so StartLimiter finds it by experiment.
const (
	beginningMin = 8
	beginningMax = 64
	// crowded is the duration of a write above which requests are taken to wait for each other.
	crowded = 40 * time.Millisecond
)

// StartLimiter admits Applications to their first deployment, in order of arrival and a limited
// number at a time. An Application gives up its place when none of its writes is under way and
// controllers have observed what it created, whatever it waits for then; or when a managed cluster
// does not answer, because others must not wait for that cluster.
type StartLimiter struct {
	mu      sync.Mutex
	more    float64 // places beyond beginningMin
	begun   map[types.NamespacedName]bool
	waiting []types.NamespacedName
	waits   map[types.NamespacedName]bool // the keys in waiting that are still to enter
}

// places returns how many Applications may have a place. The caller holds mu.
func (g *StartLimiter) places() int { return beginningMin + int(g.more) }

// Enter reports whether an Application may proceed. If not, it is appended to the waiting list.
func (g *StartLimiter) Enter(k types.NamespacedName) bool {
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

// Has reports whether an Application has a place.
func (g *StartLimiter) Has(k types.NamespacedName) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.begun[k]
}

// Leave frees an Application's place, and returns the waiting Applications that enter instead. lag
// is the present duration of writes.
func (g *StartLimiter) Leave(k types.NamespacedName, lag time.Duration) (next []types.NamespacedName) {
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

// adapt changes the number of places. It changes by one place in the time in which all places are
// freed once.
func (g *StartLimiter) adapt(lag time.Duration) {
	step := 1 / float64(g.places())
	if lag > crowded {
		step = -step
	}
	if len(g.waits) > 0 || step < 0 { // add places only if an Application waits
		g.more = min(max(g.more+step, 0), beginningMax-beginningMin)
	}
}
