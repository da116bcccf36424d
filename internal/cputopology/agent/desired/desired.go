// Package desired computes on which CPUs each container of a node must run. It is a pure function
// of the machine, the pods' annotations and the kubelet's own pins.
//
//	pods' results ──┐
//	                ├─▶ reservation.Replay ─▶ Effective ─▶ Compute ─▶ State: CPUs of each cgroup
//	kubelet's pins ─┘                                         ▲
//	                        CPUs of the kubelet's cgroup ─────┘
//
// Package reservation determines, for the scheduler and the agent, which pod holds which CPUs, and
// which pod loses if two claim the same. This package adds what only the node knows: which CPUs its
// pods can have at all, which containers exist, and what their parent cgroups need.
//
// # Rules
//
//   - A container that is not pinned runs in the shared pool, and so does everything in pods that
//     the API does not list.
//   - A pod's own cgroup has the union of its containers' CPUs, so that a container that restarts,
//     or whose name is not known yet, never runs elsewhere.
//   - Containers pinned by the kubelet are left alone. If the kubelet's CPU manager is on, pods'
//     own cgroups are as wide as possible.
package desired

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/reservation"
)

// Input is a node's state.
type Input struct {
	Node   string
	Layout *allocate.Layout
	// Allowed are the CPUs of the kubelet's own cgroup. Other CPUs cannot be given to any pod.
	Allowed cpuset.Set
	Pods    []Pod
	Kubelet Kubelet
	// Moved is the number of the last completed move. Pods still hold the CPUs that later moves
	// move them away from.
	Moved int64
}

// Kubelet is the state of a kubelet's CPU manager.
type Kubelet struct {
	// Static means that the static policy is on; without it there are no pins.
	Static bool
	// Pins are the CPUs of containers, by pod UID and container name. WholePod stands for all
	// containers of a pod that are not named.
	Pins map[string]map[string]cpuset.Set
}

// TakenOver returns the state without the pins of pods that have CPUs in their annotations.
func (k Kubelet) TakenOver(pods []Pod) Kubelet {
	out := Kubelet{Static: k.Static, Pins: maps.Clone(k.Pins)}
	for _, p := range pods {
		if p.Result != "" {
			delete(out.Pins, p.UID)
		}
	}
	return out
}

// WholePod is not the name of any container.
const WholePod = ""

// Pod is a pod of the node that may have processes.
type Pod struct {
	UID, Namespace, Name string
	Created              time.Time
	// Result is the value of the result annotation; empty means that the pod is not pinned.
	Result string
	// Containers are the names of all containers, including init and ephemeral containers.
	Containers []string
	// Limits are the limits from which the kubelet has made CFS quotas, in thousandths of a CPU: of
	// containers by name, and of the pod under WholePod. What is not listed has no quota. A nil map
	// means that the kubelet makes no quotas.
	Limits map[string]int64
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// State is the wanted state of a node.
type State struct {
	// Pool is the set of CPUs for everything that is not pinned. It is empty only if Input.Allowed
	// is.
	Pool cpuset.Set
	// Pods are the pods by UID. Pods that are not listed are in the pool.
	Pods map[string]PodState
	// Moves are the numbers of the moves that are not known to be complete, by the pod's UID.
	Moves map[string]int64
	// Stuck are the pods in Moves whose move cannot be made: they stay where they are.
	Stuck map[string]bool
	// KubeletPins are the pins of the kubelet, sorted.
	KubeletPins []topologyv1alpha1.KubeletPin
	// Problems are requests that cannot be satisfied, sorted.
	Problems []topologyv1alpha1.Problem
}

// PodState is the wanted state of one pod.
type PodState struct {
	Name string // namespace/name
	// CPUs are for the pod's cgroup, and for all cgroups in it that are not in Containers.
	CPUs       cpuset.Set
	Containers map[string]Container
	// Quota is the quota of the pod's cgroup; nil leaves it unchanged.
	Quota *Quota
}

// Quota is the CFS quota of a cgroup, in thousandths of a CPU; 0 is none.
type Quota struct {
	// Own is for the CPUs of the state, and Kubelets is the one that the kubelet has set, to which the
	// cgroup returns when it loses them.
	Own, Kubelets int64
}

// Container is the wanted state of one container.
type Container struct {
	CPUs cpuset.Set
	// Mems are the memory nodes to bind to; nil leaves them unchanged.
	Mems *cpuset.Set
	// Pinned means that the CPUs come from the pod's annotation.
	Pinned bool
	// Kubelet means that the kubelet has pinned the container. The agent does not write its CPU
	// set.
	Kubelet bool
	// Quota is the container's quota; nil leaves it unchanged.
	Quota *Quota
}

// computation is the state of one Compute.
type computation struct {
	Input
	results  map[string]request.Result // by UID
	stuck    map[string]bool
	problems []topologyv1alpha1.Problem
	pool     cpuset.Set
}

// Compute returns the wanted state of a node by the rules above. The order of Input.Pods does not
// matter.
func Compute(in Input) State {
	c := &computation{Input: in, results: make(map[string]request.Result), stuck: map[string]bool{}}
	s := State{Pods: make(map[string]PodState, len(in.Pods)), Moves: map[string]int64{}, Stuck: c.stuck,
		KubeletPins: pins(in.Kubelet)}
	// 1. Determine which pod holds which CPUs.
	containers, shared := c.replay(s.KubeletPins)
	// 2. Limit the pool to the CPUs that pods can have on this node.
	c.pool = shared.Intersect(in.Allowed)
	if c.pool.IsEmpty() {
		c.pool = in.Allowed
	}
	s.Pool = c.pool
	if reserved := c.Layout.Reserved().Intersect(c.pool); !reserved.IsEmpty() && reserved.Equal(c.pool) {
		c.problem("", "", "the shared pool is at its floor: pods have all CPUs exclusively but the reserved ones, %s", reserved)
	}
	// 3. Compute the state of each pod.
	for _, p := range in.Pods {
		s.Pods[p.UID] = c.pod(p, containers[p.UID])
		if r := c.results[p.UID]; r.Moving(in.Moved) {
			s.Moves[p.UID] = r.Move
		}
	}
	slices.SortStableFunc(c.problems, func(a, b topologyv1alpha1.Problem) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	s.Problems = c.problems
	return s
}

// pins returns the pins of the kubelet without overlaps: a whole pod's pin has the CPUs that the
// pod's named containers leave.
func pins(k Kubelet) []topologyv1alpha1.KubeletPin {
	var out []topologyv1alpha1.KubeletPin
	for _, uid := range slices.Sorted(maps.Keys(k.Pins)) {
		pod := k.Pins[uid]
		for _, name := range slices.Sorted(maps.Keys(pod)) {
			cpus := pod[name]
			if name == WholePod {
				for other, its := range pod {
					if other != WholePod {
						cpus = cpus.Minus(its)
					}
				}
			}
			if !cpus.IsEmpty() {
				out = append(out, topologyv1alpha1.KubeletPin{PodUID: uid, Container: name, CPUs: cputopology.List(cpus)})
			}
		}
	}
	return out
}

func (c *computation) problem(pod, container, format string, args ...any) {
	c.problems = append(c.problems,
		topologyv1alpha1.Problem{Pod: pod, Container: container, Message: fmt.Sprintf(format, args...)})
}

// replay parses the pods' results, and returns the CPUs of their containers and the shared pool.
func (c *computation) replay(pins []topologyv1alpha1.KubeletPin) (map[string]map[string]reservation.CPUs, cpuset.Set) {
	var pods []reservation.Pod
	names := map[string]string{}
	for _, p := range c.Pods {
		names[p.UID] = p.String()
		if p.Result == "" {
			continue
		}
		result, err := request.ParseResult(p.Result)
		if err != nil {
			c.problem(p.String(), "", "%v", err)
			continue
		}
		result = c.staying(p, result)
		c.results[p.UID] = result
		pods = append(pods, reservation.Pod{Key: p.UID, Created: p.Created, Result: result.Settled(c.Moved)})
	}
	state := reservation.Replay(c.Node, c.Layout, pins, pods)
	for _, p := range state.Problems {
		name, known := names[p.Key]
		if !known {
			name = p.Key
		}
		c.problem(name, "", "%s", p.Message)
	}
	containers, shared := state.Effective()
	if exclusive := state.Node.Exclusive(); exclusive.Overlaps(shared) {
		c.problem("", "", "CPUs %s are held exclusively, and there are no others: what is not pinned runs on them too; "+
			"reserve CPUs for the system",
			exclusive.Intersect(shared))
	}
	return containers, shared
}

// staying returns the result of a pod. If the pod is to be moved to CPUs that it cannot have, the
// result has its previous CPUs instead, because these are better than none.
func (c *computation) staying(p Pod, r request.Result) request.Result {
	if !r.Moving(c.Moved) {
		return r
	}
	usable := c.usable()
	missing := func(r request.Result) cpuset.Set {
		var all cpuset.Set
		for _, container := range r.Containers {
			all = all.Union(container.CPUs)
		}
		return all.Minus(usable)
	}
	before := r.Returned(r.Move)
	if lost := missing(r); !lost.IsEmpty() && missing(before).IsEmpty() {
		c.problem(p.String(), "",
			"it stays where it is: of the CPUs that it is to be moved to, %s are off line or not in the kubelet's cgroup", lost)
		c.stuck[p.UID] = true
		return before
	}
	return r
}

// usable returns the CPUs that pods can have on this node.
func (c *computation) usable() cpuset.Set { return c.Layout.Topology().Online().Intersect(c.Allowed) }

// pod returns the state of one pod; own are the CPUs of its pinned containers.
func (c *computation) pod(p Pod, own map[string]reservation.CPUs) PodState {
	s := PodState{Name: p.String(), Containers: make(map[string]Container, len(p.Containers))}
	for _, name := range p.Containers {
		out := Container{CPUs: c.pool}
		if cpus, pinned := c.pinnedByKubelet(p.UID, name); pinned {
			out = Container{CPUs: cpus, Kubelet: true}
			if r, both := c.results[p.UID].Containers[name]; both {
				c.problem(p.String(), name, "the kubelet's static CPU manager has pinned it to CPUs %s, and not to its CPUs %s", cpus, r.CPUs)
			}
		} else if cpus, pinned := own[name]; pinned {
			out = c.container(p, name, cpus)
		}
		s.CPUs = s.CPUs.Union(out.CPUs)
		s.Containers[name] = out
	}
	if s.CPUs.IsEmpty() {
		s.CPUs = c.pool
	}
	if c.Kubelet.Static {
		s.CPUs = c.Allowed
	}
	c.quotas(p, own, &s)
	return s
}

// quotas fills in the quotas of a pod with CPUs of its own. A quota would throttle a container that
// uses all CPUs which only it may use, as soon as more of its threads run than its limit has CPUs in a
// part of a period; so exclusive CPUs have none. Burst containers may use all CPUs to which they are
// widened. All others keep the kubelet's.
func (c *computation) quotas(p Pod, own map[string]reservation.CPUs, s *PodState) {
	result, pinned := c.results[p.UID]
	if !pinned || p.Limits == nil || len(c.Input.Kubelet.Pins[p.UID]) > 0 {
		return
	}
	pod := &Quota{Kubelets: p.Limits[WholePod]}
	none, differ := false, int64(0)
	for name, out := range s.Containers {
		q := &Quota{Own: p.Limits[name], Kubelets: p.Limits[name]}
		switch {
		case !out.Pinned || q.Kubelets == 0:
		case own[name].Exclusive:
			q.Own = 0
		case result.Containers[name].Burst:
			q.Own = max(q.Kubelets, 1000*int64(out.CPUs.Len()))
		}
		none = none || q.Own == 0 && q.Kubelets != 0
		differ += q.Own - q.Kubelets
		out.Quota = q
		s.Containers[name] = out
	}
	if pod.Kubelets != 0 && !none {
		pod.Own = pod.Kubelets + differ
	}
	s.Quota = pod
}

func (c *computation) pinnedByKubelet(uid, container string) (cpuset.Set, bool) {
	pins := c.Kubelet.Pins[uid]
	cpus, pinned := pins[container]
	if !pinned {
		cpus, pinned = pins[WholePod]
	}
	return cpus, pinned
}

// container returns the state of a pinned container.
func (c *computation) container(p Pod, name string, own reservation.CPUs) Container {
	if lost := c.results[p.UID].Containers[name].CPUs.Minus(c.usable()); !lost.IsEmpty() {
		c.problem(p.String(), name, "CPUs %s are off line or not in the kubelet's cgroup", lost)
	}
	cpus := own.Set.Intersect(c.Allowed)
	if cpus.IsEmpty() {
		return Container{CPUs: c.pool}
	}
	out := Container{CPUs: cpus, Pinned: true}
	if !own.Mems.IsEmpty() {
		out.Mems = &own.Mems
	}
	return out
}
