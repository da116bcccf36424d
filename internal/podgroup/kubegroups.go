package podgroup

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/scheduler"
)

// Kubernetes has PodGroups of its own (scheduling.k8s.io), which pods name in spec.schedulingGroup. To
// the rest of this package such a group is the PodGroup that means the same:
//
//	gang: {minCount: N}                    minMember: N
//	basic                                  minMember: 1: every pod is placed as it fits
//	schedulingConstraints.topology[0].key  networkTopology: hard, up to the tier of that name
//
// Nobody waits for such a group to be admitted, so it is requested once it has pods. Its status has
// conditions only, which are those that the kube-scheduler would write.

// kubeGroupKey returns the key of Kubernetes' PodGroup.
func kubeGroupKey(g *schedulingv1alpha2.PodGroup) key {
	return key{kube: true, name: informer.KeyOf(g)}
}

// groupOf returns the PodGroup of a key, or nil.
func (c *Controller) groupOf(k key) *schedulingv1beta1.PodGroup {
	switch {
	case k.pod:
		return nil
	case k.kube:
		if g := c.kubeGroup(k); g != nil {
			return fromKube(g)
		}
		return nil
	}
	pg, _ := c.cfg.Informers.PodGroups.Get(k.name.Namespace, k.name.Name)
	return pg
}

// kubeGroup returns Kubernetes' PodGroup of a key, or nil.
func (c *Controller) kubeGroup(k key) *schedulingv1alpha2.PodGroup {
	if !k.kube {
		return nil
	}
	g, _ := c.cfg.Informers.KubePodGroups.Get(k.name.Namespace, k.name.Name)
	return g
}

// fromKube returns the PodGroup that means the same as one of Kubernetes.
func fromKube(g *schedulingv1alpha2.PodGroup) *schedulingv1beta1.PodGroup {
	pg := &schedulingv1beta1.PodGroup{ObjectMeta: g.ObjectMeta, Spec: schedulingv1beta1.PodGroupSpec{
		MinMember: int32(minCount(g)), PriorityClassName: g.Spec.PriorityClassName, Queue: g.Annotations[schedulingv1beta1.QueueNameAnnotation],
	}}
	if constraints := g.Spec.SchedulingConstraints; constraints != nil && len(constraints.Topology) > 0 {
		pg.Spec.NetworkTopology = &schedulingv1beta1.NetworkTopologySpec{
			Mode: schedulingv1beta1.HardNetworkTopology, HighestTierName: constraints.Topology[0].Key,
		}
	}
	return pg
}

// minCount returns the number of pods that get nodes at once or not at all.
func minCount(g *schedulingv1alpha2.PodGroup) int {
	if gang := g.Spec.SchedulingPolicy.Gang; gang != nil {
		return int(gang.MinCount)
	}
	return 1
}

// missing says why the PodGroup of a key cannot be used, or nothing.
func (c *Controller) missing(k key, pg *schedulingv1beta1.PodGroup) string {
	if !k.kube {
		if pg != nil {
			return ""
		}
		if fault := c.cfg.Informers.PodGroups.Malformed(k.name.Namespace, k.name.Name); fault != nil {
			return fault.Error()
		}
		return fmt.Sprintf("PodGroup %q does not exist", k.name.Name)
	}
	if pg == nil {
		if fault := c.cfg.Informers.KubePodGroups.Malformed(k.name.Namespace, k.name.Name); fault != nil {
			return fault.Error()
		}
		why := "does not exist"
		if absent := c.cfg.Informers.KubePodGroups.Absent(); absent != "" {
			why = "cannot be read: " + absent
		}
		return fmt.Sprintf("PodGroup %q of %s in spec.schedulingGroup %s", k.name.Name, schedulingv1alpha2.SchemeGroupVersion, why)
	}
	if g := c.kubeGroup(k); g != nil && len(g.Spec.ResourceClaims) > 0 {
		return "spec.resourceClaims of the PodGroup is not supported; pods can have claims of their own"
	}
	return ""
}

// kubeTerms returns on which terms pods of Kubernetes' PodGroup are evicted, with the numbers of its
// pods that have not ended and that have succeeded.
func (c *Controller) kubeTerms(g *schedulingv1alpha2.PodGroup) scheduler.GangTerms {
	t := scheduler.TermsOf(g)
	priority, succeeded := int32(0), 0
	for _, p := range c.podsOf(kubeGroupKey(g)) {
		switch p.Status.Phase {
		case corev1.PodSucceeded:
			succeeded++
		case corev1.PodFailed:
		default:
			if t.Pods++; t.Pods == 1 {
				priority = c.cfg.Cluster.PriorityOf(p)
			}
			priority = max(priority, c.cfg.Cluster.PriorityOf(p))
		}
	}
	t.Priority = priority
	if g.Spec.Priority != nil {
		t.Priority = *g.Spec.Priority
	}
	switch mode := g.Spec.DisruptionMode; {
	case mode != nil && *mode == schedulingv1alpha2.DisruptionModePodGroup:
		t.MinMember = t.Pods
	case mode == nil && g.Spec.SchedulingPolicy.Gang != nil:
		t.MinMember = max(0, minCount(g)-succeeded)
	}
	return t
}

// latestKube returns a PodGroup with the conditions that were last written, which the informer may not
// show yet.
func (u *groupState) latestKube(g *schedulingv1alpha2.PodGroup) *schedulingv1alpha2.PodGroup {
	if w := u.kubeWritten; w != nil && (w.UID != g.UID || !u.underWay && !informer.Older(g.ResourceVersion, w.ResourceVersion)) {
		u.kubeWritten = nil
	}
	return cmp.Or(u.kubeWritten, g)
}

// reportKube writes the condition of Kubernetes' PodGroup if it is out of date: w is the reason for
// waiting to report, or nil. As with the kube-scheduler, a group that was scheduled once stays so.
func (c *Controller) reportKube(k key, u *groupState, m members, w *waitReason, now metav1.Time) {
	g := c.kubeGroup(k)
	if g == nil || g.DeletionTimestamp != nil {
		return
	}
	g = u.latestKube(g)
	condition := metav1.Condition{Type: schedulingv1alpha2.PodGroupScheduled, ObservedGeneration: g.Generation, LastTransitionTime: now}
	switch seen := m.bound + m.ended.succeeded; {
	case apimeta.IsStatusConditionTrue(g.Status.Conditions, condition.Type):
		return
	case seen > 0 && seen >= minCount(g):
		condition.Status, condition.Reason, condition.Message = metav1.ConditionTrue, "Scheduled", "the minimum of pods has nodes"
	case w != nil && m.binding == 0:
		condition.Status, condition.Reason = metav1.ConditionFalse, schedulingv1alpha2.PodGroupReasonUnschedulable
		condition.Message = w.message
	default:
		return
	}
	status := *g.Status.DeepCopy()
	if !apimeta.SetStatusCondition(&status.Conditions, condition) {
		return
	}
	if condition.Status == metav1.ConditionFalse {
		c.cfg.Writer.Event(g, corev1.EventTypeWarning, "FailedScheduling", w.event())
	}
	next := &schedulingv1alpha2.PodGroup{ObjectMeta: g.ObjectMeta, Spec: g.Spec, Status: status}
	u.kubeWritten, u.underWay = next, true
	c.cfg.Writer.Status(apiwriter.Meta{Owner: k.String(), Reason: "podgroup-status"}, next, false, func(obj apiwriter.Object, err error) {
		c.mu.Lock()
		if u.kubeWritten == next { // otherwise a later write is in flight
			u.underWay, u.kubeWritten = false, nil
			if g, ok := obj.(*schedulingv1alpha2.PodGroup); ok && err == nil && malformed.Of(g) == nil {
				u.kubeWritten = g
			}
		}
		c.mu.Unlock()
		c.written(k, err)
	})
}
