package batch

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/informer"
)

// inconsistent returns why what the spec of a queue states cannot hold together with the queues above
// and below, or empty strings. No admission policy can tell, because policies see one object.
func (q *Queues) inconsistent(queue *scheduling.Queue) (reason, message string) {
	if queue.Name == scheduling.RootQueue {
		return "", ""
	}
	above, reason, message := q.above(queue)
	if message != "" {
		return reason, message
	}
	var wrong []string
	// 1. No amount may be above the capability of a queue above.
	for _, part := range []struct {
		field   string
		amounts corev1.ResourceList
	}{
		{"spec.capability", queue.Spec.Capability}, {"spec.deserved", queue.Spec.Deserved},
		{"spec.guarantee.resource", queue.Spec.Guarantee.Resource},
	} {
		for _, name := range slices.Sorted(maps.Keys(part.amounts)) {
			amount := part.amounts[name]
			for _, a := range above {
				if limit, stated := a.Spec.Capability[name]; stated && amount.Cmp(limit) > 0 {
					wrong = append(wrong, fmt.Sprintf("%s: %s of %s, and queue %q above may hold %s", part.field, amount.String(), name, a.Name, limit.String()))
					break
				}
			}
		}
	}
	// 2. The queues below must not guarantee more than this one may hold, or says that it guarantees.
	below := q.guaranteedBelow(queue.Name, levelsMax)
	for _, name := range slices.Sorted(maps.Keys(below)) {
		sum := below[name]
		if limit, stated := queue.Spec.Capability[name]; stated && sum.Cmp(limit) > 0 {
			wrong = append(wrong, fmt.Sprintf("spec.capability: %s of %s, and the queues below guarantee %s", limit.String(), name, sum.String()))
		}
		if own, stated := queue.Spec.Guarantee.Resource[name]; stated && sum.Cmp(own) > 0 {
			wrong = append(wrong, fmt.Sprintf("spec.guarantee.resource: %s of %s, and the queues below guarantee %s, which counts", own.String(), name, sum.String()))
		}
	}
	if len(wrong) == 0 {
		return "", ""
	}
	return scheduling.ReasonAmountExceeded, strings.Join(wrong, "; ")
}

// above returns the queues above a queue, the nearest first, without the root. If the way to the root is
// interrupted, it returns a reason and a message.
func (q *Queues) above(queue *scheduling.Queue) (list []*scheduling.Queue, reason, message string) {
	for at := queue; at.Spec.Parent != "" && at.Spec.Parent != scheduling.RootQueue; {
		parent, found := q.Informers.Queues.Get("", at.Spec.Parent)
		switch {
		case !found && at == queue:
			return nil, scheduling.ReasonParentNotFound, fmt.Sprintf("spec.parent: queue %q does not exist; nothing of this queue starts", at.Spec.Parent)
		case !found:
			return nil, scheduling.ReasonParentNotFound,
				fmt.Sprintf("spec.parent: queue %q above is below queue %q, which does not exist; nothing of this queue starts", at.Name, at.Spec.Parent)
		case parent.Name == queue.Name || len(list) > levelsMax:
			return nil, scheduling.ReasonParentCircle, "spec.parent: the queues above form a circle, or are too many; nothing of this queue starts"
		}
		list = append(list, parent)
		at = parent
	}
	return list, "", ""
}

// guaranteedBelow returns what the queues below one guarantee together: each its own guarantee, or that
// of the queues below it if it is more.
func (q *Queues) guaranteedBelow(name string, levels int) corev1.ResourceList {
	sum := corev1.ResourceList{}
	for _, child := range q.Informers.Queues.ByIndex(informer.QueuesByParent, name) {
		if levels == 0 || child.Name == name {
			continue
		}
		all := q.guaranteedBelow(child.Name, levels-1)
		for r, amount := range child.Spec.Guarantee.Resource {
			if more := all[r]; amount.Cmp(more) > 0 {
				all[r] = amount
			}
		}
		for r, amount := range all {
			total := resource.Quantity{}
			if before, found := sum[r]; found {
				total = before.DeepCopy()
			}
			total.Add(amount)
			sum[r] = total
		}
	}
	return sum
}
