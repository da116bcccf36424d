package podgroup

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// A group starts when pods of it get nodes, or earlier: a group without pods is admitted, so that its
// pods may be created. Until it starts it announces its spec.minResources to the scheduler; from then
// on the part of it that no pod with a node requests is promised to it.
//
//	no pods, asks ──Commit──▶ admitted: Inqueue ──pods get nodes──▶ started ──they end──▶ Completed
//	      ▲                                                            │
//	      └──────────────── all its pods were deleted ─────────────────┘

// promised is what the scheduler was told last of the pods to come of a group.
type promised struct {
	queue   string
	amounts corev1.ResourceList
	unknown bool // the scheduler may have another amount
}

// started reports whether pods of the group have nodes.
func (m *members) started() bool { return m.bound+m.binding > 0 }

// none reports whether the group has no pods, not even ended ones.
func (m *members) none() bool { return m.pods()+m.ended.succeeded+m.ended.failed == 0 }

// pods returns the number of pods that have not ended.
func (m *members) pods() int { return m.bound + m.binding + m.gated + len(m.waiting) }

// asks reports whether a group without pods must be admitted before they are created. One whose pods
// have all ended needs none.
func (u *groupState) asks(pg *schedulingv1beta1.PodGroup, m members) bool {
	return pg != nil && m.none() && !u.admitted && pg.DeletionTimestamp == nil &&
		pg.Status.Phase != schedulingv1beta1.PodGroupCompleted
}

// outstanding returns the part of spec.minResources that is not requested by pods which have nodes or
// have succeeded, or nil.
func (c *Controller) outstanding(pg *schedulingv1beta1.PodGroup, m members) corev1.ResourceList {
	if pg.Spec.MinResources == nil {
		return nil
	}
	dims := c.cfg.Cluster.Dims()
	announced := corev1.ResourceList{}
	for name, amount := range *pg.Spec.MinResources {
		if !ofQuota(name) {
			announced[name] = amount
		}
	}
	left := dims.Vector(announced)
	for _, p := range m.held {
		request, _ := dims.PodVector(p)
		left = left.Plus(request, -1)
	}
	for dim := range left {
		left[dim] = max(left[dim], 0)
	}
	return dims.List(left)
}

// ofQuota reports whether a name is one that only ResourceQuotas have, such as requests.cpu and
// count/pods. Job controllers list these in minResources, too, for the quotas; nodes do not have them.
func ofQuota(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), corev1.DefaultResourceRequestsPrefix) ||
		strings.HasPrefix(string(name), "limits.") || strings.HasPrefix(string(name), "count/")
}

// promise tells the scheduler what the pods to come of a group will request: nothing before the group
// has started, and nothing when its pods have ended. The caller holds the lock.
func (c *Controller) promise(k key, u *groupState, pg *schedulingv1beta1.PodGroup, m members) {
	if m.started() || m.pods() == 0 && !m.none() {
		u.admitted = false // if it has no pods again, it asks again
	}
	var now promised
	if pg != nil && (m.started() || u.admitted) {
		if amounts := c.outstanding(pg, m); len(amounts) > 0 {
			_, queue := c.queueOf(k, pg, m)
			now = promised{queue: queue, amounts: amounts}
		}
	}
	if u.promised.unknown || u.promised.queue != now.queue || !equality.Semantic.DeepEqual(u.promised.amounts, now.amounts) {
		u.promised = now
		c.cfg.Scheduler.Promise(k.String(), now.queue, now.amounts)
	}
}

// promiseAll tells the scheduler of all groups that started before this process did, before it is
// asked for others.
func (c *Controller) promiseAll() {
	for _, pg := range c.cfg.Informers.PodGroups.List() {
		owner := metav1.GetControllerOf(pg)
		if pg.Spec.MinResources == nil || owner != nil && isOurJob(owner) {
			continue
		}
		k := key{name: types.NamespacedName{Namespace: pg.Namespace, Name: pg.Name}}
		m := countMembers(c.podsOf(k), c.isBinding)
		c.mu.Lock()
		c.promise(k, c.state(k, pg, m), pg, m)
		c.mu.Unlock()
	}
}
