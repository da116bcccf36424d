package request

import (
	"fmt"
	"strings"
)

// Language is the annotation language of a request.
type Language string

// The languages.
const (
	Lockstep    Language = "Lockstep"
	ACK         Language = "ACK"
	Koordinator Language = "Koordinator"
	Volcano     Language = "Volcano"
)

// Pod is the request of one pod: which of its containers are pinned, and how.
type Pod struct {
	Language   Language
	Containers []Container // in the pod's order, init containers first; never empty
	// PodWide gives every container all CPUs of the pod instead of a part (Koordinator's
	// semantics).
	PodWide bool
	// NUMAPolicy is the numaTopologyPolicy of a Koordinator pod, which must not differ from its
	// node's: see On.
	NUMAPolicy string
}

// Container is one pinned container.
type Container struct {
	Name string
	CPUs int // > 0
	// Init means that the container runs before the others and one at a time: it uses the CPUs that
	// the others will get.
	Init bool
	// MemoryBytes is the container's memory request, for which local memory must have room.
	MemoryBytes int64
	Policy
}

// Policy describes the CPUs that a container wants. The zero value asks for CPUs with unlimited
// sharing, as close together as possible.
type Policy struct {
	Bind      Bind
	Isolation Isolation
	Span      Span
	Memory    Memory
	Cores     Cores
	// Prefer is the set of the fields above that are wishes: they are tried, and given up if the
	// node cannot satisfy them. The other fields are conditions: a node that cannot satisfy them is
	// not chosen.
	Prefer Fields
	// Share is the number of pinned containers that may use one CPU: 1 means exclusive use, 0 means
	// no limit.
	Share int
	// Burst widens the container's CPU set to its whole L3 domains, except for CPUs held by
	// exclusive containers. The container is still accounted with its own number of CPUs.
	Burst bool
}

// Exclusive reports whether the container has its CPUs for itself.
func (p Policy) Exclusive() bool { return p.Share == 1 }

// Bind is the unit in which CPUs are bound.
type Bind uint8

// The units. AnyCPU takes whole cores as long as there are any, without requiring them.
const (
	AnyCPU   Bind = iota
	Threads       // hardware threads: half-used cores are filled first, and whole cores stay whole
	FullCore      // all threads of each core
	WholeL3       // all CPUs of each L3 domain
	Spread        // one thread on each of as many cores as possible
)

// Isolation is the domain that other pinned containers may not use.
type Isolation uint8

// The isolation domains.
const (
	NoIsolation Isolation = iota
	IsolateCore
	IsolateL3
	IsolateNUMA
)

// Span is the largest domain over which the CPUs may be spread.
type Span uint8

// The spans. FewestNUMA is as many NUMA nodes as the CPUs need on this machine if nothing else runs
// there, and no more.
const (
	AnySpan Span = iota
	SingleL3
	SingleNUMA
	SingleSocket
	FewestNUMA
)

// Memory says where the container's memory comes from.
type Memory uint8

// The memory policies. LocalMemory binds memory to the NUMA nodes of the CPUs and requires room
// there; PreferLocalMemory is the same as a wish.
const (
	AnyMemory Memory = iota
	PreferLocalMemory
	LocalMemory
)

// Cores is the kind of cores of a machine with several kinds. On a machine of one kind, all cores
// are performance cores.
type Cores uint8

// The kinds of cores.
const (
	AnyCores Cores = iota
	PerformanceCores
	EfficientCores
)

// Fields is a set of policy fields. Its numeric order is the order in which wishes are given up:
// memory first, then bind, span, isolation, cores.
type Fields uint8

// The fields.
const (
	MemoryField Fields = 1 << iota
	BindField
	SpanField
	IsolationField
	CoresField
)

var (
	bindNames      = []string{"any", "threads", "full-core", "l3", "spread"}
	isolationNames = []string{"none", "core", "l3", "numa"}
	spanNames      = []string{"any", "single-l3", "single-numa", "single-socket", "fewest-numa"}
	memoryNames    = []string{"any", "prefer", "local"}
	coresNames     = []string{"any", "performance", "efficient"}
	fieldNames     = []string{"memory", "bind", "span", "isolation", "cores"}
)

func (b Bind) String() string      { return bindNames[b] }
func (i Isolation) String() string { return isolationNames[i] }
func (s Span) String() string      { return spanNames[s] }
func (m Memory) String() string    { return memoryNames[m] }
func (c Cores) String() string     { return coresNames[c] }

func (f Fields) String() string {
	var out []string
	for i, name := range fieldNames {
		if f&(1<<i) != 0 {
			out = append(out, name)
		}
	}
	return strings.Join(out, ",")
}

// Error is one error in a pod's request.
type Error struct {
	Annotation string // or label, or the path of a field of the pod
	Field      string // within the annotation's value or the pod; may be empty
	Problem    string
}

func (e Error) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %s", e.Annotation, e.Problem)
	}
	return fmt.Sprintf("%s: %s: %s", e.Annotation, e.Field, e.Problem)
}

// Errors are all errors in a pod's request, in a stable order.
type Errors []Error

func (e Errors) Error() string {
	parts := make([]string, len(e))
	for i := range e {
		parts[i] = e[i].Error()
	}
	return strings.Join(parts, "; ")
}
