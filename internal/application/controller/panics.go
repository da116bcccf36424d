package controller

import (
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// failed describes an Application as it was when a pass over it panicked. The Application is left
// alone until it or a definition changes; its objects stay.
type failed struct {
	uid                 types.UID
	generation          int64
	deleted             bool
	labels, annotations map[string]string
	finalizers          int
	panic               *panics.Panic
}

func failedOn(r *kubeclient.Raw, p *panics.Panic) failed {
	return failed{r.UID, r.Generation, r.DeletionTimestamp != nil, r.Labels, r.Annotations, len(r.Finalizers), p}
}

func (f *failed) is(g *failed) bool {
	return f.uid == g.uid && f.generation == g.generation && f.deleted == g.deleted && f.finalizers == g.finalizers &&
		maps.Equal(f.labels, g.labels) && maps.Equal(f.annotations, g.annotations)
}

// leavesAlone reports whether a pass over the Application in its present state has panicked before.
func (c *Controller) leavesAlone(k types.NamespacedName) bool {
	c.mu.Lock()
	before, found := c.failed[k]
	c.mu.Unlock()
	if !found {
		return false
	}
	if r, there := c.applications.Get(k.Namespace, k.Name); there {
		if now := failedOn(r, before.panic); before.is(&now) {
			c.cfg.Guard.Try("applications", k, func() { c.reportPanic(k, r, before.panic) })
			return true
		}
	}
	c.mu.Lock()
	delete(c.failed, k)
	c.mu.Unlock()
	return false
}

// panicked drops the in-memory state of an Application on which a pass has panicked, records that
// the Application is to be left alone, and reports that in its status.
func (c *Controller) panicked(k types.NamespacedName, p *panics.Panic) {
	p.Unlocked(&c.mu)
	c.mu.Lock()
	a := c.apps[k]
	c.mu.Unlock()
	if a != nil {
		p.Unlocked(&a.mu)
	}
	c.forget(k)
	c.through(k)
	r, found := c.applications.Get(k.Namespace, k.Name)
	if !found {
		return // its objects are removed when the manager starts anew, at the latest
	}
	c.mu.Lock()
	c.failed[k] = failedOn(r, p)
	c.mu.Unlock()
	c.cfg.Guard.Try("applications", k, func() { c.reportPanic(k, r, p) })
}

// reportPanic reports in an Application's status that the Application is left alone, unless the
// status says so already. If the Application is being deleted, reportPanic writes an event instead.
func (c *Controller) reportPanic(k types.NamespacedName, r *kubeclient.Raw, p *panics.Panic) {
	o, err := c.applications.open(r)
	if err != nil {
		return
	}
	a := &app{key: k, owner: "application/" + k.String()}
	if o.DeletionTimestamp != nil {
		c.cfg.Writer.Event(o, corev1.EventTypeWarning, "ManagerFailed", p.Error()+"; what the application has made is not removed")
		return
	}
	a.planErr = &malformed.Error{Kind: "Application", Namespace: k.Namespace, Name: k.Name, Fault: p.Error(), Panicked: true}
	s := o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	c.reportNoPlan(a, s, metav1.NewTime(c.cfg.Now()).Rfc3339Copy())
	if !same(&o.Status, s) {
		c.writeStatus(a, o, s, true)
	}
}
