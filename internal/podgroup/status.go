package podgroup

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/unsupported"
)

// reasonInvalidSubGroups is the reason of a group that waits because its subGroupPolicy is not valid.
const reasonInvalidSubGroups = "InvalidSubGroupPolicy"

// waitReason says why a group or a pod waits.
type waitReason struct {
	reason  string // reason of a PodGroup's condition
	message string
	figures string // the message with figures, for events; empty if it has none
	byQueue bool   // its queue does not accept it
}

// event returns the message of an event.
func (w *waitReason) event() string { return cmp.Or(w.figures, w.message) }

// patience is the multiple of ReportAfter for which a group may wait before that is reported. Most groups
// wait for less: for pods that are being created, or for pods that are ending. A report would cost one
// more write for the group, and one for each of its pods.
const patience = 5

// statusOf returns the status that a PodGroup should have. w is the reason for waiting to report,
// or nil; admitted means that the group's pods may be created. The result equals the old status if
// nothing has changed.
func statusOf(pg *schedulingv1beta1.PodGroup, m members, w *waitReason, admitted bool, now metav1.Time) schedulingv1beta1.PodGroupStatus {
	s := *pg.Status.DeepCopy()
	s.Running, s.Succeeded, s.Failed = int32(m.running), int32(m.ended.succeeded), int32(m.ended.failed)

	// Binds in flight may still fail, so only bound pods that have been seen count.
	seen := m.bound + m.ended.succeeded
	switch {
	case m.pods() == 0 && !m.none():
		s.Phase = schedulingv1beta1.PodGroupCompleted
	case seen > 0 && seen >= int(pg.Spec.MinMember) && !m.lacks:
		s.Phase = schedulingv1beta1.PodGroupRunning
	case m.bound > 0 && m.binding == 0:
		s.Phase = schedulingv1beta1.PodGroupUnknown
	case w != nil && w.byQueue:
		s.Phase = schedulingv1beta1.PodGroupPending
	case w != nil || pg.Status.Unwritten() || admitted:
		s.Phase = schedulingv1beta1.PodGroupInqueue
	}

	switch s.Phase {
	case schedulingv1beta1.PodGroupRunning:
		s.Conditions = without(s.Conditions, schedulingv1beta1.PodGroupUnschedulable)
		s.Conditions = with(s.Conditions, schedulingv1beta1.PodGroupCondition{
			Type: schedulingv1beta1.PodGroupScheduled, Status: corev1.ConditionTrue, Reason: "MinimumPlaced",
			Message: "the minimum of pods has nodes",
		}, now)
	case schedulingv1beta1.PodGroupCompleted:
		s.Conditions = without(s.Conditions, schedulingv1beta1.PodGroupUnschedulable)
	default:
		switch {
		case w == nil && admitted:
			s.Conditions = without(s.Conditions, schedulingv1beta1.PodGroupUnschedulable)
		case w != nil:
			s.Conditions = without(s.Conditions, schedulingv1beta1.PodGroupScheduled)
			s.Conditions = with(s.Conditions, schedulingv1beta1.PodGroupCondition{
				Type: schedulingv1beta1.PodGroupUnschedulable, Status: corev1.ConditionTrue, Reason: w.reason, Message: w.message,
			}, now)
		}
	}
	// The PodGroup was malformed and is valid now.
	s.Conditions = without(s.Conditions, schedulingv1beta1.ConditionValid)
	if message, _ := unsupported.In(pg, notSupported); message != "" {
		s.Conditions = with(s.Conditions, schedulingv1beta1.PodGroupCondition{
			Type: schedulingv1beta1.PodGroupSupported, Status: corev1.ConditionFalse, Reason: unsupported.Reason,
			Message: message,
		}, now)
	} else {
		s.Conditions = without(s.Conditions, schedulingv1beta1.PodGroupSupported)
	}
	return s
}

// notSupported lists the fields of PodGroups that the API has and this package ignores.
var notSupported = []unsupported.Field[*schedulingv1beta1.PodGroup]{
	{
		Path: "metadata.annotations[" + schedulingv1beta1.SLAWaitingTimeAnnotation + "] (it is no positive duration)",
		Used: func(pg *schedulingv1beta1.PodGroup) bool { _, ok := schedulingv1beta1.WaitingTime(pg); return !ok },
	},
	{
		Path: "metadata.annotations[" + schedulingv1beta1.JDBMinAvailableAnnotation + "] and [" + schedulingv1beta1.JDBMaxUnavailableAnnotation +
			"] (want one of them, a positive number or a percentage from 1% to 99%)",
		Used: func(pg *schedulingv1beta1.PodGroup) bool { _, ok := schedulingv1beta1.BudgetOf(pg); return !ok },
	},
	{
		Path: "metadata.annotations[" + schedulingv1beta1.RevocableZoneAnnotation + "] (want * or names of zones)",
		Used: func(pg *schedulingv1beta1.PodGroup) bool {
			_, ok := schedulingv1beta1.ZonesOf(pg.Annotations)
			return !ok
		},
	},
	{
		Path: "metadata.annotations[volcano.sh/task-topology-...] (only of Jobs; pods of others state a podAffinity)",
		Used: func(pg *schedulingv1beta1.PodGroup) bool {
			return pg.Annotations[schedulingv1beta1.TaskAffinityAnnotation] != "" ||
				pg.Annotations[schedulingv1beta1.TaskAntiAffinityAnnotation] != "" || pg.Annotations[schedulingv1beta1.TaskOrderAnnotation] != ""
		},
	},
	{
		Path: "spec.topologyAffinity",
		Used: func(pg *schedulingv1beta1.PodGroup) bool {
			t := pg.Spec.TopologyAffinity
			return t != nil && (t.PodGroupAntiAffinity != nil || t.SubGroupAffinity != nil || t.SubGroupAntiAffinity != nil)
		},
	},
	{
		Path: "spec.minTaskMember (for tasks whose pods are in sub-groups)",
		Used: func(pg *schedulingv1beta1.PodGroup) bool {
			return len(pg.Spec.SubGroupPolicy) > 0 && len(pg.Spec.MinTaskMember) > 0
		},
	},
}

// UnsupportedIn returns the fields of a PodGroup that have no effect.
func UnsupportedIn(pg *schedulingv1beta1.PodGroup) []unsupported.Field[*schedulingv1beta1.PodGroup] {
	return unsupported.Used(pg, notSupported)
}

// with sets a condition. Its transition time changes only if its content does.
func with(in []schedulingv1beta1.PodGroupCondition, c schedulingv1beta1.PodGroupCondition, now metav1.Time) []schedulingv1beta1.PodGroupCondition {
	c.LastTransitionTime = now
	for i, old := range in {
		if old.Type == c.Type {
			if old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
				return in
			}
			in[i] = c
			return in
		}
	}
	return append(in, c)
}

func without(in []schedulingv1beta1.PodGroupCondition, t schedulingv1beta1.PodGroupConditionType) []schedulingv1beta1.PodGroupCondition {
	return slices.DeleteFunc(in, func(c schedulingv1beta1.PodGroupCondition) bool { return c.Type == t })
}

func sameStatus(a, b *schedulingv1beta1.PodGroupStatus) bool {
	return equality.Semantic.DeepEqual(a, b)
}

const (
	// settleTime is how long nothing may happen to a group before a status is written that is expected to
	// change again.
	settleTime = 5 * time.Second
	// settleMax is the longest time for which such a status is not written. Twenty pods take that long to
	// start on a cluster that has much else to start.
	settleMax = 30 * time.Second
)

// settling is a status that has not been written although it is out of date, because it is expected to
// change again. The zero value is no such status.
type settling struct {
	since   time.Time // when it was first out of date
	changed time.Time // when a pod last got a node, began to run, or ended
	counts  [5]int    // at that time: bound, being bound, running, succeeded, failed
}

// left returns for how long the status need not be written, at most; it has to be written if that is not
// positive.
func (s *settling) left(now time.Time, m members) time.Duration {
	if s.since.IsZero() {
		s.since = now
	}
	if counts := [5]int{m.bound, m.binding, m.running, m.ended.succeeded, m.ended.failed}; s.changed.IsZero() || counts != s.counts {
		s.changed, s.counts = now, counts
	}
	return min(settleTime-now.Sub(s.changed), settleMax-now.Sub(s.since))
}

// settles reports whether a status is expected to change again soon, and nobody waits for it: the pods
// of a group start, or end, one after the other, and a write for each would be as many writes as pods.
// ours means that the group was made for the owner of its pods, so nobody waits for it to be Running.
func settles(old, next *schedulingv1beta1.PodGroupStatus, m members, ours bool) bool {
	begins := ours && old.Unwritten() && next.Phase == schedulingv1beta1.PodGroupRunning
	counted := next.DeepCopy()
	counted.Running, counted.Succeeded, counted.Failed = old.Running, old.Succeeded, old.Failed
	return (begins || sameStatus(old, counted)) && m.running < m.bound+m.binding
}
