package batch

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/scheduler"
)

// divides reports whether placement must know the partitions of a task. If all are required, and each
// may be anywhere, they are simply the task's pods.
func divides(p *api.PartitionPolicySpec) bool {
	return p != nil && p.PartitionSize > 0 && (p.NetworkTopology != nil || p.MinPartitions > 0 && p.MinPartitions < p.TotalPartitions)
}

// wantNodes returns the slots of a task, from one index to another, that need nodes. fresh means that
// the scheduler may not know of some. The template represents their pods.
func (c *Controller) wantNodes(r *record, t *task, from, to int) (refs []podset.Ref, template *corev1.Pod, fresh bool) {
	template = t.Plan
	for i := from; i < to; i++ {
		slot, ok := &t.Slots()[i], false
		switch slot.State() {
		case podset.Queued:
			ok = true
		case podset.Absent:
			ok = !t.BindLater
			fresh = fresh || ok
		case podset.Unbound:
			p, exists := c.Informers.Pods.Get(r.key.Namespace, t.PodName(i))
			switch ok = exists && p.UID == slot.UID() && len(p.Spec.SchedulingGates) == 0; {
			case ok:
				template, fresh = p, true
			case exists && p.UID == slot.UID():
				r.gated++
			}
		}
		if ok {
			refs = append(refs, t.ref(i))
		}
	}
	return refs, template, fresh
}

// addPartitions adds the partitions of a task to a gang, those first that have nodes for some of their
// pods. It returns the number of slots added, whether the scheduler may not know of some, and whether
// there are enough for the minimum. Partitions of which pods are being created or deleted are left out until that is over. required means that the
// gang needs the task's minimum. In a gang that has been complete, pods of a partition are replaced one
// by one, as long as the partition has any.
func (c *Controller) addPartitions(r *record, t *task, p *api.PartitionPolicySpec, required, ran bool,
	g *scheduler.Gang, slots *[][]podset.Ref) (found int32, fresh, enough bool) {
	type partition struct {
		scheduler.Part
		refs     []podset.Ref
		template *corev1.Pod
		fresh    bool
	}
	size := int(p.PartitionSize)
	var list []partition
	complete := 0
	for from := 0; from+size <= int(t.Replicas); from += size {
		one := partition{Part: scheduler.Part{Set: len(g.MinParts), Size: size, Near: scheduler.NearOf(p.NetworkTopology)}}
		held := 0
		for i := from; i < from+size; i++ {
			if state := t.Slots()[i].State(); state.Holds() {
				held++
				if !state.Ended() {
					one.Mates = append(one.Mates, types.NamespacedName{Namespace: r.key.Namespace, Name: t.PodName(i)})
				}
			}
		}
		if held == size {
			complete++
			continue
		}
		one.refs, one.template, one.fresh = c.wantNodes(r, t, from, from+size)
		switch one.Size -= held; {
		case ran && held > 0:
			one.Size = 1
		case len(one.refs) < one.Size:
			continue
		}
		if len(one.refs) > 0 {
			list = append(list, one)
		}
	}
	slices.SortStableFunc(list, func(a, b partition) int { return a.Size - b.Size })
	least := 0
	if required {
		least = max(0, int(t.pods.Min)/size-complete)
	}
	g.MinParts = append(g.MinParts, least)
	for _, one := range list {
		one.Demands = []int{len(g.Demands)}
		g.Parts = append(g.Parts, one.Part)
		g.Demands = append(g.Demands, scheduler.Demand{Template: one.template})
		*slots = append(*slots, one.refs)
		found += int32(len(one.refs))
		fresh = fresh || one.fresh
	}
	return found, fresh, least <= len(list)
}
