package cron

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Evaluators evaluates users' programs in child processes. See sandbox.Pool.
type Evaluators interface {
	DoUntilAnswered(ctx context.Context, tenant, evaluator string, request []byte) (response []byte, cpu time.Duration, err error)
}

// Config configures a Controller. REST, Writer and Evaluators are required.
type Config struct {
	REST   *rest.Config
	Writer apiwriter.Writer
	// Evaluators evaluates the users' expressions that are not cheap.
	Evaluators Evaluators
	// Owns reports whether this manager owns a cron; nil means that it owns all. Call Resync after
	// the answers of Owns have changed.
	Owns func(namespace, name string) bool
	// Guard recovers from panics that one cron causes. If Guard is nil, a panic ends the process.
	Guard *panics.Guard
	// Malformed is called with each cron of this manager that cannot be decoded, or on which the
	// manager panicked. It may be nil.
	Malformed func(runtime.Object, *malformed.Error)
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

const (
	// workers is the number of crons reconciled concurrently, not counting those that wait for an
	// answer.
	workers = 8
	byCron  = "cron"
)

// Controller starts workflows on the schedules of their CronWorkflows.
type Controller struct {
	cfg       Config
	crons     *informer.Informer[*wf.CronWorkflow]
	workflows *informer.Informer[*metav1.PartialObjectMetadata]
	loop      *controlloop.Loop[types.NamespacedName, cronState]
}

// cronState is the in-memory state of one cron that the caches may not show yet or that is not
// stored at all.
type cronState struct {
	uid types.UID
	// passed is plan.passed.
	passed time.Time
	// latest is the cron after the last write, and created is the workflow created last; each is
	// nil once the caches show it.
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
	cfg.Clock, cfg.Log = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{}), cmp.Or(cfg.Log, slog.Default())
	client, err := kubeclient.LeanCustom(cfg.REST, nil, wf.GroupVersion, scheme.Scheme, nil)
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	meta, err := kubeclient.Metadata(cfg.REST, wf.GroupVersion)
	if err != nil {
		return nil, fmt.Errorf("cron: %w", err)
	}
	c := &Controller{
		cfg:   cfg,
		crons: informer.New(client, "cronworkflows", informer.Options[*wf.CronWorkflow]{}),
		// Only the workflows that crons have started.
		workflows: informer.New(meta, "workflows", informer.Options[*metav1.PartialObjectMetadata]{
			Labels: wf.LabelCronWorkflow, Indexes: map[string]func(*metav1.PartialObjectMetadata) []string{byCron: cronOf},
		}),
	}
	c.loop = controlloop.New[types.NamespacedName, cronState](controlloop.Config[types.NamespacedName]{
		Name: "crons", Workers: workers, Turn: c.turn, Guard: cfg.Guard, Panicked: c.panicked, Clock: cfg.Clock,
	})
	c.crons.Guard(cfg.Guard)
	c.crons.Handle(informer.Handler[*wf.CronWorkflow]{
		Added: c.wake, Updated: func(_, cron *wf.CronWorkflow) { c.wake(cron) }, Deleted: c.wake, Malformed: c.malformed,
	})
	c.workflows.Follow(c.wakeOwner, c.wakeOwner)
	return c, nil
}

func (c *Controller) wake(cron *wf.CronWorkflow) { c.loop.Wake(informer.KeyOf(cron)) }

func (c *Controller) wakeOwner(workflow *metav1.PartialObjectMetadata) {
	if owner := metav1.GetControllerOf(workflow); owner != nil && owner.Kind == "CronWorkflow" {
		c.loop.Wake(types.NamespacedName{Namespace: workflow.Namespace, Name: owner.Name})
	}
}

func (c *Controller) malformed(cron *wf.CronWorkflow, why *malformed.Error) {
	if c.cfg.Malformed != nil && c.cfg.Owns(cron.Namespace, cron.Name) {
		c.cfg.Malformed(cron, why)
	}
}

// cronOf returns the UID of the cron that controls a workflow.
func cronOf(workflow *metav1.PartialObjectMetadata) []string {
	if owner := metav1.GetControllerOf(workflow); owner != nil && owner.Kind == "CronWorkflow" {
		return []string{string(owner.UID)}
	}
	return nil
}

// Resync reconciles every cron again, after ownership has changed.
func (c *Controller) Resync() {
	for _, cron := range c.crons.List() {
		c.wake(cron)
	}
	for _, cron := range c.crons.ListApart() {
		c.malformed(cron, malformed.Of(cron))
	}
}

// Run runs the workers until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.crons.Run(ctx) })
	running.Go(func() { c.workflows.Run(ctx) })
	defer running.Wait()
	if c.crons.WaitForSync(ctx) == nil && c.workflows.WaitForSync(ctx) == nil {
		c.loop.Run(ctx)
	}
}

// panicked sets apart a cron until it is changed.
func (c *Controller) panicked(key types.NamespacedName, p *panics.Panic) {
	if cron, found := c.crons.Get(key.Namespace, key.Name); found {
		c.crons.SetApart(key.Namespace, key.Name, cron.UID, p)
	}
}

// turn reconciles one cron and schedules the next time.
func (c *Controller) turn(key types.NamespacedName) {
	cron, found := c.crons.Get(key.Namespace, key.Name)
	if c.loop.Context().Err() != nil {
		return
	}
	if !found || cron.DeletionTimestamp != nil || !c.cfg.Owns(key.Namespace, key.Name) {
		c.loop.Drop(key)
		return
	}
	state := c.loop.Get(key)
	if state == nil || state.uid != cron.UID {
		state = &cronState{uid: cron.UID}
		c.loop.Put(key, state)
	}
	wake, err := c.reconcile(c.loop.Context(), key, state.seen(cron), state)
	switch {
	case c.loop.Context().Err() != nil:
	case err != nil:
		c.cfg.Log.Warn("a cron workflow could not be brought up to date; trying again", "cron", key, "error", err)
		c.loop.Retry(key)
	default:
		c.loop.Succeeded(key)
		if !wake.IsZero() {
			c.loop.WakeAfter(key, wake.Sub(c.cfg.Clock.Now()))
		}
	}
}

// reconcile makes a plan for one cron and carries it out. It returns the time to reconcile again,
// or zero if only a change requires that.
func (c *Controller) reconcile(ctx context.Context, key types.NamespacedName, cron *wf.CronWorkflow, remembered *cronState) (wake time.Time, err error) {
	if cron.ResourceVersion == remembered.conflict {
		return time.Time{}, nil
	}
	children := c.children(cron, remembered)
	//   1. Decide.
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
	//   3. Start.
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
			// The cron has changed, or another manager owns it. The plan is made again from the
			// version that the watch will show, including a fault at the due time, which no status
			// would report otherwise.
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
	//   5. Clean up.
	for _, old := range p.remove {
		c.cfg.Writer.Delete(apiwriter.Meta{Owner: owner.Owner, Reason: "cron-history"}, old.stub(),
			apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground}, nil)
	}
	return p.wake, nil
}

// evaluate returns the function that evaluates a cron's expressions, and yields the worker to
// another cron meanwhile. It sets *interrupted if an evaluation gets no answer.
func (c *Controller) evaluate(ctx context.Context, key types.NamespacedName, interrupted *error) template.Run {
	return func(evaluator string, request []byte) (answer []byte, err error) {
		c.loop.Yield(func() { answer, _, err = c.cfg.Evaluators.DoUntilAnswered(ctx, key.Namespace, evaluator, request) })
		if err != nil && !sandbox.Permanent(err) {
			*interrupted = fmt.Errorf("an expression was not evaluated: %w", err)
		}
		return answer, err
	}
}

// seen returns the later of the versions of a cron in the cache and after the last write.
func (s *cronState) seen(cron *wf.CronWorkflow) *wf.CronWorkflow {
	if s.latest != nil && informer.Older(cron.ResourceVersion, s.latest.ResourceVersion) {
		return s.latest
	}
	s.latest = nil
	return cron
}

// children returns the workflows of a cron, including one that was just created.
func (c *Controller) children(cron *wf.CronWorkflow, s *cronState) []child {
	var out []child
	known := false
	seen := c.workflows.SeenVersion() // read before the cache, which then has every write up to this version
	for _, o := range c.workflows.ByIndex(byCron, string(cron.UID)) {
		known = known || s.created != nil && o.UID == s.created.UID
		out = append(out, child{o})
	}
	switch {
	case s.created == nil:
	case known || !informer.Older(seen, s.created.ResourceVersion):
		s.created = nil // the cache has caught up: a workflow that it does not show is deleted
	default:
		out = append(out, *s.created)
	}
	return out
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
	created, err := c.await(ctx, func(done func(apiwriter.Object, error)) { c.cfg.Writer.Create(m, w, done) })
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
			status[list] = nil // a null in a merge patch removes the field
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
	got, err := c.await(ctx, func(done func(apiwriter.Object, error)) { c.cfg.Writer.PatchVersion(m, cron, false, data, done) })
	if err != nil {
		return nil, err
	}
	latest := cron.DeepCopy()
	latest.ResourceVersion, latest.Status = got.GetResourceVersion(), p.status
	metav1.SetMetaDataAnnotation(&latest.ObjectMeta, annotationSchedule, p.schedule)
	delete(latest.Labels, labelCompleted)
	if p.completed {
		metav1.SetMetaDataLabel(&latest.ObjectMeta, labelCompleted, "true")
	}
	return latest, nil
}

func (c *Controller) patch(ctx context.Context, m apiwriter.Meta, reason string, w *wf.Workflow, change map[string]any) error {
	data, err := json.Marshal(change)
	if err != nil {
		return err
	}
	m.Reason = reason
	_, err = c.await(ctx, func(done func(apiwriter.Object, error)) { c.cfg.Writer.Patch(m, w, types.MergePatchType, data, done) })
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // the workflow is deleted
	}
	return err
}

// await passes a write to the writer and waits for its outcome, and yields the worker to another
// cron meanwhile.
func (c *Controller) await(ctx context.Context, write func(done func(apiwriter.Object, error))) (o apiwriter.Object, err error) {
	type outcome struct {
		object apiwriter.Object
		err    error
	}
	ended := make(chan outcome, 1)
	write(func(o apiwriter.Object, err error) { ended <- outcome{o, err} })
	c.loop.Yield(func() {
		select {
		case got := <-ended:
			o, err = got.object, got.err
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	})
	return o, err
}
