package place

// Pins is the request of a class for CPUs of its node. Only the Pinner interprets its content.
type Pins interface {
	// Key is equal for requests that the same nodes can serve.
	Key() string
	// Exclusive returns the number of CPUs that a pod withholds from all other pods.
	Exclusive() int
}

// Pin identifies the CPUs that one pod was given.
type Pin any

// Pinner chooses the CPUs of pods together with their node. It takes part in the transaction: the
// CPUs that Take returned are unavailable to the next Take, until GiveBack.
type Pinner interface {
	// Take chooses the node whose CPUs serve a pod of the class best, among the nodes for which
	// open is true, and takes the CPUs. It returns -1 if no node can serve the pod.
	Take(class *Class, open []bool) (node int32, pin Pin)
	// GiveBack returns the CPUs that Take took.
	GiveBack(Pin)
	// Refused says why Take returned -1. Its arguments must be those of that Take.
	Refused(class *Class, open []bool) NoCPUs
}

// NoCPUs says why no node can give a class its CPUs.
type NoCPUs struct {
	// Want describes the CPUs that are unavailable, without figures that change while the cause
	// stays the same.
	Want string
	// Never means that no node could provide the CPUs even if nothing ran on it.
	Never bool
	// Nodes counts the nodes per reason.
	Nodes map[string]int
}

// RefusedUnpinned counts nodes when a class asks for CPUs and there is no Pinner.
const RefusedUnpinned = "node(s) cannot pin CPUs"

// pinned is the Pin of one step of the log.
type pinned struct {
	demand int32
	pin    Pin
}

// pickPinned returns the best node for one pod of a class that asks for CPUs and takes the CPUs, or
// returns -1.
//
// Nodes that the pod prefers, and nodes without a taint against the pod, come before nodes whose
// CPUs suit the pod better, because the user or the administrator asks for that. Among equals the
// CPUs alone decide.
func (p *Placer) pickPinned(x *index, d *demand) int32 {
	if p.o.Pin == nil {
		d.refused = map[string]int{RefusedUnpinned: len(x.heap)}
		return -1
	}
	candidates := len(x.heap)
	p.ids = p.ids[:0]
	if d.rare {
		if candidates = p.filterRare(x, d); candidates == 0 {
			return -1
		}
	} else {
		for _, e := range x.heap {
			p.ids = append(p.ids, e.node)
		}
	}
	p.ids = p.ids[:candidates]
	if len(p.open) < len(p.s.nodes) {
		p.open = make([]bool, len(p.s.nodes))
	}
	for score, ok := x.static.bestBelow(p.ids, maxStatic); ok; score, ok = x.static.bestBelow(p.ids, score) {
		clear(p.open)
		for _, id := range p.ids {
			p.open[id] = x.static.score[id] == score
		}
		if node, pin := p.o.Pin.Take(d.Class, p.open); node >= 0 {
			p.pins = append(p.pins, pinned{int32(d.number), pin})
			return node
		}
	}
	for _, id := range p.ids {
		p.open[id] = true
	}
	why := p.o.Pin.Refused(d.Class, p.open)
	d.refused, d.cpus = why.Nodes, &why
	return -1
}

// maxStatic is above every score of a node's object.
const maxStatic = 1 << 62

// bestBelow returns the highest score below bound among the given nodes; ok is false if there is
// none.
func (st *static) bestBelow(ids []int32, bound int64) (score int64, ok bool) {
	for _, id := range ids {
		if s := st.score[id]; s < bound && (!ok || s > score) {
			score, ok = s, true
		}
	}
	return score, ok
}
