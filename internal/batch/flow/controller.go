package flow

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
)

const (
	kind = "JobFlow"

	// statusSoon and statusLater are the least times between two status writes of one JobFlow:
	// for changes that matter to the order of Jobs, and for others.
	statusSoon  = 500 * time.Millisecond
	statusLater = 5 * time.Second
	// settleTime is how long to wait for the watch of Jobs to show a version as new as the
	// JobFlow's, before the Jobs are compared again.
	settleTime = 5 * time.Second
)

// Config configures a Controller. Informers, Writer and Requests are required.
type Config struct {
	Informers *informer.Set
	Writer    apiwriter.Writer
	// Requests makes the requests of probes.
	Requests *egress.Guard
	// Guard recovers from panics caused by one JobFlow. With a nil Guard such panics end the
	// process.
	Guard *panics.Guard
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Controller runs JobFlows, and keeps the status of JobTemplates.
type Controller struct {
	Config
	loop      *controlloop.Loop[types.NamespacedName, record]
	templates *templates
	prober    prober
}

// record is the in-memory state of one JobFlow. Only turns of its key access it.
type record struct {
	uid types.UID
	// latest is the JobFlow after the last status write, until the cache shows it, and conflict the
	// version for which a status write was refused because the server had a newer one.
	latest   *api.JobFlow
	conflict string
	written  time.Time // when the last status was written
	// created are the Jobs that the cache does not show yet, and gone the last phases of Jobs that
	// were seen to be deleted, by name.
	created map[string]*batch.Job
	gone    map[string]batch.JobPhase
	refused map[string]*refusal
	answers map[question]string
	probed  time.Time // when the answers were given
}

// refusal is the server's answer to the creation of a Job.
type refusal struct {
	message string
	// of identifies the specs from which the Job was made.
	of      string
	backoff controlloop.Backoff
}

// New creates a controller and registers its handlers, so it comes before the informers start.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Writer == nil || cfg.Requests == nil {
		return nil, errors.New("flow: Informers, Writer and Requests are required")
	}
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Controller{Config: cfg, prober: prober{guard: cfg.Requests, pods: func(job types.UID) []*corev1.Pod {
		return cfg.Informers.Pods.ByIndex(informer.PodsByController, string(job))
	}}}
	c.loop = controlloop.New[types.NamespacedName, record](controlloop.Config[types.NamespacedName]{
		Name: "jobflows", Turn: c.turn, Guard: cfg.Guard, Panicked: c.panicked, Clock: cfg.Clock,
	})
	c.templates = newTemplates(cfg)
	wake := func(f *api.JobFlow) { c.loop.Wake(informer.KeyOf(f)) }
	cfg.Informers.JobFlows.Follow(wake, wake)
	cfg.Informers.Jobs.Handle(informer.Handler[*batch.Job]{
		Added: c.jobSeen, Updated: func(_, j *batch.Job) { c.jobSeen(j) }, Deleted: c.jobGone,
	})
	changed := func(t *api.JobTemplate) {
		for _, f := range cfg.Informers.JobFlows.ByIndex(informer.JobFlowsByTemplate, informer.KeyOf(t).String()) {
			wake(f)
		}
	}
	cfg.Informers.JobTemplates.Handle(informer.Handler[*api.JobTemplate]{Added: changed, Updated: func(old, t *api.JobTemplate) {
		if old.Generation != t.Generation {
			changed(t)
		}
	}})
	return c, nil
}

// Run runs the workers until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.templates.loop.Run(ctx)
	}()
	c.loop.Run(ctx)
	<-done
}

// owner returns the key of the JobFlow that controls a Job, and its UID.
func owner(j *batch.Job) (types.NamespacedName, types.UID, bool) {
	o := metav1.GetControllerOfNoCopy(j)
	if o == nil || o.Kind != kind || o.APIVersion != api.GroupVersion.String() {
		return types.NamespacedName{}, "", false
	}
	return types.NamespacedName{Namespace: j.Namespace, Name: o.Name}, o.UID, true
}

func (c *Controller) jobSeen(j *batch.Job) {
	if key, _, ok := owner(j); ok {
		c.loop.Wake(key)
	}
}

func (c *Controller) jobGone(j *batch.Job) {
	if key, uid, ok := owner(j); ok {
		c.loop.Post(key, uid, func(r *record) { r.gone[j.Name] = j.Status.State.Phase })
	}
}

// Unrecorded returns a function that reports whether a finished Job belongs to a JobFlow whose
// status does not say yet how the Job ended.
func Unrecorded(informers *informer.Set) func(*batch.Job) bool {
	return func(j *batch.Job) bool {
		key, uid, ok := owner(j)
		if !ok {
			return false
		}
		f, found := informers.JobFlows.Get(key.Namespace, key.Name)
		return found && f.UID == uid && f.DeletionTimestamp == nil && !f.Status.State.Phase.Finished() && !f.Status.Conditions[j.Name].Phase.Finished()
	}
}

// panicked sets a JobFlow apart until it is changed.
func (c *Controller) panicked(key types.NamespacedName, p *panics.Panic) {
	if f, found := c.Informers.JobFlows.Get(key.Namespace, key.Name); found {
		c.Informers.JobFlows.SetApart(key.Namespace, key.Name, f.UID, p)
	}
}

// turn reconciles one JobFlow.
func (c *Controller) turn(key types.NamespacedName) {
	f, found := c.Informers.JobFlows.Get(key.Namespace, key.Name)
	ctx := c.loop.Context()
	if ctx.Err() != nil {
		return
	}
	if !found {
		c.loop.Drop(key)
		return
	}
	r := c.loop.Get(key)
	if r == nil || r.uid != f.UID {
		c.loop.Drop(key)
		r = &record{uid: f.UID, created: map[string]*batch.Job{}, gone: map[string]batch.JobPhase{}, refused: map[string]*refusal{}}
		c.loop.Put(key, r)
	}
	c.loop.Deliver(key, f.UID)
	if f.ResourceVersion == r.conflict {
		return // the watch will show a newer version
	}
	switch err := c.reconcile(ctx, key, f, r); {
	case ctx.Err() != nil:
	case err != nil:
		c.Log.Warn("a JobFlow could not be brought up to date; trying again", "jobflow", key, "error", err)
		c.loop.Retry(key)
	default:
		c.loop.Succeeded(key)
	}
}

// reconcile decides about a JobFlow and carries the plan out.
func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName, f *api.JobFlow, r *record) error {
	//   1. Decide, with the answers to probes.
	v := c.view(f, r)
	p := decide(v)
	if len(p.ask) > 0 {
		answers := map[question]string{}
		c.loop.Yield(func() { answers = c.prober.askAll(ctx, key.Namespace, p.ask) })
		if ctx.Err() != nil {
			return nil
		}
		r.answers, r.probed = answers, c.Clock.Now()
		c.loop.Deliver(key, r.uid) // Jobs may have been deleted meanwhile
		v = c.view(f, r)
		p = decide(v)
	}
	if p.probing {
		c.loop.WakeAfter(key, probeInterval-c.Clock.Since(r.probed))
	}
	if p.unsettled {
		c.loop.WakeAfter(key, settleTime)
	}
	//   2. Create Jobs.
	failed := c.create(key, p.start, r)
	if ctx.Err() != nil {
		return nil
	}
	started := len(p.start) > 0
	if started {
		v = c.view(f, r)
		p = decide(v)
	}
	for name, refused := range r.refused {
		if p.status.Conditions[name].Reason != api.ReasonRefused {
			delete(r.refused, name)
		} else if left := refused.backoff.Left(c.Clock.Now()); left > 0 {
			c.loop.WakeAfter(key, left)
		}
	}
	//   3. Write the status.
	if err := c.report(key, v.flow, &p, started, r); err != nil {
		return err
	}
	//   4. Delete the Jobs of a JobFlow that has succeeded, which its status says.
	for _, j := range p.remove {
		c.Writer.Delete(apiwriter.Meta{Owner: "jobflow/" + key.String(), Reason: "jobflow-retain"}, j,
			apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, nil)
	}
	return failed
}

// view collects what decide needs.
func (c *Controller) view(f *api.JobFlow, r *record) view {
	if r.latest != nil && informer.Older(f.ResourceVersion, r.latest.ResourceVersion) {
		f = r.latest
	} else {
		r.latest = nil
	}
	v := view{flow: f, jobs: map[string]*batch.Job{}, gone: r.gone, answers: r.answers, refused: map[string]string{}}
	seen := c.Informers.Jobs.SeenVersion() // read before the cache, which then has every write up to this version
	for _, j := range c.Informers.Jobs.ByIndex(informer.JobsByController, string(f.UID)) {
		v.jobs[j.Name] = j
		delete(r.gone, j.Name) // another Job of the name was deleted
	}
	for name, j := range r.created {
		if v.jobs[name] != nil || !informer.Older(seen, j.ResourceVersion) {
			delete(r.created, name) // the cache has caught up
			if v.jobs[name] == nil && r.gone[name] == "" {
				r.gone[name] = batch.Pending // deleted before the watch showed it
			}
			continue
		}
		v.jobs[name] = j
	}
	v.settled = seen != "" && !informer.Older(seen, f.ResourceVersion)
	if c.Clock.Since(r.probed) >= probeInterval {
		v.answers = nil
	}
	v.template = func(name string) *api.JobTemplate {
		t, _ := c.Informers.JobTemplates.Get(f.Namespace, name)
		return t
	}
	for name, refused := range r.refused {
		v.refused[name] = refused.message
	}
	v.held = func(job string) bool {
		refused := r.refused[job]
		return refused.of == c.madeFrom(f, job) && refused.backoff.Left(c.Clock.Now()) > 0
	}
	return v
}

// madeFrom identifies the specs from which a Job is made.
func (c *Controller) madeFrom(f *api.JobFlow, job string) string {
	version := ""
	if t, found := c.Informers.JobTemplates.Get(f.Namespace, job[len(f.Name)+1:]); found {
		version = fmt.Sprintf("%s/%d", t.UID, t.Generation)
	}
	return fmt.Sprintf("%d %s", f.Generation, version)
}

// create creates Jobs and waits for the answers. It returns an error that says that not all were
// answered; refusals are in the record.
func (c *Controller) create(key types.NamespacedName, jobs []*batch.Job, r *record) (failed error) {
	m := apiwriter.Meta{Owner: "jobflow/" + key.String(), Reason: "jobflow-job", StartsWork: true}
	answers := controlloop.AwaitAll(c.loop, len(jobs), func(i int, done func(apiwriter.Object, error)) { c.Writer.Create(m, jobs[i], done) })
	for i, j := range jobs {
		switch created, err := answers[i].Value, answers[i].Err; {
		case err == nil:
			r.created[j.Name] = created.(*batch.Job)
			delete(r.refused, j.Name)
			c.Log.Info("created a Job of a JobFlow", "jobflow", key, "job", j.Name)
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err):
			c.refuse(key, j, err, r)
		case apierrors.IsNotFound(err): // the namespace is being deleted
		default:
			failed = fmt.Errorf("create Job %s: %w", j.Name, err)
		}
	}
	return failed
}

// refuse remembers that the server refuses a Job.
func (c *Controller) refuse(key types.NamespacedName, j *batch.Job, err error, r *record) {
	f, found := c.Informers.JobFlows.Get(key.Namespace, key.Name)
	if !found {
		return
	}
	old := r.refused[j.Name]
	if old == nil {
		old = &refusal{}
		r.refused[j.Name] = old
	}
	if old.message != err.Error() {
		c.Writer.Event(f, corev1.EventTypeWarning, api.ReasonRefused, fmt.Sprintf("Job %s: %s", j.Name, err))
	}
	if of := c.madeFrom(f, j.Name); old.of != of {
		old.of, old.backoff = of, controlloop.Backoff{}
	}
	old.message = err.Error()
	old.backoff.Failed(c.Clock.Now())
}

// report writes the status, if it has changed and is due, conditional on the version of the JobFlow
// that the plan was made from. After Jobs have started it is written at once: it says that they were
// created, and that the Jobs before them have completed, which both may be deleted now.
func (c *Controller) report(key types.NamespacedName, f *api.JobFlow, p *plan, started bool, r *record) error {
	if sameStatus(&f.Status, &p.status) {
		return nil
	}
	pause := statusLater
	switch {
	case started || p.status.State.Phase != f.Status.State.Phase:
		pause = 0
	case matters(&f.Status, &p.status):
		pause = statusSoon
	}
	if left := pause - c.Clock.Since(r.written); left > 0 {
		c.loop.WakeAfter(key, left)
		return nil
	}
	data, err := json.Marshal([]apiwriter.PatchOp{{Op: "add", Path: "/status", Value: p.status}})
	if err != nil {
		return err
	}
	m := apiwriter.Meta{Owner: "jobflow/" + key.String(), Reason: "jobflow-status", StatusOnly: true}
	got, err := controlloop.Await(c.loop, func(done func(apiwriter.Object, error)) {
		c.Writer.PatchVersion(m, f, p.status.State.Phase.Finished(), data, done)
	})
	r.written = c.Clock.Now()
	switch {
	case apierrors.IsNotFound(err): // deleted meanwhile
	case apierrors.IsConflict(err):
		r.conflict = f.ResourceVersion
	case err != nil:
		return fmt.Errorf("status: %w", err)
	default:
		r.latest = f.DeepCopy()
		r.latest.ResourceVersion, r.latest.Status = got.GetResourceVersion(), p.status
		if p.status.State.Phase == api.Succeed && f.Spec.JobRetainPolicy == api.Delete {
			c.loop.Wake(key) // to delete the Jobs
		}
	}
	return nil
}
