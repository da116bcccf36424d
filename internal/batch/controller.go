package batch

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/plan"
)

// Config configures a Controller. All fields without a default are required.
type Config struct {
	Informers *informer.Set
	Scheduler podset.Scheduler
	Model     podset.Model
	Writer    apiwriter.Writer
	// SchedulerNames are the scheduler names that this manager serves. Jobs whose pods name another
	// scheduler are left alone. Empty means that all jobs are served.
	SchedulerNames []string
	// PodsAhead creates pods of jobs that wait for room, without nodes, when the scheduler asks for them.
	PodsAhead bool
	// Workers is the number of jobs worked on at the same time. Default 4.
	Workers int
	// Window is the maximum number of one job's pods that may be at the writer at the same time. It
	// is large enough for the writer never to run out of pods while answers return to the job, and
	// small enough to keep memory small. The default is twice apiwriter.MostInFlight.
	Window int
	// Keep reports whether a finished job must not be deleted yet, although its time to live is
	// over. nil keeps none.
	Keep func(*api.Job) bool
	// Guard recovers from panics caused by one job. With a nil Guard such panics end the process.
	Guard *panics.Guard
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Controller runs batch jobs. The call order is: New, which registers handlers and so comes before
// the informers start; Resume, when the informers have synced; Run.
type Controller struct {
	Config
	loop  *controlloop.Loop[types.NamespacedName, record]
	plans *plan.Cache
	pods  podset.Config
	keys  sshKeys
	many  collections
	began time.Time
}

// New creates a controller and registers its handlers.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Scheduler == nil || cfg.Model == nil || cfg.Writer == nil {
		return nil, errors.New("batch: Informers, Scheduler, Model and Writer are required")
	}
	cfg.Workers = cmp.Or(max(cfg.Workers, 0), 4)
	cfg.Window = cmp.Or(max(cfg.Window, 0), 2*apiwriter.MostInFlight)
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Controller{Config: cfg, plans: plan.NewCache(), began: cfg.Clock.Now()}
	c.loop = controlloop.New[types.NamespacedName, record](controlloop.Config[types.NamespacedName]{
		Name: "jobs", Workers: cfg.Workers, Turn: c.reconcile, Sweep: c.sweep, SweepEvery: sweepInterval, Clock: cfg.Clock,
		Guard: cfg.Guard, Panicked: c.panicked,
	})
	c.many.c = c
	c.pods = podset.Config{
		Scheduler: cfg.Scheduler, Model: cfg.Model, Writer: cfg.Writer, Pods: cfg.Informers.Pods, Nodes: cfg.Informers.Nodes, Rejected: rejected,
		Post: func(job types.NamespacedName, to types.UID, do func(*podset.Set) podset.Event) bool {
			return c.loop.Post(job, to, func(r *record) { c.happened(r, do(&r.pods)) })
		},
		DeleteMany: c.many.deleteMany,
		Window:     cfg.Window, CreateReason: "job-pod", Clock: cfg.Clock, Log: cfg.Log,
	}
	c.watch()
	return c, nil
}

// watch registers the event handlers.
func (c *Controller) watch() {
	wake := func(j *api.Job) { c.loop.Wake(informer.KeyOf(j)) }
	gone := func(n *corev1.Node) { c.nodeGone(n.Name) }
	c.Informers.Jobs.Handle(informer.Handler[*api.Job]{
		Added: wake, Updated: c.jobUpdated, Deleted: wake,
	})
	c.Informers.Pods.Follow(c.podSeen, c.podGone)
	limits := func(l *corev1.LimitRange) { c.wakeAll(l.Namespace) }
	c.Informers.LimitRanges.Follow(limits, limits)
	c.Informers.FollowQueues(c.wakeAll)
	c.Informers.Nodes.Handle(informer.Handler[*corev1.Node]{Deleted: gone})
}

// Resume loads every existing job. Jobs that have pods come first, so that an incomplete gang asks
// for nodes before any gang without pods. Call Resume once, after the informers have synced and
// before the scheduler runs.
func (c *Controller) Resume() {
	var rest []types.NamespacedName
	for _, j := range c.Informers.Jobs.List() {
		if len(c.Informers.Pods.ByIndex(informer.PodsByController, string(j.UID))) == 0 {
			rest = append(rest, informer.KeyOf(j))
			continue
		}
		c.loop.Take(informer.KeyOf(j))
	}
	for _, key := range rest {
		c.loop.Wake(key)
	}
}

// Run runs the workers until ctx is done.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

// panicked sets a job apart after a turn on it has panicked: the job is left alone until it is
// changed. Its pods and other objects stay.
func (c *Controller) panicked(key types.NamespacedName, p *panics.Panic) {
	if r := c.loop.Get(key); r != nil {
		c.Guard.Try("jobs", key, func() { r.pods.ReleaseReservations() })
		c.Guard.Try("jobs", key, func() { c.abandon(r) })
	}
	if job, exists := c.Informers.Jobs.Get(key.Namespace, key.Name); exists {
		c.Informers.Jobs.SetApart(key.Namespace, key.Name, job.UID, p)
	}
}

// sweepInterval is the interval at which jobs are checked for pods that have been written and that
// the watch should have shown by now.
const sweepInterval = 10 * time.Second

// sweep posts takeUnseen to the jobs that wait for the watch to show a pod.
func (c *Controller) sweep() {
	c.loop.Each(func(key types.NamespacedName, r *record) {
		if r.pods.Expects() {
			c.loop.Post(key, controlloop.Anyone, c.takeUnseen)
		}
	})
}

// jobUpdated wakes the job, but ignores updates that only show a status written by this controller.
func (c *Controller) jobUpdated(old, now *api.Job) {
	key := informer.KeyOf(now)
	if old.Generation != now.Generation || old.UID != now.UID || now.DeletionTimestamp != nil {
		c.loop.Wake(key)
		return
	}
	if r := c.loop.Get(key); r != nil {
		if t := r.lastStatus.Load(); t == nil || t.newer(now) || now.Spec.TTLSecondsAfterFinished != nil && now.Status.State.Phase.Finished() {
			c.loop.Wake(key)
		}
	}
}

// podSeen posts an added or updated pod to its job.
func (c *Controller) podSeen(p *corev1.Pod) {
	if owner := jobOf(p); owner != nil {
		c.loop.Post(types.NamespacedName{Namespace: p.Namespace, Name: owner.Name}, owner.UID, func(r *record) { c.takePod(r, p) })
	}
}

func (c *Controller) podGone(p *corev1.Pod) {
	if owner := jobOf(p); owner != nil {
		key := types.NamespacedName{Namespace: p.Namespace, Name: owner.Name}
		c.loop.Post(key, owner.UID, func(r *record) { c.takePodGone(r, p) })
		// A job of the same name may have been waiting for the pod's name to become free.
		c.loop.Post(key, controlloop.Anyone, func(r *record) {
			if r.uid != owner.UID {
				r.refusal.Succeeded()
			}
		})
	}
}

// wakeAll wakes the jobs of a namespace.
func (c *Controller) wakeAll(namespace string) {
	c.loop.Each(func(key types.NamespacedName, _ *record) {
		if key.Namespace == namespace {
			c.loop.Wake(key)
		}
	})
}

// nodeGone posts the pods of a deleted node to their jobs, which delete and replace them. The
// control plane would do so only a minute later.
func (c *Controller) nodeGone(node string) {
	for _, p := range c.Informers.Pods.ByIndex(informer.PodsByNode, node) {
		c.podSeen(p)
	}
}

// jobOf returns the owner reference to the batch job that controls the pod, or nil.
func jobOf(p *corev1.Pod) *metav1.OwnerReference {
	if o := metav1.GetControllerOfNoCopy(p); o != nil && o.Kind == pods.JobKind.Kind && o.APIVersion == jobAPIVersion {
		return o
	}
	return nil
}

var jobAPIVersion = api.GroupVersion.String()

// gangKey returns the key of the job's gang. It is also the fairness key of the job's writes.
func gangKey(key types.NamespacedName) string { return gangPrefix + key.String() }
