package controller

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/workflow/engine"
)

// missingMax is how long after its creation a workflow waits for a template that the watch has not
// shown: the template may have been created just before the workflow.
const missingMax = 3 * time.Second

// templateWaiters maps templates that are malformed, or not seen yet, to the workflows that refer to
// them. These workflows do not begin before the template can be decoded.
type templateWaiters struct {
	mu sync.Mutex
	by map[types.NamespacedName]map[types.NamespacedName]bool
}

// templateFault returns the error that explains why an existing template cannot be decoded, or nil.
func (c *Controller) templateFault(ofCluster bool, namespace, name string) *malformed.Error {
	if ofCluster {
		return c.Informers.ClusterWorkflowTemplates.Malformed("", name)
	}
	return c.Informers.WorkflowTemplates.Malformed(namespace, name)
}

// followTemplates registers handlers that wake workflows when a template that they wait for can be
// decoded.
func (c *Controller) followTemplates() {
	c.Informers.WorkflowTemplates.Handle(informer.Handler[*wf.WorkflowTemplate]{
		Added: func(t *wf.WorkflowTemplate) { c.wakeWaiting(informer.KeyOf(t)) },
	})
	c.Informers.ClusterWorkflowTemplates.Handle(informer.Handler[*wf.ClusterWorkflowTemplate]{
		Added: func(t *wf.ClusterWorkflowTemplate) { c.wakeWaiting(informer.KeyOf(t)) },
	})
}

// wakeWaiting wakes the workflows that wait for a template.
func (c *Controller) wakeWaiting(template types.NamespacedName) {
	c.templateWaiters.mu.Lock()
	waiting := c.templateWaiters.by[template]
	delete(c.templateWaiters.by, template)
	c.templateWaiters.mu.Unlock()
	for key := range waiting {
		c.loop.Wake(key)
	}
}

// sweepAwaited wakes the workflows that wait for a template that is not malformed any more. This is
// for templates that were deleted: no handler is called for an object that is not in the cache.
func (c *Controller) sweepAwaited() {
	c.templateWaiters.mu.Lock()
	templates := slices.Collect(maps.Keys(c.templateWaiters.by))
	c.templateWaiters.mu.Unlock()
	for _, t := range templates {
		if c.templateFault(t.Namespace == "", t.Namespace, t.Name) == nil {
			c.wakeWaiting(t)
		}
	}
}

// waitsForTemplate reports whether a workflow has to wait because a template that it refers to is
// malformed, or is missing and may still appear. If so, it registers the workflow to be woken when
// the template can be decoded. It calls Config.Malformed for a malformed template.
func (c *Controller) waitsForTemplate(w *wf.Workflow) bool {
	var found *malformed.Error
	// With a wrong clock, the age may be anything.
	age := c.Clock.Since(w.CreationTimestamp.Time)
	isNew, missing := age.Abs() < missingMax, false
	seen := map[types.NamespacedName]bool{}
	var look func(spec *wf.WorkflowSpec)
	refer := func(ofCluster bool, name string) {
		template := types.NamespacedName{Namespace: w.Namespace, Name: name}
		if ofCluster {
			template.Namespace = ""
		}
		if found != nil || seen[template] {
			return
		}
		seen[template] = true
		if found = c.templateFault(ofCluster, w.Namespace, name); found != nil {
			c.templateWaiters.add(template, informer.KeyOf(w))
			// The template may have been repaired before the workflow was added.
			found = c.templateFault(ofCluster, w.Namespace, name)
		}
		if found != nil {
			return
		}
		library := templateLibrary{c, w.Namespace}
		spec, there := library.Spec(ofCluster, name)
		if !there && isNew {
			c.templateWaiters.add(template, informer.KeyOf(w))
			// The template may have appeared before the workflow was added.
			spec, there = library.Spec(ofCluster, name)
			missing = missing || !there
		}
		if there {
			look(spec)
		}
	}
	look = func(spec *wf.WorkflowSpec) {
		if ref := spec.WorkflowTemplateRef; ref != nil && w.Status.StoredWorkflowTemplateSpec == nil {
			refer(ref.ClusterScope, ref.Name)
		}
		for _, ref := range engine.TemplateRefs(spec) {
			refer(ref.ClusterScope, ref.Name)
		}
	}
	look(&w.Spec)
	if found == nil {
		if missing {
			c.loop.WakeAfter(informer.KeyOf(w), missingMax-age)
		}
		return missing
	}
	if c.Malformed != nil {
		c.Malformed(w, found)
	}
	return true
}

func (a *templateWaiters) add(template, workflow types.NamespacedName) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.by == nil {
		a.by = map[types.NamespacedName]map[types.NamespacedName]bool{}
	}
	if a.by[template] == nil {
		a.by[template] = map[types.NamespacedName]bool{}
	}
	a.by[template][workflow] = true
}
