package cron

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cron"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/sandbox"
	"lockstep.dev/lockstep/internal/workflow/settings"
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
	// Settings returns the cluster's configuration of workflows; nil: it has none. Call Resync after
	// its answer has changed.
	Settings func() *settings.Settings
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
	kind   = "CronWorkflow"
	byCron = "cron"
)

// Controller starts workflows on the schedules of their CronWorkflows.
type Controller struct {
	*cron.Controller[*wf.CronWorkflow, *metav1.PartialObjectMetadata]
	cfg       Config
	crons     *informer.Informer[*wf.CronWorkflow]
	workflows *informer.Informer[*metav1.PartialObjectMetadata]
}

// New returns a Controller. It reads nothing before Run.
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Writer == nil || cfg.Evaluators == nil {
		return nil, errors.New("cron: a cluster, a writer and evaluators are required")
	}
	if cfg.Owns == nil {
		cfg.Owns = func(string, string) bool { return true }
	}
	if cfg.Settings == nil {
		none := &settings.Settings{}
		cfg.Settings = func() *settings.Settings { return none }
	}
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
			Labels:  wf.LabelCronWorkflow,
			Indexes: map[string]func(*metav1.PartialObjectMetadata) []string{byCron: cron.ByCron[*metav1.PartialObjectMetadata](kind)},
		}),
	}
	c.crons.Guard(cfg.Guard)
	c.Controller, err = cron.New(cron.Config[*wf.CronWorkflow, *metav1.PartialObjectMetadata]{
		Name: "crons", Prefix: "cron", Crons: c.crons, Runs: c.workflows, Index: byCron, Kind: kind, Decide: c.decide, Made: made,
		Writer: cfg.Writer, Owns: c.owns, Guard: cfg.Guard, Clock: cfg.Clock, Log: cfg.Log,
	})
	c.crons.Handle(informer.Handler[*wf.CronWorkflow]{Malformed: c.malformed})
	return c, err
}

func (c *Controller) malformed(cron *wf.CronWorkflow, why *malformed.Error) {
	if c.cfg.Malformed != nil && c.cfg.Owns(cron.Namespace, cron.Name) && c.cfg.Settings().Selects(cron.Labels) {
		c.cfg.Malformed(cron, why)
	}
}

// owns reports whether this manager owns a cron that is in the cache, or that was deleted.
func (c *Controller) owns(namespace, name string) bool {
	if cron, found := c.crons.Get(namespace, name); found && !c.cfg.Settings().Selects(cron.Labels) {
		return false
	}
	return c.cfg.Owns(namespace, name)
}

// Resync reconciles every cron again, after ownership has changed.
func (c *Controller) Resync() {
	c.Controller.Resync()
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
	c.Controller.Run(ctx)
}

// decide converts the plan for one cron to the writes that carry it out.
func (c *Controller) decide(t cron.Turn[*wf.CronWorkflow, *metav1.PartialObjectMetadata]) (out cron.Plan[*wf.CronWorkflow], err error) {
	children := make([]child, len(t.Runs))
	for i, o := range t.Runs {
		children[i] = child{o}
	}
	var interrupted error
	p := decide(t.Cron, children, t.Passed, t.Now, c.evaluate(&t, &interrupted))
	if interrupted != nil {
		return out, interrupted
	}
	for _, old := range p.terminate {
		out.Replace = append(out.Replace, func(m apiwriter.Meta, done func(apiwriter.Object, error)) {
			c.cfg.Writer.Patch(m, old.stub(), types.MergePatchType, []byte(`{"spec":{"shutdown":"`+wf.ShutdownTerminate+`"}}`), done)
		})
	}
	for _, old := range p.remove {
		out.Remove = append(out.Remove, old.stub())
	}
	if p.start != nil {
		out.Start = p.start
	}
	out.Started = func(created apiwriter.Object) { p.started(child{made(created)}, p.passed) }
	out.Refused = func(err error) bool {
		setCondition(&p.status, conditionSubmissionError, err.Error())
		return true
	}
	out.Status = func() ([]byte, *wf.CronWorkflow, error) { return p.patch(t.Cron) }
	out.Passed, out.Skipped, out.Wake = p.passed, p.skipped, p.wake
	return out, nil
}

// made returns the metadata of a workflow that was created.
func made(created apiwriter.Object) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	created.(*wf.Workflow).ObjectMeta.DeepCopyInto(&o.ObjectMeta)
	return o
}

// evaluate returns the function that evaluates a cron's expressions, and yields the worker to
// another cron meanwhile. It sets *interrupted if an evaluation gets no answer.
func (c *Controller) evaluate(t *cron.Turn[*wf.CronWorkflow, *metav1.PartialObjectMetadata], interrupted *error) template.Run {
	return func(evaluator string, request []byte) (answer []byte, err error) {
		t.Yield(func() {
			answer, _, err = c.cfg.Evaluators.DoUntilAnswered(t.Context, t.Cron.Namespace, evaluator, request)
		})
		if err != nil && !sandbox.Permanent(err) {
			*interrupted = fmt.Errorf("an expression was not evaluated: %w", err)
		}
		return answer, err
	}
}

// stub returns the part of a child's workflow that writes need.
func (c child) stub() *wf.Workflow {
	return &wf.Workflow{
		TypeMeta:   metav1.TypeMeta{APIVersion: wf.GroupVersion.String(), Kind: "Workflow"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.Namespace, Name: c.Name, UID: c.UID},
	}
}

// patch returns the patch that writes the status, and the cron after it, or nil if the cron has
// this status.
func (p *plan) patch(cron *wf.CronWorkflow) ([]byte, *wf.CronWorkflow, error) {
	if p.same(cron) {
		return nil, nil, nil
	}
	status, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p.status)
	if err != nil {
		return nil, nil, err
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
	data, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": labels, "annotations": map[string]any{annotationSchedule: p.schedule}},
		"status":   status,
	})
	if err != nil {
		return nil, nil, err
	}
	after := cron.DeepCopy()
	after.Status = p.status
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, annotationSchedule, p.schedule)
	delete(after.Labels, labelCompleted)
	if p.completed {
		metav1.SetMetaDataLabel(&after.ObjectMeta, labelCompleted, "true")
	}
	return data, after, nil
}
