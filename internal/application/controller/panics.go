package controller

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/report"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// failed describes an Application as it was when a turn panicked. The Application is left alone
// until it or a definition changes; its objects stay.
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

// panicked holds the Applications on which a turn has panicked. The zero value is empty.
type panicked struct {
	mu     sync.Mutex
	failed map[types.NamespacedName]failed
}

func (x *panicked) get(k types.NamespacedName) (failed, bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	f, found := x.failed[k]
	return f, found
}

func (x *panicked) set(k types.NamespacedName, f failed) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.failed == nil {
		x.failed = map[types.NamespacedName]failed{}
	}
	x.failed[k] = f
}

// forget drops these Applications, or all if none are given, and returns those that were in x.
func (x *panicked) forget(keys ...types.NamespacedName) (had []types.NamespacedName) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if len(keys) == 0 {
		keys = slices.Collect(maps.Keys(x.failed))
	}
	for _, k := range keys {
		if _, found := x.failed[k]; found {
			delete(x.failed, k)
			had = append(had, k)
		}
	}
	return had
}

// leavesAlone reports whether a turn of the Application in its present state has panicked before.
func (c *Controller) leavesAlone(k types.NamespacedName) bool {
	before, found := c.panics.get(k)
	if !found {
		return false
	}
	if r, there := c.applications.Get(k.Namespace, k.Name); there {
		if now := failedOn(r, before.panic); before.is(&now) {
			c.cfg.Guard.Try("applications", k, func() { c.reportPanic(k, r, before.panic) })
			return true
		}
	}
	c.panics.forget(k)
	return false
}

// panicked drops the in-memory state of an Application on which a turn has panicked, records that
// the Application is to be left alone, and reports that in its status.
func (c *Controller) panicked(k types.NamespacedName, p *panics.Panic) {
	p.Unlocked(&c.panics.mu, &c.idle.mu)
	c.forget(k)
	c.letNextStart(k)
	r, found := c.applications.Get(k.Namespace, k.Name)
	if !found {
		return // its objects are removed at the manager's next start, at the latest
	}
	c.panics.set(k, failedOn(r, p))
	c.cfg.Guard.Try("applications", k, func() { c.reportPanic(k, r, p) })
}

// reportPanic reports in an Application's status that the Application is left alone, unless the
// status says so already. If the Application is being deleted, reportPanic writes an event instead.
func (c *Controller) reportPanic(k types.NamespacedName, r *kubeclient.Raw, p *panics.Panic) {
	o, err := c.applications.Unpack(r)
	if err != nil {
		return
	}
	a := &record{}
	a.State = &deploy.State{Owner: c.ownerOf(k, a)}
	if o.DeletionTimestamp != nil {
		c.cfg.Writer.Event(o, corev1.EventTypeWarning, "ManagerFailed", p.Error()+"; what the application has made is not removed")
		return
	}
	a.PlanErr = &malformed.Error{Kind: "Application", Namespace: k.Namespace, Name: k.Name, Fault: p.Error(), Panicked: true}
	s := o.Status.DeepCopy()
	s.ObservedGeneration = o.Generation
	report.ReportNoPlan(s, a.PlanErr, true, metav1.NewTime(c.now()).Rfc3339Copy())
	if !report.Same(&o.Status, s) {
		c.reporter.Write(a.State, &a.report, o, s, true)
	}
}
