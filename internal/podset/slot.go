package podset

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// State is the state of a slot. doc.go shows the transitions.
type State uint8

// The states of a slot.
const (
	Absent   State = iota
	Creating       // is being created without a node
	Unbound        // exists without a node, and no node has been requested from the scheduler
	Queued         // a node has been requested from the scheduler; the pod exists if the slot has a UID
	Placing        // has a node; the create or binding of the pod is unsent or in flight
	Created        // written with its node; not yet shown by the watch
	Pending
	Running
	Succeeded
	Failed
	Unknown
	Leaving
	states // number of states
)

// HasPod reports whether a slot in this state has a pod that may be deleted.
func (s State) HasPod() bool { return s == Unbound || s >= Created && s < Leaving }

// Holds reports whether a slot counts towards its gang: its pod has a node, or had a node and
// ended.
func (s State) Holds() bool { return s >= Placing && s < Leaving }

// Ended reports whether the slot's pod has ended by itself.
func (s State) Ended() bool { return s == Succeeded || s == Failed }

// Slot is one pod of a group, whether the pod exists or not.
type Slot struct {
	state State
	// unsent means that a write of the slot's pod waits for Pump.
	unsent bool
	// attempt distinguishes the answers to different writes of the slot's pod.
	attempt uint16
	// Code is a number that the owner stores with the pod. It is reset to 0 when the slot becomes
	// absent.
	Code int32
	// uid is the UID of the pod, while a pod is known to exist.
	uid types.UID
	// version is the resource version of the pod when it was written. It is empty once the watch
	// has shown the pod.
	version string
}

// State returns the slot's state.
func (s *Slot) State() State { return s.state }

// waits reports whether the slot's pod exists and a node has been requested for it.
func (s *Slot) waits() bool { return s.state == Queued && s.uid != "" }

// UID returns the UID of the slot's pod, or "" if no pod is known to exist.
func (s *Slot) UID() types.UID { return s.uid }

// Counts is the number of slots in each state.
type Counts [states]int32

// Held returns the number of slots that hold a node, or held one until their pod ended.
func (c *Counts) Held() int32 {
	n := int32(0)
	for state, slots := range c {
		if State(state).Holds() {
			n += slots
		}
	}
	return n
}

// Maker makes the pods of a group.
type Maker interface {
	// PodName returns the name of the pod with this index.
	PodName(index int) string
	// Pod returns the pod with this index, bound to node unless node is empty, with the annotations
	// that placement adds.
	Pod(index int, node string, annotations map[string]string) *corev1.Pod
}

// Group is the pods that are made from one template, by index. A group that has shrunk may still
// have slots at index Replicas and above, the surplus.
type Group struct {
	Maker
	// Plan represents the group's pods in placement. It is nil if another scheduler places the
	// group's pods.
	Plan *corev1.Pod
	// BindLater means that pods are created without a node and bound later.
	BindLater bool

	// Replicas is the size of the group. Only Resize sets it.
	Replicas int32
	// Counts counts the slots below Replicas by state. Surplus is the number of slots at Replicas
	// and above that are not absent.
	Counts  Counts
	Surplus int32
	// Waiting is the number of queued slots below Replicas whose pods exist.
	Waiting int32

	slots []Slot
	at    int // index in the groups of its set
}

// Slots returns the slots below Replicas.
func (g *Group) Slots() []Slot { return g.slots[:g.Replicas] }

// Every returns all slots, the surplus last.
func (g *Group) Every() []Slot { return g.slots }

// Slot returns the slot with this index.
func (g *Group) Slot(i int32) *Slot { return &g.slots[i] }

// Has reports whether the group has a slot with this index.
func (g *Group) Has(i int32) bool { return int(i) < len(g.slots) }

// Extend adds slots to the surplus until the group has a slot with index i.
func (g *Group) Extend(i int32) {
	if missing := int(i) + 1 - len(g.slots); missing > 0 {
		g.slots = append(g.slots, make([]Slot, missing)...)
	}
}

// Resize changes the number of replicas and recounts.
func (g *Group) Resize(replicas int32) {
	g.Extend(replicas - 1)
	g.Replicas = replicas
	g.Counts, g.Surplus, g.Waiting = Counts{}, 0, 0
	for i := range g.slots {
		switch {
		case int32(i) < replicas:
			g.Counts[g.slots[i].state]++
			if g.slots[i].waits() {
				g.Waiting++
			}
		case g.slots[i].state != Absent:
			g.Surplus++
		}
	}
}

// Written reports whether every pod of the group has been written and there is no surplus, so that
// Maker is not called until a pod is replaced.
func (g *Group) Written() bool {
	return g.Surplus == 0 && g.Counts[Absent]+g.Counts[Creating]+g.Counts[Queued]+g.Counts[Placing] == 0
}

func (g *Group) move(i int32, to State) {
	from := g.slots[i].state
	if i < g.Replicas {
		g.Counts[from]--
		g.Counts[to]++
		if g.slots[i].waits() {
			g.Waiting--
		}
	} else {
		if from != Absent {
			g.Surplus--
		}
		if to != Absent {
			g.Surplus++
		}
	}
	g.slots[i].state = to
	if i < g.Replicas && g.slots[i].waits() {
		g.Waiting++
	}
}

// setUID records which pod a slot has.
func (g *Group) setUID(i int32, uid types.UID) {
	counts := i < g.Replicas
	if counts && g.slots[i].waits() {
		g.Waiting--
	}
	g.slots[i].uid = uid
	if counts && g.slots[i].waits() {
		g.Waiting++
	}
}

// Ref refers to a slot.
type Ref struct {
	*Group
	Index int32
}

func (r Ref) slot() *Slot { return &r.slots[r.Index] }

func (r Ref) name() string { return r.PodName(int(r.Index)) }
