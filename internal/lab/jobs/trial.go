package jobs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/floor"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/report"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
)

const (
	// restFor is how long there must be no writes until the cluster counts as at rest: longer than
	// any controller here delays a status. pauseFor is enough between the steps of a measurement.
	restFor  = 1500 * time.Millisecond
	pauseFor = 500 * time.Millisecond
	// sampleSize is the minimum number of pods in one sample of the floor's calibration: half a
	// second's worth. samplePerFlight is the minimum per write in flight, because a shorter sample
	// would end before the server feels that many writes.
	sampleSize      = 400
	samplePerFlight = 2
	// cleanUpTimeout bounds the last request to delete a namespace, after the run may have been
	// interrupted.
	cleanUpTimeout = 30 * time.Second
)

// componentKeys are the names of components in reports.
var componentKeys = map[localcluster.Component]string{
	localcluster.APIServer: "apiserver", localcluster.Etcd: "etcd", localcluster.Manager: "manager",
	localcluster.ControllerManager: "controllerManager", localcluster.Scheduler: "scheduler", localcluster.Kwok: "nodes",
	rig.Client: "client",
}

// trial is one run: one system under one load.
type trial struct {
	config       *Config
	experiment   experiment
	index, total int
	run          report.Run

	cluster *rig.Rig // nil if the cluster is an existing one
	rest    *rest.Config
	client  *drive.Client
	log     observe.Log
	// stage is the current stage, for progress.
	stage string
}

// measure makes the run, step by step.
func (t *trial) measure(ctx context.Context) (err error) {
	//   1. Start a control plane or connect to one.
	stop, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop(err != nil)) }()
	namespace := "bench"
	if t.cluster == nil {
		namespace = fmt.Sprintf("lockstep-bench-%d", time.Now().UnixMilli())
		t.log.Namespace = namespace
		defer t.cleanUp(ctx, namespace)
	}
	//   2. Warm up: take every path once and open connections.
	if t.cluster != nil && t.config.WarmUpPods > 0 {
		if err := t.warmUp(ctx); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	//   3. Drive the load until the last pod has its node, and then wait until there are no writes.
	if err := t.client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if t.log.Source == nil {
		watch, err := observe.StartWatch(ctx, t.rest, namespace, t.experiment.sys.Jobs())
		if err != nil {
			return err
		}
		t.log.Source = watch
	}
	nodes, err := t.room(ctx, namespace)
	if err != nil {
		return err
	}
	t.log.Forget()
	if err := t.load(ctx, namespace); err != nil {
		return err
	}
	if err := t.quiet(ctx, restFor, "at rest"); err != nil {
		return err
	}
	t.peaks()
	// 4. Analyse the run.
	jobs, err := t.client.Jobs(ctx, namespace, t.experiment.sys.NewList)
	if err != nil {
		return err
	}
	pods, err := t.client.Pods(ctx, namespace)
	if err != nil {
		return err
	}
	t.analyse(namespace, nodes, jobs, pods)
	//   5. Measure the floor on the same control plane.
	if t.cluster == nil || len(t.config.FloorConcurrency) == 0 || t.run.Scheduled < t.run.Pods {
		return nil
	}
	if err := t.floor(ctx, namespace, jobs, pods); err != nil {
		return fmt.Errorf("floor: %w", err)
	}
	return nil
}

// connect starts a control plane, or connects to an existing one. stop closes the log of events and
// stops the control plane that connect started; it keeps the components' logs if failed is true.
func (t *trial) connect(ctx context.Context) (stop func(failed bool) error, err error) {
	t.enter("control plane", 0)
	down := func(bool) error { return nil }
	audit := t.config.AuditLog
	if t.config.Kubeconfig != "" {
		if t.rest, err = kubeclient.Load(t.config.Kubeconfig, t.config.Context); err != nil {
			return nil, err
		}
	} else {
		if err := t.start(ctx); err != nil {
			return nil, err
		}
		down = func(failed bool) error { return t.cluster.Stop(ctx, failed) }
		t.rest, audit, t.log.Broken = t.cluster.RESTConfig(), t.cluster.AuditLogPath(), t.cluster.Broken
	}
	stop = func(failed bool) error {
		return errors.Join(t.log.Close(), down(failed))
	}
	if t.client, err = drive.New(t.rest, t.experiment.sys.Jobs()); err != nil {
		return nil, errors.Join(err, stop(true))
	}
	if audit != "" {
		log, err := observe.FollowAudit(audit)
		if err != nil {
			return nil, errors.Join(err, stop(true))
		}
		t.log.Source = log
	}
	return stop, nil
}

func (t *trial) start(ctx context.Context) (err error) {
	config := localcluster.Config{KubeBinary: t.config.Kube, NotDurable: !t.config.Durable, Nodes: t.config.Nodes}
	t.experiment.sys.Configure(&config)
	t.cluster, err = rig.Start(ctx, config, t.config.OutDir,
		func(c localcluster.Component) { t.enter("starting "+string(c), 0) })
	return err
}

// cleanUp removes the run's namespace from an existing cluster. It waits until the jobs and pods
// are deleted, because their removal would disturb the next run. A failure does not fail the run,
// whose measurement is over.
func (t *trial) cleanUp(ctx context.Context, namespace string) {
	t.enter("removing namespace "+namespace, 0)
	removing, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	err := t.client.RemoveNamespace(removing, namespace)
	if err == nil {
		return
	}
	// Request the deletion of the namespace: the server completes it without this program.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	err = errors.Join(err, t.client.DeleteNamespace(asking, namespace))
	t.progress(Progress{Result: fmt.Sprintf("namespace %s is not removed yet: %v", namespace, err)})
}

// warmUp sends a small load through the system and removes it again. That load needs no more
// capacity than the measured one.
func (t *trial) warmUp(ctx context.Context) error {
	const namespace = "bench-warm-up"
	if err := t.client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	const jobs = 10
	shape := scenario.Shape{Jobs: jobs, PodsPerJob: max(1, min(t.config.WarmUpPods, t.experiment.shape.Pods())/jobs)}
	if err := t.drive(ctx, namespace, "warming up", shape); err != nil {
		return err
	}
	if err := t.quiet(ctx, pauseFor, "warming up"); err != nil {
		return err
	}
	if err := t.client.Clear(ctx, namespace, t.experiment.sys.NewList); err != nil {
		return err
	}
	return t.quiet(ctx, pauseFor, "warming up")
}

// load drives the experiment's load and records the CPU time that it costs.
func (t *trial) load(ctx context.Context, namespace string) error {
	var err error
	t.run.CPUSeconds, err = t.cost(func() error { return t.drive(ctx, namespace, "scheduling", t.experiment.shape) })
	return err
}

// cost returns the CPU time in seconds that each component and the client use during work.
func (t *trial) cost(work func() error) (report.Usage, error) {
	before, err := t.cpu()
	if err != nil {
		return nil, err
	}
	if err := work(); err != nil {
		return nil, err
	}
	after, err := t.cpu()
	if err != nil {
		return nil, err
	}
	used := report.Usage{}
	for key, seconds := range after {
		used[key] = math.Round((seconds-before[key])*100) / 100
	}
	return used, nil
}

// drive creates a load's jobs and follows the events until all pods have nodes or the timeout
// expires. The analysis reports missing pods.
func (t *trial) drive(ctx context.Context, namespace, stage string, shape scenario.Shape) error {
	t.enter(stage, shape.Pods())
	sending, cancel := context.WithTimeout(ctx, t.config.Timeout)
	defer cancel()
	submitted := make(chan error, 1)
	go func() {
		submitted <- t.client.Submit(sending, shape.Jobs, t.config.ClientConcurrency, func(i int) drive.Object {
			return t.experiment.sys.NewJob(namespace, scenario.JobName(i), shape.PodsPerJob, t.experiment.gang)
		}, func(int) {})
	}()
	scheduled := map[string]bool{}
	seen := len(t.log.Events)
	allSubmitted := false
	_, err := t.log.Until(ctx, t.config.Timeout, func() (bool, error) {
		select {
		case err := <-submitted:
			if err != nil && sending.Err() == nil {
				return false, err
			}
			allSubmitted = true
		default:
		}
		for ; seen < len(t.log.Events); seen++ {
			e := &t.log.Events[seen]
			if e.Resource == "pods" && e.Namespace == namespace && e.Node != "" && e.OK() {
				scheduled[e.Name] = true
			}
		}
		t.count(len(scheduled), shape.Pods())
		return allSubmitted && len(scheduled) >= shape.Pods(), nil
	})
	cancel()
	return err
}

// quiet waits until there were no writes for quietFor, not counting heartbeats.
func (t *trial) quiet(ctx context.Context, quietFor time.Duration, stage string) error {
	t.enter("waiting for quiet: "+stage, 0)
	if err := t.log.Quiet(ctx, quietFor); err != nil {
		return fmt.Errorf("%s: %w", stage, err)
	}
	return nil
}

// cpu returns the CPU time in seconds used so far by each component and by this process, the
// client.
func (t *trial) cpu() (report.Usage, error) {
	if t.cluster == nil {
		return report.Usage{componentKeys[rig.Client]: rig.OwnCPU().Seconds()}, nil
	}
	usages, err := t.cluster.Usages()
	if err != nil {
		return nil, err
	}
	out := report.Usage{}
	for c, u := range usages {
		out[componentKeys[c]] = u.CPU.Seconds()
	}
	return out, nil
}

// peaks records the peak resident memory of each component since its start.
func (t *trial) peaks() {
	if t.cluster == nil {
		return
	}
	t.run.PeakRSSMiB = report.Usage{}
	for _, c := range t.cluster.Components() {
		if u, err := t.cluster.Usage(c); err == nil {
			t.run.PeakRSSMiB[componentKeys[c]] = math.Round(float64(u.PeakRSSBytes)/(1<<20)*10) / 10
		}
	}
}

// room returns the free capacity of each node: its allocatable resources less the requests of pods
// outside namespace.
func (t *trial) room(ctx context.Context, namespace string) (map[string]analyse.Resources, error) {
	nodes, err := t.client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[string]analyse.Resources, len(nodes))
	for i := range nodes {
		a := nodes[i].Status.Allocatable
		out[nodes[i].Name] = analyse.Resources{MilliCPU: a.Cpu().MilliValue(), MemoryBytes: a.Memory().Value(),
			Pods: a.Pods().Value()}
	}
	pods, err := t.client.Pods(ctx, "")
	if err != nil {
		return nil, err
	}
	for i := range pods {
		p := &pods[i]
		node, ok := out[p.Spec.NodeName]
		if !ok || p.Namespace == namespace || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
			continue
		}
		r := system.RequestOf(&p.Spec)
		node.MilliCPU -= r.MilliCPU
		node.MemoryBytes -= r.MemoryBytes
		node.Pods -= r.Pods
		out[p.Spec.NodeName] = node
	}
	return out, nil
}

func (t *trial) analyse(namespace string, nodes map[string]analyse.Resources, jobs []drive.Object, pods []corev1.Pod) {
	sys, shape := t.experiment.sys, t.experiment.shape
	spec := scenario.PodSpec()
	in := analyse.Input{
		Events: t.log.Events, Namespace: namespace, JobResource: sys.Jobs().GroupResource().String(),
		Nodes: nodes, Request: system.RequestOf(&spec), Identify: sys.Identify,
		System: sys.Writers(), Heartbeats: observe.Heartbeats,
	}
	for i := range shape.Jobs {
		in.Jobs = append(in.Jobs, analyse.Job{Name: scenario.JobName(i), Pods: shape.PodsPerJob,
			Min: sys.Min(shape.PodsPerJob, t.experiment.gang)})
	}
	for i := range pods {
		in.Pods = append(in.Pods, podAtRest(sys, &pods[i]))
	}
	for _, j := range jobs {
		in.States = append(in.States, sys.State(j))
	}
	result := analyse.Analyse(in)
	t.run.Fill(result)
	if _, ok := t.log.Source.(*observe.Watch); ok {
		// A watch does not see writes, so the figures about writes would be wrong.
		t.run.Writes, t.run.WritesByActor, t.run.Refused = nil, nil, nil
		t.run.WritesPerPod, t.run.WritesPerPodUntilScheduled = 0, 0
	}
}

func podAtRest(sys system.System, p *corev1.Pod) analyse.Pod {
	job, index := sys.Identify(p.Name)
	out := analyse.Pod{Name: p.Name, Job: job, Index: index, Node: p.Spec.NodeName, Phase: string(p.Status.Phase),
		Request: system.RequestOf(&p.Spec)}
	for i := range p.Status.ContainerStatuses {
		if end := p.Status.ContainerStatuses[i].State.Terminated; end != nil && end.FinishedAt.After(out.Finished) {
			out.Finished = end.FinishedAt.Time
		}
	}
	return out
}

// floor measures how long writing the same objects takes without the system.
func (t *trial) floor(ctx context.Context, namespace string, jobs []drive.Object, pods []corev1.Pod) error {
	//   1. Stop the other writers, and delete the load.
	t.enter("floor: clearing", 0)
	for _, c := range t.experiment.sys.StopForFloor() {
		if err := t.cluster.StopComponent(ctx, c); err != nil {
			return err
		}
	}
	if err := t.client.Clear(ctx, namespace, t.experiment.sys.NewList); err != nil {
		return err
	}
	if err := t.quiet(ctx, pauseFor, "floor"); err != nil {
		return err
	}
	asSystem, err := drive.New(t.experiment.sys.FloorConfig(t.cluster.Cluster), t.experiment.sys.Jobs())
	if err != nil {
		return err
	}
	writers := floor.Writers{User: t.client, System: asSystem}
	load := floor.New(t.experiment.sys, jobs, pods)
	result := &report.Floor{}
	result.Jobs, result.Pods = load.Counts()
	if result.Jobs != t.experiment.shape.Jobs || result.Pods != t.experiment.shape.Pods() {
		return fmt.Errorf("the run left %d jobs and %d pods", result.Jobs, result.Pods)
	}
	//   2. Find the best concurrency by samples.
	if err := t.calibrate(ctx, load, writers, result); err != nil {
		return err
	}
	//   3. Write everything.
	const floorNamespace = "bench-floor"
	t.enter(fmt.Sprintf("floor at %d in flight", result.Concurrency), result.Pods)
	if err := t.client.CreateNamespace(ctx, floorNamespace); err != nil {
		return err
	}
	if err := t.quiet(ctx, pauseFor, "floor"); err != nil {
		return err
	}
	from := len(t.log.Events)
	count := func(done int) { t.count(done, result.Pods) }
	t.enter(fmt.Sprintf("floor at %d in flight", result.Concurrency), result.Pods)
	result.CPUSeconds, err = t.cost(func() error {
		_, err := load.Run(ctx, writers, floorNamespace, result.Concurrency, count)
		return err
	})
	if err != nil {
		return err
	}
	// The server logs an event before it answers, so all events are in the log.
	if err := t.log.Collect(); err != nil {
		return err
	}
	return t.judgeFloor(t.log.Events[from:], floorNamespace, result)
}

func (t *trial) calibrate(ctx context.Context, load *floor.Load, writers floor.Writers, result *report.Floor) error {
	var err error
	var samples []floor.Sample
	result.Concurrency, samples, err = floor.Calibrate(t.config.FloorConcurrency,
		func(i, concurrency int) (int, time.Duration, error) {
			sample := load.Sample(max(sampleSize, samplePerFlight*concurrency))
			_, pods := sample.Counts()
			namespace := fmt.Sprintf("bench-calibrate-%d", i)
			t.enter(fmt.Sprintf("floor: trying %d in flight", concurrency), pods)
			if err := t.client.CreateNamespace(ctx, namespace); err != nil {
				return 0, 0, err
			}
			took, err := sample.Run(ctx, writers, namespace, concurrency, func(done int) { t.count(done, pods) })
			if err != nil {
				return 0, 0, err
			}
			return pods, took, t.client.Clear(ctx, namespace, t.experiment.sys.NewList)
		})
	for _, s := range samples {
		result.Calibration = append(result.Calibration,
			report.Calibration{Concurrency: s.Concurrency, PodsPerSecond: s.PerSecond})
	}
	return err
}

func (t *trial) judgeFloor(events []analyse.Event, namespace string, result *report.Floor) error {
	mine := func(e *analyse.Event) bool {
		return e.Namespace == namespace && (e.Actor == observe.Client || e.Actor == observe.Manager)
	}
	var start time.Time
	var created []time.Time
	for i := range events {
		e := &events[i]
		if !mine(e) {
			continue
		}
		if start.IsZero() || e.Received.Before(start) {
			start = e.Received
		}
		if e.Resource == "pods" && e.Verb == "create" && e.OK() {
			created = append(created, e.Time)
		}
	}
	if len(created) != result.Pods {
		return fmt.Errorf("%d of %d pods were created", len(created), result.Pods)
	}
	curve := analyse.CurveOf(start, created)
	result.Curve = &curve
	result.PodsSeconds = curve.AtSeconds[len(curve.AtSeconds)-1]
	result.Seconds = math.Round(analyse.Span(events, mine).Seconds()*1e3) / 1e3
	ratio := math.Round(t.run.ScheduleSeconds/result.Seconds*1e3) / 1e3
	t.run.Floor, t.run.FloorSeconds, t.run.RatioToFloor = result, &result.Seconds, &ratio
	return nil
}

func (t *trial) enter(stage string, total int) {
	t.stage = stage
	t.progress(Progress{Total: total})
}

func (t *trial) count(done, total int) { t.progress(Progress{Done: done, Total: total}) }

func (t *trial) progress(p Progress) {
	p.Run, p.Runs, p.Case, p.Stage = t.index, t.total, t.experiment.String(), t.stage
	t.config.OnProgress(p)
}
