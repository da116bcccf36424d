package jobgroup

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

// Config configures a Controller. Informers and Writer are required.
type Config struct {
	Informers *informer.Set
	Writer    apiwriter.Writer
	// SchedulerNames are the scheduler names whose Jobs get PodGroups.
	SchedulerNames []string
	// Guard recovers from panics that one Job causes. With a nil Guard such panics end the process.
	Guard *panics.Guard
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Controller keeps the PodGroups of Jobs.
type Controller struct {
	Config
	loop *controlloop.Loop[types.NamespacedName, record]
}

// record is the in-memory state of one Job.
type record struct {
	uid types.UID
	// underWay means that a write has no answer yet. The next turn follows the answer.
	underWay bool
	// written is the status that was written last, and version the resource version that this
	// produced, until the watch shows it.
	written *v1beta1.PodGroupStatus
	version string
	group   types.UID // of the PodGroup that was written last
}

// New creates a controller and registers its handlers, so it comes before the informers start.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Writer == nil {
		return nil, errors.New("jobgroup: Informers and Writer are required")
	}
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Controller{Config: cfg}
	c.loop = controlloop.New[types.NamespacedName, record](controlloop.Config[types.NamespacedName]{
		Name: "jobgroups", Workers: 1, Turn: c.turn, Guard: cfg.Guard,
		Panicked: func(key types.NamespacedName, _ *panics.Panic) { c.loop.Drop(key) },
		Clock:    cfg.Clock, RetryMin: 100 * time.Millisecond, RetryMax: time.Minute,
	})
	wake := func(j *api.Job) { c.loop.Wake(informer.KeyOf(j)) }
	cfg.Informers.Jobs.Follow(wake, wake)
	group := func(pg *v1beta1.PodGroup) {
		if owner := metav1.GetControllerOfNoCopy(pg); owner != nil && owner.Kind == "Job" && owner.APIVersion == api.GroupVersion.String() {
			c.loop.Wake(types.NamespacedName{Namespace: pg.Namespace, Name: owner.Name})
		}
	}
	cfg.Informers.PodGroups.Follow(group, group)
	cfg.Informers.FollowQueues(func(namespace string) {
		for _, j := range cfg.Informers.Jobs.List() {
			if j.Namespace == namespace {
				c.loop.Wake(informer.KeyOf(j))
			}
		}
	})
	return c, nil
}

// Run works until ctx is done. The informers must have synced.
func (c *Controller) Run(ctx context.Context) { c.loop.Run(ctx) }

// ours reports whether a pod of the Job is scheduled by this manager.
func (c *Controller) ours(job *api.Job) bool {
	for i := range job.Spec.Tasks {
		if slices.Contains(c.SchedulerNames, job.SchedulerName(i)) {
			return true
		}
	}
	return false
}

// turn brings the PodGroup of a Job up to date, by one write at a time.
func (c *Controller) turn(key types.NamespacedName) {
	c.loop.Deliver(key, controlloop.Anyone)
	job, exists := c.Informers.Jobs.Get(key.Namespace, key.Name)
	if !exists || job.DeletionTimestamp != nil || !c.ours(job) {
		c.loop.Drop(key)
		return
	}
	r := c.loop.Get(key)
	if r == nil || r.uid != job.UID {
		r = &record{uid: job.UID}
		c.loop.Put(key, r)
	}
	if r.underWay {
		return
	}
	pg, exists := c.Informers.PodGroups.Get(job.Namespace, Name(job))
	queue, known := c.Informers.QueueIn(job.Namespace, job.QueueName())
	if !known {
		return // its namespace wakes it
	}
	if exists && queue != pg.Spec.Queue && job.QueueName() == v1beta1.DefaultQueue {
		// A job with pods does not follow its namespace.
		for _, p := range c.Informers.Pods.ByIndex(informer.PodsByController, string(job.UID)) {
			queue = cmp.Or(p.Annotations[api.QueueNameKey], queue)
			break
		}
	}
	want := group(job, queue)
	m := apiwriter.Meta{Owner: "podgroup/" + want.Namespace + "/" + want.Name, Reason: "podgroup-of-job"}
	switch aborted := job.Status.State.Phase == api.Aborted; {
	case !exists && !aborted && r.version == "":
		r.underWay = true
		c.Writer.Create(m, want, c.answer(key, r, &v1beta1.PodGroupStatus{Phase: v1beta1.PodGroupPending})) // by default
		return
	case !exists && r.version != "":
		if aborted || c.Informers.PodGroups.Malformed(job.Namespace, want.Name) != nil {
			return
		}
		// It has been created and is not seen yet, or somebody has deleted it.
		pg = want
	case exists && aborted:
		r.underWay = true
		c.Writer.Delete(m, &v1beta1.PodGroup{ObjectMeta: metav1.ObjectMeta{Namespace: pg.Namespace, Name: pg.Name, UID: pg.UID}},
			apiwriter.DeleteOptions{}, func(err error) { c.answer(key, r, nil)(nil, err) })
		return
	case !exists:
		return
	}
	if exists && r.version != "" && !informer.Older(pg.ResourceVersion, r.version) {
		r.written, r.version = nil, ""
	}
	if exists && !sameSpec(&pg.Spec, &want.Spec) && r.version == "" {
		data, err := json.Marshal(map[string]any{"spec": map[string]any{
			"minMember": want.Spec.MinMember, "minTaskMember": want.Spec.MinTaskMember, "queue": want.Spec.Queue,
			"priorityClassName": want.Spec.PriorityClassName, "minResources": want.Spec.MinResources,
		}})
		if err != nil {
			c.Log.Error("encoding the spec of a PodGroup", "podgroup", want.Name, "error", err)
			return
		}
		r.underWay = true
		c.Writer.Patch(m, want, types.MergePatchType, data, c.answer(key, r, &pg.Status))
		return
	}
	now := pg.Status
	if r.written != nil {
		now = *r.written
	}
	if next := status(&job.Status, now, metav1.NewTime(c.Clock.Now().Truncate(time.Second))); worth(&now, &next) {
		data, err := json.Marshal(map[string]any{"status": map[string]any{
			"phase": next.Phase, "conditions": next.Conditions, "running": next.Running, "succeeded": next.Succeeded, "failed": next.Failed,
		}})
		if err != nil {
			c.Log.Error("encoding the status of a PodGroup", "podgroup", want.Name, "error", err)
			return
		}
		m.StatusOnly, r.underWay = true, true
		c.Writer.Patch(m, want, types.MergePatchType, data, c.answer(key, r, &next))
		if message := news(&now, &next); message != "" {
			about := want.DeepCopy()
			about.UID = cmp.Or(pg.UID, r.group) // the watch may not show it yet
			c.Writer.Event(about, corev1.EventTypeWarning, string(v1beta1.PodGroupUnschedulable), message)
		}
		return
	}
	c.loop.Succeeded(key)
}

// answer returns a function for the answer to a write, after which the PodGroup has a status; nil
// means that it is deleted.
func (c *Controller) answer(key types.NamespacedName, r *record, status *v1beta1.PodGroupStatus) func(apiwriter.Object, error) {
	return func(o apiwriter.Object, err error) {
		if errors.Is(err, apiwriter.ErrStopped) {
			return
		}
		c.loop.Post(key, controlloop.Anyone, func(now *record) {
			if now != r {
				return
			}
			r.underWay = false
			switch {
			case err == nil && status == nil, apierrors.IsNotFound(err):
				r.written, r.version = nil, ""
			case err == nil:
				r.written, r.version, r.group = status, o.GetResourceVersion(), o.GetUID()
			}
		})
		if err != nil && !apierrors.IsNotFound(err) {
			c.Log.Warn("the PodGroup of a Job could not be written", "job", key, "error", err)
		}
		if err != nil {
			c.loop.Retry(key)
		}
	}
}
