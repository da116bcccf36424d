package controller

import (
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
)

// podGCDelay is the default of podGC.deleteDelayDuration: a finished pod stays this long, so that a
// client that follows its log can read the end.
const podGCDelay = 5 * time.Second

// gcRule is a parsed podGC.
type gcRule struct {
	strategy string
	delay    time.Duration
	selector labels.Selector
}

// readGC parses a podGC. delay is the default of its delay; nil: podGCDelay.
func readGC(gc *wf.PodGC, delay *time.Duration) gcRule {
	if gc == nil || gc.Strategy == "" {
		return gcRule{}
	}
	rule := gcRule{strategy: gc.Strategy, delay: ptr.Deref(delay, podGCDelay), selector: labels.Everything()}
	if gc.LabelSelector != nil {
		s, err := metav1.LabelSelectorAsSelector(gc.LabelSelector)
		if err != nil {
			// An invalid selector selects nothing; the pods are deleted with the workflow.
			return gcRule{}
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

// pod reports whether a finished pod is to be deleted while its workflow runs.
func (g gcRule) pod(failed bool, of map[string]string) bool {
	wanted := g.strategy == wf.PodGCOnPodCompletion || g.strategy == wf.PodGCOnPodSuccess && !failed
	return wanted && g.selector.Matches(labels.Set(of))
}

// workflow reports whether a pod is to be deleted after its workflow has finished.
func (g gcRule) workflow(phase wf.WorkflowPhase, failed bool, of map[string]string) bool {
	wanted := g.strategy == wf.PodGCOnWorkflowCompletion || g.strategy == wf.PodGCOnWorkflowSuccess && phase == wf.WorkflowSucceeded
	return wanted && g.selector.Matches(labels.Set(of)) || g.pod(failed, of)
}

// collect deletes pods whose podGC delay is over and, if the workflow has finished, its remaining
// pods and the workflow itself when they are due.
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
		spec = r.object.EffectiveSpec()
	}
	configured := c.Settings()
	rule := readGC(spec.PodGC, configured.PodGCDelay)
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
			continue // the pod stays, or is deleted when the workflow has finished
		}
		due := d.due.Add(rule.delay)
		if !ended(p) || due.After(now) {
			kept = append(kept, d)
			if due.After(now) && (next.IsZero() || due.Before(next)) {
				next = due
			}
			continue
		}
		r.pods.DeletePod(podset.Deletion{Name: d.name, UID: d.uid, Grace: configured.PodGCGrace, Reason: "pod-gc"})
	}
	if r.done = kept; len(kept) == 0 {
		r.done = nil
	}
	if !next.IsZero() {
		c.loop.WakeAfter(r.key, next.Sub(now))
	}
}

// isLeaving reports whether a pod is being deleted, or its deletion was requested.
func (c *Controller) isLeaving(r *record, p *corev1.Pod) bool {
	return p.DeletionTimestamp != nil || r.pods.Deleting(p.UID)
}

// finished reports whether the record can be dropped: no answers to writes and no deletions of pods
// are outstanding.
func (r *record) finished() bool {
	return r.run == nil && r.writing == 0 && r.next.empty() && r.pods.Writing() == 0 && r.pods.Deletions() == 0 && r.over.swept && !r.over.expired
}

// sweepOver deletes the pods of a finished workflow that are due by its podGC, and the workflow
// itself when its TTL is over.
func (c *Controller) sweepOver(r *record) {
	w := r.object
	if r.writing != 0 || !r.next.empty() {
		return
	}
	now := c.Clock.Now()
	spec := w.EffectiveSpec()
	configured := c.Settings()
	rule := readGC(spec.PodGC, configured.PodGCDelay)
	finished := w.Status.FinishedAt.Time
	later := false
	if rule.strategy != "" {
		for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(w.UID)) {
			if c.isLeaving(r, p) || !rule.workflow(w.Status.Phase, p.Status.Phase == corev1.PodFailed, p.Labels) {
				continue
			}
			if wait := finished.Add(rule.delay).Sub(now); wait > 0 {
				later = true
				c.loop.WakeAfter(r.key, wait)
				continue
			}
			if !ended(p) {
				continue // the pod is terminating
			}
			r.pods.DeletePod(podset.Deletion{Name: p.Name, UID: p.UID, Grace: configured.PodGCGrace, Reason: "pod-gc"})
		}
	}
	r.over.swept = !later
	if left, expires := c.expiry(w); expires && left <= 0 && c.Keep(w) {
		c.loop.WakeAfter(r.key, keepFor)
	} else if expires && left <= 0 && !r.over.expired {
		r.over.expired = true
		r.pods.DeleteOwner(w, r.version, "workflow-ttl")
	} else if expires && left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
}

// keepFor is the delay before the deletion of an expired workflow that still has to be archived is
// tried again.
const keepFor = 5 * time.Second

// expiry returns how long a finished workflow is still kept. expires is false if it has no TTL.
func (c *Controller) expiry(w *wf.Workflow) (left time.Duration, expires bool) {
	if c.retired.has(w.UID) && w.Status.Phase.Completed() {
		return 0, true
	}
	ttl := w.EffectiveSpec().TTLStrategy
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

// collectable reports whether the podGC of a finished workflow selects pods that still exist.
func (c *Controller) collectable(w *wf.Workflow) bool {
	rule := readGC(w.EffectiveSpec().PodGC, c.Settings().PodGCDelay)
	if rule.strategy == "" {
		return false
	}
	for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(w.UID)) {
		if p.DeletionTimestamp == nil && rule.workflow(w.Status.Phase, p.Status.Phase == corev1.PodFailed, p.Labels) {
			return true
		}
	}
	return false
}
