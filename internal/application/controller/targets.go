package controller

import (
	"context"
	"fmt"
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

// newTarget returns the target for a cluster, with its clients and with no watches yet.
func (c *Controller) newTarget(name string, cfg *rest.Config, writer apiwriter.Writer) (*target, error) {
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
	t := &target{name: name, kinds: &kinds{client: disco, now: c.cfg.Now}, writer: writer, rest: cfg}
	t.live = &live{client: dyn, rest: cfg, kinds: t.kinds, log: c.log, now: c.cfg.Now, changed: c.enqueue, watches: map[schema.GroupVersionKind]*kindWatch{}}
	return t, nil
}

// discoveryTimeout bounds one discovery request.
const discoveryTimeout = 10 * time.Second

// joined creates the target of a managed cluster that was added.
func (c *Controller) joined(m *clusters.Cluster) {
	log := c.log.With("cluster", m.Name)
	way := c.metrics.measured(m.Name, m.REST)
	writer, err := apiwriter.New(apiwriter.Config{
		REST: way, Scheme: scheme.Scheme, Connections: remoteConnections, RequestTimeout: remoteTimeout, Logger: log,
	})
	if err != nil {
		log.Error("a managed cluster cannot be used", "error", err)
		return
	}
	fenced := apiwriter.Writer(writer)
	if c.cfg.Fence != nil {
		fenced = writer.Fenced(c.cfg.Fence)
	}
	t, err := c.newTarget(m.Name, way, fenced)
	if err != nil {
		log.Error("a managed cluster cannot be used", "error", err)
		return
	}
	t.remote = m
	ctx, cancel := context.WithCancel(c.ctx)
	var running sync.WaitGroup
	running.Go(func() { _ = writer.Run(ctx) })
	t.stop = func() {
		t.live.stop()
		cancel()
		running.Wait()
	}
	c.targets.mu.Lock()
	c.targets.remote[m.Name] = t
	c.targets.mu.Unlock()
}

// Bounds on requests to one managed cluster.
const (
	remoteConnections = 4
	remoteTimeout     = 15 * time.Second
)

// left removes the target of a managed cluster. Objects in that cluster stay.
func (c *Controller) left(m *clusters.Cluster) {
	c.targets.mu.Lock()
	t := c.targets.remote[m.Name]
	delete(c.targets.remote, m.Name)
	c.targets.changes++
	c.targets.mu.Unlock()
	if t != nil {
		t.stop()
	}
	c.metrics.left(m.Name)
	c.clustersChanged(m.Name)
}

// turned handles a change of whether a managed cluster can be reached. Watches run only while it
// can.
func (c *Controller) turned(m *clusters.Cluster) {
	t := c.targets.get(m.Name)
	if t == nil {
		return
	}
	if m.Unreachable() != nil {
		t.live.stop()
	} else {
		known := t.kinds.known()
		if err := t.kinds.learn(); err != nil {
			c.log.Warn("a managed cluster does not say what kinds it has", "cluster", m.Name, "error", err)
		}
		t.live.start(c.ctx)
		if !known {
			c.targets.mu.Lock()
			c.targets.changes++
			c.targets.mu.Unlock()
		}
	}
	c.clustersChanged(m.Name)
}

func (c *Controller) relabelled(m *clusters.Cluster) {
	c.targets.mu.Lock()
	c.targets.changes++
	c.targets.mu.Unlock()
	c.clustersChanged(m.Name)
}

// clustersChanged enqueues the Applications that the cluster of that name concerns.
func (c *Controller) clustersChanged(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, a := range c.apps {
		if a.follows.Load() || a.places.Load() || a.livesIn(name) {
			c.queue.Add(k)
		}
	}
}

// livesIn reports whether the Application has, or will have, objects in a managed cluster.
func (a *app) livesIn(cluster string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.clusters[cluster]
}

// lives records the managed clusters in which the Application has, or will have, objects.
func (a *app) lives() {
	var in map[string]bool
	note := func(cluster string) {
		if cluster == "" {
			return
		}
		if in == nil {
			in = map[string]bool{}
		}
		in[cluster] = true
	}
	for i := range a.record.resources {
		note(a.record.resources[i].Cluster)
	}
	if a.plan != nil {
		for i := range a.plan.Resources {
			note(a.plan.Resources[i].Cluster)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clusters = in
}

// seen returns an object as last seen, or nil.
func (c *Controller) seen(ref plan.Ref) *object {
	t := c.targets.get(ref.Cluster)
	if t == nil {
		return nil
	}
	return t.live.get(ref)
}

// errLeft is the error for objects in clusters that are no longer managed. Its value is the
// cluster's name.
type errLeft string

func (e errLeft) Error() string { return "cluster " + string(e) + " is no longer managed" }

// errDown is the error for objects in clusters that cannot be reached at present. The Applications
// are enqueued when the cluster can be reached again.
type errDown struct{ error }

func (e *errDown) Unwrap() error { return e.error }

// reach returns the cluster of that name, and an error if the cluster is unknown or cannot be used
// at present.
func (c *Controller) reach(name string) (*target, error) {
	t := c.targets.get(name)
	if t == nil {
		return nil, errLeft(name)
	}
	return t, t.down()
}

var _ plan.Clusters = (*targets)(nil)

// key returns the key of an Application.
func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// pulse measures for how long requests have had no answer. The zero value is ready for use.
type pulse struct {
	mu   sync.Mutex
	open int       // requests without an answer
	at   time.Time // the last answer, or the first open request since
}

func (p *pulse) asked(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == 0 {
		p.at = now
	}
	p.open++
}

func (p *pulse) answered(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open--
	p.at = now
}

// silence returns how long the open requests have waited for any answer, or zero if none is open.
func (p *pulse) silence(now time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.open == 0 {
		return 0
	}
	return now.Sub(p.at)
}
