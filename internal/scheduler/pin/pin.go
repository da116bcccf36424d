package pin

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
	"lockstep.dev/lockstep/internal/cputopology/sharing"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Reasons why nodes cannot give a pod its CPUs, for place.NoCPUs.
const (
	refusedNoTopology    = "node(s) had no NodeTopology"
	refusedWrongTopology = "node(s) had a NodeTopology that is not valid"
	refusedClosed        = "node(s) had no agent at work"
	refusedKubelet       = "node(s) had a kubelet that pins such pods itself"
	refusedPolicy        = "node(s) had "         // followed by a reason of request.Pod.On
	refusedCPUs          = "node(s) didn't have " // followed by a description of the CPUs
)

// Pins is the request of the pods of one class for CPUs. It implements place.Pins.
type Pins struct {
	asked   *request.Pod
	request *allocate.Request
	// variants are the requests on nodes with policies, which the Pinner fills in as it meets them.
	variants map[request.NodePolicy]variant
	// shares means that all containers share their CPUs; milli is what they request.
	shares bool
	milli  int64
	// byKubelet means that a kubelet with the static policy pins a container of the pod itself.
	byKubelet bool
	// exclusive is the number of CPUs that a pod withholds from others, on any node.
	exclusive int
	key       string
}

// Key implements place.Pins.
func (p *Pins) Key() string { return p.key }

// Exclusive implements place.Pins.
func (p *Pins) Exclusive() int { return p.exclusive }

// Compile adds to a class the CPUs that its template asks for, if any. The error says what is wrong
// with the request, and names the annotation and the field.
func Compile(class *place.Class) (*place.Class, error) {
	asked, err := request.Parse(class.Template)
	if err != nil {
		return nil, err
	}
	if asked == nil {
		return class, nil
	}
	r, err := allocate.NewRequest(asked)
	if err != nil {
		return nil, err
	}
	p := &Pins{asked: asked, request: r, variants: map[request.NodePolicy]variant{}, byKubelet: request.PinnedByKubelet(class.Template)}
	shared := map[string]bool{}
	for _, c := range asked.Containers {
		shared[c.Name] = c.Share != 1
	}
	p.shares = !slices.ContainsFunc(asked.Containers, request.Container.Exclusive)
	p.milli = request.RequestedMilli(class.Template, func(name string) bool { return shared[name] })
	p.key = fmt.Sprintf("%s %t %d", keyOf(asked), p.byKubelet, p.milli)
	if !slices.ContainsFunc(asked.Containers, func(c request.Container) bool { return c.Share != 1 }) {
		p.exclusive = r.CPUs()
	}
	return class.Pinned(p), nil
}

// keyOf returns a string that is equal for requests that the same nodes serve in the same way.
func keyOf(p *request.Pod) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %t %s", p.Language, p.PodWide, p.NUMAPolicy)
	for _, c := range p.Containers {
		fmt.Fprintf(&b, " %s %d %t %d %+v", c.Name, c.CPUs, c.Init, c.MemoryBytes, c.Policy)
	}
	return b.String()
}

// Pinner implements place.Pinner on the nodes of a view. Like the view, it belongs to the
// scheduler's goroutine. Before the view is refreshed, all CPUs that were taken must have been
// given back, or granted and assumed.
type Pinner struct {
	view  *cluster.View
	short func()
	log   *slog.Logger

	allocator allocate.Allocator
	// nodes are the nodes with a valid NodeTopology; machines[i] describes nodes[i].
	nodes    []*allocate.Node
	machines []machine
	slots    map[string]int             // index in nodes, by node name
	faulty   map[string]bool            // nodes whose NodeTopology is invalid
	slotOf   []int32                    // by the view's index: slot + 1, or 0
	policies map[request.NodePolicy]int // number of nodes with each policy
	// serial is the number of the last Take, used as the key of pods that have CPUs but no name
	// yet.
	serial uint64
	// ranks is scratch space of placeShared.
	ranks []rankedNode
}

// machine is the Pinner's state of a node in addition to the allocate.Node.
type machine struct {
	*cluster.Machine
	index  int32 // of the node in the snapshot, or -1
	policy request.NodePolicy
	// given is the result annotation of each pod on the node.
	given map[string]string
	// requested is what the pods request for containers that share CPUs, in thousandths of a CPU, by
	// the keys of their allocations.
	requested map[string]int64
	// sharing is the state of the node at sharingAt, or nil.
	sharing   *sharing.State
	sharingAt uint64
	// contested means that the CPUs of some pods could not be restored, for example because two
	// pods claim the same ones. The state is then rebuilt with every change, so that such a pod
	// gets its CPUs once they are free.
	contested bool
}

// taken implements place.Pin.
type taken struct {
	node  *allocate.Node
	pins  *Pins
	given *allocate.Allocation
}

var _ place.Pinner = (*Pinner)(nil)

// New returns a Pinner for a view that has not been refreshed yet. repacked means that pods may be
// moved within their nodes (allocate.Allocator.Repacks). short, if not nil, is called when a pod finds
// too few CPUs of its own on nodes with room for it; it must not block. log may be nil.
func New(view *cluster.View, repacked bool, short func(), log *slog.Logger) *Pinner {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	p := &Pinner{view: view, short: short, log: log, slots: map[string]int{}, faulty: map[string]bool{},
		policies: map[request.NodePolicy]int{}}
	p.allocator.Repacks = repacked
	view.FollowCPUs(p.follow)
	return p
}

// follow updates the state of one node from the model.
func (p *Pinner) follow(n cluster.NodeCPUs) {
	if n.Machine == nil || n.Machine.Fault != nil {
		p.drop(n.Node)
		if n.Machine == nil {
			delete(p.faulty, n.Node)
		} else if !p.faulty[n.Node] {
			p.faulty[n.Node] = true
			p.log.Warn("a NodeTopology is not valid; pods that ask for CPUs do not go to its node", "node", n.Node, "error",
				n.Machine.Fault)
		}
		return
	}
	delete(p.faulty, n.Node)
	slot, known := p.slots[n.Node]
	if !known {
		slot = len(p.nodes)
		p.slots[n.Node] = slot
		p.nodes = append(p.nodes, nil)
		p.machines = append(p.machines, machine{index: -1, requested: map[string]int64{}})
		p.policies[request.NodePolicy{}]++
	}
	m := &p.machines[slot]
	p.setPolicy(m, n.Policy)
	p.locate(n.Node, slot)
	if m.Machine != n.Machine || m.contested || !p.update(p.nodes[slot], m, n.Pods) {
		m.Machine = n.Machine
		p.rebuild(slot, n)
	}
}

// locate updates a node's index in the view.
func (p *Pinner) locate(name string, slot int) {
	m := &p.machines[slot]
	index, ok := p.view.Index(name)
	if !ok {
		index = -1
	}
	if index == m.index {
		return
	}
	p.vacate(m.index, slot)
	m.index = index
	if !ok {
		return
	}
	for len(p.slotOf) <= int(index) {
		p.slotOf = append(p.slotOf, 0)
	}
	p.slotOf[index] = int32(slot + 1)
}

// vacate clears the slot of an index that a node has left, unless another node has the index by
// now.
func (p *Pinner) vacate(index int32, slot int) {
	if index >= 0 && p.slotOf[index] == int32(slot+1) {
		p.slotOf[index] = 0
	}
}

// update releases the CPUs of pods that are gone or changed, and restores those of new pods. It
// returns false if the CPUs of a pod cannot be restored.
func (p *Pinner) update(n *allocate.Node, m *machine, pods map[string]cluster.PodCPUs) bool {
	for name, given := range m.given {
		if pod, there := pods[name]; !there || pod.Annotation != given {
			n.Release(name)
			delete(m.given, name)
			delete(m.requested, name)
		}
	}
	for name, pod := range pods {
		m.request(name, pod)
		if _, there := m.given[name]; there {
			continue
		}
		if reservation.Restore(n, reservation.Pod{Key: name, Result: pod.Result.Settled(m.Moved)}) != nil {
			return false
		}
		m.given[name] = pod.Annotation
	}
	return true
}

// rebuild computes a node's state from its pods, without using its previous state.
func (p *Pinner) rebuild(slot int, n cluster.NodeCPUs) {
	m := &p.machines[slot]
	m.given, m.sharing = map[string]string{}, nil
	maps.DeleteFunc(m.requested, func(name string, _ int64) bool { _, there := n.Pods[name]; return !there })
	pods := make([]reservation.Pod, 0, len(n.Pods))
	for name, pod := range n.Pods {
		// Pods that are only assumed are younger than pods that exist.
		created := time.Unix(1<<40, 0)
		if pod.Object != nil {
			created = pod.Object.CreationTimestamp.Time
		}
		m.request(name, pod)
		pods = append(pods, reservation.Pod{Key: name, Created: created, Result: pod.Result.Settled(m.Moved)})
		m.given[name] = pod.Annotation
	}
	state := reservation.Replay(n.Node, n.Machine.Layout, n.Machine.Pins, pods)
	p.nodes[slot] = state.Node
	if len(state.Problems) > 0 && !m.contested {
		for _, problem := range state.Problems {
			p.log.Warn("CPUs cannot be held", "node", n.Node, "by", problem.Key, "why", problem.Message)
		}
	}
	m.contested = len(state.Problems) > 0
}

// drop forgets a node.
func (p *Pinner) drop(name string) {
	slot, known := p.slots[name]
	if !known {
		return
	}
	delete(p.slots, name)
	p.uncount(p.machines[slot].policy)
	p.vacate(p.machines[slot].index, slot)
	last := len(p.nodes) - 1
	if slot != last {
		p.nodes[slot], p.machines[slot] = p.nodes[last], p.machines[last]
		p.slots[p.nodes[slot].Name] = slot
		if i := p.machines[slot].index; i >= 0 {
			p.slotOf[i] = int32(slot + 1)
		}
	}
	p.nodes[last], p.machines[last] = nil, machine{}
	p.nodes, p.machines = p.nodes[:last], p.machines[:last]
}

// Take implements place.Pinner.
func (p *Pinner) Take(class *place.Class, open []bool) (int32, place.Pin) {
	pins := class.Pins.(*Pins)
	p.serial++
	slot, given := p.place(strconv.FormatUint(p.serial, 10), pins, p.allowed(pins, open))
	if given == nil {
		return -1, nil
	}
	if pins.shares {
		p.machines[slot].requested[given.Key] = pins.milli
	}
	return p.machines[slot].index, &taken{p.nodes[slot], pins, given}
}

func (p *Pinner) allowed(pins *Pins, open []bool) func(int) bool {
	return func(slot int) bool {
		m := &p.machines[slot]
		return !m.Closed && !(pins.byKubelet && m.KubeletPins) && m.index >= 0 && int(m.index) < len(open) && open[m.index]
	}
}

// GiveBack implements place.Pinner.
func (p *Pinner) GiveBack(pin place.Pin) {
	t := pin.(*taken)
	t.node.Release(t.given.Key)
	delete(p.machines[p.slots[t.node.Name]].requested, t.given.Key)
}

// Refused implements place.Pinner.
func (p *Pinner) Refused(class *place.Class, open []bool) place.NoCPUs {
	pins := class.Pins.(*Pins)
	r := pins.request // or as the last of the nodes' policies has it
	why := place.NoCPUs{Nodes: map[string]int{}, Want: "a NodeTopology"}
	var layouts []*allocate.Layout
	seen := map[*allocate.Layout]bool{}
	for i, ok := range open {
		switch {
		case !ok:
		case i < len(p.slotOf) && p.slotOf[i] != 0:
			m := &p.machines[p.slotOf[i]-1]
			v := pins.on(m.policy)
			if v.refused != "" {
				why.Nodes[refusedPolicy+v.refused]++
				continue
			}
			if pins.byKubelet && m.KubeletPins {
				why.Nodes[refusedKubelet]++
				continue
			}
			r = v.request
			if l := p.nodes[p.slotOf[i]-1].Layout(); !seen[l] {
				seen[l] = true
				layouts = append(layouts, l)
			}
			if m.Closed {
				why.Nodes[refusedClosed]++
			} else {
				why.Nodes[refusedCPUs]++
			}
		default:
			why.Nodes[refusedNoTopology]++
		}
	}
	if faulty := min(len(p.faulty), why.Nodes[refusedNoTopology]); faulty > 0 {
		why.Nodes[refusedWrongTopology] = faulty
		if why.Nodes[refusedNoTopology] -= faulty; why.Nodes[refusedNoTopology] == 0 {
			delete(why.Nodes, refusedNoTopology)
		}
	}
	if len(layouts) == 0 {
		if len(why.Nodes) > 0 && why.Nodes[refusedNoTopology]+why.Nodes[refusedWrongTopology] == 0 {
			if why.Want = "labels that agree with the pod's"; why.Nodes[refusedKubelet] > 0 {
				why.Want = "a kubelet that leaves their CPUs to Lockstep"
			}
		}
		return why
	}
	_, err := p.allocator.Choose(p.nodes, r, func(int) bool { return false })
	if never := p.allocator.Possible(layouts, r); never != nil {
		why.Never, err = true, never
	}
	var unfit *allocate.UnfitError
	if errors.As(err, &unfit) {
		why.Want = unfit.Want
	}
	if unfit := why.Nodes[refusedCPUs]; unfit > 0 {
		why.Nodes[refusedCPUs+why.Want] = unfit
		delete(why.Nodes, refusedCPUs)
		if p.short != nil && pins.exclusive > 0 && !why.Never {
			p.short()
		}
	} else if !why.Never {
		why.Want = "an agent at work"
	}
	return why
}

// MayTake reports whether a changed node may now be able to give a pod of the class its CPUs. The
// test is cheap, and may report true for a node that cannot.
func (p *Pinner) MayTake(class *place.Class, node int32) bool {
	if int(node) >= len(p.slotOf) || p.slotOf[node] == 0 {
		return false
	}
	slot := p.slotOf[node] - 1
	return !p.machines[slot].Closed && p.nodes[slot].IdleCPUs() >= class.Pins.(*Pins).exclusive
}

// Move gives a pod other CPUs of its node, if they are free. From then on the pod holds both its
// old and its new CPUs, and Move assumes so in the model. The view must be up to date.
func (p *Pinner) Move(model *cluster.Cluster, node string, m Move) error {
	slot, known := p.slots[node]
	if !known {
		return fmt.Errorf("nothing is known of the CPUs of node %s", node)
	}
	n, state, key := p.nodes[slot], &p.machines[slot], m.Pod.String()
	if state.contested || state.Closed && !m.Back {
		return fmt.Errorf("nothing is moved on node %s as it is", node)
	}
	if state.given[key] != m.Before {
		return fmt.Errorf("pod %s was given other CPUs meanwhile", key)
	}
	old := n.Pod(key)
	if m.Back && (old == nil || !m.After.Result.Claims().Intersect(n.Layout().Topology().Online()).SubsetOf(heldBy(old))) {
		return fmt.Errorf("pod %s does not hold any more what it was moved away from", key)
	}
	n.Release(key)
	err := reservation.Restore(n, reservation.Pod{Key: key, Result: m.After.Result})
	if err == nil && !model.AssumeMoved(m.Pod, m.UID, m.Before, m.After) {
		n.Release(key)
		err = fmt.Errorf("pod %s is not what it was", key)
	}
	if err != nil {
		if restoreErr := n.Restore(old); restoreErr != nil {
			state.contested = true // the next change rebuilds the state
		}
		return err
	}
	state.given[key] = m.After.Annotation
	return nil
}

// heldBy returns the CPUs that a pod withholds from others, and those that it shares with others.
func heldBy(a *allocate.Allocation) cpuset.Set {
	all := a.Shared()
	for _, c := range a.Containers {
		all = all.Union(c.Held)
	}
	return all
}

// Move describes the move of a running pod to other CPUs.
type Move struct {
	Pod types.NamespacedName
	UID types.UID
	// Version is the resource version of the pod on which the move was planned. The write must
	// replace that version.
	Version string
	// Before is the pod's annotation on which the move was planned; After is the new one.
	Before string
	After  *cluster.CPUs
	// Back means that the move reverses an incomplete move. Such a move needs no CPUs that the pod
	// does not already hold, and is made even on nodes whose agent is not working.
	Back bool
	// Patch is the merge patch that makes the move, for the writer of the pod.
	Patch []byte
}

// Grant assigns CPUs that were taken to the named pod. It returns what the model must assume, and
// the annotations that the owner writes on the pod.
func (p *Pinner) Grant(pin place.Pin, name types.NamespacedName) (*cluster.CPUs, map[string]string) {
	t := pin.(*taken)
	key := name.String()
	t.node.Release(key) // the pod's earlier CPUs, which the new assumption replaces in the model
	t.node.Rename(t.given.Key, key)
	if m := &p.machines[p.slots[t.node.Name]]; t.pins.shares {
		delete(m.requested, t.given.Key)
		m.requested[key] = t.pins.milli
	}
	result := t.node.Result(t.given)
	annotations, err := result.Annotations(t.pins.asked.Language, t.node.Layout().Topology(), t.node.Widened(t.given))
	if err != nil {
		panic(err) // sets and integers always marshal
	}
	value := annotations[topologyv1alpha1.ResultAnnotation]
	p.machines[p.slots[t.node.Name]].given[key] = value
	return &cluster.CPUs{Annotation: value, Result: result}, annotations
}
