package scheduler

import (
	"math"
	"slices"
	"strconv"
	"strings"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// hierarchyPrefix begins the names of groups of queues in the ledger; the path follows. No queue has
// such a name.
const hierarchyPrefix = "hierarchy:"

// inHierarchy sets the parent and the weight of a queue that says its place in the tree with the
// annotations HierarchyAnnotation, such as root/science/dev, and HierarchyWeightsAnnotation, such as
// 1/2/8, and not with spec.parent. It returns the groups above the queue, from the root downwards,
// which are no queues of their own.
func inHierarchy(object *schedulingv1beta1.Queue, q *share.Queue) (groups []share.Queue) {
	path, weights, ok := hierarchyOf(object)
	if !ok || q.Parent != "" && q.Parent != share.Root {
		return nil
	}
	last := len(path) - 1
	q.Parent, q.Weight = share.Root, weights[last]
	for i := 1; i < last; i++ {
		name := hierarchyPrefix + strings.Join(path[:i+1], "/")
		groups = append(groups, share.Queue{Name: name, Parent: q.Parent, Weight: weights[i]})
		q.Parent = name
	}
	return groups
}

// hierarchyOf returns the path in a queue's annotation, which begins with root, and a weight for each
// part of it, rounded. It returns false if there is none, or if the two do not belong together.
func hierarchyOf(object *schedulingv1beta1.Queue) (path []string, weights []int32, ok bool) {
	text := object.Annotations[schedulingv1beta1.HierarchyAnnotation]
	if text == "" {
		return nil, nil, false
	}
	path = strings.Split(text, "/")
	numbers := strings.Split(object.Annotations[schedulingv1beta1.HierarchyWeightsAnnotation], "/")
	if path[0] != share.Root {
		path, numbers = append([]string{share.Root}, path...), append([]string{"1"}, numbers...)
	}
	if len(path) != len(numbers) || len(path) < 2 || len(path) > queueDepthMax || slices.Contains(path, "") {
		return nil, nil, false
	}
	for _, number := range numbers {
		w, err := strconv.ParseFloat(number, 64)
		if err != nil || math.IsNaN(w) || w <= 0 || w > math.MaxInt32 {
			return nil, nil, false
		}
		weights = append(weights, max(1, int32(math.Round(w))))
	}
	return path, weights, true
}
