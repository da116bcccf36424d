// Package enforce does the agent's work on the node itself, without an API server: one pass brings
// all containers to their wanted CPU sets.
//
//	cgroups ──Scan──▶ tree ─┐
//	pods, topology ─Compute─┴─▶ targets ──Apply──▶ cgroups
//	                                         └───▶ Outcome: present state, problems, repaired drift
//
// A pass depends on its input and on the contents of the cgroup files. The state kept between
// passes has two purposes only: it saves recomputing results for the same input, and it
// distinguishes drift from new containers, because a container that was in its wanted state should
// still be in it.
package enforce

import (
	"fmt"
	"log/slog"
	"maps"
	"math"
	"slices"
	"time"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/agent/apply"
	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
)

// Config configures an Enforcer.
type Config struct {
	// Node is the node's name.
	Node string
	Sets cgroup.Sets
	// Quotas are the quotas of the same cgroups; without Files, quotas are left alone.
	Quotas cgroup.Quotas
	// CgroupRoot is the cgroup that contains the kubelet's cgroups, relative to the root of the
	// hierarchy.
	CgroupRoot string
	// Name returns the name of a container by its ID, for containers that the API does not list
	// yet. It may be nil.
	Name func(id string) (string, bool)
	// Observe makes passes write nothing.
	Observe bool
	// Units is told the sets of systemd's units, if it is not nil.
	Units Units
	// Guard recovers from panics caused by one pod. With a nil Guard such panics end the process.
	Guard *panics.Guard
	Log   *slog.Logger
}

// Input is the state of the API and the kubelet from which the wanted state follows.
type Input struct {
	// Generation changes whenever any other field of Input except Names changes.
	Generation int64
	Layout     *allocate.Layout
	Pods       []desired.Pod
	Kubelet    desired.Kubelet
	// Moved is the number of the last completed move.
	Moved int64
	// Names are the names of containers by their IDs.
	Names map[string]string
}

// Outcome is the state after a pass.
type Outcome struct {
	// Pool is the set of CPUs for everything that is not pinned.
	Pool cpuset.Set
	// Pinned is the number of containers that have the CPUs of their pods' annotations; Shared is
	// the number of all other container cgroups.
	Pinned, Shared int
	KubeletPins    []topologyv1alpha1.KubeletPin
	Problems       []topologyv1alpha1.Problem
	// Moved is the number of the last move that is complete now.
	Moved int64
	// Writes is the number of writes to the kernel's files. Repaired is the number of containers
	// whose CPUs another program had changed.
	Writes, Repaired int
	// Watch lists the cgroups in which a change matters.
	Watch []string
}

// Enforcer runs passes, one at a time.
type Enforcer struct {
	cfg Config
	// state is the wanted state for the input of generation and allowed.
	state      desired.State
	failure    error // why there is no state
	generation int64
	allowed    cpuset.Set
	computed   bool
	// settled are the CPUs of the leaves that were in their wanted state after the last pass, by
	// path.
	settled map[string]cpuset.Set
	// failing are the pods in backoff, by UID, which are not tried in every pass.
	failing map[string]*failing
	names   map[string]string // of containers by ID, returned by cfg.Name
	// told are the sets that systemd was told, by unit; untold is the reason why the last call failed,
	// and tellNext when the next one may be made.
	told     map[string]string
	untold   error
	tellNext time.Time
	// quotaFailures are the pods whose quotas could not be written, by UID.
	quotaFailures map[string]quotaFailure
	// lifted are the kubelet's quotas of the pods that have others, by UID.
	lifted map[string]apply.QuotaTarget
}

// failing is the state of a pod that could not be brought to its target.
type failing struct {
	// safe means that its containers run on their own CPUs or the pool's. They then follow the pool.
	safe    bool
	want    string // description of the target
	problem topologyv1alpha1.Problem
	next    time.Time
	delay   time.Duration
}

const (
	retryMin = time.Second
	retryMax = 30 * time.Second
)

// New returns an Enforcer.
func New(cfg Config) *Enforcer {
	return &Enforcer{cfg: cfg, settled: map[string]cpuset.Set{}, failing: map[string]*failing{},
		names: map[string]string{}}
}

// Pass runs one pass. An error means that nothing could be done at all; problems with single pods
// are in the Outcome.
func (e *Enforcer) Pass(in Input, now time.Time) (Outcome, error) {
	// 1. List the cgroups.
	tree, err := cgroup.Scan(e.cfg.Sets.Files, e.cfg.CgroupRoot)
	if err != nil {
		return Outcome{}, err
	}
	allowed, err := e.allowedIn(tree)
	if err != nil {
		return Outcome{}, err
	}
	// 2. Compute the wanted state.
	if !e.computed || in.Generation != e.generation || !allowed.Equal(e.allowed) {
		e.state, e.failure = e.compute(desired.Input{Node: e.cfg.Node, Layout: in.Layout, Allowed: allowed, Pods: in.Pods,
			Kubelet: in.Kubelet, Moved: in.Moved})
		e.generation, e.allowed, e.computed = in.Generation, allowed, true
	}
	if e.failure != nil {
		return Outcome{}, e.failure
	}
	targets, pinned, quotas := e.targets(tree, in)
	// 3. Apply it.
	out := Outcome{Pool: e.state.Pool, KubeletPins: e.state.KubeletPins, Watch: watch(tree)}
	out.Problems = append(out.Problems, e.state.Problems...)
	changed := e.apply(targets, now, &out)
	// 4. Determine the resulting state.
	e.account(targets, pinned, changed, &out)
	// 5. Set the quotas that fit, and tell systemd.
	e.setQuotas(targets, quotas, in.Kubelet, now, &out)
	e.tell(targets, pinned, quotas, now, &out)
	out.Moved = e.moved(in)
	return out, nil
}

// about names the subject of a panic: the node, or a pod as namespace/name.
type about string

func (a about) String() string { return string(a) }

// compute is desired.Compute. A pod on which Compute panics is treated like a pod whose annotation
// cannot be parsed.
func (e *Enforcer) compute(in desired.Input) (desired.State, error) {
	var state desired.State
	try := func(what string, pods []desired.Pod) *panics.Panic {
		return e.cfg.Guard.Try("pods", about(what), func() {
			for i := range pods {
				if pods[i].Result != "" {
					failpoint.Hit("pods", pods[i])
				}
			}
			in.Pods = pods
			state = desired.Compute(in)
		})
	}
	// 1. Try all pods at once, because Compute rarely panics.
	pods := slices.Clone(in.Pods)
	if try("node "+e.cfg.Node, pods) == nil {
		return state, nil
	}
	// 2. Find the pods on which it panics.
	var problems []topologyv1alpha1.Problem
	for i := range pods {
		if p := try(pods[i].String(), pods[i:i+1]); p != nil {
			pods[i].Result = ""
			problems = append(problems, topologyv1alpha1.Problem{Pod: pods[i].String(), Message: failedIn(p).Error()})
		}
	}
	// 3. Compute without the annotations of these pods.
	if p := try("node "+e.cfg.Node, pods); p != nil {
		return desired.State{}, failedIn(p)
	}
	state.Problems = append(problems, state.Problems...)
	return state, nil
}

func failedIn(p *panics.Panic) error { return fmt.Errorf("the agent failed in %s", p.Reason()) }

// contained runs the work on one pod's cgroups, and turns a panic in it into an error.
func (e *Enforcer) contained(pod cgroup.Pod, do func() error) error {
	var err error
	if p := e.cfg.Guard.Try("cgroups", about(e.podName(pod.UID)), func() { err = do() }); p != nil {
		return failedIn(p)
	}
	return err
}

// moved returns the number of the last completed move, such that no earlier move has failed. Pods
// that have ended or have not started yet have nothing to move.
func (e *Enforcer) moved(in Input) int64 {
	if e.cfg.Observe {
		return in.Moved
	}
	last, stuck := in.Moved, int64(math.MaxInt64)
	for uid, move := range e.state.Moves {
		last = max(last, move)
		if e.failing[uid] != nil || e.state.Stuck[uid] {
			stuck = min(stuck, move)
		}
	}
	return max(in.Moved, min(last, stuck-1))
}

// allowedIn returns the CPUs of the kubelet's cgroups, to which all pods are limited.
func (e *Enforcer) allowedIn(tree cgroup.Tree) (cpuset.Set, error) {
	var allowed cpuset.Set
	for _, root := range tree.Roots {
		if err := e.cfg.Sets.Enable(root); err != nil {
			return allowed, err
		}
		cpus, err := e.cfg.Sets.CPUs(root)
		if err != nil {
			return allowed, err
		}
		allowed = allowed.Union(cpus)
	}
	return allowed, nil
}

// watch returns the paths of all cgroups of a tree.
func watch(tree cgroup.Tree) []string {
	dirs := slices.Concat(tree.Roots, tree.QoS)
	for _, p := range tree.Pods {
		dirs = append(dirs, p.Path)
		for _, l := range p.Leaves {
			dirs = append(dirs, l.Path)
		}
	}
	return dirs
}

// targets returns the wanted state of the cgroups. pinned are the leaves whose CPUs come from an
// annotation, and quotas are those of cgroups, both by path.
func (e *Enforcer) targets(tree cgroup.Tree, in Input) (_ []apply.Target, pinned map[string]bool,
	quotas map[string]*desired.Quota) {
	pinned, quotas = map[string]bool{}, map[string]*desired.Quota{}
	targets := make([]apply.Target, len(tree.Pods))
	used := map[string]string{}
	for i, pod := range tree.Pods {
		state, known := e.state.Pods[pod.UID]
		_, kubelets := in.Kubelet.Pins[pod.UID]
		t := apply.Target{Pod: pod, CPUs: e.state.Pool, Leaves: make([]apply.Leaf, len(pod.Leaves))}
		if _, moving := e.state.Moves[pod.UID]; !moving { // a pod that cannot be moved keeps what it has
			t.Pool = e.state.Pool
		}
		switch {
		case known:
			t.CPUs = state.CPUs
			quotas[pod.Path] = state.Quota
		case in.Kubelet.Static:
			t.CPUs = e.allowed
		}
		for j, leaf := range pod.Leaves {
			// A leaf that is not a known container gets all CPUs of its pod; in an unknown pod, it
			// gets the pool.
			want := apply.Leaf{CPUs: t.CPUs, Keep: kubelets}
			if !known {
				want.CPUs = e.state.Pool
			}
			if name, found := e.name(leaf.ID, in.Names, known && (len(state.Containers) > 1 || state.Quota != nil)); found {
				used[leaf.ID] = name
				if c, found := state.Containers[name]; found {
					want = apply.Leaf{CPUs: c.CPUs, Mems: c.Mems, Own: c.Pinned, Keep: c.Kubelet}
					pinned[leaf.Path] = c.Pinned
					quotas[leaf.Path] = c.Quota
				}
			}
			t.Leaves[j] = want
		}
		targets[i] = t
	}
	e.names = used
	return targets, pinned, quotas
}

// name returns a container's name. It asks the runtime only if ask is set, which the caller sets if
// the name makes a difference.
func (e *Enforcer) name(id string, known map[string]string, ask bool) (string, bool) {
	if name, found := known[id]; found {
		return name, true
	}
	if name, found := e.names[id]; found {
		return name, true
	}
	if !ask || e.cfg.Name == nil {
		return "", false
	}
	return e.cfg.Name(id)
}

// apply applies the targets, except those of pods in backoff, and returns the leaves that were
// changed.
func (e *Enforcer) apply(targets []apply.Target, now time.Time, out *Outcome) []string {
	if e.cfg.Observe {
		return nil
	}
	failing := map[string]*failing{}
	try := make([]apply.Target, 0, len(targets))
	for _, t := range targets {
		f := e.failing[t.Pod.UID]
		if f != nil && now.Before(f.next) && f.want == describe(t) {
			failing[t.Pod.UID] = f
			if f.safe {
				t.OnlyPool = true
				try = append(try, t)
			}
			continue
		}
		try = append(try, t)
	}
	report := apply.Applier{Sets: e.cfg.Sets, Contain: e.contained}.Apply(try)
	out.Writes = report.Writes
	for _, failed := range report.Failures {
		t := try[slices.IndexFunc(try, func(t apply.Target) bool { return t.Pod.UID == failed.UID })]
		if t.OnlyPool {
			failing[failed.UID].safe = false
			continue
		}
		failing[failed.UID] = e.failed(t, failed, now)
	}
	e.failing = failing
	for _, uid := range slices.Sorted(maps.Keys(failing)) {
		out.Problems = append(out.Problems, failing[uid].problem)
	}
	return report.Changed
}

// failed records a failure, and logs it if it is new.
func (e *Enforcer) failed(t apply.Target, failed apply.Failure, now time.Time) *failing {
	f := &failing{want: describe(t), delay: retryMin, safe: failed.Safe}
	f.problem = topologyv1alpha1.Problem{Pod: e.state.Pods[failed.UID].Name, Message: failed.Err.Error()}
	if f.problem.Pod == "" {
		f.problem.Pod = "uid/" + failed.UID
	}
	if before := e.failing[failed.UID]; before != nil && before.problem == f.problem {
		f.delay = min(2*before.delay, retryMax)
	} else {
		e.cfg.Log.Error("a pod's CPU sets cannot be applied", "pod", f.problem.Pod, "cgroup", failed.Path, "error",
			failed.Err)
	}
	f.next = now.Add(f.delay)
	return f
}

// describe returns a string that is equal for equal targets.
func describe(t apply.Target) string {
	s := t.CPUs.String()
	for _, l := range t.Leaves {
		s += " " + l.CPUs.String()
	}
	return s
}

// account counts the pinned and shared leaves, and detects drift.
func (e *Enforcer) account(targets []apply.Target, pinned map[string]bool, changed []string, out *Outcome) {
	differ := map[string]bool{}
	if e.cfg.Observe {
		for _, path := range (apply.Applier{Sets: e.cfg.Sets}).Differ(targets) {
			differ[path] = true
		}
	}
	isChanged := make(map[string]bool, len(changed))
	for _, path := range changed {
		isChanged[path] = true
	}
	settled := make(map[string]cpuset.Set, len(e.settled))
	for _, t := range targets {
		bad := e.failing[t.Pod.UID] != nil
		for i, leaf := range t.Leaves {
			path := t.Pod.Leaves[i].Path
			switch {
			case pinned[path] && !bad && !differ[path]:
				out.Pinned++
			case !pinned[path]:
				out.Shared++
			}
			if bad || leaf.Keep {
				continue
			}
			before, was := e.settled[path]
			switch {
			case !isChanged[path]:
			case was && before.Equal(leaf.CPUs):
				out.Repaired++
				e.cfg.Log.Warn("somebody had changed a container's CPUs; they are as they should be again",
					"pod", e.podName(t.Pod.UID), "cgroup", path, "cpus", leaf.CPUs.String())
			default:
				e.cfg.Log.Debug("applied", "pod", e.podName(t.Pod.UID), "cgroup", path, "cpus", leaf.CPUs.String(), "pinned",
					pinned[path])
			}
			settled[path] = leaf.CPUs
		}
	}
	e.settled = settled
}

// Offer returns the wanted state of the last pass without the pods that have failed, for the
// creation of containers. Later passes do not change it.
func (e *Enforcer) Offer() desired.State {
	s := e.state
	if len(e.failing) > 0 {
		s.Pods = maps.Clone(s.Pods)
		for uid := range e.failing {
			delete(s.Pods, uid)
		}
	}
	return s
}

func (e *Enforcer) podName(uid string) string {
	if name := e.state.Pods[uid].Name; name != "" {
		return name
	}
	return "uid/" + uid
}

// Release undoes everything that passes have done, except for the kubelet's own pins. Without an
// API server, and so without pods in its input, it still resets all CPUs; but it does not reset
// memory nodes and quotas, because it knows only from pods which containers are bound to them, and
// which limits they have.
func (e *Enforcer) Release(in Input) (Outcome, error) {
	tree, err := cgroup.Scan(e.cfg.Sets.Files, e.cfg.CgroupRoot)
	if err != nil {
		return Outcome{}, err
	}
	allowed, err := e.allowedIn(tree)
	if err != nil {
		return Outcome{}, err
	}
	if in.Layout != nil {
		if e.state, err = e.compute(desired.Input{
			Node: e.cfg.Node, Layout: in.Layout, Allowed: allowed, Pods: in.Pods, Kubelet: in.Kubelet, Moved: in.Moved,
		}); err != nil {
			return Outcome{}, err
		}
	}
	var targets []apply.Target
	quotas := map[string]*desired.Quota{}
	for _, pod := range tree.Pods {
		state := e.state.Pods[pod.UID]
		quotas[pod.Path] = state.Quota
		pins := in.Kubelet.Pins[pod.UID]
		t := apply.Target{Pod: pod}
		for _, leaf := range pod.Leaves {
			name, named := in.Names[leaf.ID]
			_, its := pins[name]
			_, whole := pins[desired.WholePod]
			quotas[leaf.Path] = state.Containers[name].Quota
			// Without names, no container of a pod with the kubelet's pins is changed.
			t.Leaves = append(t.Leaves, apply.Leaf{Keep: len(pins) > 0 && (!named || its || whole), Mems: e.mems(pod.UID, name)})
		}
		targets = append(targets, t)
	}
	out := Outcome{Pool: allowed}
	for _, t := range targets {
		err := e.untell(t, quotas)
		// Containers get their quotas back before they may run elsewhere.
		if want, known := quotaTarget(t, quotas, false); known && err == nil && e.cfg.Quotas.Files != nil {
			var writes int
			writes, err = apply.SetQuotas(e.cfg.Quotas, want)
			out.Writes += writes
		}
		if err != nil {
			out.Problems = append(out.Problems, topologyv1alpha1.Problem{Pod: e.podName(t.Pod.UID), Message: err.Error()})
		}
	}
	report := apply.Applier{Sets: e.cfg.Sets}.Release(targets)
	out.Writes += report.Writes
	for _, f := range report.Failures {
		e.cfg.Log.Error("a pod's CPU sets cannot be released", "pod", e.podName(f.UID), "cgroup", f.Path, "error", f.Err)
		out.Problems = append(out.Problems, topologyv1alpha1.Problem{Pod: e.podName(f.UID), Message: f.Err.Error()})
	}
	e.settled, e.failing, e.told, e.computed = map[string]cpuset.Set{}, map[string]*failing{}, nil, false
	return out, nil
}

func (e *Enforcer) mems(uid, name string) *cpuset.Set { return e.state.Pods[uid].Containers[name].Mems }
