package request

import (
	"encoding/json"
	"fmt"
	"strconv"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
)

// Annotations that contain the result. Only Lockstep's own identity may set them.
const (
	LockstepResult    = topologyv1alpha1.ResultAnnotation
	ACKResult         = topologyv1alpha1.ACKResultAnnotation
	KoordinatorResult = topologyv1alpha1.KoordinatorResultAnnotation
)

// Result records the CPUs that a pod was given on a node.
type Result struct {
	Version int    `json:"v"` // 1
	Node    string `json:"node"`
	// Topology is the hash of the node's topology for which the CPUs were chosen.
	Topology   string                     `json:"topology"`
	Containers map[string]ContainerResult `json:"containers"`
	// Memory is the memory promised to the pod on each NUMA node, in bytes, if its memory is to be
	// local.
	Memory map[int]int64 `json:"memory,omitempty"`
	// Move is the number of the pod's last move on the node, or 0 if the pod has its original CPUs.
	// The move is complete when the NodeTopology's status.moved is at least Move. Until then the
	// containers also hold their previous CPUs (From).
	Move int64 `json:"move,omitempty"`
	// Back means that this move reverses a move that could not be made. Such a move is never
	// reversed.
	Back bool `json:"back,omitempty"`
}

// ContainerResult records the CPUs of one container.
type ContainerResult struct {
	CPUs cpuset.Set `json:"cpus"`
	// Mems are the NUMA nodes to bind memory to; nil means the NUMA nodes of the container's parent
	// cgroup.
	Mems *cpuset.Set `json:"mems,omitempty"`
	// Share is the number of containers that may use each CPU. 1 excludes all others (the
	// container's CFS quota then has no purpose and may be lifted); 0 means no limit.
	Share int `json:"share,omitempty"`
	// Held are the CPUs withheld from others for isolation, if they are more than CPUs.
	Held *cpuset.Set `json:"held,omitempty"`
	// From are the container's CPUs before Result.Move; nil if the move did not change them.
	From *cpuset.Set `json:"from,omitempty"`
	// Burst means that the set is widened to the L3 domains of CPUs, except for CPUs held
	// exclusively. CPUs is then the container's own share, and the quota must stay.
	Burst bool `json:"burst,omitempty"`
	Init  bool `json:"init,omitempty"`
	// Shadow means that the CPUs are accounted to other containers of the pod: in init containers
	// and pod-wide sets.
	Shadow bool `json:"shadow,omitempty"`
}

// Settled returns the result when all moves up to the given number are complete: if the pod's own
// move is among them, the previous CPUs are no longer held.
func (r Result) Settled(moved int64) Result {
	if r.Move == 0 || r.Move > moved {
		return r
	}
	out := r
	out.Containers = make(map[string]ContainerResult, len(r.Containers))
	for name, c := range r.Containers {
		c.From = nil
		out.Containers[name] = c
	}
	return out
}

// Returned returns the result with its move reversed by the move of the given number: the
// containers get their previous CPUs back, and hold the other CPUs until the reversing move is
// complete.
func (r Result) Returned(move int64) Result {
	out := r
	out.Move, out.Back = move, true
	out.Containers = make(map[string]ContainerResult, len(r.Containers))
	for name, c := range r.Containers {
		if c.From != nil {
			from := c.CPUs
			c.CPUs, c.From = *c.From, &from
		}
		out.Containers[name] = c
	}
	return out
}

// Moving reports whether the pod's move is not yet known to be complete.
func (r Result) Moving(moved int64) bool { return r.Move > moved }

// Exclusive returns the CPUs that the pod withholds from all others.
func (r Result) Exclusive() cpuset.Set {
	var all cpuset.Set
	for _, c := range r.Containers {
		if c.Share != 1 || c.Shadow {
			continue
		}
		all = all.Union(c.CPUs)
		if c.Held != nil {
			all = all.Union(*c.Held)
		}
	}
	return all
}

// Claims returns the CPUs that the pod holds exclusively while its move is incomplete.
func (r Result) Claims() cpuset.Set {
	all := r.Exclusive()
	for _, c := range r.Containers {
		if c.From != nil && !c.Shadow {
			all = all.Union(*c.From)
		}
	}
	return all
}

// ackResult maps container -> NUMA node id -> "elems" -> CPU id -> {}.
type ackResult map[string]map[string]ackCPUs

type ackCPUs struct {
	Elems map[string]struct{} `json:"elems"`
}

type koordinatorResult struct {
	CPUs cpuset.Set `json:"cpuset"`
}

// Annotations returns the result's annotations for a pod that asked in the given language. wide has
// the CPUs of the burst containers at this moment, which ACK's form shows; it may be nil.
func (r Result) Annotations(asked Language, topo *cputopology.Topology, wide map[string]cpuset.Set) (map[string]string, error) {
	out := map[string]string{}
	put := func(key string, v any) error {
		data, err := json.Marshal(v)
		out[key] = string(data)
		return err
	}
	r.Version = 1
	if err := put(LockstepResult, r); err != nil {
		return nil, err
	}
	switch asked {
	case ACK:
		ack := ackResult{}
		for name, c := range r.Containers {
			if c.Init {
				continue
			}
			nodes := map[string]ackCPUs{}
			cpus := c.CPUs.Union(wide[name])
			for _, n := range topo.NUMA {
				for id := range n.CPUs.Intersect(cpus).All() {
					key := strconv.Itoa(n.ID)
					if nodes[key].Elems == nil {
						nodes[key] = ackCPUs{map[string]struct{}{}}
					}
					nodes[key].Elems[strconv.Itoa(id)] = struct{}{}
				}
			}
			ack[name] = nodes
		}
		return out, put(ACKResult, ack)
	case Koordinator:
		var k koordinatorResult
		for _, c := range r.Containers {
			k.CPUs = k.CPUs.Union(c.CPUs)
		}
		return out, put(KoordinatorResult, k)
	}
	return out, nil
}

// ParseResult parses the value of LockstepResult.
func ParseResult(value string) (Result, error) {
	var r Result
	if len(value) > annotationBytesMax {
		return r, Error{LockstepResult, "", fmt.Sprintf("longer than %d bytes", annotationBytesMax)}
	}
	if err := json.Unmarshal([]byte(value), &r); err != nil {
		return r, Error{LockstepResult, "", err.Error()}
	}
	if r.Version != 1 {
		return r, Error{LockstepResult, "v", fmt.Sprintf("version %d is unknown; it is 1", r.Version)}
	}
	for name, c := range r.Containers {
		if c.CPUs.IsEmpty() {
			return r, Error{LockstepResult, "containers." + name + ".cpus", "is empty"}
		}
	}
	return r, nil
}

// ParseACKResult parses the value of ACKResult. It returns CPUs by container name.
func ParseACKResult(value string) (map[string]cpuset.Set, error) {
	if len(value) > annotationBytesMax {
		return nil, Error{ACKResult, "", fmt.Sprintf("longer than %d bytes", annotationBytesMax)}
	}
	var ack ackResult
	if err := json.Unmarshal([]byte(value), &ack); err != nil {
		return nil, Error{ACKResult, "", err.Error()}
	}
	out := map[string]cpuset.Set{}
	for name, nodes := range ack {
		var cpus cpuset.Builder
		for node, n := range nodes {
			for id := range n.Elems {
				cpu, err := strconv.Atoi(id)
				if err != nil || cpu < 0 || cpu >= cpuset.Max {
					return nil, Error{ACKResult, name + "." + node + ".elems", fmt.Sprintf("%q is not a CPU number", id)}
				}
				cpus.Add(cpu)
			}
		}
		out[name] = cpus.Set()
	}
	return out, nil
}
