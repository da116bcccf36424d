package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cputopology/agent/bundle"
	"lockstep.dev/lockstep/internal/cputopology/agent/cgroup"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/agent/enforce"
	"lockstep.dev/lockstep/internal/cputopology/agent/kubelet"
	"lockstep.dev/lockstep/internal/cputopology/agent/nri"
	"lockstep.dev/lockstep/internal/cputopology/agent/systemd"
	"lockstep.dev/lockstep/internal/cputopology/agent/watch"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
)

// DefaultInterval is the interval at which all files are read. Writes of other programs to a cgroup
// are usually undone sooner.
const DefaultInterval = time.Second

// Config configures an agent. Node and REST are required. New fills in the defaults, which suit a
// node whose files are at their usual places.
type Config struct {
	// Node is the name of the node.
	Node string
	// REST is the configuration of the cluster. Only Release works without it.
	REST *rest.Config
	// Version is the version of the agent.
	Version string
	// Pod is namespace/name of the pod in which the agent runs; the kubelet reports whether that
	// pod is alive. Without a Pod, the agent renews a Lease in LeaseNamespace (default
	// lockstep-system).
	Pod, LeaseNamespace string
	// PulseInterval is the interval between renewals of the lease. Default: 15 s.
	PulseInterval time.Duration

	// Root contains sys/devices. Default: /.
	Root fs.FS
	// CgroupMount is the mount point of the cgroup file system. Default: /sys/fs/cgroup.
	CgroupMount string
	// CgroupRoot is the kubelet's --cgroup-root. Default: /.
	CgroupRoot string
	// KubeletDir is the kubelet's --root-dir. Default: /var/lib/kubelet.
	KubeletDir string
	// Bundles are the places where the runtime keeps the configurations of containers. Default:
	// bundle.Defaults. An empty value that is not nil means no places.
	Bundles bundle.Names
	// NRISocket is the socket of the runtime's Node Resource Interface. Empty means that NRI is not
	// used.
	NRISocket string
	// SystemdSocket is the socket of systemd, which is told the CPU sets of its units if cgroups are
	// of version 2. Empty means that it is not told.
	SystemdSocket string
	// Reserved are CPUs for the system, which are not given out, instead of those that the kubelet's
	// configuration reserves.
	Reserved *cpuset.Set
	// ReservedPercent is the least share of the machine's CPUs that is kept for the shared pool.
	ReservedPercent int
	// TakeOver gives pods that the kubelet's static CPU manager has pinned, too, the CPUs of their
	// annotations. Without it, the kubelet's pins stand.
	TakeOver bool
	// CFSQuotas means that the kubelet makes CFS quotas of limits. Default: what its configuration
	// says.
	CFSQuotas *bool

	// Observe makes the agent report, and write no CPU sets.
	Observe bool
	// ReleaseOnExit removes all CPU sets when Run ends.
	ReleaseOnExit bool
	// Interval is the interval at which all files are read if no event triggers it sooner. Default:
	// DefaultInterval.
	Interval time.Duration
	// StatusInterval is the minimum time between two status writes that neither add nor remove a
	// problem. Default: 10 s.
	StatusInterval time.Duration
	// MetricsAddress serves /metrics; HealthAddress serves /healthz and /readyz. Both may be the
	// same address. Empty means not served.
	MetricsAddress, HealthAddress string
	Log                           *slog.Logger
}

func (c *Config) complete() error {
	if c.Node == "" {
		return errors.New("agent: which node is this?")
	}
	def(&c.LeaseNamespace, "lockstep-system")
	def(&c.CgroupMount, "/sys/fs/cgroup")
	def(&c.KubeletDir, "/var/lib/kubelet")
	def(&c.Interval, DefaultInterval)
	def(&c.StatusInterval, 10*time.Second)
	def(&c.PulseInterval, 15*time.Second)
	if c.Root == nil {
		c.Root = os.DirFS("/")
	}
	if c.Bundles == nil {
		c.Bundles = bundle.Defaults
	}
	if c.ReservedPercent < 0 || c.ReservedPercent > 90 {
		return fmt.Errorf("agent: %d %% of the CPUs are to be reserved: want 0 to 90", c.ReservedPercent)
	}
	kubelets, err := kubelet.ReadConfig(filepath.Join(c.KubeletDir, kubelet.ConfigFile))
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if _, err := kubelets.Reserve(); err != nil {
		return fmt.Errorf("agent: %s: %w", filepath.Join(c.KubeletDir, kubelet.ConfigFile), err)
	}
	if c.CFSQuotas == nil {
		on := kubelets.CPUCFSQuota == nil || *kubelets.CPUCFSQuota
		c.CFSQuotas = &on
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	return nil
}

func def[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Agent is the agent of a node. It can run only once.
type Agent struct {
	cfg      Config
	log      *slog.Logger
	version  cgroup.Version
	files    *cgroup.Cached
	enforcer *enforce.Enforcer
	machine  machine
	kubelet  kubeletState
	registry *prometheus.Registry
	guard    *panics.Guard
	metrics  *metrics
	health   health
	nri      *nri.Plugin                   // nil if NRI is not used
	offer    atomic.Pointer[desired.State] // the last pass's state, for the runtime

	generation int64
	moved      int64  // number of the last completed move
	complaint  string // error of the last pass
	// annotationFault says what is wrong with the node's annotation that reserves CPUs.
	annotationFault string
}

// New validates the configuration and finds the cgroups.
func New(cfg Config) (*Agent, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	version, files, err := cgroup.Find(cfg.CgroupMount)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	cached, registry := cgroup.NewCached(files), prometheus.NewRegistry()
	guard, err := panics.New(cfg.Log, registry)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	quotas := cgroup.Quotas{Version: version}
	if dir, found := cgroup.FindCPU(cfg.CgroupMount, version); found {
		if quotas.Files = dir; version == cgroup.V2 {
			quotas.Files = cached
		}
	}
	var units enforce.Units
	if cfg.SystemdSocket != "" && version == cgroup.V2 {
		units = systemd.New(cfg.SystemdSocket)
	}
	var a *Agent
	a = &Agent{
		cfg: cfg, log: cfg.Log, files: cached, version: version, registry: registry, guard: guard,
		machine: machine{root: cfg.Root},
		enforcer: enforce.New(enforce.Config{
			Node: cfg.Node, Sets: cgroup.Sets{Files: cached, Version: version}, Quotas: quotas,
			CgroupRoot: filepath.Clean("/" + cfg.CgroupRoot)[1:],
			Name:       func(id string) (string, bool) { return a.name(id) }, Observe: cfg.Observe, Units: units, Guard: guard,
			Log: cfg.Log,
		}),
	}
	if cfg.NRISocket != "" && !cfg.Observe {
		a.nri = nri.New(nri.Config{Socket: cfg.NRISocket, Want: a.want, Log: cfg.Log})
	}
	a.metrics = newMetrics(a.registry)
	return a, nil
}

// name returns the name of a container by its ID, for containers that the API does not list yet.
func (a *Agent) name(id string) (string, bool) {
	if a.nri != nil {
		if name, found := a.nri.Name(id); found {
			return name, true
		}
	}
	return a.cfg.Bundles.Name(id)
}

// want returns the CPUs that a container about to be created must have. known is false after a
// panic on the container; the next pass then sets its CPUs through the files.
func (a *Agent) want(uid, container string, annotations map[string]string) (wish nri.Assignment, known bool) {
	key := types.NamespacedName{Namespace: uid, Name: container}
	if a.guard.Try("containers", key, func() {
		failpoint.Hit("containers", key)
		wish, known = a.wanted(uid, container, annotations)
	}) != nil {
		return nri.Assignment{}, false
	}
	return wish, known
}

func (a *Agent) wanted(uid, container string, annotations map[string]string) (nri.Assignment, bool) {
	offer := a.offer.Load()
	if offer == nil {
		return nri.Assignment{}, false
	}
	if pod, known := offer.Pods[uid]; known {
		c, known := pod.Containers[container]
		return nri.Assignment{CPUs: c.CPUs, Mems: c.Mems}, known && !c.Kubelet
	}
	// The runtime knows the pod before the agent does, so the annotation with which the pod was
	// created is used. The next pass finds out whether other pods hold the same CPUs.
	result, err := request.ParseResult(annotations[request.LockstepResult])
	if err != nil || result.Node != a.cfg.Node {
		return nri.Assignment{}, false
	}
	c, known := result.Containers[container]
	return nri.Assignment{CPUs: c.CPUs, Mems: c.Mems}, known && !c.Burst
}

const (
	// passGap is the minimum time between two passes, so that a burst of changes causes one pass.
	passGap = 20 * time.Millisecond
	// panicGap is the time until the next pass after a panic that concerned no single pod. CPU sets
	// that are applied stay.
	panicGap    = 10 * time.Second
	stopTimeout = 5 * time.Second
)

// Run runs the agent until ctx is done.
func (a *Agent) Run(ctx context.Context) error {
	if a.cfg.REST == nil {
		return errors.New("agent: no cluster")
	}
	stopServing, err := a.serve()
	if err != nil {
		return err
	}
	defer stopServing()
	writer, err := apiwriter.New(apiwriter.Config{
		REST: a.cfg.REST, Scheme: scheme.Scheme, Component: "lockstep-agent", Fixed: 1, Connections: 1,
		StatusInterval: a.cfg.StatusInterval, StopTimeout: stopTimeout, Registry: a.registry, Logger: a.log,
	})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	// The writer outlives the loop, because it writes the loop's last status.
	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	var end sync.WaitGroup
	end.Go(func() {
		if err := writer.Run(writing); err != nil {
			a.log.Error("the writer ended", "error", err)
		}
	})
	defer end.Wait()
	defer stopWriting()

	view, err := newView(a.cfg, a.guard)
	if err != nil {
		return err
	}
	reporter := newReporter(a.cfg, writer, view)
	watcher, err := watch.New(string(a.files.Dir))
	if err != nil {
		a.log.Warn("changes of cgroups are found by looking only", "interval", a.cfg.Interval, "error", err)
		watcher = &watch.Watcher{}
	} else {
		defer watcher.Close()
	}
	// No CPU set may be written before the node's pods are known: pinned containers would be taken
	// for unpinned ones.
	watching, stopWatching := context.WithCancel(ctx)
	defer view.wait()
	defer stopWatching()
	if err := view.start(watching); err != nil {
		if ctx.Err() != nil {
			return nil // asked to stop before it was ready
		}
		return fmt.Errorf("agent: %w", err)
	}
	if a.cfg.Pod == "" {
		end.Go(func() { newLeaseRenewer(a.cfg, writer, view.nodeUID).run(watching, &a.health) })
	}
	if a.nri != nil {
		end.Go(func() { a.nri.Run(watching) })
	}
	a.log.Info("at work", "node", a.cfg.Node, "server", a.cfg.REST.Host, "cgroups", a.version.String(), "observe",
		a.cfg.Observe)
	a.loop(ctx, view, reporter, watcher)

	// CPU sets that are applied stay, unless configured otherwise.
	if a.cfg.ReleaseOnExit {
		if err := a.release(view, reporter); err != nil {
			a.log.Error("not everything is released", "error", err)
		}
	}
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	return writer.Flush(flushing)
}

// loop runs passes until ctx is done.
func (a *Agent) loop(ctx context.Context, view *view, reporter *reporter, watcher *watch.Watcher) {
	tick := time.NewTicker(a.cfg.Interval)
	defer tick.Stop()
	gap := time.NewTimer(0)
	defer gap.Stop()
	for {
		// 1. A pass covers everything that has happened since the last one.
		var again bool
		pause := passGap
		if p := a.guard.Try("passes", types.NamespacedName{Name: a.cfg.Node}, func() {
			failpoint.Hit("passes", a.cfg.Node)
			again = a.pass(view, reporter, watcher)
		}); p != nil {
			err := errors.New("the agent failed in " + p.Reason())
			a.tender(err)
			a.health.passed(err)
			a.complain(err)
			pause = panicGap
		}
		// 2. Wait for the minimum gap.
		gap.Reset(pause)
		select {
		case <-ctx.Done():
			return
		case <-gap.C:
		}
		if again {
			continue
		}
		// 3. Wait for an event or the interval.
		select {
		case <-ctx.Done():
			return
		case <-watcher.Changed:
		case <-view.changed:
		case <-tick.C:
		}
	}
}

// pass brings the node and the API up to date. It reports whether another pass should follow at
// once.
func (a *Agent) pass(view *view, reporter *reporter, watcher *watch.Watcher) (again bool) {
	began := time.Now()
	in, err := a.input(view, began)
	var out enforce.Outcome
	if err == nil {
		out, err = a.enforcer.Pass(in, began)
		a.tender(err)
		a.files.Sweep()
	}
	if err == nil && out.Moved > a.moved {
		// From here on, all may use the CPUs that pods were moved away from.
		a.moved = out.Moved
		a.generation++
		again = true
	}
	took := time.Since(began)
	a.metrics.passed(out, err, took)
	a.health.passed(err)
	a.complain(err)
	reporter.report(a.machine.topology, a.statusOf(out, err), began)
	if watcher.Changed == nil || err != nil {
		return again
	}
	added, err := watcher.Watch(out.Watch)
	if err != nil {
		a.metrics.unwatched.Set(1)
		a.log.Debug("some changes of cgroups are found by looking only", "error", err)
	} else {
		a.metrics.unwatched.Set(0)
	}
	return again || added
}

// tender updates the state that is offered to the runtime: nothing after a failed pass.
func (a *Agent) tender(err error) {
	if a.nri == nil {
		return
	}
	if err != nil {
		a.offer.Store(nil)
		return
	}
	offer := a.enforcer.Offer()
	a.offer.Store(&offer)
}

// complain logs an error that stops every pass, once.
func (a *Agent) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case text == a.complaint:
	case text == "":
		a.log.Info("CPU sets are applied again")
	default:
		a.log.Error("CPU sets cannot be applied", "error", err)
	}
	a.complaint = text
}

// input collects the input of a pass.
func (a *Agent) input(view *view, now time.Time) (enforce.Input, error) {
	changed, err := a.machine.refresh(now)
	if err != nil {
		return enforce.Input{}, err
	}
	changedKubelet, err := a.kubelet.refresh(a.cfg.KubeletDir)
	if err != nil {
		return enforce.Input{}, err
	}
	if changedKubelet {
		a.generation++
	}
	reserve, err := a.reserve(view)
	if err != nil {
		return enforce.Input{}, err
	}
	changedReserve, err := a.machine.reserve(reserve)
	if err != nil {
		return enforce.Input{}, err
	}
	if changed || changedReserve {
		a.generation++
		a.log.Info("the machine", "cpus", a.machine.topology.Online().String(), "cores", len(a.machine.topology.Cores),
			"l3", len(a.machine.topology.L3), "numa", len(a.machine.topology.NUMA), "reserved", a.machine.reserved.String())
	}
	if t := view.topology(); t != nil && t.Status.Moved > a.moved {
		// A previous agent has completed this move.
		a.moved = t.Status.Moved
		a.generation++
	}
	pods, names, podsGeneration := view.pods()
	return enforce.Input{
		Generation: a.generation + podsGeneration, Layout: a.machine.layout, Pods: pods, Names: names,
		Kubelet: a.pins(pods),
		Moved:   a.moved,
	}, nil
}

// Release removes all CPU sets that an agent has applied on this node. If the configuration has a
// cluster, Release also reports the removal in the NodeTopology, and resets memory nodes.
func (a *Agent) Release(ctx context.Context) error {
	if a.cfg.REST == nil {
		return a.release(nil, nil)
	}
	writer, err := apiwriter.New(apiwriter.Config{REST: a.cfg.REST, Scheme: scheme.Scheme, Fixed: 1, Connections: 1,
		Logger: a.log})
	if err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	var end sync.WaitGroup
	defer end.Wait()
	defer cancel()
	end.Go(func() { _ = writer.Run(ctx) })
	view, err := newView(a.cfg, a.guard)
	if err != nil {
		return err
	}
	defer view.wait()
	defer cancel()
	if err := view.start(ctx); err != nil {
		return fmt.Errorf("agent: %w", err)
	}
	if err := a.release(view, newReporter(a.cfg, writer, view)); err != nil {
		return err
	}
	return writer.Flush(ctx)
}

func (a *Agent) release(view *view, reporter *reporter) error {
	var in enforce.Input
	var err error
	if view != nil {
		in, err = a.input(view, time.Now())
	} else {
		_, err = a.kubelet.refresh(a.cfg.KubeletDir)
		in.Kubelet = a.kubelet.Kubelet
	}
	if err != nil {
		return err
	}
	out, err := a.enforcer.Release(in)
	if err != nil {
		return err
	}
	a.log.Info("released", "writes", out.Writes, "failed", len(out.Problems))
	if reporter != nil {
		status := a.statusOf(out, errReleased)
		reporter.report(a.machine.topology, status, time.Now())
	}
	if len(out.Problems) > 0 {
		return fmt.Errorf("agent: %d pods keep CPU sets; the first, %s: %s", len(out.Problems), out.Problems[0].Pod,
			out.Problems[0].Message)
	}
	return nil
}

// errReleased is the reason why CPU sets are no longer applied.
var errReleased = errors.New("all CPU sets were given back")

// health is the state behind /healthz and /readyz.
type health struct {
	last  atomic.Int64 // time of the last pass, in nanoseconds since 1970
	ready atomic.Bool  // the last pass succeeded
}

func (h *health) passed(err error) {
	h.last.Store(time.Now().UnixNano())
	h.ready.Store(err == nil)
}
