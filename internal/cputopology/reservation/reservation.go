package reservation

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// Pod is a pod on the node that was given CPUs. Ended pods hold nothing and must not be listed;
// pods that are being deleted still run and must be listed.
type Pod struct {
	Key     string // unique on the node: its UID, or namespace/name
	Created time.Time
	// Result must be Settled by the completed moves. The pod holds the CPUs that it is still being
	// moved away from.
	Result request.Result
}

// Problem reports a pod that does not hold the CPUs in its annotation.
type Problem struct {
	Key     string
	Message string
}

// State says which pods and kubelet pins hold which CPUs.
type State struct {
	// Node has the pods that hold CPUs, by key, and the kubelet's pins, by KubeletKey.
	Node     *allocate.Node
	Problems []Problem
}

// Layout returns the layout of a NodeTopology's machine, from which all but the reserved CPUs may
// be given out. The error names the invalid field.
func Layout(t *topologyv1alpha1.NodeTopology) (*allocate.Layout, error) {
	topo, err := cputopology.Decode(t.Spec)
	if err != nil {
		return nil, err
	}
	reserved, err := cpuset.Parse(string(t.Status.Reserved))
	if err != nil {
		return nil, fmt.Errorf("status.reserved: %w", err)
	}
	return allocate.NewLayout(topo, reserved)
}

// Moved returns the number of the last completed move on the node. If no agent has ever reported,
// as on simulated nodes, all moves count as complete.
func Moved(t *topologyv1alpha1.NodeTopology) int64 {
	if t.Status.AgentVersion == "" && t.Status.Liveness == nil {
		return math.MaxInt64
	}
	return t.Status.Moved
}

// Closed reports whether no further pods may be given CPUs of the node, because its agent is not
// ready or not alive. An agent that is configured to observe only does not close its node.
func Closed(t *topologyv1alpha1.NodeTopology) bool {
	ready := meta.FindStatusCondition(t.Status.Conditions, topologyv1alpha1.NodeReady)
	return ready != nil && ready.Status != metav1.ConditionTrue && ready.Reason != topologyv1alpha1.ReasonObserving ||
		meta.IsStatusConditionFalse(t.Status.Conditions, topologyv1alpha1.AgentAlive)
}

// KubeletKey returns the key, in a State's Node, of a container that the kubelet pinned.
func KubeletKey(p topologyv1alpha1.KubeletPin) string {
	return "kubelet/" + p.PodUID + "/" + p.Container
}

// Replay restores the kubelet's pins and then the CPUs of the pods. The order of pods does not
// matter.
func Replay(name string, l *allocate.Layout, pins []topologyv1alpha1.KubeletPin, pods []Pod) State {
	s := State{Node: allocate.NewNode(name, l)}
	problem := func(key, format string, args ...any) {
		s.Problems = append(s.Problems, Problem{key, fmt.Sprintf(format, args...)})
	}
	online := l.Topology().Online()
	for _, p := range pins {
		cpus, err := cpuset.Parse(string(p.CPUs))
		if err == nil && !cpus.Intersect(online).IsEmpty() {
			cpus = cpus.Intersect(online)
			err = s.Node.Restore(&allocate.Allocation{Key: KubeletKey(p),
				Containers: []allocate.ContainerCPUs{{Name: p.Container, CPUs: cpus, Held: cpus, Share: 1}}})
		}
		if err != nil {
			problem(KubeletKey(p), "the kubelet's pin to CPUs %s: %v", p.CPUs, err)
		}
	}
	pods = slices.SortedFunc(slices.Values(pods), func(a, b Pod) int {
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Key, b.Key))
	})
	for _, p := range pods {
		if err := Restore(s.Node, p); err != nil {
			problem(p.Key, "%v", err)
		}
	}
	return s
}

// movedFrom follows the name of a container under which its previous shared CPUs are counted during a
// move. No container has such a name.
const movedFrom = "\x00from"

// Restore restores the CPUs of one pod. On an error the pod holds nothing.
func Restore(n *allocate.Node, p Pod) error {
	if p.Result.Node != n.Name {
		return fmt.Errorf("its CPUs were chosen on node %s", p.Result.Node)
	}
	a := allocate.FromResult(p.Key, p.Result)
	online := n.Layout().Topology().Online()
	// The pod holds the CPUs that pass from one of its containers to another in any case.
	wanted := a.CPUs()
	for i, count := 0, len(a.Containers); i < count; i++ {
		c := &a.Containers[i]
		// During the move neither the previous nor the new CPUs are given to others exclusively.
		switch r := p.Result.Containers[c.Name]; {
		case r.From == nil || r.Shadow:
		case r.Share == 1:
			c.Held = c.Held.Union(r.From.Minus(wanted))
		default:
			a.Containers = append(a.Containers, allocate.ContainerCPUs{Name: c.Name + movedFrom, CPUs: r.From.Minus(c.CPUs), Share: r.Share})
		}
	}
	for i := range a.Containers {
		c := &a.Containers[i]
		c.CPUs, c.Held = c.CPUs.Intersect(online), c.Held.Intersect(online)
	}
	a.Containers = slices.DeleteFunc(a.Containers, func(c allocate.ContainerCPUs) bool { return c.CPUs.IsEmpty() })
	if len(a.Containers) == 0 {
		return fmt.Errorf("the node has none of its CPUs %s on line", wanted)
	}
	return n.Restore(a)
}

// CPUs are the CPUs on which a container may run.
type CPUs struct {
	// Set is never empty.
	Set cpuset.Set
	// Mems are the NUMA nodes to take memory from; empty means no preference.
	Mems cpuset.Set
	// Exclusive means that no other container runs on Set, so that a CFS quota has nothing left to
	// protect.
	Exclusive bool
}

// Effective returns the CPUs on which each container of the State's pods must run, by the pod's key
// and the container's name, and the shared pool, which is the CPUs of all other containers. Neither
// is ever empty.
//
// If exclusive containers hold every CPU, the shared pool is the reserved CPUs or, without reserved
// CPUs, all online CPUs: containers that are not pinned must run somewhere.
func (s State) Effective() (containers map[string]map[string]CPUs, shared cpuset.Set) {
	containers = map[string]map[string]CPUs{}
	exclusive := s.Node.Exclusive()
	for _, a := range s.Node.Pods() {
		own, others := map[string]CPUs{}, exclusive
		for _, c := range a.Containers {
			others = others.Minus(c.Held)
		}
		for _, c := range a.Containers {
			// If an init container is larger than the rest of a pod with shared CPUs, it uses some
			// CPUs that are not its own.
			if set := s.Node.Effective(c).Minus(others); !set.IsEmpty() {
				own[c.Name] = CPUs{Set: set, Mems: c.Mems, Exclusive: c.Share == 1 && !c.Burst}
			}
		}
		containers[a.Key] = own
	}
	if shared = s.Node.SharedPool(); shared.IsEmpty() {
		topo := s.Node.Layout().Topology()
		if shared = s.Node.Layout().Reserved().Intersect(topo.Online()); shared.IsEmpty() {
			shared = topo.Online()
		}
	}
	return containers, shared
}
