// Package desire says which CPUs each container of a node shall run on: a pure function of the machine, the pods'
// annotations and what the kubelet has pinned by itself.
//
//	pods' results ──┐
//	                ├──▶ held.Replay ──▶ Effective ──▶ Compute ──▶ State: CPUs of each container, and of each pod's cgroup
//	kubelet's pins ─┘                                     ▲
//	                    what the kubelet's cgroup has ────┘
//
// Who holds what, and who loses where two claim the same, package held says, for the scheduler and for the agent alike. What
// is added here is what the node knows better: which CPUs its pods can have at all, which containers there are, and what the
// cgroups around them need.
//
// # Rules
//
//   - A container that is not pinned runs in the shared pool. So does everything in pods that nobody knows.
//   - A pod's own cgroup has the CPUs of its containers together, so that a container that starts again, or whose name is
//     not known yet, never runs elsewhere.
//   - What the kubelet has pinned is left alone, and where its CPU manager is on, pods' own cgroups are as wide as can be.
package desire

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
	"lockstep.dev/lockstep/internal/cputopology/held"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// Input is a node's state.
type Input struct {
	Node   string
	Layout *allocate.Layout
	// Allowed are the CPUs that the kubelet's own cgroup may use. What is outside of it cannot be given to any pod.
	Allowed cpuset.Set
	Pods    []Pod
	Kubelet Kubelet
	// Moved is the number of the last move that is complete: pods hold what later ones are away from.
	Moved int64
}

// Kubelet is what a kubelet's CPU manager holds.
type Kubelet struct {
	// Static says that its static policy is on; otherwise there are no pins.
	Static bool
	// Pins are the CPUs of containers by pod UID and name. WholePod stands for all containers of a pod that are not named.
	Pins map[string]map[string]cpuset.Set
}

// WholePod is no container's name.
const WholePod = ""

// Pod is a pod of the node that may have processes.
type Pod struct {
	UID, Namespace, Name string
	Created              time.Time
	// Result is the value of the result annotation; empty: not pinned.
	Result string
	// Containers are the names of all containers, init and ephemeral ones included.
	Containers []string
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// State is what shall be.
type State struct {
	// Pool is where everything runs that is not pinned. It is not empty unless Input.Allowed is.
	Pool cpuset.Set
	// Pods by UID. Pods that are not in it are in the pool.
	Pods map[string]PodState
	// Moves are the numbers of the moves that are not known to be complete, by the pod's UID.
	Moves map[string]int64
	// Stuck are those of Moves that cannot be made: the pod stays where it is.
	Stuck map[string]bool
	// KubeletPins are the kubelet's, in order.
	KubeletPins []topologyv1alpha1.KubeletPin
	// Problems are wishes that cannot be met, in order.
	Problems []topologyv1alpha1.Problem
}

// PodState is one pod's part.
type PodState struct {
	Name string // namespace/name
	// CPUs are for the pod's cgroup, and for whatever is in it and not in Containers.
	CPUs       cpuset.Set
	Containers map[string]Container
}

// Container is one container's part.
type Container struct {
	CPUs cpuset.Set
	// Mems are the memory nodes to bind to; nil: leave them alone.
	Mems *cpuset.Set
	// Pinned: the CPUs come from the pod's annotation.
	Pinned bool
	// Kubelet: the kubelet has pinned it. Its CPU set is not ours to write.
	Kubelet bool
}

// computation is the state of one Compute.
type computation struct {
	Input
	results  map[string]request.Result // by UID
	stuck    map[string]bool
	problems []topologyv1alpha1.Problem
	pool     cpuset.Set
}

// Compute applies the rules. The order of Input.Pods does not matter.
func Compute(in Input) State {
	c := &computation{Input: in, results: make(map[string]request.Result), stuck: map[string]bool{}}
	s := State{Pods: make(map[string]PodState, len(in.Pods)), Moves: map[string]int64{}, Stuck: c.stuck, KubeletPins: pins(in.Kubelet)}
	// 1. Who holds what.
	containers, shared := c.replay(s.KubeletPins)
	// 2. The pool is what can be had of it here.
	c.pool = shared.Intersect(in.Allowed)
	if c.pool.IsEmpty() {
		c.pool = in.Allowed
	}
	s.Pool = c.pool
	// 3. Each pod's part.
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

// pins are the kubelet's, none of them overlapping another: a whole pod's are what its named containers leave.
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
	c.problems = append(c.problems, topologyv1alpha1.Problem{Pod: pod, Container: container, Message: fmt.Sprintf(format, args...)})
}

// replay reads the pods' results and finds who holds what.
func (c *computation) replay(pins []topologyv1alpha1.KubeletPin) (map[string]map[string]held.CPUs, cpuset.Set) {
	var pods []held.Pod
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
		pods = append(pods, held.Pod{Key: p.UID, Created: p.Created, Result: result.Settled(c.Moved)})
	}
	state := held.Replay(c.Node, c.Layout, pins, pods)
	for _, p := range state.Problems {
		name, known := names[p.Key]
		if !known {
			name = p.Key
		}
		c.problem(name, "", "%s", p.Message)
	}
	containers, shared := state.Effective()
	if exclusive := state.Node.Exclusive(); exclusive.Overlaps(shared) {
		c.problem("", "", "CPUs %s are held exclusively, and there are no others: what is not pinned runs on them too; reserve CPUs for the system",
			exclusive.Intersect(shared))
	}
	return containers, shared
}

// staying is the result of a pod that is to be moved, if it can be; else with the CPUs that it has. What a pod runs on is
// better than what it cannot have.
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
		c.problem(p.String(), "", "it stays where it is: of the CPUs that it is to be moved to, %s are off line or not in the kubelet's cgroup", lost)
		c.stuck[p.UID] = true
		return before
	}
	return r
}

// usable are the CPUs that pods can have here.
func (c *computation) usable() cpuset.Set { return c.Layout.Topology().Online().Intersect(c.Allowed) }

// pod makes one pod's part; own are the CPUs of its pinned containers.
func (c *computation) pod(p Pod, own map[string]held.CPUs) PodState {
	s := PodState{Name: p.String(), Containers: make(map[string]Container, len(p.Containers))}
	for _, name := range p.Containers {
		out := Container{CPUs: c.pool}
		if cpus, pinned := c.pinnedByKubelet(p.UID, name); pinned {
			out = Container{CPUs: cpus, Kubelet: true}
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
	return s
}

func (c *computation) pinnedByKubelet(uid, container string) (cpuset.Set, bool) {
	pins := c.Kubelet.Pins[uid]
	cpus, pinned := pins[container]
	if !pinned {
		cpus, pinned = pins[WholePod]
	}
	return cpus, pinned
}

// container makes a pinned container's part.
func (c *computation) container(p Pod, name string, own held.CPUs) Container {
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
