package controller

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// postponed is a workflow that has not begun, because too many run or because the configuration
// cannot be read.
type postponed struct {
	retried bool // see begin
}

// limitOf returns the numbers of workflows that may run in the cluster, and in a namespace.
func (c *Controller) limitOf(namespace string) (all, own int) {
	s := c.Settings()
	all, own = s.Parallelism, s.NamespaceParallelism
	if ns, found := c.Informers.Namespaces.Get("", namespace); found {
		if n, err := strconv.Atoi(ns.Labels[wf.LabelParallelismLimit]); err == nil && n >= 0 {
			own = n
		}
	}
	return all, own
}

// limits reports whether the number of workflows of any namespace is limited.
func (c *Controller) limits() bool {
	return c.Settings().Limits() || len(c.Informers.LimitedNamespaces()) > 0
}

// followLimits registers handlers for the labels of namespaces.
func (c *Controller) followLimits() {
	changed := func(*corev1.Namespace) { c.countRunning() }
	c.Informers.Namespaces.Follow(changed, changed)
}

// hasBegun reports whether a workflow has begun, as far as the caches show it.
func (c *Controller) hasBegun(w *wf.Workflow) bool {
	return w.Status.Phase == wf.WorkflowRunning || !w.Status.StartedAt.IsZero() || len(w.Status.Nodes) > 0 ||
		len(c.Informers.Pods.ByIndex(informer.PodsByController, string(w.UID))) > 0
}

// countRunning counts all workflows anew, if any limit exists.
func (c *Controller) countRunning() {
	var running, waiting []*wf.Workflow
	if c.limits() {
		for _, w := range c.Informers.Workflows.List() {
			switch {
			case w.Status.Phase.Completed() || !c.Settings().Selects(w.Labels):
			case c.hasBegun(w):
				running = append(running, w)
			case c.Leads && c.Owns(w) && w.DeletionTimestamp == nil:
				waiting = append(waiting, w)
			}
		}
	}
	c.mayBegin(c.throttle.restart(running, waiting))
}

// countSeen counts a workflow as the watch shows it.
func (c *Controller) countSeen(w *wf.Workflow) {
	if !c.limits() {
		return
	}
	switch key := informer.KeyOf(w); {
	case w.Status.Phase.Completed() || !c.Settings().Selects(w.Labels):
		c.mayBegin(c.throttle.leave(key, w.UID))
	case w.Status.Phase == wf.WorkflowRunning:
		c.throttle.seen(key, w.UID)
	}
}

func (c *Controller) mayBegin(keys []types.NamespacedName) {
	for _, key := range keys {
		c.loop.Wake(key)
	}
}

// whyNot returns why a workflow must not begin, or "".
func (c *Controller) whyNot(w *wf.Workflow) string {
	s := c.Settings()
	if c.hasBegun(w) || w.Spec.Shutdown != wf.ShutdownNone || w.DeletionTimestamp != nil {
		return ""
	}
	if s.Refused != "" {
		return "waits: the ConfigMap " + s.From + " cannot be used: " + s.Refused
	}
	if !c.limits() {
		return ""
	}
	may, others := c.throttle.enter(w)
	c.mayBegin(others)
	if may {
		return ""
	}
	all, own := c.limitOf(w.Namespace)
	switch {
	case own == 0:
		return fmt.Sprintf("waits: %d workflows may run at a time (parallelism in the ConfigMap %s)", all, s.From)
	case all == 0:
		return fmt.Sprintf("waits: %d workflows of the namespace may run at a time", own)
	}
	return fmt.Sprintf("waits: %d workflows may run at a time, %d in the namespace", all, own)
}

// postpone prepares the record of a workflow that must not begin yet, and reports whether it is
// one. Only the leader lets workflows begin while their number is limited.
func (c *Controller) postpone(r *record, w *wf.Workflow, retried bool) bool {
	if !c.Leads && c.limits() && !c.hasBegun(w) {
		r.leaves = true
		return true
	}
	why := c.whyNot(w)
	if why == "" {
		return false
	}
	own := *w
	own.Status = *w.Status.DeepCopy()
	own.ResourceVersion = ""
	r.next.nodes = map[string]bool{}
	r.run, r.spec = engine.New(&own, engine.Config{}), own.EffectiveSpec()
	r.postponed = &postponed{retried}
	r.explain(c, why)
	return true
}

// explain lets the status of a postponed workflow say why it waits.
func (r *record) explain(c *Controller, why string) {
	s := &r.run.Workflow.Status
	if s.Phase == wf.WorkflowPending && s.Message == why {
		return
	}
	s.Phase, s.Message = wf.WorkflowPending, why
	r.news(c.Clock.Now())
	r.next.fields = true
}

// beginPostponed begins a postponed workflow if it may begin now.
func (c *Controller) beginPostponed(r *record) {
	if r.run == nil {
		r.postponed = nil // the workflow is being deleted
		return
	}
	if r.writing != 0 {
		return // the run must begin from the status that the write leaves
	}
	if why := c.whyNot(r.object); why != "" {
		r.explain(c, why)
		return
	}
	c.begin(r, r.object, r.postponed.retried)
}
