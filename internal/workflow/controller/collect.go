package controller

import (
	"errors"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
)

// podGCDelay is how long a pod stays after it is done where its workflow does not say otherwise: long enough for who follows
// its log.
const podGCDelay = 5 * time.Second

// effective is the spec of a workflow, whether or not it comes from a template.
func effective(w *wf.Workflow) *wf.WorkflowSpec {
	if w.Status.StoredWorkflowTemplateSpec != nil {
		return w.Status.StoredWorkflowTemplateSpec
	}
	return &w.Spec
}

// gcRule is a workflow's podGC, read.
type gcRule struct {
	strategy string
	delay    time.Duration
	selector labels.Selector
}

func readGC(gc *wf.PodGC) gcRule {
	if gc == nil || gc.Strategy == "" {
		return gcRule{}
	}
	rule := gcRule{strategy: gc.Strategy, delay: podGCDelay, selector: labels.Everything()}
	if gc.LabelSelector != nil {
		s, err := metav1.LabelSelectorAsSelector(gc.LabelSelector)
		if err != nil {
			return gcRule{} // it selects nothing that can be named; pods go with the workflow
		}
		rule.selector = s
	}
	if text := gc.DeleteDelayDuration; text != "" {
		if seconds, err := strconv.ParseInt(text, 10, 32); err == nil {
			rule.delay = time.Duration(seconds) * time.Second
		} else if d, err := time.ParseDuration(text); err == nil {
			rule.delay = d
		}
		rule.delay = max(0, rule.delay)
	}
	return rule
}

// pod says whether a pod is to go although its workflow runs.
func (g gcRule) pod(failed bool, of map[string]string) bool {
	switch g.strategy {
	case wf.PodGCOnPodCompletion:
	case wf.PodGCOnPodSuccess:
		if failed {
			return false
		}
	default:
		return false
	}
	return g.selector.Matches(labels.Set(of))
}

// workflow says whether a pod is to go now that its workflow is over.
func (g gcRule) workflow(phase wf.WorkflowPhase, failed bool, of map[string]string) bool {
	switch g.strategy {
	case wf.PodGCOnWorkflowCompletion:
	case wf.PodGCOnWorkflowSuccess:
		if phase != wf.WorkflowSucceeded {
			return false
		}
	default:
		return g.pod(failed, of)
	}
	return g.selector.Matches(labels.Set(of))
}

// collect deletes pods that have been there long enough, and, when the workflow is over, whatever has had its time.
func (c *Controller) collect(r *record) {
	if r.object == nil || r.object.DeletionTimestamp != nil {
		if r.run == nil {
			r.over.swept, r.done = true, nil
		}
		return
	}
	if r.run == nil {
		c.sweepOver(r)
	}
	if len(r.done) == 0 {
		return
	}
	spec := r.spec
	if spec == nil {
		spec = effective(r.object)
	}
	rule := readGC(spec.PodGC)
	now := c.Clock.Now()
	var next time.Time
	kept := r.done[:0]
	for _, d := range r.done {
		if d.state != doneWritten {
			kept = append(kept, d)
			continue
		}
		p, found := c.Informers.Pods.Get(r.key.Namespace, d.name)
		if !found || p.UID != d.uid || c.isLeaving(r, p) {
			continue
		}
		if !rule.pod(p.Status.Phase == corev1.PodFailed, p.Labels) {
			continue // it stays, or goes with the others
		}
		due := d.due.Add(rule.delay)
		if !ended(p) || due.After(now) {
			kept = append(kept, d)
			if due.After(now) && (next.IsZero() || due.Before(next)) {
				next = due
			}
			continue
		}
		c.deletePod(r, d.name, d.uid, nil, "pod-gc")
	}
	if r.done = kept; len(kept) == 0 {
		r.done = nil
	}
	if !next.IsZero() {
		c.loop.WakeAfter(r.key, next.Sub(now))
	}
}

// isLeaving says whether a pod is being deleted, or its deletion was asked for.
func (c *Controller) isLeaving(r *record, p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || r.deleting[p.UID]
}

// finished says that nothing is left to be waited for: answers to writes, or that pods are gone.
func (r *record) finished() bool {
	return r.run == nil && r.writing == 0 && r.next.empty() && r.creating == 0 && len(r.deleting) == 0 && r.over.swept && !r.over.expired
}

// sweepOver deletes what a workflow that is over leaves, each at its time.
func (c *Controller) sweepOver(r *record) {
	w := r.object
	if r.writing != 0 || !r.next.empty() {
		return
	}
	now := c.Clock.Now()
	spec := effective(w)
	rule := readGC(spec.PodGC)
	finished := w.Status.FinishedAt.Time
	later := false
	if rule.strategy != "" {
		for _, p := range c.Informers.Pods.ByIndex(cluster.PodsByController, string(w.UID)) {
			if c.isLeaving(r, p) || !rule.workflow(w.Status.Phase, p.Status.Phase == corev1.PodFailed, p.Labels) {
				continue
			}
			if wait := finished.Add(rule.delay).Sub(now); wait > 0 {
				later = true
				c.loop.WakeAfter(r.key, wait)
				continue
			}
			if !ended(p) {
				continue // it is on its way out
			}
			c.deletePod(r, p.Name, p.UID, nil, "pod-gc")
		}
	}
	r.over.swept = !later
	if left, expires := c.expiry(w); expires && left <= 0 && c.Keep(w) {
		c.loop.WakeAfter(r.key, keepFor)
	} else if expires && left <= 0 && !r.over.expired {
		r.over.expired = true
		key, uid := r.key, r.uid
		c.Writer.Delete(apiwriter.Meta{Owner: ownerKey(key), Reason: "workflow-ttl"}, w,
			apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground, Version: r.version}, func(err error) {
				if err != nil && !errors.Is(err, apiwriter.ErrStopped) {
					c.Log.Warn("deleting a workflow whose time is over failed", "workflow", key, "error", err)
					c.loop.Post(key, uid, func(r *record) { c.notDeleted(r, uid, deletion{name: key.Name}) })
				}
			})
	} else if expires && left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
}

// keepFor is how long a workflow that is still to be archived is left alone beyond its time.
const keepFor = 5 * time.Second

// expiry is how long a workflow that is over is still kept, if it is not kept for ever.
func (c *Controller) expiry(w *wf.Workflow) (left time.Duration, expires bool) {
	ttl := effective(w).TTLStrategy
	if ttl == nil || w.Status.FinishedAt.IsZero() {
		return 0, false
	}
	seconds := ttl.SecondsAfterCompletion
	switch {
	case w.Status.Phase == wf.WorkflowSucceeded && ttl.SecondsAfterSuccess != nil:
		seconds = ttl.SecondsAfterSuccess
	case w.Status.Phase != wf.WorkflowSucceeded && ttl.SecondsAfterFailure != nil:
		seconds = ttl.SecondsAfterFailure
	}
	if seconds == nil {
		return 0, false
	}
	return w.Status.FinishedAt.Add(time.Duration(*seconds) * time.Second).Sub(c.Clock.Now()), true
}

// collectable says whether there are pods that a workflow that is over wants deleted.
func (c *Controller) collectable(w *wf.Workflow) bool {
	rule := readGC(effective(w).PodGC)
	if rule.strategy == "" {
		return false
	}
	for _, p := range c.Informers.Pods.ByIndex(cluster.PodsByController, string(w.UID)) {
		if p.DeletionTimestamp == nil && rule.workflow(w.Status.Phase, p.Status.Phase == corev1.PodFailed, p.Labels) {
			return true
		}
	}
	return false
}
