package share

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Root is the queue above all others. It exists even if SetQueue was never called for it.
const Root = "root"

// Limits is the maximum that a queue may hold of each resource. Unlimited means no limit, and so
// does an index beyond the end.
type Limits place.Vector

// Unlimited is the value of a limit that does not exist.
const Unlimited = -1

// NewLimits converts a queue's capability. Resources that list does not contain have no limit.
func NewLimits(dims *place.Dims, list corev1.ResourceList) Limits {
	amounts := dims.Vector(list)
	limits := make(Limits, len(amounts))
	for dim := range limits {
		limits[dim] = Unlimited
		if _, ok := list[dims.Name(dim)]; ok {
			limits[dim] = amounts[dim]
		}
	}
	return limits
}

func (l Limits) at(dim int) int64 {
	if dim < len(l) {
		return l[dim]
	}
	return Unlimited
}

// Queue is the desired state of a scheduling queue.
type Queue struct {
	Name string
	// Parent is the name of the parent queue; empty means Root.
	Parent string
	// Weight is the queue's weight among its siblings; values below 1 count as 1.
	Weight int32
	// Priority puts a queue before siblings of lower priority, as long as it holds less than its
	// share.
	Priority   int32
	Capability Limits
	// Deserved is what the queue gets before the remainder is divided by weight. Resources without a
	// limit have no such amount.
	Deserved Limits
	// Closed queues start no new gangs. Gangs some of whose pods have nodes (Resume) are completed.
	Closed bool
	// FIFO queues start no gang before a gang that sorts before it. Other queues skip gangs that do
	// not fit.
	FIFO bool
	// JobsMax is how many jobs of the queue, and of the queues below it, may have pods on nodes at a
	// time, if JobsLimited is set.
	JobsLimited bool
	JobsMax     int64
	// Of is set if this is the part of a queue that one of its users has (see Part). It is the queue's
	// name, and that of Parent.
	Of string
}

// Part returns the name of the part of a queue that a user has. No queue has such a name.
func Part(queue, user string) string { return PartPrefix + queue + "/" + user }

// PartPrefix begins the names of parts of queues.
const PartPrefix = "part:"

// Gang is a waiting gang.
type Gang struct {
	Key      string
	Queue    string
	Priority int32
	Created  time.Time
	// Resume means that some pods of the gang have nodes, but fewer than its minimum. Such gangs
	// come before all others, in every queue.
	Resume bool
	// Surplus means that the gang's minimum has nodes. Such gangs come after all others.
	Surplus bool
	// Request is the sum of the requests of all the gang's waiting pods.
	Request place.Vector
}

// Before reports whether a gang comes before another one of its queue: those with Resume first, and
// those with Surplus last, then by priority, age and key.
func (g *Gang) Before(o *Gang) bool {
	if g.Resume != o.Resume {
		return g.Resume
	}
	if g.Surplus != o.Surplus {
		return o.Surplus
	}
	return cmp.Or(cmp.Compare(o.Priority, g.Priority), g.Created.Compare(o.Created), cmp.Compare(g.Key, o.Key)) < 0
}

// Codes of a Refusal.
const (
	QueueNotFound       = "QueueNotFound"
	QueueNotLeaf        = "QueueNotLeaf"
	QueueClosed         = "QueueClosed"
	QueueOverCapability = "QueueOverCapability"
	QueueOverJobs       = "QueueOverJobs" // as many jobs of the queue run as may
	BehindFirst         = "BehindFirst"   // in a FIFO queue
)

// Refusal says why a queue does not accept a gang, regardless of the room on the nodes.
type Refusal struct {
	Code string
	// Queue is the gang's queue; for QueueOverCapability and QueueOverJobs, the queue at or above it
	// whose limit applies.
	Queue string
	// Missing is set for QueueNotFound if the queue exists, and the way to the root is interrupted: it is
	// the queue above that does not exist, or the queue itself if those above form a circle.
	Missing string
	// Resource, Limit, Held and Wanted are set for QueueOverCapability: the limited resource, its
	// limit, the amount held, and the amount that the gang would add.
	Resource            corev1.ResourceName
	Limit, Held, Wanted resource.Quantity
	// JobsMax and Jobs are set for QueueOverJobs: how many jobs may run at a time, and how many do.
	JobsMax, Jobs int64
}

// Stable returns a sentence without figures that change while the cause stays the same.
func (r *Refusal) Stable() string {
	switch r.Code {
	case QueueNotFound:
		switch r.Missing {
		case "":
		case r.Queue:
			return fmt.Sprintf("the queues above queue %q form a circle, or are too many", r.Queue)
		default:
			return fmt.Sprintf("queue %q is below queue %q, which does not exist", r.Queue, r.Missing)
		}
		return fmt.Sprintf("queue %q does not exist", r.Queue)
	case QueueNotLeaf:
		return fmt.Sprintf("queue %q has queues below it; gangs belong into those", r.Queue)
	case QueueClosed:
		return fmt.Sprintf("queue %q is closed", r.Queue)
	case QueueOverJobs:
		return fmt.Sprintf("queue %q may run %d jobs at a time, and no more start", r.Queue, r.JobsMax)
	case BehindFirst:
		return fmt.Sprintf("queue %q starts its gangs in their order (dequeueStrategy: fifo), and one before this one waits", r.Queue)
	}
	return fmt.Sprintf("queue %q may hold %s of %s, and %s more do not fit", r.Queue, r.Limit.String(), r.Resource,
		r.Wanted.String())
}

// Detail returns the sentence of Stable with the current figures.
func (r *Refusal) Detail() string {
	switch r.Code {
	case QueueOverCapability:
		return fmt.Sprintf("%s; it holds %s", r.Stable(), r.Held.String())
	case QueueOverJobs:
		return fmt.Sprintf("%s; it runs %d", r.Stable(), r.Jobs)
	}
	return r.Stable()
}
