package scheduler

import (
	"container/heap"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// room holds the waiting gangs. Gangs of one queue that ask for the same (their shape) form one
// line, because a reason that keeps one of them waiting keeps all of them waiting. Only the head of
// a line is ever offered to the ledger, never the 10,000 gangs behind it.
//
//	queue "a" ─▶ line of shape 1, open      head ▷ gang ▷ gang ▷ ...     head: ready in the ledger; the others: parked
//	          ├▶ line of shape 2, blocked   head ▷ gang ▷ ...            all parked, until a change that may help
//	queue "b" ─▶ line of shape 1, open      head ▷ ...
type room struct {
	ledger  *share.Ledger
	entries map[string]*entry
	lines   map[lineKey]*line
	rare    int // number of entries with a class that needs the rare filter
}

type lineKey struct{ queue, shape string }

// entry is a waiting gang, or the part of a gang above its minimum when the minimum has been
// placed.
type entry struct {
	gang      *Gang
	classes   []*place.Class // one per demand
	left      [][]int        // per demand, the indices of the units that have no node
	mins      []int          // per demand
	minMember int
	fault     string    // why the gang can never be placed, or empty
	submitted time.Time // for the wait-time metric
	partial   bool      // the gang's minimum has been placed
	told      string    // key of the last reason reported to the owner
	line      *line
	at        int // position in the line
}

// line holds the gangs of one shape in one queue, as a heap with the next gang first.
type line struct {
	key     lineKey
	entries lineHeap
	blocked *block // nil when open
	said    string // key of the reason that all entries except those in untold were told
	untold  []*entry
}

// block says why a line waits.
type block struct {
	reason  Reason
	byQueue bool // the queue blocks the line, not the nodes
	rare    bool // other pods may block the line
	at      time.Time
}

func newRoom(ledger *share.Ledger) *room {
	return &room{ledger: ledger, entries: map[string]*entry{}, lines: map[lineKey]*line{}}
}

// add puts an entry into its line. The entry's key must not be in the room.
func (r *room) add(e *entry) {
	key := lineKey{e.gang.Queue, e.shape()}
	l := r.lines[key]
	if l == nil {
		l = &line{key: key}
		r.lines[key] = l
	}
	e.line = l
	r.entries[e.gang.Key] = e
	r.rare += e.rare()
	heap.Push(&l.entries, e)
	l.owe(e)
	r.ledger.Submit(share.Gang{
		Key: e.gang.Key, Queue: e.gang.Queue, Priority: e.gang.Priority, Created: e.gang.Created, Resume: e.gang.Resume,
		Request: e.request(),
	})
	switch {
	case l.blocked != nil:
		r.ledger.Park(e.gang.Key)
	case e.at == 0 && len(l.entries) > 1:
		// The former head is a child of the new one.
		for _, second := range l.entries[1:min(3, len(l.entries))] {
			r.ledger.Park(second.gang.Key)
		}
	case e.at > 0:
		r.ledger.Park(e.gang.Key)
	}
}

// remove takes an entry out of the room.
func (r *room) remove(e *entry) {
	l := e.line
	heap.Remove(&l.entries, e.at)
	r.ledger.Remove(e.gang.Key)
	delete(r.entries, e.gang.Key)
	r.rare -= e.rare()
	e.line = nil
	if len(l.entries) == 0 {
		delete(r.lines, l.key)
	} else if l.blocked == nil {
		r.ledger.Wake(l.entries[0].gang.Key)
	}
}

// block closes a line: none of its gangs is offered to the ledger until reopen.
func (r *room) block(l *line, b *block) {
	if l.blocked == nil {
		r.ledger.Park(l.entries[0].gang.Key)
	}
	l.blocked = b
	if key := b.reason.key(); key != l.said {
		l.said = key
		l.untold = append(l.untold[:0], l.entries...)
	}
}

// owe notes that the owner of an entry has not been told yet why the line waits, if it does.
func (l *line) owe(e *entry) {
	if len(l.untold) > 2*len(l.entries)+64 { // a line that never waits has nothing to report
		l.untold = slices.DeleteFunc(l.untold, func(e *entry) bool { return e.line != l })
	}
	l.untold = append(l.untold, e)
}

// reopen offers the head of a line to the ledger again.
func (r *room) reopen(l *line) {
	if l.blocked == nil {
		return
	}
	l.blocked = nil
	r.ledger.Wake(l.entries[0].gang.Key)
}

// shape returns a string that is equal for gangs that can be placed under the same circumstances.
func (e *entry) shape() string {
	if e.fault != "" {
		return "never " + e.gang.Key
	}
	var b strings.Builder
	b.WriteString(strconv.Itoa(e.minMember))
	if e.gang.Resume {
		b.WriteByte('r') // a closed queue admits only resumed gangs
	}
	if e.partial {
		b.WriteByte('p') // partial gangs get a Reason that says so
	}
	for i, c := range e.classes {
		if len(e.left[i]) == 0 {
			continue
		}
		b.WriteString("\n" + strconv.Itoa(e.mins[i]) + " ")
		if len(e.mins) > 1 {
			// The number of units per demand limits how MinMember can be reached.
			b.WriteString(strconv.Itoa(len(e.left[i])) + " ")
		}
		b.WriteString(classKey(c))
	}
	return b.String()
}

// classKey returns a string that is equal for classes whose pods can go to the same nodes.
func classKey(c *place.Class) string {
	if !c.Rare {
		return c.Key()
	}
	// Filters outside the fast path also look at the pod's identity and at the pods it wants to be
	// near.
	t := c.Template
	more, err := json.Marshal([]any{t.Namespace, t.Labels, t.Spec.Affinity, t.Spec.TopologySpreadConstraints, t.Spec.Volumes, t.Spec.ResourceClaims})
	if err != nil {
		return c.Key() + string(t.UID) + t.Name
	}
	return c.Key() + string(more)
}

// rare returns 1 if a class of the entry needs the rare filter, else 0.
func (e *entry) rare() int {
	if slices.ContainsFunc(e.classes, func(c *place.Class) bool { return c.Rare }) {
		return 1
	}
	return 0
}

// request returns the sum of the requests of all pods left.
func (e *entry) request() place.Vector {
	var v place.Vector
	for i, c := range e.classes {
		v = v.Plus(c.Request, int64(len(e.left[i])))
	}
	return v
}

// asPlaced converts the entry into the form that package place uses.
func (e *entry) asPlaced() place.Gang {
	g := place.Gang{
		Key: e.gang.Key, Queue: e.gang.Queue, Priority: e.gang.Priority, Created: e.gang.Created, MinMember: e.minMember,
		Demands: make([]place.Demand, len(e.classes)),
	}
	for i, c := range e.classes {
		g.Demands[i] = place.Demand{Class: c, Count: len(e.left[i]), Min: e.mins[i]}
	}
	return g
}

// take removes the placed units, which are the first units left of each demand, and returns their
// assignments.
func (e *entry) take(placed [][]int32, nodeName func(int32) string) []Assignment {
	var out []Assignment
	for d, nodes := range placed {
		for k, node := range nodes {
			out = append(out, Assignment{Demand: d, Unit: e.left[d][k], Node: nodeName(node)})
		}
	}
	for d, nodes := range placed {
		e.left[d] = slices.Clone(e.left[d][len(nodes):])
	}
	return out
}

// rest returns an entry for the units left of a gang whose minimum has been placed, or nil if no
// units are left.
func (e *entry) rest(now time.Time) *entry {
	n := 0
	for _, left := range e.left {
		n += len(left)
	}
	if n == 0 {
		return nil
	}
	return &entry{
		gang: e.gang, classes: e.classes, left: e.left, mins: make([]int, len(e.mins)), minMember: 1, partial: true,
		submitted: now, told: e.told,
	}
}

func (e *entry) before(o *entry) bool {
	a, b := e.gang, o.gang
	switch {
	case a.Resume != b.Resume:
		return a.Resume
	case a.Priority != b.Priority:
		return a.Priority > b.Priority
	case !a.Created.Equal(b.Created):
		return a.Created.Before(b.Created)
	}
	return a.Key < b.Key
}

// lineHeap implements heap.Interface.
type lineHeap []*entry

func (h lineHeap) Len() int           { return len(h) }
func (h lineHeap) Less(i, j int) bool { return h[i].before(h[j]) }
func (h lineHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i]; h[i].at, h[j].at = i, j }

func (h *lineHeap) Push(x any) {
	e := x.(*entry)
	e.at = len(*h)
	*h = append(*h, e)
}

func (h *lineHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
