package cron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Evaluators evaluates users' programs in child processes: see sandbox.Pool.
type Evaluators interface {
	DoUntilAnswered(ctx context.Context, tenant, evaluator string, request []byte) (response []byte, cpu time.Duration, err error)
}

// Config configures a Controller. REST, Writer and Evaluators are required.
type Config struct {
	REST   *rest.Config
	Writer apiwriter.Writer
	// Evaluators evaluates the users' expressions that are not cheap.
	Evaluators Evaluators
	// Owns reports whether a cron is this manager's; nil means all are. After Owns has changed its
	// answers, call Resync.
	Owns func(namespace, name string) bool
	// Guard recovers from panics that one cron causes, and Panicked is told about that cron. If
	// Guard is nil, a panic ends the process.
	Guard    *panics.Guard
	Panicked func(runtime.Object, *malformed.Error)
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

const (
	// workers is the number of crons reconciled concurrently: each waits for its own writes.
	workers = 8
	// retryAfter and retryMax bound the delay of the next attempt after a failure.
	retryAfter, retryMax = time.Second, 5 * time.Minute
	byCron               = "cron"
)

// Controller starts workflows on the schedules of their CronWorkflows.
type Controller struct {
	cfg       Config
	crons     *cluster.Kind[*wf.CronWorkflow]
	workflows *workflows
	queue     workqueue.TypedRateLimitingInterface[types.NamespacedName]
	crew      *keyed.Crew[types.NamespacedName]

	lock sync.Mutex
	// memory holds what the caches may not show yet and what is not written anywhere.
	memory map[types.NamespacedName]*memory
}

// memory is the in-memory state of one cron.
type memory struct {
	uid types.UID
	// passed is plan.passed.
	passed time.Time
	// latest is the cron after the last write, created the workflow created last; nil once the
	// caches show them.
	latest  *wf.CronWorkflow
	created *child
	// conflict is the resource version for which a status write was refused because the server had
	// a newer one. The watch will show that version.
	conflict string
}

// New returns a Controller. It reads nothing before Run.
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Writer == nil || cfg.Evaluators == nil {
		return nil, errors.New("cron: a cluster, a writer and evaluators are required")
	}
	if cfg.Owns == nil {
		cfg.Owns = func(string, string) bool { return true }
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	client, err := kubeclient.LeanCustom(cfg.REST, nil, wf.GroupVersion, scheme.Scheme, nil)
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	meta, err := metadata.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	c := &Controller{
		cfg: cfg, memory: map[types.NamespacedName]*memory{},
		crons: cluster.Watch(client, "cronworkflows", "", &wf.CronWorkflow{}, nil),
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryAfter, retryMax),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: cfg.Clock}),
	}
	c.workflows = newWorkflows(meta, c.enqueueOwner)
	c.crons.Guard(cfg.Guard)
	c.crons.Follow(c.enqueue, c.enqueue)
	if cfg.Panicked != nil {
		c.crons.OnMalformed(func(o runtime.Object, why *malformed.Error) {
			if why.Panicked { // the leader reports objects that cannot be decoded
				cfg.Panicked(o, why)
			}
		})
	}
	return c, nil
}

func (c *Controller) enqueue(cron *wf.CronWorkflow) { c.queue.Add(cluster.KeyOf(cron)) }

func (c *Controller) enqueueOwner(workflow metav1.Object) {
	if owner := metav1.GetControllerOf(workflow); owner != nil && owner.Kind == "CronWorkflow" {
		c.queue.Add(types.NamespacedName{Namespace: workflow.GetNamespace(), Name: owner.Name})
	}
}

// Resync reconciles every cron again, after ownership has changed.
func (c *Controller) Resync() {
	for _, cron := range c.crons.List() {
		c.enqueue(cron)
	}
}

// Run runs the workers until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.crons.Run(ctx) })
	running.Go(func() { c.workflows.reflector.RunWithContext(ctx) })
	defer running.Wait()
	if c.crons.WaitForSync(ctx) != nil {
		return
	}
	select {
	case <-c.workflows.filled:
	case <-ctx.Done():
		return
	}
	c.crew = &keyed.Crew[types.NamespacedName]{Size: workers, Get: c.queue.Get, Turn: func(key types.NamespacedName) {
		p := c.cfg.Guard.Try("crons", key, func() {
			failpoint.Hit("crons", key)
			c.work(ctx, key)
		})
		if p != nil {
			c.panicked(key, p)
		}
		c.queue.Done(key)
	}}
	running.Go(c.crew.Run)
	<-ctx.Done()
	c.queue.ShutDown()
}

// panicked sets apart a cron until it is changed.
func (c *Controller) panicked(key types.NamespacedName, p *panics.Panic) {
	c.forget(key)
	c.queue.Forget(key)
	if cron, found := c.crons.Get(key.Namespace, key.Name); found {
		c.crons.SetApart(key.Namespace, key.Name, cron.UID, p)
	}
}

// work reconciles one cron and schedules the next time.
func (c *Controller) work(ctx context.Context, key types.NamespacedName) {
	wake, err := c.reconcile(ctx, key)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		c.cfg.Log.Warn("a cron workflow could not be brought up to date; trying again", "cron", key, "error", err)
		c.queue.AddRateLimited(key)
	default:
		c.queue.Forget(key)
		if !wake.IsZero() {
			c.queue.AddAfter(key, wake.Sub(c.cfg.Clock.Now()))
		}
	}
}

// reconcile decides about one cron and carries the plan out. It returns when to reconcile again,
// zero if only a change requires that.
func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName) (wake time.Time, err error) {
	if !c.cfg.Owns(key.Namespace, key.Name) {
		c.forget(key)
		return time.Time{}, nil
	}
	cron, remembered := c.cron(key)
	if cron == nil || cron.DeletionTimestamp != nil {
		c.forget(key)
		return time.Time{}, nil
	}
	if cron.ResourceVersion == remembered.conflict {
		return time.Time{}, nil
	}
	children, err := c.children(cron, remembered)
	if err != nil {
		return time.Time{}, err
	}
	// 1. Decide.
	var interrupted error
	p := decide(cron, children, remembered.passed, c.cfg.Clock.Now(), c.evaluate(ctx, key, &interrupted))
	if interrupted != nil || !c.cfg.Owns(key.Namespace, key.Name) { // evaluations take time
		return time.Time{}, interrupted
	}
	if p.skipped != "" {
		c.cfg.Log.Info("a time of a cron workflow passed without a workflow", "cron", key, "time", p.passed, "reason", p.skipped)
		c.cfg.Writer.Event(cron, corev1.EventTypeNormal, "Skipped", fmt.Sprintf("%s: %s", p.passed.UTC().Format(time.RFC3339), p.skipped))
	}
	//   2. Terminate the workflows to be replaced.
	owner := apiwriter.Meta{Owner: "cron/" + key.String()}
	for _, old := range p.terminate {
		if err := c.patch(ctx, owner, "cron-replace", old.stub(), map[string]any{"spec": map[string]any{"shutdown": wf.ShutdownTerminate}}); err != nil {
			return time.Time{}, fmt.Errorf("terminate workflow %s: %w", old.Name, err)
		}
	}
	// 3. Start.
	decided := p.skipped != "" // the due time is decided for good
	if p.start != nil {
		switch created, err := c.create(ctx, owner, p.start); {
		case err == nil:
			p.started(*created, p.passed)
			remembered.created, decided = created, true
			c.cfg.Log.Info("started a workflow", "cron", key, "workflow", p.start.Name)
		case apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsForbidden(err) || apierrors.IsAlreadyExists(err):
			setCondition(&p.status, conditionSubmissionError, err.Error())
			c.cfg.Writer.Event(cron, corev1.EventTypeWarning, "SubmissionFailed", err.Error())
		default:
			return time.Time{}, fmt.Errorf("start workflow %s: %w", p.start.Name, err)
		}
	}
	before := remembered.passed
	remembered.passed = p.passed
	//   4. Write the status.
	if !p.same(cron) {
		switch latest, err := c.report(ctx, owner, cron, &p); {
		case apierrors.IsNotFound(err): // deleted meanwhile
		case apierrors.IsConflict(err):
			// The cron has changed, or another manager owns it. Everything is decided again from
			// the version that the watch will show, including a fault at the due time, which nobody
			// would be told about otherwise.
			remembered.conflict = cron.ResourceVersion
			if !decided {
				remembered.passed = before
			}
			return time.Time{}, nil
		case err != nil:
			return time.Time{}, fmt.Errorf("status: %w", err)
		default:
			remembered.latest = latest
		}
	}
	// 5. Clean up.
	for _, old := range p.remove {
		c.cfg.Writer.Delete(apiwriter.Meta{Owner: owner.Owner, Reason: "cron-history"}, old.stub(),
			apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, nil)
	}
	return p.wake, nil
}

// evaluate returns the function that evaluates a cron's expressions while another cron takes the
// worker's place. *interrupted is set if an evaluation got no answer.
func (c *Controller) evaluate(ctx context.Context, key types.NamespacedName, interrupted *error) template.Run {
	return func(evaluator string, request []byte) (answer []byte, err error) {
		c.crew.Aside(func() { answer, _, err = c.cfg.Evaluators.DoUntilAnswered(ctx, key.Namespace, evaluator, request) })
		if err != nil && !sandbox.Permanent(err) {
			*interrupted = fmt.Errorf("an expression was not evaluated: %w", err)
		}
		return answer, err
	}
}

// cron returns the latest known version of a cron, and the state remembered about it. Both are nil
// if there is no such cron.
func (c *Controller) cron(key types.NamespacedName) (*wf.CronWorkflow, *memory) {
	cron, found := c.crons.Get(key.Namespace, key.Name)
	if !found {
		return nil, nil
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	m := c.memory[key]
	if m == nil || m.uid != cron.UID {
		m = &memory{uid: cron.UID}
		c.memory[key] = m
	}
	if m.latest != nil && newer(m.latest.ResourceVersion, cron.ResourceVersion) {
		return m.latest, m
	}
	m.latest = nil
	return cron, m
}

func (c *Controller) forget(key types.NamespacedName) {
	c.lock.Lock()
	defer c.lock.Unlock()
	delete(c.memory, key)
}

// children returns the workflows of a cron, including one that was just created.
func (c *Controller) children(cron *wf.CronWorkflow, m *memory) ([]child, error) {
	objects, err := c.workflows.of(cron)
	if err != nil {
		return nil, err
	}
	var out []child
	known := false
	for _, o := range objects {
		one := child{o.(*metav1.PartialObjectMetadata)}
		known = known || m.created != nil && one.UID == m.created.UID
		out = append(out, one)
	}
	switch {
	case m.created == nil:
	case known || !newer(m.created.ResourceVersion, c.workflows.version()):
		m.created = nil // the cache has caught up: a workflow that it does not show is gone
	default:
		out = append(out, *m.created)
	}
	return out, nil
}

// newer reports whether resource version a is newer than b.
func newer(a, b string) bool {
	x, err1 := strconv.ParseUint(a, 10, 64)
	y, err2 := strconv.ParseUint(b, 10, 64)
	return err1 == nil && err2 == nil && x > y
}

// stub returns the part of a child's workflow that writes need.
func (c child) stub() *wf.Workflow {
	return &wf.Workflow{
		TypeMeta:   metav1.TypeMeta{APIVersion: wf.GroupVersion.String(), Kind: "Workflow"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
	}
}

func (c *Controller) create(ctx context.Context, m apiwriter.Meta, w *wf.Workflow) (*child, error) {
	m.Reason = "cron-workflow"
	created, err := await(ctx, func(done func(apiwriter.Object, error)) { c.cfg.Writer.Create(m, w, done) })
	if err != nil {
		return nil, err
	}
	o := &metav1.PartialObjectMetadata{}
	created.(*wf.Workflow).ObjectMeta.DeepCopyInto(&o.ObjectMeta)
	return &child{o}, nil
}

// report writes the status of a plan, conditional on the version of the cron that the plan was made
// from. It returns the cron after the write.
func (c *Controller) report(ctx context.Context, m apiwriter.Meta, cron *wf.CronWorkflow, p *plan) (*wf.CronWorkflow, error) {
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p.status)
	if err != nil {
		return nil, err
	}
	for _, list := range []string{"active", "conditions"} {
		if status[list] == nil {
			status[list] = nil // which a merge patch takes as: remove
		}
	}
	labels := map[string]any{labelCompleted: nil}
	if p.completed {
		labels[labelCompleted] = "true"
	}
	change := map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": map[string]any{annotationSchedule: p.schedule}},
		"status":   status,
	}
	data, err := json.Marshal(change)
	if err != nil {
		return nil, err
	}
	m.Reason = "cron-status"
	got, err := await(ctx, func(done func(apiwriter.Object, error)) { c.cfg.Writer.PatchVersion(m, cron, false, data, done) })
	if err != nil {
		return nil, err
	}
	latest := cron.DeepCopy()
	latest.ResourceVersion, latest.Status = got.GetResourceVersion(), p.status
	if latest.Annotations == nil {
		latest.Annotations = map[string]string{}
	}
	latest.Annotations[annotationSchedule] = p.schedule
	if latest.Labels == nil {
		latest.Labels = map[string]string{}
	}
	delete(latest.Labels, labelCompleted)
	if p.completed {
		latest.Labels[labelCompleted] = "true"
	}
	return latest, nil
}

func (c *Controller) patch(ctx context.Context, m apiwriter.Meta, reason string, w *wf.Workflow, change map[string]any) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	m.Reason = reason
	_, err = await(ctx, func(done func(apiwriter.Object, error)) { c.cfg.Writer.Patch(m, w, types.MergePatchType, data, done) })
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the workflow is gone
	}
	return err
}

// await passes a write to the writer and waits for its outcome.
func await(ctx context.Context, write func(done func(apiwriter.Object, error))) (apiwriter.Object, error) {
	type outcome struct {
		object apiwriter.Object
		err    error
	}
	ended := make(chan outcome, 1)
	write(func(o apiwriter.Object, err error) { ended <- outcome{o, err} })
	select {
	case o := <-ended:
		return o.object, o.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}
