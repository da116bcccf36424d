package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/admission"
	"lockstep.dev/lockstep/internal/lab/analyse"
	"lockstep.dev/lockstep/internal/lab/drive"
	"lockstep.dev/lockstep/internal/lab/observe"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/scenario"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/lab/system"
	"lockstep.dev/lockstep/internal/localcluster"
)

const (
	// pauseFor is how long there must be no writes between the steps of a measurement.
	pauseFor = 500 * time.Millisecond
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
	*series.Trial // its Rig is nil if the cluster is an existing one
	cfg           *Config
	experiment
	index, total int
	run          Run
	// stage is the current stage, for progress.
	stage string
}

// measure makes the run, step by step.
func (t *trial) measure(ctx context.Context) (err error) {
	//   1. Start a control plane or connect to one.
	if err := t.connect(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.Stop(ctx, err != nil)) }()
	namespace := "bench"
	if t.Rig == nil {
		namespace = fmt.Sprintf("lockstep-bench-%d", time.Now().UnixMilli())
		t.Log.Namespace = namespace
		defer t.cleanUp(ctx, namespace)
	}
	//   2. Warm up: take every path once and open connections.
	if t.Rig != nil && t.cfg.WarmUpPods > 0 {
		if err := t.warmUp(ctx); err != nil {
			return fmt.Errorf("warm-up: %w", err)
		}
	}
	if t.cfg.Pace != nil {
		return t.measureRate(ctx)
	}
	//   3. Drive the load until the last pod has its node, and then wait until there are no writes.
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	if t.Log.Source == nil {
		watch, err := observe.StartWatch(ctx, t.REST, namespace, t.sys.Jobs())
		if err != nil {
			return err
		}
		t.Log.Source = watch
	}
	nodes, err := t.room(ctx, namespace)
	if err != nil {
		return err
	}
	if err := fits(nodes, podRequest(), t.cfg.atOnce(t.experiment)); err != nil {
		return err
	}
	if err := t.createQueues(ctx); err != nil {
		return err
	}
	t.Log.Forget()
	scheduled := 0
	var used rig.Used
	t.run.Metrics, err = t.Metered(ctx, func() (err error) {
		// The work on reading the metrics before and after is of nobody else.
		before, began := rig.BusyCPU(), time.Now()
		used, err = t.cost(func() (err error) {
			scheduled, err = t.drive(ctx, namespace, "scheduling", t.parts())
			return err
		})
		t.run.OtherCPUs = rig.OtherCPUs(before, used, time.Since(began))
		return err
	})
	if err != nil {
		return err
	}
	if scheduled < t.pods() {
		t.run.TimedOut = fmt.Sprintf("--timeout=%s ran out when %d of %d pods had nodes", t.cfg.Timeout, scheduled, t.pods())
	}
	t.run.CPUSeconds = keyed(used.CPUSeconds)
	if t.run.TimedOut == "" {
		t.enter("waiting until all is at rest", 0)
		if err := errors.Join(t.ended(ctx, namespace), t.Quiet(ctx)); err != nil {
			return err
		}
	}
	if t.Rig != nil {
		usages, err := t.Usages()
		if err != nil {
			return err
		}
		t.run.PeakRSSMiB = keyed(rig.UsedBetween(nil, usages).PeakMiB)
	}
	//   4. Analyse the run.
	in, err := t.atRest(ctx, namespace, nodes, t.parts(), t.run.TimedOut != "")
	if err != nil {
		return err
	}
	t.analyse(in)
	if t.run.Lost = cmp.Or(t.Log.Lost(), t.run.Metrics.Lost()); t.run.Lost != "" {
		t.run.Result = analyse.Result{Pods: t.run.Pods, Created: t.run.Created, Scheduled: t.run.Scheduled}
	}
	//   5. Measure the floor on the same control plane.
	if t.Rig == nil || len(t.cfg.FloorConcurrency) == 0 || t.run.Scheduled < t.run.Pods || t.run.Lost != "" {
		return nil
	}
	return t.run.FloorError(ctx, t.floor(ctx, namespace, in.jobs, in.pods))
}

// connect starts a control plane, or connects to an existing one.
func (t *trial) connect(ctx context.Context) (err error) {
	t.enter("control plane", 0)
	t.Trial = &series.Trial{Config: &t.cfg.Config, Stage: func(stage string) { t.enter(stage, 0) }}
	if t.cfg.Kubeconfig == "" {
		config := localcluster.Config{KubeBinary: t.cfg.Kube, NotDurable: !t.cfg.Durable, Nodes: t.cfg.Nodes}
		t.sys.Configure(&config)
		if t.admission.Kind == admission.Webhook {
			config.Programs = append(config.Programs, localcluster.Program{Name: "webhook", ReadyLog: regexp.MustCompile(admission.Ready),
				Command: []string{t.cfg.Lockstep, "bench", "load", "webhook", "--kubeconfig=${KUBECONFIG}", "--listen=127.0.0.1:${PORT}",
					"--admission=" + t.admission.Argument()}})
		}
		t.Observed, err = rig.Observe(ctx, config, t.cfg.OutDir, t.sys.Jobs(),
			func(c localcluster.Component) { t.enter("starting "+string(c), 0) })
		if err != nil {
			return err
		}
		t.Log.Source.(*observe.AuditLog).Users = t.sys.Users()
		if t.admission.Kind == admission.CEL {
			if err := admission.Apply(ctx, t.REST); err != nil {
				return errors.Join(fmt.Errorf("policy: %w", err), t.Stop(ctx, true))
			}
		}
		return nil
	}
	existing := &rig.Observed{}
	if existing.REST, err = kubeclient.Load(t.cfg.Kubeconfig, t.cfg.Context); err != nil {
		return err
	}
	if existing.Client, err = drive.New(existing.REST, t.sys.Jobs()); err != nil {
		return err
	}
	if t.cfg.AuditLog != "" {
		audit, err := observe.FollowAudit(t.cfg.AuditLog)
		if err != nil {
			return err
		}
		audit.Users = t.sys.Users()
		existing.Log.Source = audit
	}
	if t.sys.Installs() {
		t.cfg.Progress("the processes and manifests of the file are not used: " + t.sys.Name() + " has to run in this cluster")
	}
	existing.MetricsURLs = t.cfg.MetricsURLs
	t.Observed = existing
	return nil
}

// cleanUp removes the run's namespace from an existing cluster. It waits until the jobs and pods
// are deleted, because their removal would disturb the next run. A failure does not fail the run,
// whose measurement is over.
func (t *trial) cleanUp(ctx context.Context, namespace string) {
	t.enter("removing namespace "+namespace, 0)
	removing, cancel := context.WithTimeout(ctx, t.cfg.Timeout)
	defer cancel()
	err := t.Client.RemoveNamespace(removing, namespace)
	if err == nil {
		return
	}
	// Request the deletion of the namespace: the server completes it without this program.
	asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	err = errors.Join(err, t.Client.DeleteNamespace(asking, namespace))
	t.cfg.Progress(fmt.Sprintf("namespace %s is not removed yet: %v", namespace, err))
}

// warmUp sends a small load through the system and removes it again. That load needs no more
// capacity than the measured one.
func (t *trial) warmUp(ctx context.Context) error {
	const namespace = "bench-warm-up"
	if err := t.Client.CreateNamespace(ctx, namespace); err != nil {
		return err
	}
	const jobs = 10
	shape := scenario.Shape{Jobs: jobs, PodsPerJob: max(1, min(t.cfg.WarmUpPods, t.cfg.atOnce(t.experiment))/jobs)}
	if t.foreign == system.Pods {
		shape = scenario.Shape{Jobs: shape.Pods(), PodsPerJob: 1}
	}
	scheduled, err := t.drive(ctx, namespace, "warming up", []part{{Shape: shape}})
	if err != nil {
		return err
	}
	if scheduled < shape.Pods() {
		return fmt.Errorf("--timeout=%s ran out when %d of %d pods had nodes", t.cfg.Timeout, scheduled, shape.Pods())
	}
	t.enter("clearing after the warm-up", 0)
	return errors.Join(t.Log.Quiet(ctx, pauseFor), t.Client.Clear(ctx, namespace, t.sys.NewList), t.Log.Quiet(ctx, pauseFor))
}

// cost returns what each component and the client use during work.
func (t *trial) cost(work func() error) (rig.Used, error) {
	before, err := t.Usages()
	if err != nil {
		return rig.Used{}, err
	}
	if err := work(); err != nil {
		return rig.Used{}, err
	}
	after, err := t.Usages()
	return rig.UsedBetween(before, after), err
}

// keyed returns amounts under the names that components have in reports.
func keyed(amounts map[string]float64) Usage {
	out := Usage{}
	for c, amount := range amounts {
		out[cmp.Or(componentKeys[localcluster.Component(c)], c)] = amount
	}
	return out
}

// room returns the free capacity of each node: its allocatable resources less the requests of pods
// outside namespace.
func (t *trial) room(ctx context.Context, namespace string) (map[string]analyse.Resources, error) {
	nodes, err := t.Client.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	out := make(map[string]analyse.Resources, len(nodes))
	for i := range nodes {
		a := nodes[i].Status.Allocatable
		out[nodes[i].Name] = analyse.Resources{MilliCPU: a.Cpu().MilliValue(), MemoryBytes: a.Memory().Value(),
			Pods: a.Pods().Value()}
	}
	pods, err := t.Client.Pods(ctx, "")
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

// state is what the server has of a load.
type state struct {
	jobs []drive.Object
	pods []corev1.Pod
	analyse.Input
}

// atRest reads the state of the load. A status that does not count its pods may be one that the
// system writes late: atRest then waits for as long as the system takes for that at most.
// unfinished says that the time for the load ran out.
func (t *trial) atRest(ctx context.Context, namespace string, nodes map[string]analyse.Resources, parts []part, unfinished bool) (s state, err error) {
	read := func() (state, error) { return t.read(ctx, namespace, nodes, parts, unfinished) }
	if s, err = read(); err != nil || s.Unfinished || analyse.StatusesSettled(s.Input) {
		return s, err
	}
	t.enter("waiting until all statuses are written", 0)
	last := len(t.Log.Events)
	_, err = t.Log.Until(ctx, t.sys.Settle(), func() (bool, error) {
		if len(t.Log.Events) == last {
			return false, nil
		}
		last = len(t.Log.Events)
		var err error
		s, err = read()
		return err == nil && analyse.StatusesSettled(s.Input), err
	})
	return s, err
}

func (t *trial) read(ctx context.Context, namespace string, nodes map[string]analyse.Resources, parts []part, unfinished bool) (s state, err error) {
	if s.jobs, err = t.Client.Jobs(ctx, namespace, t.sys.NewList); err != nil {
		return s, err
	}
	if s.pods, err = t.Client.Pods(ctx, namespace); err != nil {
		return s, err
	}
	if unfinished {
		if err := t.observed(ctx, namespace, s.pods); err != nil {
			return s, err
		}
	}
	s.Input = t.input(namespace, nodes, parts, s.jobs, s.pods)
	s.Unfinished = unfinished
	return s, nil
}

// observed collects events until the creations of pods are among them: a system whose time has run
// out goes on creating pods, and the server shows a pod before it logs its creation.
func (t *trial) observed(ctx context.Context, namespace string, pods []corev1.Pod) error {
	seen, created := 0, map[string]bool{}
	_, err := t.Log.Until(ctx, cleanUpTimeout, func() (bool, error) {
		for ; seen < len(t.Log.Events); seen++ {
			if e := &t.Log.Events[seen]; e.Resource == "pods" && e.Verb == "create" && e.Namespace == namespace && e.OK() {
				created[e.Name] = true
			}
		}
		return !slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !created[p.Name] }), nil
	})
	return err
}

// podRequest returns what each pod of a load requests.
func podRequest() analyse.Resources {
	spec := scenario.PodSpec()
	return system.RequestOf(&spec)
}

func (t *trial) input(namespace string, nodes map[string]analyse.Resources, parts []part, jobs []drive.Object, pods []corev1.Pod) analyse.Input {
	sys := t.sys
	in := analyse.Input{
		Events: t.Log.Events, Namespace: namespace, JobResource: sys.Jobs().GroupResource().String(),
		Nodes: nodes, Request: podRequest(), Identify: sys.Identify, OfLoad: sys.OfLoad,
		System: sys.Writers(), Heartbeats: observe.Heartbeats,
	}
	for i, p := range parts {
		for range p.Jobs {
			in.Jobs = append(in.Jobs, analyse.Job{Name: scenario.JobName(len(in.Jobs)), Pods: p.PodsPerJob, Part: i,
				Min: sys.Min(p.PodsPerJob, t.gang)})
		}
	}
	if len(parts) > 1 {
		in.Settling = t.cfg.PodTime
		for _, p := range parts {
			in.Parts = append(in.Parts, p.Part)
		}
	}
	for i := range pods {
		if sys.OfLoad(pods[i].Name) {
			in.Pods = append(in.Pods, podAtRest(sys, &pods[i]))
		}
	}
	for _, j := range jobs {
		in.States = append(in.States, sys.State(j))
	}
	return in
}

func (t *trial) analyse(s state) {
	s.Events = t.Log.Events
	t.run.Result = analyse.Analyse(s.Input)
	if _, ok := t.Log.Source.(*observe.Watch); ok {
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

func (t *trial) enter(stage string, total int) {
	t.stage = stage
	t.count(0, total)
}

func (t *trial) count(done, total int) {
	t.cfg.OnStep(Step{Run: t.index, Runs: t.total, Case: t.run.Title(), Stage: t.stage, Done: done, Total: total})
}
