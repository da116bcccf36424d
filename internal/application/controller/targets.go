package controller

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/application/plan"
)

// target is a cluster that objects are deployed to. Each target has its own writer, connections and
// watches, so that no cluster waits for another.
type target struct {
	name   string // empty for the local cluster
	kinds  *kinds
	live   *live
	writer apiwriter.Writer
	rest   *rest.Config
	remote *clusters.Cluster // nil for the local cluster
	stop   func()            // stops the writer and the watches
	pulse  pulse             // counts writes of objects and their answers
}

// down returns why the cluster cannot be used at present, or nil.
func (t *target) down() error {
	if t.remote == nil {
		return nil
	}
	return t.remote.Unreachable()
}

// targets holds all clusters.
type targets struct {
	mu     sync.RWMutex
	local  *target
	remote map[string]*target
	// changes counts the changes of clusters that may change where components are placed.
	changes uint64
	labels  func(map[string]string) []string

	cfg targetsConfig
	ctx context.Context // of start
}

// get returns the cluster of that name, or nil. The empty name is the local cluster.
func (ts *targets) get(name string) *target {
	if name == "" {
		return ts.local
	}
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.remote[name]
}

func (ts *targets) version() uint64 {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.changes
}

// Target implements plan.Clusters. A cluster that has not been reached yet is treated as if it had
// the local cluster's version and kinds; the plan is made again when the cluster is reached.
func (ts *targets) Target(name string) (plan.Target, error) {
	local := plan.Target{Kinds: ts.local.kinds, Version: ts.local.kinds.clusterVersion(), APIs: ts.local.kinds.served()}
	t := ts.get(name)
	switch {
	case t == nil:
		return plan.Target{}, fmt.Errorf("cluster %s: %w", name, plan.ErrNoCluster)
	case t == ts.local || !t.kinds.known():
		return local, nil
	}
	return plan.Target{Kinds: t.kinds, Version: t.kinds.clusterVersion(), APIs: t.kinds.served()}, nil
}

// Labelled implements plan.Clusters.
func (ts *targets) Labelled(labels map[string]string) []string {
	var out []string
	if local := (map[string]string{clusters.ControlPlaneLabel: "true"}); !slices.ContainsFunc(keysOf(labels), func(k string) bool { return local[k] != labels[k] }) {
		out = append(out, "")
	}
	return append(out, ts.labels(labels)...)
}

// names returns the clusters' names, the local cluster first.
func (ts *targets) names() []string {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return append([]string{oam.LocalCluster}, slices.Sorted(maps.Keys(ts.remote))...)
}

// managed returns all clusters but the local one.
func (ts *targets) managed() []*target {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return slices.Collect(maps.Values(ts.remote))
}

func keysOf(m map[string]string) []string {
	out := make([]string, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	return out
}

// targetsConfig configures targets.
type targetsConfig struct {
	Log *slog.Logger
	Now func() time.Time
	// Changed is called for the Application that owns a changed object.
	Changed func(owner types.NamespacedName)
	// Turned is called after a managed cluster was added, removed or relabelled, or can be reached or
	// not reached again.
	Turned func(cluster string)
	// Fence is the fence for the writers of managed clusters; nil means none.
	Fence apiwriter.Fence
	// Measured returns a copy of a managed cluster's configuration that counts requests.
	Measured func(cluster string, cfg *rest.Config) *rest.Config
}

// newTargets returns the local cluster as the only target.
func newTargets(cfg targetsConfig, local *rest.Config, writer apiwriter.Writer) (*targets, error) {
	ts := &targets{cfg: cfg, remote: map[string]*target{}}
	var err error
	ts.local, err = ts.newTarget("", local, writer)
	return ts, err
}

// newTarget returns the target for a cluster, with its clients and with no watches yet.
func (ts *targets) newTarget(name string, cfg *rest.Config, writer apiwriter.Writer) (*target, error) {
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("application controller: %w", err)
	}
	asking := rest.CopyConfig(cfg)
	asking.Timeout = discoveryTimeout
	disco, err := discovery.NewDiscoveryClientForConfig(asking)
	if err != nil {
		return nil, fmt.Errorf("application controller: %w", err)
	}
	t := &target{name: name, kinds: &kinds{client: disco, now: ts.cfg.Now}, writer: writer, rest: cfg}
	t.live = &live{client: dyn, rest: cfg, kinds: t.kinds, log: ts.cfg.Log, now: ts.cfg.Now, changed: ts.cfg.Changed, watches: map[schema.GroupVersionKind]*kindWatch{}}
	return t, nil
}

// discoveryTimeout bounds one discovery request.
const discoveryTimeout = 10 * time.Second

// start begins the watches of the local cluster. Those of managed clusters added later end with
// ctx, too.
func (ts *targets) start(ctx context.Context) {
	ts.ctx = ctx
	ts.local.live.start(ctx)
}

// stopAll stops the watches and writers of all clusters. Call it after the registry of clusters
// has ended.
func (ts *targets) stopAll() {
	ts.local.live.stop()
	for _, t := range ts.managed() {
		t.stop()
	}
}

// joined creates the target of a managed cluster that was added.
func (ts *targets) joined(m *clusters.Cluster) {
	log := ts.cfg.Log.With("cluster", m.Name)
	way := ts.cfg.Measured(m.Name, m.REST)
	writer, err := apiwriter.New(apiwriter.Config{
		REST: way, Scheme: scheme.Scheme, Connections: remoteConnections, RequestTimeout: remoteTimeout, Logger: log,
	})
	if err != nil {
		log.Error("a managed cluster cannot be used", "error", err)
		return
	}
	fenced := apiwriter.Writer(writer)
	if ts.cfg.Fence != nil {
		fenced = writer.Fenced(ts.cfg.Fence)
	}
	t, err := ts.newTarget(m.Name, way, fenced)
	if err != nil {
		log.Error("a managed cluster cannot be used", "error", err)
		return
	}
	t.remote = m
	ctx, cancel := context.WithCancel(ts.ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(ctx) })
	t.stop = func() {
		t.live.stop()
		cancel()
		running.Wait()
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.remote[m.Name] = t
}

// Bounds on requests to one managed cluster.
const (
	remoteConnections = 4
	remoteTimeout     = 15 * time.Second
)

// left removes the target of a managed cluster. Objects in that cluster stay.
func (ts *targets) left(m *clusters.Cluster) {
	ts.mu.Lock()
	t := ts.remote[m.Name]
	delete(ts.remote, m.Name)
	ts.changes++
	ts.mu.Unlock()
	if t != nil {
		t.stop()
	}
	ts.cfg.Turned(m.Name)
}

// turned handles a change of whether a managed cluster can be reached. Watches run only while it
// can.
func (ts *targets) turned(m *clusters.Cluster) {
	t := ts.get(m.Name)
	if t == nil {
		return
	}
	if m.Unreachable() != nil {
		t.live.stop()
	} else {
		known := t.kinds.known()
		if err := t.kinds.learn(); err != nil {
			ts.cfg.Log.Warn("a managed cluster does not say what kinds it has", "cluster", m.Name, "error", err)
		}
		t.live.start(ts.ctx)
		if !known {
			ts.changed()
		}
	}
	ts.cfg.Turned(m.Name)
}

func (ts *targets) relabelled(m *clusters.Cluster) {
	ts.changed()
	ts.cfg.Turned(m.Name)
}

func (ts *targets) changed() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.changes++
}

// seen returns an object as last seen, or nil.
func (ts *targets) seen(ref plan.Ref) *object {
	t := ts.get(ref.Cluster)
	if t == nil {
		return nil
	}
	return t.live.get(ref)
}

// reach returns the cluster of that name, and an error if the cluster is unknown or cannot be used
// at present.
func (ts *targets) reach(name string) (*target, error) {
	t := ts.get(name)
	if t == nil {
		return nil, errLeft(name)
	}
	return t, t.down()
}

// errLeft is the error for objects in clusters that are no longer managed. Its value is the
// cluster's name.
type errLeft string

func (e errLeft) Error() string { return "cluster " + string(e) + " is no longer managed" }

// errDown is the error for objects in clusters that cannot be reached at present. The Applications
// are enqueued when the cluster can be reached again.
type errDown struct{ error }

func (e *errDown) Unwrap() error { return e.error }

var _ plan.Clusters = (*targets)(nil)
