package controller

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	batchpods "lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/contain"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// Placer finds nodes for pods.
type Placer interface {
	// Submit asks for nodes, replacing what was asked under the same key.
	Submit(*scheduler.Gang)
	// Withdraw takes the request with this key back. A Commit that has begun may still arrive.
	Withdraw(key string)
}

// Model is what the controller tells the cluster model.
type Model interface {
	// Confirm says that an assumed pod was written.
	Confirm(pod types.NamespacedName, uid types.UID, resourceVersion string)
	// UpsertPod takes over a pod as the API server has it, ahead of the watch.
	UpsertPod(pod *corev1.Pod)
	// Forget gives back the room that was assumed for a pod that will not come.
	Forget(pod types.NamespacedName)
	// Priority is the value of a PriorityClass, and whether there is one; without a name it is the default's.
	Priority(class string) (int32, bool)
}

// Config is what a Controller needs. All fields without a default are required.
type Config struct {
	Informers *cluster.Informers
	Placer    Placer
	Model     Model
	Writer    apiwriter.Writer
	// Client reads what is not watched: ConfigMaps with limits of semaphores.
	Client kubernetes.Interface
	// Owns says which workflows are this manager's. Default: all. Before workflows become this manager's that were another's,
	// call Changing; when its answers have changed, Rebalance.
	Owns func(*wf.Workflow) bool
	// Keep says that a workflow that is over must not be deleted yet, because it is still to be archived; nil keeps none.
	Keep func(*wf.Workflow) bool
	// Leads says that this manager places pods, and keeps locks. One that does not leaves workflows that need either to
	// the one that does.
	Leads bool
	// SchedulerNames are those that the Placer answers to; the first is given to pods whose workflow names none. Pods
	// with others are created for others to bind.
	SchedulerNames []string
	// Evaluators evaluate expressions of users that are not cheap.
	Evaluators Evaluators
	// Pods is what pods are made with.
	Pods pods.Options
	// SystemNamespace has the artifact repositories of namespaces that have none of their own. Default lockstep-system.
	SystemNamespace string
	// Workers is how many workflows are worked on at a time. Default 4.
	Workers int
	// Statuses is how many statuses that can wait may be at the writer at a time, while the server answers quickly.
	// Default 32.
	Statuses int
	// NodesBytesMax is how large the JSON of a workflow's nodes may be before it is compressed: a node takes about 450 bytes.
	// The server takes and validates nodes one by one, which at 3,000 of them costs it thirty times what a string does.
	// Default 128 KiB.
	NodesBytesMax int
	// Malformed is told of a workflow that waits for a template that cannot be decoded, and why; nil: nobody is.
	Malformed func(runtime.Object, *malformed.Error)
	// Guard recovers from panics that one workflow causes. nil: they end the process.
	Guard *contain.Guard
	// Metrics is where metrics are registered; nil for nowhere.
	Metrics prometheus.Registerer
	Clock   clock.WithTicker
	Log     *slog.Logger
}

func (cfg *Config) complete() error {
	if cfg.Informers == nil || cfg.Placer == nil || cfg.Model == nil || cfg.Writer == nil || cfg.Client == nil || cfg.Evaluators == nil {
		return errors.New("workflow controller: Informers, Placer, Model, Writer, Client and Evaluators are required")
	}
	if cfg.Owns == nil {
		cfg.Owns = func(*wf.Workflow) bool { return true }
	}
	if cfg.Keep == nil {
		cfg.Keep = func(*wf.Workflow) bool { return false }
	}
	if len(cfg.SchedulerNames) == 0 {
		cfg.SchedulerNames = []string{scheduling.SchedulerLockstep}
	}
	cfg.Pods.SchedulerName = cfg.SchedulerNames[0]
	if cfg.SystemNamespace == "" {
		cfg.SystemNamespace = "lockstep-system"
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 4
	}
	if cfg.Statuses <= 0 {
		cfg.Statuses = 32
	}
	if cfg.NodesBytesMax <= 0 {
		cfg.NodesBytesMax = 128 << 10
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// Controller runs workflows. New registers its handlers, so it comes before the informers are started; Resume follows when
// they have caught up, and then Run.
type Controller struct {
	Config
	loop    *keyed.Loop[types.NamespacedName, record]
	plans   *batchpods.Plans
	slots   slots
	locks   *lockKeeper
	caches  caches
	metrics *metrics
	samples samples
	past    estimates
	known   engine.Known
	former  former
	taken   takeover
	doubts  *doubts
	// requests is the context of requests that are made in turns; done when Run is to end.
	requests context.Context
	// epoch is how often Lapsed was called.
	epoch atomic.Uint64
	// awaited are the templates that workflows wait for, because they cannot be decoded.
	awaited awaited
	// writeSeq numbers writes of statuses.
	writeSeq atomic.Uint64
}

// New prepares a controller.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller{Config: cfg, plans: batchpods.NewPlans()}
	c.loop = keyed.New[types.NamespacedName, record](keyed.Config[types.NamespacedName]{
		Name: "workflows", Workers: cfg.Workers, Turn: c.reconcile, Sweep: c.sweep, SweepEvery: sweepInterval, Clock: cfg.Clock,
		Guard: cfg.Guard, Panicked: c.panicked,
	})
	c.slots.init(cfg.Statuses, cfg.Writer.Lag, c.loop.Wake)
	c.locks = newLockKeeper(c)
	c.caches.controller = c
	c.samples.init(cfg.Log)
	c.taken.init()
	c.doubts = newDoubts(c)
	var err error
	if c.metrics, err = newMetrics(cfg.Metrics, c); err != nil {
		return nil, err
	}
	c.watch()
	return c, nil
}

// watch registers the handlers.
func (c *Controller) watch() {
	wake := func(w *wf.Workflow) { c.loop.Wake(cluster.KeyOf(w)) }
	c.Informers.Workflows.Handle(cluster.Handler[*wf.Workflow]{
		Added: wake, Updated: func(_, w *wf.Workflow) { c.seen(w) },
		Deleted: func(w *wf.Workflow) { c.former.gone(w.UID); wake(w) },
	})
	c.Informers.Pods.Follow(func(p *corev1.Pod) { c.podSeen(p, false) }, func(p *corev1.Pod) { c.podSeen(p, true) })
	c.Informers.TaskResults.Follow(c.resultSeen, nil)
	c.followTemplates()
}

// seen wakes a workflow whose new version is not this controller's own last write.
func (c *Controller) seen(w *wf.Workflow) {
	key := cluster.KeyOf(w)
	if r := c.loop.Get(key); r == nil || !r.ownVersion(w.ResourceVersion) {
		c.loop.Wake(key)
	}
}

// Resume takes up every workflow that exists: those that have pods first, so that what they hold is known before any other
// asks for room. Call it once, when the informers have caught up and before the scheduler runs.
func (c *Controller) Resume() {
	var rest []types.NamespacedName
	all := c.Informers.Workflows.List()
	for _, w := range all {
		if !w.Status.Phase.Completed() {
			c.locks.restore(w)
		}
	}
	for _, w := range all {
		if w.Status.Phase.Completed() || len(c.Informers.Pods.ByIndex(cluster.PodsByController, string(w.UID))) == 0 {
			rest = append(rest, cluster.KeyOf(w))
			continue
		}
		c.loop.Take(cluster.KeyOf(w))
	}
	for _, key := range rest {
		c.loop.Wake(key)
	}
}

// Lapsed has every workflow let go of and taken up anew: writes about them that were under way have been cut off, with ErrFenced.
// Call Changing and Rebalance after it.
func (c *Controller) Lapsed() { c.epoch.Add(1) }

// Changing has nothing taken up until the server has said which versions of workflows there are.
func (c *Controller) Changing() { c.taken.changing() }

// Rebalance looks at all workflows again, because other ones are this manager's now.
func (c *Controller) Rebalance() {
	for _, w := range c.Informers.Workflows.List() {
		c.loop.Wake(cluster.KeyOf(w))
	}
}

// Run works until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	c.requests = ctx
	var asking sync.WaitGroup
	asking.Go(func() { c.locks.run(ctx) })
	asking.Go(func() { c.taken.run(ctx, c) })
	asking.Go(func() { c.doubts.Run(ctx) })
	c.loop.Run(ctx)
	asking.Wait()
}

// panicked leaves a workflow alone, on which a turn has panicked, until it is changed. What it has made stays.
func (c *Controller) panicked(key types.NamespacedName, p *contain.Panic) {
	if r := c.loop.Get(key); r != nil {
		c.Guard.Try("workflows", key, func() { c.giveBackRoom(r) })
		c.Guard.Try("workflows", key, func() { c.abandon(r, false) })
	}
	if w, exists := c.Informers.Workflows.Get(key.Namespace, key.Name); exists {
		c.Informers.Workflows.SetApart(key.Namespace, key.Name, w.UID, p)
	}
}

// giveBackRoom takes back what was asked of the scheduler, and what it may have taken for pods that are not at the writer: a turn
// that panicked may have lost that they were placed.
func (c *Controller) giveBackRoom(r *record) {
	for key := range r.gangs {
		c.Placer.Withdraw(key)
	}
	for _, u := range r.units {
		if u.state == queued {
			c.Model.Forget(types.NamespacedName{Namespace: r.key.Namespace, Name: u.name})
		}
	}
}

// sweepInterval is how often workflows are looked at whose written pods the watch should have shown by now.
const sweepInterval = 10 * time.Second

func (c *Controller) sweep() {
	c.locks.sweep()
	c.slots.sweep()
	c.loop.Each(func(key types.NamespacedName, r *record) {
		if r.unseen.Load() > 0 {
			c.loop.Post(key, keyed.Anyone, c.takeUnseen)
		}
	})
}

// podSeen hands a pod to its workflow.
func (c *Controller) podSeen(p *corev1.Pod, gone bool) {
	owner := workflowOf(p)
	if owner == nil {
		return
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: owner.Name}
	c.loop.PostLatest(key, owner.UID, string(p.UID), func(r *record) { c.takePod(r, p, gone) })
	c.locks.podSeen(owner.UID, key, gone)
}

// resultSeen has the pod that a result belongs to looked at again.
func (c *Controller) resultSeen(t *wf.WorkflowTaskResult) {
	name := t.Labels[wf.LabelWorkflow]
	if name == "" {
		return
	}
	c.loop.Post(types.NamespacedName{Namespace: t.Namespace, Name: name}, keyed.Anyone, func(r *record) { c.takeResult(r, t) })
}

// ours says whether a pod with this schedulerName is placed here.
func (c *Controller) ours(schedulerName string) bool {
	return slices.Contains(c.SchedulerNames, schedulerName)
}

// workflowOf is the workflow that controls the pod, or nil.
func workflowOf(p *corev1.Pod) *metav1.OwnerReference {
	for i := range p.OwnerReferences {
		o := &p.OwnerReferences[i]
		if o.Controller != nil && *o.Controller && o.Kind == "Workflow" && o.APIVersion == workflowAPIVersion {
			return o
		}
	}
	return nil
}

var workflowAPIVersion = wf.GroupVersion.String()

// ownerKey is the fairness key of the workflow's writes.
func ownerKey(key types.NamespacedName) string { return "workflow/" + key.String() }
