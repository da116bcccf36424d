package workflows

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/capacity"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
)

// The scenarios.
const (
	Queued = "workflows-queued"
	Rate   = "workflows-rate"
)

// Config configures the scenarios.
type Config struct {
	series.Config
	Scenario string
	Shapes   []Shape
	// Workflows is the number of workflows created at once by Queued.
	Workflows int
	// Start is the first rate of Rate, in workflows per second; each step lasts StepTime. Growth and
	// Max are as of capacity.Search.
	Start, Growth float64
	Max           float64
	StepTime      time.Duration
	PodTime       time.Duration
	// PodGC is the podGC strategy; empty keeps the pods.
	PodGC string
	// WarmUp is the number of workflows that go through the system before it is measured.
	WarmUp int
}

// Complete sets defaults and validates the configuration.
func (c *Config) Complete() error {
	if len(c.WriterConcurrency) == 0 {
		c.WriterConcurrency = []int{0}
	}
	switch {
	case c.Scenario != Queued && c.Scenario != Rate:
		return fmt.Errorf("scenario %q: want %s or %s", c.Scenario, Queued, Rate)
	case len(c.Shapes) == 0:
		return errors.New("no shapes")
	case c.Workflows < 1 || c.Workflows > 100_000:
		return fmt.Errorf("workflows: %d is not between 1 and 100000", c.Workflows)
	case c.Start <= 0 || c.Growth <= 1 || c.StepTime < time.Second:
		return errors.New("rate: want a positive start, a growth above 1, and steps of at least a second")
	case c.PodTime <= 0 || c.ClientConcurrency < 1:
		return errors.New("pod time and client concurrency must be positive")
	}
	return c.Config.Complete()
}

// Measure makes all runs and writes the report into OutDir after each. A run that could not be
// measured is included with its error.
func Measure(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	inner, err := series.New[*Run](cfg.Config, cfg.effective())
	if err != nil {
		return nil, err
	}
	rep := &Report{inner}
	var runs []series.Planned[*Run]
	for _, shape := range cfg.Shapes {
		for repeat := range cfg.Repeat {
			for _, writes := range cfg.WriterConcurrency {
				t := &trial{cfg: &cfg, shape: shape, run: Run{Scenario: cfg.Scenario, Shape: shape.String(), Repeat: repeat + 1, WritesInFlight: writes}}
				runs = append(runs, series.Planned[*Run]{Run: &t.run, Measure: t.measure, SaveEvents: func(n int) error {
					return t.SaveEvents(fmt.Sprintf("%02d-%s", n, shape))
				}})
			}
		}
	}
	if err := cfg.Afford(cfg.estimate(len(runs))); err != nil {
		return nil, err
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }, runs...)
}

// What runs take, as measured on two cores. They are for estimates only.
const (
	runTime      = 25 * time.Second
	workflowTime = 30 * time.Millisecond
	workBytes    = 250 << 20
	eachBytes    = 48 << 10
)

// paceMost is a pace that no system on one machine keeps up with, for the estimate of Rate.
const paceMost = 500

// estimate returns about what the runs take.
func (c *Config) estimate(runs int) series.Estimate {
	workflows, took := float64(c.Workflows), time.Duration(c.Workflows)*workflowTime
	if c.Scenario == Rate {
		most := paceMost * 1.0
		if c.Max > 0 {
			most = c.Max
		}
		workflows, took = 0, 0
		for pace := c.Start; pace <= most; pace *= c.Growth {
			workflows, took = workflows+pace*c.StepTime.Seconds(), took+c.StepTime
		}
	}
	size := int64(workflows) * eachBytes
	return series.Estimate{Runs: runs, Time: time.Duration(runs) * (runTime + took), WorkBytes: workBytes + size, ResultBytes: int64(runs) * size / 20}
}

func (c *Config) effective() map[string]any {
	return map[string]any{"scenario": c.Scenario, "workflows": c.Workflows, "rateStart": c.Start, "rateGrowth": c.Growth, "rateMax": c.Max, "rateStep": c.StepTime.String(),
		"podTime": c.PodTime.String(), "podGC": c.PodGC, "nodes": c.Nodes.Count, "etcdDurable": c.Durable, "clientConcurrency": c.ClientConcurrency,
		"warmUp": c.WarmUp, "floorConcurrencyTried": c.FloorConcurrency, "managerArgs": c.ManagerArgs}
}

// trial is one run on a fresh control plane.
type trial struct {
	*series.Trial
	cfg   *Config
	shape Shape
	run   Run

	core kubernetes.Interface
	// model is a pod that the manager created, as the server stores it.
	model *corev1.Pod

	// ended has the time at which the watch first showed each workflow as completed.
	ended observe.Seen[time.Time]
}

const namespace = "bench"

// measure makes the run, step by step.
func (t *trial) measure(ctx context.Context) (err error) {
	//   1. Start a control plane and observe it.
	if err := t.start(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop(ctx, err != nil)) }()
	watching, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := t.watch(watching); err != nil {
		return err
	}
	//   2. Warm up: take every path once.
	t.Say("warming up")
	if err := t.Client.CreateNamespace(ctx, "warm-up"); err != nil {
		return err
	}
	warm := Shape{"chain", 2}
	if err := t.submit(ctx, "warm-up", warm, t.cfg.WarmUp); err != nil {
		return err
	}
	if err := t.await(ctx, "warm-up", t.cfg.WarmUp); err != nil {
		return fmt.Errorf("warm-up: %w", err)
	}
	if t.TimedOut != "" {
		return fmt.Errorf("warm-up: %s", t.TimedOut)
	}
	if err := errors.Join(t.Quiet(ctx), t.Client.Clear(ctx, "warm-up", newList), t.Quiet(ctx)); err != nil {
		return err
	}
	//   3. Drive the load.
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	used, err := t.Load(ctx, func() error {
		if t.cfg.Scenario == Rate {
			err = t.pace(ctx)
		} else {
			err = t.queue(ctx)
		}
		if err != nil {
			return err
		}
		return t.collected(ctx)
	})
	if err != nil {
		return err
	}
	//   4. Analyse the run.
	list, err := t.Client.Jobs(ctx, namespace, newList)
	if err != nil {
		return err
	}
	t.analyse(used, list)
	//   5. Measure the floor on the same control plane.
	if t.cfg.Scenario == Rate || len(t.cfg.FloorConcurrency) == 0 || len(t.run.Violations) > 0 || t.TimedOut != "" || t.run.Lost != "" {
		return nil
	}
	return t.run.FloorError(ctx, t.floor(ctx, list))
}

func (t *trial) start(ctx context.Context) (err error) {
	t.Trial, err = t.cfg.StartTrial(ctx, t.run.Scenario+" "+t.run.Shape, wf.GroupVersion.WithResource("workflows"), func(*localcluster.Config) {},
		"--writer-concurrency="+strconv.Itoa(t.run.WritesInFlight))
	if err != nil {
		return err
	}
	if t.core, err = kubeclient.Clientset(t.REST); err != nil {
		return errors.Join(err, t.Stop(ctx, true))
	}
	return nil
}

// watch records when workflows end, until ctx is done.
func (t *trial) watch(ctx context.Context) error {
	return follow(ctx, t.REST, wf.GroupVersion.WithResource("workflows"), metav1.NamespaceAll,
		func(o *metav1.ListOptions) { o.LabelSelector = wf.LabelCompleted + "=true" },
		func(m *metav1.PartialObjectMetadata) {
			now := time.Now()
			t.ended.Note(m.Namespace, m.Name, func(at time.Time) time.Time {
				if at.IsZero() {
					at = now
				}
				return at
			})
		})
}

// follow calls found with each object that enters the selection made by choose, until ctx is done.
// It returns when the watch has synced.
func follow(ctx context.Context, cfg *rest.Config, gvr schema.GroupVersionResource, namespace string, choose func(*metav1.ListOptions),
	found func(*metav1.PartialObjectMetadata)) error {
	client, err := metadata.NewForConfig(cfg)
	if err != nil {
		return err
	}
	informer := metadatainformer.NewFilteredMetadataInformer(client, gvr, namespace, 0, nil, choose).Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		if m, ok := o.(*metav1.PartialObjectMetadata); ok {
			found(m)
		}
	}}); err != nil {
		return err
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return context.Cause(ctx)
	}
	return nil
}

func (t *trial) endedIn(namespace string) int {
	return t.ended.Count(namespace, func(time.Time) bool { return true })
}

func name(i int) string { return fmt.Sprintf("w-%05d", i) }

func (t *trial) submit(ctx context.Context, namespace string, shape Shape, n int) error {
	return t.Client.Submit(ctx, n, t.cfg.ClientConcurrency, func(i int) drive.Object {
		return shape.Workflow(namespace, name(i), t.cfg.PodTime, t.cfg.PodGC)
	}, func(int) {})
}

// queue submits all workflows at once and waits until they have ended.
func (t *trial) queue(ctx context.Context) error {
	t.run.Workflows = t.cfg.Workflows
	t.Say("%d workflows", t.cfg.Workflows)
	if err := t.submit(ctx, namespace, t.shape, t.cfg.Workflows); err != nil {
		return err
	}
	return t.await(ctx, namespace, t.cfg.Workflows)
}

// await waits until n workflows have ended or the timeout expires.
func (t *trial) await(ctx context.Context, namespace string, n int) error {
	return t.Await(ctx, n, "workflows had ended", func() (int, error) { return t.endedIn(namespace), t.findModel(ctx, namespace) })
}

// collected waits until podGC has deleted all pods or the timeout expires. The analysis reports
// pods that are left.
func (t *trial) collected(ctx context.Context) error {
	if t.cfg.PodGC == "" || t.TimedOut != "" {
		return nil
	}
	_, err := t.Log.Until(ctx, t.cfg.Timeout, func() (bool, error) { return len(t.podsLeft()) == 0, nil })
	return err
}

// podsLeft returns the pods of the load that were created and not deleted, according to the events.
func (t *trial) podsLeft() map[string]bool {
	left := map[string]bool{}
	for i := range t.Log.Events {
		e := &t.Log.Events[i]
		if e.Namespace != namespace || e.Resource != "pods" || e.Sub != "" || !e.OK() {
			continue
		}
		switch e.Verb {
		case "create":
			left[e.Name] = true
		case "delete":
			delete(left, e.Name)
		}
	}
	return left
}

// findModel stores a pod of the namespace as the model, unless there is a model already.
func (t *trial) findModel(ctx context.Context, namespace string) error {
	if t.model != nil {
		return nil
	}
	list, err := t.core.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err == nil && len(list.Items) > 0 {
		t.model = &list.Items[0]
	}
	return err
}

// workflowsMax bounds the workflows of all steps together: none is deleted before the end.
const workflowsMax = 50_000

// pace submits workflows at a rate that grows from step to step until the manager no longer keeps up,
// and then closes in on the rate between.
func (t *trial) pace(ctx context.Context) error {
	search := capacity.Search{Start: t.cfg.Start, Growth: t.cfg.Growth, Max: t.cfg.Max}
	var verdicts []string
	for t.TimedOut == "" && t.run.Workflows < workflowsMax {
		rate, ok := search.Next()
		if !ok {
			break
		}
		step, err := t.step(ctx, rate)
		if err != nil {
			return err
		}
		t.run.Steps = append(t.run.Steps, step)
		t.Say("%.1f/s asked, %.1f/s sent, %.1f/s ended, %d under way: %s", step.Asked, step.Sent, step.Ended, step.Waiting, step.Verdict)
		verdicts = append(verdicts, step.Verdict)
		search.Note(rate, step.KeptUp)
		t.run.SustainedPerSecond, t.run.BehindPerSecond = search.Interval()
		t.run.Doubt = capacity.Doubt(verdicts)
	}
	return nil
}

// step submits workflows at a rate for Config.StepTime, and waits until all have ended.
func (t *trial) step(ctx context.Context, rate float64) (Step, error) {
	begin, already, first := time.Now(), t.endedIn(namespace), t.run.Workflows
	n := max(capacity.ArrivalsMin, int(rate*t.cfg.StepTime.Seconds()))
	t.run.Workflows += n
	sent, err := t.Client.Pace(ctx, n, rate, func(i int) drive.Object {
		return t.shape.Workflow(namespace, name(first+i), t.cfg.PodTime, t.cfg.PodGC)
	})
	if err := errors.Join(err, t.Log.Collect()); err != nil {
		return Step{}, err
	}
	took, ended := time.Since(begin).Seconds(), t.endedIn(namespace)
	step := Step{Asked: round(rate), Sent: round(float64(n) / took), Ended: round(float64(ended-already) / took), Waiting: first + n - ended}
	if err := t.await(ctx, namespace, first+n); err != nil {
		return step, err
	}
	at := t.ended.In(namespace)
	step.judge(sent, func(i int) time.Time { return at[name(first+i)] }, time.Duration(t.criticalSeconds()*float64(time.Second)))
	return step, nil
}

// judge says whether the manager kept up with the workflows that were sent. ended returns when one ended,
// the zero time if it did not, and pods is how long the pods of each take.
func (s *Step) judge(sent []drive.Sent, ended func(i int) time.Time, pods time.Duration) {
	begin, last := sent[0].Due, sent[len(sent)-1].Due
	var waits, lags []capacity.Arrival
	for i, job := range sent {
		at, end := job.Due.Sub(begin).Seconds(), ended(i)
		lags = append(lags, capacity.Arrival{AtSeconds: at, WaitSeconds: job.Lag.Seconds()})
		if end.IsZero() || end.Add(-pods).After(last) {
			s.Late++
		}
		if !end.IsZero() {
			waits = append(waits, capacity.Arrival{AtSeconds: at, WaitSeconds: end.Sub(job.Due).Seconds()})
		}
	}
	s.Growth, s.LagGrowth = analyse.Round(capacity.Growth(waits), 3), analyse.Round(capacity.Growth(lags), 3)
	s.Verdict = capacity.Step{Arrivals: len(sent), Waiting: s.Late, Unserved: len(sent) - len(waits), Growth: s.Growth, LagGrowth: s.LagGrowth}.Verdict()
	s.KeptUp = s.Verdict == capacity.KeptUp
}

// criticalSeconds returns the pod time on the critical path of a workflow.
func (t *trial) criticalSeconds() float64 {
	n := 1
	switch t.shape.Kind {
	case "chain":
		n = t.shape.Pods
	case "dag":
		n = (t.shape.Pods + dagWidth - 1) / dagWidth
	}
	return float64(n) * t.cfg.PodTime.Seconds()
}
