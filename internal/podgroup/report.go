package podgroup

import (
	"errors"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/podset"
)

// report writes the statuses that are out of date. The caller holds the lock.
func (c *Controller) report(k key, u *groupState, pg *schedulingv1beta1.PodGroup, m members) {
	now := metav1.NewTime(c.cfg.Clock.Now())
	var w *waitReason
	if u.waiting != nil {
		after := c.cfg.ReportAfter
		if !k.pod {
			after *= patience
		}
		if due := after - now.Sub(u.since); due > 0 {
			c.loop.WakeAfter(k, due)
		} else {
			w = u.waiting
		}
	}
	if w != nil {
		for _, p := range m.waiting {
			c.reportPod(k, p, w, now)
		}
	}
	if pg == nil || pg.DeletionTimestamp != nil {
		return
	}
	if k.kube {
		c.reportKube(k, u, m, w, now)
		return
	}
	status := statusOf(pg, m, w, u.admitted, now)
	if sameStatus(&status, &pg.Status) {
		u.unsettled = settling{}
		return
	}
	if w == nil && m.bound == 0 && m.ended.succeeded+m.ended.failed == 0 && !awaited(u, pg, m) {
		// Nothing worth a write of its own has happened yet. The reason for waiting, or the running
		// state, follows soon.
		if u.waiting != nil || u.gang != nil || m.binding > 0 {
			return
		}
		if age := now.Sub(pg.CreationTimestamp.Time); age < c.cfg.ReportAfter {
			c.loop.WakeAfter(k, c.cfg.ReportAfter-age)
			return
		}
	}
	if m.binding > 0 && status.Phase != schedulingv1beta1.PodGroupRunning {
		return // the result of the binds in flight follows soon
	}
	if settles(&pg.Status, &status, m, c.ownerOf(k) != nil) {
		if left := u.unsettled.left(now.Time, m); left > 0 {
			c.loop.WakeAfter(k, left)
			return
		}
	}
	u.unsettled = settling{}
	next := &schedulingv1beta1.PodGroup{ObjectMeta: pg.ObjectMeta, Spec: pg.Spec, Status: status}
	urgent := status.Phase == schedulingv1beta1.PodGroupCompleted
	if w != nil && !told(pg, w) && status.Phase != schedulingv1beta1.PodGroupRunning {
		c.cfg.Writer.Event(pg, corev1.EventTypeWarning, "FailedScheduling", w.event())
	}
	u.written, u.underWay = next, true
	c.cfg.Writer.Status(apiwriter.Meta{Owner: k.String(), Reason: "podgroup-status"}, next, urgent, func(obj apiwriter.Object, err error) {
		c.statusWritten(k, u, next, obj, err)
	})
}

// awaited reports whether somebody may be waiting for a group's phase to become Inqueue. Operators,
// which own their groups, create pods only then. Others create them without waiting, which saves a
// write, unless the group has said that it is Pending.
func awaited(u *groupState, pg *schedulingv1beta1.PodGroup, m members) bool {
	if !u.admitted || !m.none() {
		return false
	}
	if pg.Status.Unwritten() {
		return len(pg.OwnerReferences) > 0
	}
	return pg.Status.Phase == schedulingv1beta1.PodGroupPending
}

func (c *Controller) statusWritten(k key, u *groupState, sent *schedulingv1beta1.PodGroup, obj apiwriter.Object, err error) {
	c.mu.Lock()
	if u.written == sent { // otherwise a later write is in flight
		u.underWay = false
		if pg, ok := obj.(*schedulingv1beta1.PodGroup); ok && err == nil && malformed.Of(pg) == nil {
			u.written = pg
		} else {
			u.written = nil
		}
	}
	c.mu.Unlock()
	c.written(k, err)
}

// written ends a write of a group's status. A write that failed is repeated, unless the group is gone.
func (c *Controller) written(k key, err error) {
	switch {
	case err == nil:
		c.loop.Succeeded(k)
	case !errors.Is(err, apiwriter.ErrStopped) && !apierrors.IsNotFound(err):
		c.loop.Retry(k)
	}
}

// told reports whether the PodGroup's condition already gives this reason.
func told(pg *schedulingv1beta1.PodGroup, w *waitReason) bool {
	return slices.ContainsFunc(pg.Status.Conditions, func(c schedulingv1beta1.PodGroupCondition) bool {
		return c.Type == schedulingv1beta1.PodGroupUnschedulable && c.Reason == w.reason && c.Message == w.message
	})
}

// reportPod writes the reason why a pod waits into its PodScheduled condition, where people and
// autoscalers look.
func (c *Controller) reportPod(k key, p *corev1.Pod, w *waitReason, now metav1.Time) {
	next := podset.Unschedulable(p, corev1.PodReasonUnschedulable, w.message, now)
	if next == nil {
		return
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	r := c.reports[name]
	if r != nil && (r.underWay || r.uid == p.UID && r.message == w.message) {
		return // a write is in flight and will requeue the key, or it is done and not yet seen
	}
	r = &podReport{uid: p.UID, message: w.message, underWay: true}
	c.reports[name] = r
	if k.pod {
		c.cfg.Writer.Event(p, corev1.EventTypeWarning, "FailedScheduling", w.event())
	}
	c.cfg.Writer.Status(apiwriter.Meta{Owner: k.String(), Reason: "pod-unschedulable"}, next, false, func(_ apiwriter.Object, err error) {
		c.mu.Lock()
		r.underWay = false
		then := r.then
		r.then = nil
		if err != nil && c.reports[name] == r {
			delete(c.reports, name)
		}
		c.mu.Unlock()
		for _, do := range then {
			do()
		}
		switch {
		case err == nil:
			c.loop.Wake(k) // there may be something else to report by now
		case !errors.Is(err, apiwriter.ErrStopped) && !apierrors.IsNotFound(err):
			c.loop.Retry(k)
		}
	})
}
