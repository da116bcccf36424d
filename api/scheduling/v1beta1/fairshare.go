package v1beta1

import (
	"math"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// FairShareByAnnotation on a queue says how its share is divided: ByNamespace or ByUser. Without it, the
// jobs of all namespaces wait in one line.
const FairShareByAnnotation = "lockstep.dev/fair-share-by"

// ByNamespace divides a queue's share among the namespaces that use it. ByUser divides it among users:
// UserLabel of a namespace names its user.
const (
	ByNamespace = "namespace"
	ByUser      = "user"
)

// UserLabel on a namespace names its user. A namespace without the label is a user of its own.
const UserLabel = "lockstep.dev/user"

// User returns the name of a user of a queue that is shared by ByNamespace or ByUser. label is UserLabel of
// the namespace. No value of a label has a slash.
func User(by, namespace, label string) string {
	switch {
	case by == ByNamespace:
		return namespace
	case label == "":
		return "namespace/" + namespace
	}
	return label
}

// FairShareBy returns the value of FairShareByAnnotation, or an empty string if the queue has none. It
// returns false if it is none of these.
func FairShareBy(q *Queue) (by string, ok bool) {
	switch by = q.Annotations[FairShareByAnnotation]; by {
	case "", ByNamespace, ByUser:
		return by, true
	}
	return "", false
}

// CountPrefix begins the names of numbers of objects, as in a ResourceQuota. JobsResource, in
// the capability of a queue, is the number of its jobs that may have pods on nodes at a time.
const (
	CountPrefix  = "count/"
	JobsResource = corev1.ResourceName(CountPrefix + "jobs.batch.volcano.sh")
)

// JobsMax returns how many jobs of the queue may have pods on nodes at a time. limited is false if its
// capability does not say. It returns false for ok if it says anything but a whole number from 0.
func JobsMax(q *Queue) (n int64, limited, ok bool) {
	amount, stated := q.Spec.Capability[JobsResource]
	if !stated {
		return 0, false, true
	}
	n, whole := amount.AsInt64()
	if !whole || n < 0 || n > math.MaxInt32 {
		return 0, false, false
	}
	return n, true, true
}

// Counts reports whether a list has numbers of objects, and CountsOthers whether it has others than
// JobsResource.
func Counts(list corev1.ResourceList) bool {
	_, jobs := list[JobsResource]
	return jobs || CountsOthers(list)
}

// CountsOthers is described with Counts.
func CountsOthers(list corev1.ResourceList) bool {
	for name := range list {
		if name != JobsResource && strings.HasPrefix(string(name), CountPrefix) {
			return true
		}
	}
	return false
}

// Jobs returns a number of jobs as a quantity.
func Jobs(n int) resource.Quantity { return *resource.NewQuantity(int64(n), resource.DecimalSI) }
