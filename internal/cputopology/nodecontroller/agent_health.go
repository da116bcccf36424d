package nodecontroller

import (
	"fmt"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// podGrace is how long an agent's pod may be missing or not ready before the agent counts as gone.
// It is as long as the DaemonSet takes to replace the pod.
const podGrace = 20 * time.Second

// leaseDefault is the duration of leases that specify none.
const leaseDefault = 45 * time.Second

// agentMonitor determines whether the agent of one node is alive. It does not compare clocks of
// different machines: a lease's duration counts from when its renewal was seen.
type agentMonitor struct {
	missing time.Time // since when the pod has not been ready
	renewed time.Time // the lease's own renewal time
	heard   time.Time // when that renewal was first seen
}

// agentSigns are the objects by which an agent is judged.
type agentSigns struct {
	node  string
	pod   *corev1.Pod           // the pod in which the agent runs, or nil
	lease *coordinationv1.Lease // or nil
}

// verdict says whether the agent is alive, why not, and when to check again even if nothing has
// changed (zero: never).
type verdict struct {
	alive           bool
	reason, message string
	next            time.Time
}

// judge determines whether the agent of a NodeTopology is alive.
func (w *agentMonitor) judge(t *topologyv1alpha1.NodeTopology, s agentSigns, now time.Time) verdict {
	wasGone := meta.IsStatusConditionFalse(t.Status.Conditions, topologyv1alpha1.AgentAlive)
	switch l := t.Status.Liveness; {
	case l == nil:
		return verdict{alive: true}
	case l.Pod != "":
		return w.judgePod(l.Pod, s, wasGone, now)
	default:
		return w.judgeLease(l.Lease, s.lease, wasGone, now)
	}
}

func (w *agentMonitor) judgePod(name string, s agentSigns, wasGone bool, now time.Time) verdict {
	v := verdict{reason: "PodNotReady", message: fmt.Sprintf("the agent's pod %s is not ready", name)}
	switch {
	case s.pod == nil:
		v.reason, v.message = "NoPod", fmt.Sprintf("the agent's pod %s does not exist", name)
	case s.pod.Spec.NodeName != s.node:
		v.reason, v.message = "NoPod", fmt.Sprintf("pod %s is not on the node", name)
	case s.pod.DeletionTimestamp != nil:
		v.message = fmt.Sprintf("the agent's pod %s is being deleted", name)
	case podReady(s.pod):
		w.missing = time.Time{}
		return verdict{alive: true}
	}
	if w.missing.IsZero() {
		w.missing = now
	}
	if until := w.missing.Add(podGrace); !wasGone && now.Before(until) {
		return verdict{alive: true, next: until}
	}
	return v
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func (w *agentMonitor) judgeLease(name string, l *coordinationv1.Lease, wasGone bool, now time.Time) verdict {
	gone := verdict{reason: "LeaseExpired", message: fmt.Sprintf("the agent has not renewed its lease %s", name)}
	duration, renewed := leaseDefault, time.Time{}
	if l != nil && l.Spec.RenewTime != nil {
		renewed = l.Spec.RenewTime.Time
	}
	if l != nil && l.Spec.LeaseDurationSeconds != nil {
		duration = time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
	}
	switch first := w.heard.IsZero() && w.renewed.IsZero(); {
	case first && wasGone:
		w.renewed = renewed // possibly an old renewal; the next one will show
	case first, !renewed.Equal(w.renewed):
		w.renewed, w.heard = renewed, now
	}
	until := w.heard.Add(duration)
	if w.heard.IsZero() || !now.Before(until) {
		return gone
	}
	return verdict{alive: true, next: until}
}

// conditions returns the conditions of a NodeTopology, including the verdict. An agent that was
// never gone gets no condition.
func (v verdict) conditions(t *topologyv1alpha1.NodeTopology, now time.Time) []metav1.Condition {
	known := meta.FindStatusCondition(t.Status.Conditions, topologyv1alpha1.AgentAlive)
	if v.alive && (known == nil || known.Status == metav1.ConditionTrue) ||
		!v.alive && known != nil && known.Status == metav1.ConditionFalse {
		return t.Status.Conditions
	}
	c := metav1.Condition{Type: topologyv1alpha1.AgentAlive, Status: metav1.ConditionTrue, Reason: "Heard",
		Message:            "the agent is there",
		LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()}
	if !v.alive {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v.reason, v.message
	}
	out := append([]metav1.Condition(nil), t.Status.Conditions...)
	meta.SetStatusCondition(&out, c)
	return out
}

// split returns the namespace and name of a key.
func split(key string) (namespace, name string) {
	namespace, name, found := strings.Cut(key, "/")
	if !found {
		return "", key
	}
	return namespace, name
}
