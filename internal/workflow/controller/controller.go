package controller

import (
	"cmp"
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
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/workflow/pods"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// Config configures a Controller. Fields without a stated default are required.
type Config struct {
	Informers *informer.Set
	// Placer finds nodes for pods, and Model counts them. Both are nil in a manager that does not
	// lead: its pods are created without a node, and the leader binds them.
	Placer podset.Scheduler
	Model  podset.Model
	Writer apiwriter.Writer
	// Client reads objects that are not watched, such as ConfigMaps with semaphore limits.
	Client kubernetes.Interface
	// Owns reports whether this manager owns a workflow. Default: it owns all. Call Changing before
	// workflows of another manager become this manager's, and Rebalance after the answers of Owns
	// have changed.
	Owns func(*wf.Workflow) bool
	// Keep reports whether a finished workflow must not be deleted yet because it still has to be
	// archived. Default: none.
	Keep func(*wf.Workflow) bool
	// Leads is true if this manager places pods and keeps locks. Other managers leave workflows
	// that need locks or gangs to the leader.
	Leads bool
	// SchedulerNames are the scheduler names that the Placer serves. The first is given to pods
	// whose workflow names none. Pods with other scheduler names are created without a node.
	SchedulerNames []string
	// Evaluators evaluates the users' expressions that are not cheap.
	Evaluators Evaluators
	// Pods configures how pods are built.
	Pods pods.Options
	// Settings returns the cluster's configuration of workflows, which may change: call Configured
	// then. Default: one that configures nothing.
	Settings func() *settings.Settings
	// OpenLocks opens the database of locks of a configuration. It is called again after errors. nil:
	// workflows that ask for such locks are refused.
	OpenLocks func(context.Context, *settings.Synchronization) (LockDatabase, error)
	// Nodes has the nodes of workflows that would be too large with them, where the configuration says
	// so. nil: such workflows end in Error.
	Nodes NodeDatabase
	// AlwaysMoveNodes moves the nodes of all workflows there.
	AlwaysMoveNodes bool
	// Images tells what images run by default, for steps without a command; nil: nobody does.
	Images Images
	// SystemNamespace holds the artifact repositories of namespaces that have none of their own.
	// Default lockstep-system.
	SystemNamespace string
	// Workers is the number of workflows reconciled concurrently. Default 4.
	Workers int
	// Statuses is the number of non-urgent status writes in flight while the server answers
	// quickly. Default 32.
	Statuses int
	// NodesBytesMax is the JSON size in bytes above which a workflow's nodes are compressed; a node
	// takes about 450 bytes. The server decodes and validates nodes one by one: 3,000 nodes cost it
	// thirty times as much as one string. Default 128 KiB.
	NodesBytesMax int
	// Events says of which changes users get events.
	Events Events
	// Malformed is called with a workflow that waits for a template that cannot be decoded, and
	// with the reason. It may be nil.
	Malformed func(runtime.Object, *malformed.Error)
	// Guard recovers from panics that one workflow causes. If it is nil, a panic ends the process.
	Guard *panics.Guard
	// Metrics is the registry of the controller's metrics; nil registers none.
	Metrics prometheus.Registerer
	Clock   clock.WithTicker
	Log     *slog.Logger
}

func (cfg *Config) complete() error {
	if cfg.Informers == nil || (cfg.Placer == nil) != (cfg.Model == nil) || cfg.Writer == nil || cfg.Client == nil || cfg.Evaluators == nil {
		return errors.New("workflow controller: Informers, Writer, Client and Evaluators are required, and a Model with a Placer")
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
	if cfg.Settings == nil {
		none := &settings.Settings{}
		cfg.Settings = func() *settings.Settings { return none }
	}
	cfg.Pods.SchedulerName = cfg.SchedulerNames[0]
	cfg.SystemNamespace = cmp.Or(cfg.SystemNamespace, "lockstep-system")
	if cfg.Workers <= 0 {
		cfg.Workers = 4
	}
	if cfg.Statuses <= 0 {
		cfg.Statuses = 32
	}
	if cfg.NodesBytesMax <= 0 {
		cfg.NodesBytesMax = 128 << 10
	}
	cfg.Clock, cfg.Log = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{}), cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return nil
}

// Controller runs workflows. Call New before the informers start, because it registers event
// handlers; call Resume when the informers have synced, and then Run.
type Controller struct {
	Config
	loop            *controlloop.Loop[types.NamespacedName, record]
	plans           *plan.Cache
	pods            podset.Config
	statusSlots     statusSlots
	locks           *lockKeeper
	caches          caches
	metrics         *metrics
	workflowMetrics workflowMetrics
	past            estimates
	generation      atomic.Pointer[generation] // see configured
	throttle        *throttle
	retired         retired
	released        releasedWorkflows
	taken           takeover
	lookups         *podLookups
	// repositories reads the ConfigMaps of artifact repositories that are not watched.
	repositories *repositoryReads
	images       *imageLooks
	nodeReads    *nodeReads
	nodeWrites   *nodeWrites
	// requests is the context of requests that turns make; it is done when Run is to end.
	requests context.Context
	// epoch counts the calls of Lapsed.
	epoch atomic.Uint64
	// templateWaiters are the malformed templates that workflows wait for.
	templateWaiters templateWaiters
	// writeSeq numbers the status writes.
	writeSeq atomic.Uint64
}

// New returns a controller whose event handlers are registered with cfg.Informers.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	c := &Controller{Config: cfg, plans: plan.NewCache()}
	c.loop = controlloop.New[types.NamespacedName, record](controlloop.Config[types.NamespacedName]{
		Name: "workflows", Workers: cfg.Workers, Turn: c.reconcile, Sweep: c.sweep, SweepEvery: sweepInterval, Clock: cfg.Clock,
		Guard: cfg.Guard, Panicked: c.panicked,
	})
	c.statusSlots.init(cfg.Statuses, cfg.Writer.Latency, c.loop.Wake)
	c.locks = newLockKeeper(c)
	c.caches.controller = c
	c.workflowMetrics.init()
	c.taken.init(c)
	c.throttle = newThrottle(c.limitOf)
	c.lookups = newPodLookups(c)
	c.repositories = newRepositoryReads(c)
	c.images = newImageLooks(c)
	c.nodeReads = newNodeReads(c)
	c.nodeWrites = newNodeWrites(c)
	c.pods = podset.Config{
		Scheduler: cfg.Placer, Model: cfg.Model, Writer: cfg.Writer, Pods: cfg.Informers.Pods, Nodes: cfg.Informers.Nodes, Rejected: rejected,
		Post: func(workflow types.NamespacedName, to types.UID, do func(*podset.Set) podset.Event) bool {
			return c.loop.Post(workflow, to, func(r *record) { c.happened(r, do(&r.pods)) })
		},
		CreateReason: "workflow-pod", Clock: cfg.Clock, Log: cfg.Log,
	}
	var err error
	if c.metrics, err = newMetrics(cfg.Metrics, c); err != nil {
		return nil, err
	}
	c.watch()
	return c, nil
}

// watch registers the event handlers.
func (c *Controller) watch() {
	wake := func(w *wf.Workflow) { c.loop.Wake(informer.KeyOf(w)) }
	c.Informers.Workflows.Handle(informer.Handler[*wf.Workflow]{
		Added: func(w *wf.Workflow) { c.countSeen(w); wake(w) }, Updated: func(_, w *wf.Workflow) { c.seen(w) },
		Deleted: func(w *wf.Workflow) {
			c.released.gone(w.UID)
			c.mayBegin(c.throttle.leave(informer.KeyOf(w), w.UID))
			wake(w)
		},
	})
	c.Informers.Pods.Follow(func(p *corev1.Pod) { c.podSeen(p, false) }, func(p *corev1.Pod) { c.podSeen(p, true) })
	c.Informers.TaskResults.Follow(c.resultSeen, nil)
	c.followTemplates()
	c.followLimits()
}

// seen wakes a workflow unless the new version is this controller's own last write.
func (c *Controller) seen(w *wf.Workflow) {
	key := informer.KeyOf(w)
	c.countSeen(w)
	if r := c.loop.Get(key); r == nil || !r.ownVersion(w.ResourceVersion) {
		c.loop.Wake(key)
	}
}

// Resume loads every existing workflow: those with pods first, so that the resources and locks that
// they hold are known before other workflows request any. Call it once, after the informers have
// synced and before the scheduler runs.
func (c *Controller) Resume() {
	var rest []types.NamespacedName
	all := c.Informers.Workflows.List()
	for _, w := range all {
		if !w.Status.Phase.Completed() {
			c.locks.restore(w)
		}
	}
	c.countRunning()
	for _, w := range all {
		if w.Status.Phase.Completed() || len(c.Informers.Pods.ByIndex(informer.PodsByController, string(w.UID))) == 0 {
			rest = append(rest, informer.KeyOf(w))
			continue
		}
		c.loop.Take(informer.KeyOf(w))
	}
	for _, key := range rest {
		c.loop.Wake(key)
	}
}

// Lapsed makes the controller release every workflow and load it again, because its lease lapsed
// and writes in flight were cut off with ErrFenced. Call Changing and Rebalance after it.
func (c *Controller) Lapsed() { c.epoch.Add(1) }

// Changing stops the loading of workflows until the server has listed their current versions.
func (c *Controller) Changing() { c.taken.changing() }

// Rebalance wakes all workflows, after the set of workflows that this manager owns has changed.
func (c *Controller) Rebalance() {
	for _, w := range c.Informers.Workflows.List() {
		c.loop.Wake(informer.KeyOf(w))
	}
}

// Run runs the workers until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	c.requests = ctx
	var asking sync.WaitGroup
	asking.Go(func() { c.locks.run(ctx) })
	asking.Go(func() { c.taken.requests.Run(ctx) })
	asking.Go(func() { c.lookups.Run(ctx) })
	asking.Go(func() { c.repositories.Run(ctx) })
	asking.Go(func() { c.images.Run(ctx) })
	asking.Go(func() { c.nodeReads.loop.Run(ctx) })
	asking.Go(func() { c.nodeWrites.run(ctx) })
	c.loop.Run(ctx)
	asking.Wait()
}

// panicked sets apart a workflow on which a turn has panicked, until the workflow is changed. Its
// pods and other objects stay.
func (c *Controller) panicked(key types.NamespacedName, p *panics.Panic) {
	if r := c.loop.Get(key); r != nil {
		c.Guard.Try("workflows", key, func() { r.pods.ReleaseReservations() })
		c.Guard.Try("workflows", key, func() { c.abandon(r, false) })
	}
	if w, exists := c.Informers.Workflows.Get(key.Namespace, key.Name); exists {
		c.Informers.Workflows.SetApart(key.Namespace, key.Name, w.UID, p)
	}
}

// sweepInterval is the interval of sweeps, which check workflows whose created pods the watch has
// not shown yet.
const sweepInterval = 10 * time.Second

func (c *Controller) sweep() {
	c.locks.sweep()
	c.nodeReads.sweep()
	c.statusSlots.sweep()
	c.sweepAwaited()
	c.retire()
	c.loop.Each(func(key types.NamespacedName, r *record) {
		if r.pods.Expects() {
			c.loop.Post(key, controlloop.Anyone, c.takeUnseen)
		}
	})
}

// podSeen posts a pod to the workflow that controls it.
func (c *Controller) podSeen(p *corev1.Pod, gone bool) {
	owner := workflowOf(p)
	if owner == nil {
		return
	}
	key := types.NamespacedName{Namespace: p.Namespace, Name: owner.Name}
	c.loop.PostLatest(key, owner.UID, string(p.UID), func(r *record) { c.takePod(r, p, gone) })
	c.locks.podSeen(owner.UID, key, gone)
}

// resultSeen posts a task result to its workflow, which then observes the pod again.
func (c *Controller) resultSeen(t *wf.WorkflowTaskResult) {
	name := t.Labels[wf.LabelWorkflow]
	if name == "" {
		return
	}
	c.loop.Post(types.NamespacedName{Namespace: t.Namespace, Name: name}, controlloop.Anyone, func(r *record) { c.takeResult(r, t) })
}

// ours reports whether the Placer serves pods with this schedulerName.
func (c *Controller) ours(schedulerName string) bool {
	return slices.Contains(c.SchedulerNames, schedulerName)
}

// workflowOf returns the owner reference to the workflow that controls the pod, or nil if no
// workflow does.
func workflowOf(p *corev1.Pod) *metav1.OwnerReference {
	if o := metav1.GetControllerOfNoCopy(p); o != nil && o.Kind == "Workflow" && o.APIVersion == workflowAPIVersion {
		return o
	}
	return nil
}

var workflowAPIVersion = wf.GroupVersion.String()

// ownerKey returns the fairness key of the workflow's writes.
func ownerKey(key types.NamespacedName) string { return "workflow/" + key.String() }
