package cpus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/cputopology/simulate"
	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/lab/rig"
	"lockstep.dev/lockstep/internal/lab/series"
	"lockstep.dev/lockstep/internal/localcluster"
	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// Scenario is the name of the scenario.
const Scenario = "cpu-topology"

// Config configures the scenario.
type Config struct {
	series.Config
	// LoadTime is how long each load is measured. Default 10 s.
	LoadTime time.Duration
	// Connections is the number of concurrent requests to the web server. Default 32.
	Connections int
}

// Complete sets defaults and validates the configuration.
func (c *Config) Complete() error {
	if c.LoadTime == 0 {
		c.LoadTime = 10 * time.Second
	}
	if c.Connections == 0 {
		c.Connections = 32
	}
	if c.LoadTime < time.Second || c.Connections < 1 || c.Timeout <= c.LoadTime {
		return errors.New("the time of loads must be a second at least and shorter than the timeout, and connections positive")
	}
	return c.Config.Complete()
}

const (
	namespace = "default"
	image     = "localhost/lockstep-load:1"
	port      = 8080
	poll      = 100 * time.Millisecond
)

// trial is the cluster that all runs share. A run leaves nothing behind for the next one.
type trial struct {
	cfg  *Config
	core kubernetes.Interface
	own  rest.Interface
	node string
	plan Plan

	topology *cputopology.Topology
	hash     string
	reserved cpuset.Set
	given    cpuset.Set // in the mode KubeletStatic, to the pods of the run
}

// What a measurement takes, for the estimate: to start the node with its image, the programs of a run
// beside its two loads, and the disk of the node.
const (
	startTime    = time.Minute
	programsTime = 60 * time.Second
	nodeBytes    = 2 << 30
	runBytes     = 1 << 20
)

// estimate returns about what all runs take.
func (c *Config) estimate() series.Estimate {
	runs := c.Repeat * len(modes)
	return series.Estimate{Runs: runs, Time: startTime + time.Duration(runs)*(2*c.LoadTime+programsTime), WorkBytes: nodeBytes, ResultBytes: int64(runs) * runBytes}
}

// Measure makes all runs and writes the report into OutDir after each. A run that could not be
// measured is included with its error.
func Measure(ctx context.Context, cfg Config) (rep *Report, err error) {
	if err := cfg.Complete(); err != nil {
		return nil, err
	}
	if _, err := realnodes.Check(); err != nil {
		return nil, fmt.Errorf("this scenario runs on a real node: %w", err)
	}
	rep = &Report{}
	if rep.Report, err = series.New[*Run](cfg.Config, map[string]any{
		"scenario": Scenario, "loadTime": cfg.LoadTime.String(), "connections": cfg.Connections, "repeat": cfg.Repeat}); err != nil {
		return nil, err
	}
	if err := cfg.Afford(cfg.estimate()); err != nil {
		return nil, err
	}
	cluster, err := rig.Start(ctx, localcluster.Config{
		KubeBinary: cfg.Kube, NotDurable: true, WithoutKwok: true, RealNodes: 1, Install: install.With(install.Options{CPUs: true}),
		AgentCommand: []string{cfg.Lockstep, "agent"}, ManagerCommand: []string{cfg.Lockstep, "manager"},
	}, cfg.OutDir, func(c localcluster.Component) { cfg.Progress("starting " + string(c)) })
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, cluster.Stop(ctx, err != nil)) }()
	t := &trial{cfg: &cfg}
	topology, err := t.prepare(ctx, cluster)
	if err != nil {
		return nil, err
	}
	t.plan = planFor(topology.Spec.Counts)
	if t.topology, err = cputopology.Decode(topology.Spec); err != nil {
		return nil, err
	}
	if t.reserved, err = cpuset.Parse(string(topology.Status.Reserved)); err != nil {
		return nil, err
	}
	t.hash = t.topology.Hash()
	rep.Topology, rep.Plan = topology.Spec.Counts, t.plan
	cfg.Progress(rep.Headline())
	var runs []series.Planned[*Run]
	for repeat := range cfg.Repeat {
		for _, mode := range modes {
			run := &Run{Mode: mode, Repeat: repeat + 1}
			runs = append(runs, series.Planned[*Run]{Run: run, Measure: func(ctx context.Context) error { return t.run(ctx, run) }})
		}
	}
	return rep, rep.MakeAll(ctx, &cfg.Config, func() error { return series.Save(cfg.OutDir, rep, rep.Page()) }, runs...)
}

// prepare connects to the cluster, loads the image onto its node, and waits for the node's agent.
func (t *trial) prepare(ctx context.Context, cluster *rig.Rig) (*topologyv1alpha1.NodeTopology, error) {
	var err error
	if t.core, err = kubeclient.Clientset(cluster.RESTConfig()); err != nil {
		return nil, err
	}
	if t.own, err = kubeclient.ForGroupVersion(cluster.RESTConfig(), nil, topologyv1alpha1.GroupVersion, scheme.Scheme); err != nil {
		return nil, err
	}
	spec, err := realnodes.Read(localcluster.RealNodesDir(cluster.Dir()))
	if err != nil {
		return nil, err
	}
	t.node = spec.Nodes()[0].Name()
	t.cfg.Progress("loading the image")
	if err := load(ctx, spec, t.cfg.Lockstep); err != nil {
		return nil, err
	}
	topology := &topologyv1alpha1.NodeTopology{}
	return topology, t.until(ctx, "the node's agent", func(ctx context.Context) (bool, error) {
		err := t.own.Get().Resource("nodetopologies").Name(t.node).Do(ctx).Into(topology)
		return err == nil && meta.IsStatusConditionTrue(topology.Status.Conditions, topologyv1alpha1.NodeReady), nil
	})
}

// load builds the manager's image with this program and imports it.
func load(ctx context.Context, spec realnodes.Spec, program string) error {
	return localcluster.ManagerImage().Load(ctx, spec, image, func(string) (string, error) { return program, nil })
}

// until waits until is returns true. It returns an error after the configured timeout.
func (t *trial) until(ctx context.Context, what string, is func(context.Context) (bool, error)) error {
	err := wait.PollUntilContextTimeout(ctx, poll, t.cfg.Timeout, true, is)
	if err != nil {
		return fmt.Errorf("waiting for %s: %w", what, err)
	}
	return nil
}

// run makes one run.
func (t *trial) run(ctx context.Context, r *Run) (err error) {
	defer func() { err = errors.Join(err, t.clean(context.WithoutCancel(ctx))) }()
	computations := make([]string, t.plan.PiPods)
	seconds := t.cfg.LoadTime.String()
	compute := func() error {
		for i := range computations {
			computations[i] = fmt.Sprintf("pi-%d", i)
			if err := t.create(ctx, r.Mode, computations[i], t.plan.Pi, "pi", "--threads="+strconv.Itoa(t.plan.Pi), "--for="+seconds); err != nil {
				return err
			}
		}
		return nil
	}
	//   1. Start the server.
	if err := t.create(ctx, r.Mode, "web", t.plan.Server, "serve", fmt.Sprintf("--address=:%d", port)); err != nil {
		return err
	}
	server, err := t.await(ctx, "web", corev1.PodRunning)
	if err != nil {
		return err
	}
	//   2. Start its client, and the computations with it if there is room for both.
	if t.plan.Together {
		if err := compute(); err != nil {
			return err
		}
	}
	url := fmt.Sprintf("--url=http://%s:%d", server.Status.PodIP, port)
	if err := t.create(ctx, Unpinned, "client", 0, "drive", url, "--connections="+strconv.Itoa(t.cfg.Connections), "--for="+seconds); err != nil {
		return err
	}
	if _, r.Web, err = t.result(ctx, "client"); err != nil {
		return err
	}
	t.check(r, server, r.Web.Allowed)
	//   3. Run the computations.
	if !t.plan.Together {
		if err := compute(); err != nil {
			return err
		}
	}
	for _, name := range computations {
		pod, result, err := t.result(ctx, name)
		if err != nil {
			return err
		}
		r.Pi.PerSecond += result.PerSecond
		r.Pi.Allowed = result.Allowed
		t.check(r, pod, result.Allowed)
	}
	//   4. Run the programs.
	if err := t.clean(ctx); err != nil {
		return err
	}
	return t.programs(ctx, r)
}

// create creates a pod of the load on the node.
func (t *trial) create(ctx context.Context, mode Mode, name string, cpus int, args ...string) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: mode.annotations(), Labels: map[string]string{"app": "lockstep-load"}},
		Spec: corev1.PodSpec{
			SchedulerName: scheduling.SchedulerLockstep, RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: new(int64),
			NodeSelector: map[string]string{corev1.LabelHostname: t.node}, AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "load", Image: image, ImagePullPolicy: corev1.PullNever, Command: append([]string{"lockstep", "bench", "load"}, args...)}},
		},
	}
	if cpus > 0 {
		amount := corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(cpus), resource.DecimalSI)}
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: amount, Limits: amount}
		if mode == KubeletStatic {
			if err := t.giveLikeKubelet(pod, cpus); err != nil {
				return err
			}
		}
	}
	if _, err := t.core.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("pod %s: %w", name, err)
	}
	return nil
}

// giveLikeKubelet puts a pod on the node with CPUs of the model's choice, as a scheduler that
// chooses like that would.
func (t *trial) giveLikeKubelet(pod *corev1.Pod, cpus int) error {
	idle := t.topology.Online().Minus(t.reserved).Minus(t.given)
	if idle.Len() < cpus {
		return fmt.Errorf("pod %s: %d CPUs are left, %d are needed", pod.Name, idle.Len(), cpus)
	}
	set := simulate.KubeletLike(t.topology, idle, cpus)
	t.given = t.given.Union(set)
	result, err := json.Marshal(request.Result{Version: 1, Node: t.node, Topology: t.hash,
		Containers: map[string]request.ContainerResult{"load": {CPUs: set, Share: 1}}})
	if err != nil {
		return err
	}
	pod.Annotations = map[string]string{topologyv1alpha1.ResultAnnotation: string(result)}
	pod.Spec.NodeName = t.node
	return nil
}

// await waits until a pod is in a phase.
func (t *trial) await(ctx context.Context, name string, phase corev1.PodPhase) (*corev1.Pod, error) {
	var pod *corev1.Pod
	err := t.until(ctx, "pod "+name, func(ctx context.Context) (bool, error) {
		var err error
		if pod, err = t.core.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return false, err
		}
		if pod.Status.Phase == corev1.PodFailed {
			return false, fmt.Errorf("it has failed: %s", lastWords(pod))
		}
		return pod.Status.Phase == phase, nil
	})
	if err != nil && pod != nil {
		for _, c := range pod.Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status != corev1.ConditionTrue {
				err = fmt.Errorf("%w (%s)", err, c.Message)
			}
		}
	}
	return pod, err
}

func lastWords(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if c.State.Terminated != nil {
			return fmt.Sprintf("exit code %d: %s", c.State.Terminated.ExitCode, c.State.Terminated.Message)
		}
	}
	return pod.Status.Message
}

// result waits for the end of a load.
func (t *trial) result(ctx context.Context, name string) (*corev1.Pod, Result, error) {
	var out Result
	pod, err := t.await(ctx, name, corev1.PodSucceeded)
	if err != nil {
		return nil, out, err
	}
	terminated := pod.Status.ContainerStatuses[0].State.Terminated
	if terminated == nil {
		return nil, out, fmt.Errorf("pod %s has left no result", name)
	}
	if err := json.Unmarshal([]byte(terminated.Message), &out); err != nil {
		return nil, out, fmt.Errorf("the result of pod %s, %q: %w", name, terminated.Message, err)
	}
	return pod, out, nil
}

// check compares the CPUs assigned to a pod with those it was allowed.
func (t *trial) check(r *Run, pod *corev1.Pod, allowed string) {
	placed := Placed{Name: pod.Name, Allowed: allowed}
	defer func() { r.Pods = append(r.Pods, placed) }()
	r.Checked++
	bad := func(format string, args ...any) { r.Bad("pod %s: "+format, append([]any{pod.Name}, args...)...) }
	value, given := pod.Annotations[topologyv1alpha1.ResultAnnotation]
	if given != (r.Mode != Unpinned) {
		bad("it was given CPUs: %v", given)
	}
	if !given {
		return
	}
	result, err := request.ParseResult(value)
	if err != nil {
		bad("%v", err)
		return
	}
	want := result.Containers["load"].CPUs
	placed.Given = want.String()
	is, err := cpuset.Parse(allowed)
	switch {
	case err != nil:
		bad("%v", err)
	case r.Mode == StaticBurst && !want.SubsetOf(is), r.Mode != StaticBurst && !want.Equal(is):
		bad("it ran on CPUs %s and was given %s", is, want)
	}
}

// clean deletes a run's pods and waits until they are deleted.
func (t *trial) clean(ctx context.Context) error {
	t.given = cpuset.Set{}
	pods := t.core.CoreV1().Pods(namespace)
	selected := metav1.ListOptions{LabelSelector: "app=lockstep-load"}
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, selected); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return t.until(ctx, "the pods' end", func(ctx context.Context) (bool, error) {
		list, err := pods.List(ctx, selected)
		return err == nil && len(list.Items) == 0, err
	})
}
