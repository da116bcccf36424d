// Package desire says which CPUs each container of a node shall run on: a pure function of the machine, the pods'
// annotations and what the kubelet has pinned by itself.
//
//	topology ───────┐
//	pods' results ──┼──▶ Compute ──▶ State: the shared pool, and for each pod the CPUs of its containers and of its cgroup
//	kubelet's pins ─┘
//
// # Rules
//
//   - CPUs that a container holds exclusively are nobody else's. Of two pods that claim one CPU exclusively the older has
//     it; the other is in the shared pool, and a problem says so. The kubelet's own pins come first.
//   - The shared pool is every allowed CPU that nobody holds exclusively, and that is not kept free for the sake of
//     somebody's isolation. It is never empty: when nothing is left, what is kept free for isolation is given up first,
//     then exclusiveness.
//   - A burst container has its own CPUs and the rest of their L3 domains, less what others hold.
//   - A pod's own cgroup has the CPUs of its containers together, so that a container that starts again, or whose name is
//     not known yet, never runs elsewhere.
package desire

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
)

// Input is a node's state.
type Input struct {
	Node     string
	Topology *cputopology.Topology
	// Allowed are the CPUs that the kubelet's own cgroup may use. What is outside of it cannot be given to any pod.
	Allowed cpuset.Set
	Pods    []Pod
	// Kubelet is what the kubelet's own CPU manager has pinned. Where it is on, it writes CPU sets of containers itself,
	// wide ones at times: pods' own cgroups then must not be narrower than Allowed.
	Kubelet Kubelet
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
	// Age orders pods: of two, that with the lower is older.
	Age int64
	// Result is the value of the result annotation; empty: not pinned.
	Result string
	// Containers are the names of all containers, init and ephemeral ones included.
	Containers []string
}

func (p Pod) String() string { return p.Namespace + "/" + p.Name }

// State is what shall be.
type State struct {
	// Pool is where everything runs that is not pinned.
	Pool cpuset.Set
	// Exclusive are the CPUs that containers have for themselves, the kubelet's included.
	Exclusive cpuset.Set
	// Pods by UID. Pods that are not in it are in the pool.
	Pods     map[string]PodState
	Problems []Problem
}

// PodState is one pod's part.
type PodState struct {
	// Pinned says whether any container is.
	Pinned bool
	// CPUs are for the pod's cgroup, and for whatever is in it and not in Containers.
	CPUs       cpuset.Set
	Containers map[string]Container
}

// Container is one container's part.
type Container struct {
	CPUs cpuset.Set
	// Mems are the memory nodes to bind to; nil: leave them alone.
	Mems *cpuset.Set
	// Pinned: the CPUs are those of the pod's annotation. Exclusive: and nobody else's.
	Pinned, Exclusive bool
	// Kubelet: the kubelet has pinned it. Its CPU set is not ours to write.
	Kubelet bool
}

// Problem is a wish that cannot be met.
type Problem struct {
	Pod, Container string // namespace/name; the container may be empty
	Message        string
}

// computation is the state of one Compute.
type computation struct {
	Input
	usable cpuset.Set // online and allowed
	pods   []*podWork
	// exclusive are the CPUs held exclusively; held are kept free for isolation beyond those.
	exclusive, held cpuset.Set
	problems        []Problem
}

// podWork is a pod on its way through the rules.
type podWork struct {
	Pod
	result    request.Result
	exclusive cpuset.Set // held by its containers
	pooled    bool       // lost its claim, or has none
}

// Compute applies the rules. It is deterministic: the order of Input.Pods does not matter.
func Compute(in Input) State {
	c := &computation{Input: in, usable: in.Topology.Online().Intersect(in.Allowed)}
	// 1. The kubelet's own pins come first: they are facts.
	for _, containers := range in.Kubelet.Pins {
		for _, cpus := range containers {
			c.exclusive = c.exclusive.Union(cpus)
		}
	}
	// 2. Exclusive claims, oldest first.
	c.claim()
	// 3. The pool is what they leave.
	pool := c.pool()
	// 4. Each pod's part.
	s := State{Pool: pool, Exclusive: c.exclusive, Pods: make(map[string]PodState, len(c.pods))}
	for _, p := range c.pods {
		s.Pods[p.UID] = c.pod(p, pool)
	}
	slices.SortStableFunc(c.problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Pod, b.Pod), cmp.Compare(a.Container, b.Container))
	})
	s.Problems = c.problems
	return s
}

func (c *computation) problem(p Pod, container, format string, args ...any) {
	c.problems = append(c.problems, Problem{p.String(), container, fmt.Sprintf(format, args...)})
}

// claim reads the pods' results and decides who holds what exclusively.
func (c *computation) claim() {
	for _, p := range c.Pods {
		c.pods = append(c.pods, &podWork{Pod: p, pooled: p.Result == ""})
	}
	slices.SortFunc(c.pods, func(a, b *podWork) int { return cmp.Or(cmp.Compare(a.Age, b.Age), cmp.Compare(a.UID, b.UID)) })
	for _, p := range c.pods {
		if p.pooled {
			continue
		}
		if err := c.read(p); err != nil {
			p.pooled = true
			c.problem(p.Pod, "", "%v", err)
			continue
		}
		for _, r := range p.result.Containers {
			if r.Share == 1 {
				p.exclusive = p.exclusive.Union(r.CPUs.Intersect(c.usable))
			}
		}
		if taken := p.exclusive.Intersect(c.exclusive); !taken.IsEmpty() {
			p.pooled, p.exclusive = true, cpuset.Set{}
			c.problem(p.Pod, "", "its CPUs %s are held exclusively by an older pod or by the kubelet; it runs in the shared pool", taken)
			continue
		}
		c.exclusive = c.exclusive.Union(p.exclusive)
		for _, r := range p.result.Containers {
			if r.Held != nil {
				c.held = c.held.Union(*r.Held)
			}
		}
	}
	c.held = c.held.Minus(c.exclusive)
}

// read parses a pod's result.
func (c *computation) read(p *podWork) (err error) {
	if p.result, err = request.ParseResult(p.Result); err != nil {
		return err
	}
	if p.result.Node != c.Node {
		return request.Error{Annotation: request.LockstepResult, Field: "node", Problem: fmt.Sprintf("the CPUs were chosen for node %q", p.result.Node)}
	}
	return nil
}

// pool is never empty as long as any CPU is usable.
func (c *computation) pool() cpuset.Set {
	free := c.usable.Minus(c.exclusive)
	for _, kept := range []cpuset.Set{c.held.Union(c.Topology.Isolated), c.Topology.Isolated, {}} {
		if pool := free.Minus(kept); !pool.IsEmpty() {
			return pool
		}
	}
	if len(c.Pods) > 0 && !c.usable.IsEmpty() {
		c.problems = append(c.problems, Problem{Message: "every CPU is held exclusively: what is not pinned runs on all of them; reserve CPUs for the system"})
	}
	return c.usable
}

func (c *computation) pod(p *podWork, pool cpuset.Set) PodState {
	s := PodState{Containers: make(map[string]Container, len(p.Containers))}
	pins := c.Kubelet.Pins[p.UID]
	for _, name := range p.Containers {
		r, asked := p.result.Containers[name]
		var out Container
		cpus, pinned := pins[name]
		if !pinned {
			cpus, pinned = pins[WholePod]
		}
		switch {
		case pinned:
			out = Container{CPUs: cpus, Kubelet: true}
		case asked && !p.pooled:
			out = c.container(p, name, r, pool)
		default:
			out.CPUs = pool
		}
		s.Pinned = s.Pinned || out.Pinned
		s.CPUs = s.CPUs.Union(out.CPUs)
		s.Containers[name] = out
	}
	if s.CPUs.IsEmpty() {
		s.CPUs = pool
	}
	if c.Kubelet.Static {
		s.CPUs = c.Allowed
	}
	for _, name := range slices.Sorted(maps.Keys(p.result.Containers)) {
		if !slices.Contains(p.Containers, name) {
			c.problem(p.Pod, "", "the result names a container %q that the pod does not have", name)
		}
	}
	return s
}

func (c *computation) container(p *podWork, name string, r request.ContainerResult, pool cpuset.Set) Container {
	cpus := r.CPUs.Intersect(c.usable)
	if lost := r.CPUs.Minus(c.usable); !lost.IsEmpty() {
		c.problem(p.Pod, name, "CPUs %s are off line or outside of the kubelet's cgroup", lost)
	}
	others := c.exclusive.Minus(p.exclusive)
	if r.Share != 1 {
		if taken := cpus.Intersect(others); !taken.IsEmpty() {
			c.problem(p.Pod, name, "CPUs %s are held exclusively by another pod", taken)
			cpus = cpus.Minus(others)
		}
	}
	if cpus.IsEmpty() {
		c.problem(p.Pod, name, "none of its CPUs %s can be used; it runs in the shared pool", r.CPUs)
		return Container{CPUs: pool}
	}
	if r.Burst {
		cpus = c.widen(cpus, others.Union(c.held).Union(c.Topology.Isolated))
	}
	return Container{CPUs: cpus, Mems: r.Mems, Pinned: true, Exclusive: r.Share == 1}
}

// widen adds the rest of the CPUs' L3 domains, less what is kept from it. Where the machine tells no L3, dies stand in.
func (c *computation) widen(cpus, kept cpuset.Set) cpuset.Set {
	wide := cpus
	add := func(domain cpuset.Set) {
		if domain.Overlaps(cpus) {
			wide = wide.Union(domain.Intersect(c.usable).Minus(kept))
		}
	}
	for _, l := range c.Topology.L3 {
		add(l.CPUs)
	}
	if len(c.Topology.L3) == 0 {
		for _, d := range c.Topology.Dies {
			add(d)
		}
	}
	return wide
}
