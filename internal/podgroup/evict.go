package podgroup

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler"
)

var _ scheduler.Evictor = (*Controller)(nil)

// Owns implements scheduler.Evictor.
func (c *Controller) Owns(gang string) bool {
	return slices.ContainsFunc([]string{podPrefix, groupPrefix, kubeGroupPrefix}, func(prefix string) bool {
		return strings.HasPrefix(gang, prefix)
	})
}

// GangOf implements scheduler.Evictor. Pods of workflows are not evicted, because their steps would
// fail; nor are pods of DaemonSets, which would come back to the same node.
func (c *Controller) GangOf(p *corev1.Pod) (string, bool) {
	if !c.foreign(p) || p.Labels[argov1alpha1.LabelWorkflow] != "" {
		return "", false
	}
	if o := metav1.GetControllerOfNoCopy(p); o != nil && slices.Contains([]string{"DaemonSet", workflowKind}, o.Kind) {
		return "", false
	}
	k, known := c.keyOf(p)
	return k.String(), known
}

// Describe implements scheduler.Evictor.
func (c *Controller) Describe(gang string) (scheduler.GangTerms, bool) {
	k := keyFrom(gang)
	if k.pod {
		p, exists := c.cfg.Informers.Pods.Get(k.name.Namespace, k.name.Name)
		if !exists {
			return scheduler.GangTerms{}, false
		}
		return scheduler.GangTerms{Priority: c.cfg.Cluster.PriorityOf(p), MinMember: 1}, true
	}
	if k.kube {
		g := c.kubeGroup(k)
		if g == nil {
			return scheduler.GangTerms{}, false
		}
		return c.kubeTerms(g), true
	}
	pg, exists := c.cfg.Informers.PodGroups.Get(k.name.Namespace, k.name.Name)
	if !exists {
		return scheduler.GangTerms{}, false
	}
	t := scheduler.TermsOf(pg)
	t.MinMember, t.Min = int(pg.Spec.MinMember), map[string]int{}
	if policies, err := policiesOf(pg); err == nil {
		t.MinMember = max(t.MinMember, policies.pods())
	}
	for task, n := range pg.Spec.MinTaskMember {
		t.Min[task] = int(n)
	}
	value, known := c.cfg.Cluster.Priority(pg.Spec.PriorityClassName)
	known = known && pg.Spec.PriorityClassName != ""
	if known {
		t.Priority = value
	}
	for _, p := range c.cfg.Informers.Pods.ByIndex(informer.PodsByGroup, k.name.String()) {
		if p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			t.Pods++
		}
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			t.MinMember = max(0, t.MinMember-1)
			if t.Min[taskOf(p)] > 0 {
				t.Min[taskOf(p)]--
			}
		case p.Status.Phase != corev1.PodFailed && !known:
			t.Priority = max(t.Priority, c.cfg.Cluster.PriorityOf(p))
		}
	}
	return t, true
}

// Evict implements scheduler.Evictor. As with other schedulers, pods get the condition
// DisruptionTarget first: the controllers of Jobs may then not count them as failed.
func (c *Controller) Evict(x scheduler.Eviction) {
	why := fmt.Sprintf("it leaves%s: %s %s", x.Claimant(keyFrom(x.Gang).name.Namespace), x.Gang, x.Why)
	condition, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.PodCondition{{
		Type: corev1.DisruptionTarget, Status: corev1.ConditionTrue, Reason: corev1.PodReasonPreemptionByScheduler, Message: why,
		LastTransitionTime: metav1.NewTime(c.cfg.Clock.Now()),
	}}}})
	if err != nil {
		c.cfg.Log.Error("encoding a condition", "error", err)
		return
	}
	for _, ref := range x.Pods {
		p, exists := c.cfg.Informers.Pods.Get(ref.Name.Namespace, ref.Name.Name)
		if !exists || p.UID != ref.UID || p.DeletionTimestamp != nil {
			continue
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID}}
		m := apiwriter.Meta{Owner: x.Gang, Reason: "evict", StatusOnly: true}
		c.cfg.Writer.Patch(m, pod, types.StrategicMergePatchType, condition, func(_ apiwriter.Object, err error) {
			if err != nil {
				c.cfg.Log.Warn("a pod to be evicted did not get its condition", "pod", ref.Name, "error", err)
			}
			c.cfg.Writer.Event(p, corev1.EventTypeNormal, "Evicted", why)
			c.cfg.Writer.Delete(apiwriter.Meta{Owner: x.Gang, Reason: "evict"}, pod, apiwriter.DeleteOptions{}, func(err error) {
				if err != nil {
					c.cfg.Log.Warn("a pod could not be evicted", "pod", ref.Name, "error", err)
				}
			})
		})
	}
}
