package backfill

import (
	"cmp"
	"maps"
	"slices"
	"sort"
	"time"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Pod is a pod on a node that ends by itself.
type Pod struct {
	Node string
	// Request, NonZero and Ports are what the pod takes of its node, as in place.Class.
	Request, NonZero place.Vector
	Ports            []place.HostPort
	// Ends is when the pod ends at the latest; zero if that is unknown.
	Ends    time.Time
	Started time.Time
}

// Plan says where a gang will start.
type Plan struct {
	// Nodes has, per demand of the gang, the node of each pod of the minimum.
	Nodes [][]string
	// Starts is when the gang can start at the latest. It is zero if that is unknown, because pods
	// must end whose ends are.
	Starts time.Time
}

// Find returns where the minimum of a gang fits soonest, or nil if it does not fit even when all the
// pods have ended. Nodes contain the pods, and may have more than they can allocate. Find does not
// change them. The options must have neither a rare filter nor a pinner.
//
// Time: O(log(pods)) placements on a copy of the nodes.
func Find(nodes *place.Snapshot, o place.Options, gang place.Gang, pods []Pod) *Plan {
	pods = slices.Clone(pods)
	slices.SortStableFunc(pods, before)
	least := 0
	for _, d := range gang.Demands {
		least += d.Min
	}
	gang.Most = max(gang.MinMember, least)

	// attempt places the gang after the first k pods have ended.
	attempt := func(k int) (*place.Snapshot, place.Decision) {
		s := without(nodes, pods[:k])
		return s, place.NewPlacer(s, o).Place(gang)
	}
	fits := func(k int) bool {
		_, d := attempt(k)
		return d.Shortage == nil
	}
	if !fits(len(pods)) {
		return nil
	}
	ended := sort.Search(len(pods), fits)
	s, decision := attempt(ended)
	if decision.Shortage != nil { // greedy placement may fail with more room
		ended = len(pods)
		s, decision = attempt(ended)
	}
	p := &Plan{Nodes: make([][]string, len(decision.Placed))}
	for i, list := range decision.Placed {
		for _, node := range list {
			p.Nodes[i] = append(p.Nodes[i], s.Node(node).Name)
		}
	}
	if ended > 0 {
		p.Starts = pods[ended-1].Ends
	}
	return p
}

// before orders pods by their ends.
func before(a, b Pod) int {
	if a.Ends.IsZero() != b.Ends.IsZero() {
		if b.Ends.IsZero() {
			return -1
		}
		return 1
	}
	return cmp.Or(a.Ends.Compare(b.Ends), a.Started.Compare(b.Started), cmp.Compare(a.Node, b.Node))
}

// without returns a copy of nodes on which pods have ended.
func without(nodes *place.Snapshot, pods []Pod) *place.Snapshot {
	on := map[string][]*Pod{}
	for i := range pods {
		on[pods[i].Node] = append(on[pods[i].Node], &pods[i])
	}
	s := place.NewSnapshot(nodes.Dims())
	for _, n := range nodes.All() {
		out := *n
		for _, p := range on[n.Name] {
			out.Used, out.UsedNonZero = out.Used.Plus(p.Request, -1), out.UsedNonZero.Plus(p.NonZero, -1)
			if len(p.Ports) > 0 {
				out.Ports = maps.Clone(out.Ports)
			}
			for _, port := range p.Ports {
				if out.Ports[port]--; out.Ports[port] <= 0 {
					delete(out.Ports, port)
				}
			}
		}
		s.Set(out)
	}
	return s
}
