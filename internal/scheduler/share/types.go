package share

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// Root is the queue above all others. It exists whether it is Set or not.
const Root = "root"

// Limits is the most a queue may hold of each resource. Unlimited, and what lies beyond the end, has no limit.
type Limits place.Vector

// Unlimited stands for no limit.
const Unlimited = -1

// NewLimits converts a capability: resources that are not listed have no limit.
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

// Queue is a scheduling queue as its owner wants it.
type Queue struct {
	Name string
	// Parent is the queue above; empty stands for Root.
	Parent string
	// Weight is the queue's part among its siblings; values below 1 count as 1.
	Weight int32
	// Priority puts a queue before siblings of lower priority, as long as it holds less than its share.
	Priority   int32
	Capability Limits
	// Closed queues start nothing new; gangs that hold a part already are completed.
	Closed bool
	// FIFO queues start no gang before one that sorts before it. Others skip gangs that do not fit.
	FIFO bool
}

// Gang is a gang that waits.
type Gang struct {
	Key      string
	Queue    string
	Priority int32
	Created  time.Time
	// Resume gangs hold part of what they need: they come before all others, in every queue.
	Resume bool
	// Request is what all its pods that wait ask for.
	Request place.Vector
}

// The codes of a Refusal.
const (
	QueueNotFound       = "QueueNotFound"
	QueueNotLeaf        = "QueueNotLeaf"
	QueueClosed         = "QueueClosed"
	QueueOverCapability = "QueueOverCapability"
)

// Refusal is why a queue does not take a gang whatever room there is on the nodes.
type Refusal struct {
	Code  string
	Queue string // the gang's, or for QueueOverCapability the one above whose limit it is
	// For QueueOverCapability: what is limited, to what, how much is held, and how much the gang's minimum adds.
	Resource            corev1.ResourceName
	Limit, Held, Wanted resource.Quantity
}

// Stable is a sentence without figures that change while the cause stays the same.
func (r *Refusal) Stable() string {
	switch r.Code {
	case QueueNotFound:
		return fmt.Sprintf("queue %q does not exist", r.Queue)
	case QueueNotLeaf:
		return fmt.Sprintf("queue %q has queues below it; gangs belong into those", r.Queue)
	case QueueClosed:
		return fmt.Sprintf("queue %q is closed", r.Queue)
	}
	return fmt.Sprintf("queue %q may hold %s of %s, and %s more do not fit", r.Queue, r.Limit.String(), r.Resource, r.Wanted.String())
}

// Detail adds the figures of the moment.
func (r *Refusal) Detail() string {
	if r.Code != QueueOverCapability {
		return r.Stable()
	}
	return fmt.Sprintf("%s; it holds %s", r.Stable(), r.Held.String())
}
