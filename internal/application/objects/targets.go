package objects

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

// Target is a cluster that objects are deployed to. Each target has its own writer, connections and
// watches, so that no cluster waits for another.
type Target struct {
	Name    string // empty for the local cluster
	Kinds   *kinds
	Objects *ManagedObjects
	Writer  apiwriter.Writer
	rest    *rest.Config
	remote  *clusters.Cluster // nil for the local cluster
	stop    func()            // stops the writer and the watches
	Answers AnswerMonitor     // counts writes of objects and their answers
}

// Down returns why the cluster cannot be used at present, or nil.
func (t *Target) Down() error {
	if t.remote == nil {
		return nil
	}
	return t.remote.Unreachable()
}

// Targets holds all clusters.
type Targets struct {
	mu     sync.RWMutex
	Local  *Target
	remote map[string]*Target
	// changes counts the changes of clusters that may change where components are placed. Labels
	// returns the names of the managed clusters that have these labels.
	changes uint64
	Labels  func(map[string]string) []string

	cfg Config
	ctx context.Context // the context of Start
}

// Get returns the cluster of that name, or nil. The empty name is the local cluster.
func (ts *Targets) Get(name string) *Target {
	if name == "" {
		return ts.Local
	}
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.remote[name]
}

// Version returns a number that grows with each change of clusters that may change where components
// are placed.
func (ts *Targets) Version() uint64 {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return ts.changes
}

// Target implements plan.Clusters. A cluster that has not been reached yet is treated as if it had
// the local cluster's version and kinds; the plan is made again when the cluster is reached.
func (ts *Targets) Target(name string) (plan.Target, error) {
	local := plan.Target{Kinds: ts.Local.Kinds, Version: ts.Local.Kinds.clusterVersion(), APIs: ts.Local.Kinds.served()}
	t := ts.Get(name)
	switch {
	case t == nil:
		return plan.Target{}, fmt.Errorf("cluster %s: %w", name, plan.ErrNoCluster)
	case t == ts.Local || t.Kinds.known() == nil:
		return local, nil
	}
	return plan.Target{Kinds: t.Kinds, Version: t.Kinds.clusterVersion(), APIs: t.Kinds.served()}, nil
}

// Labelled implements plan.Clusters.
func (ts *Targets) Labelled(labels map[string]string) []string {
	var out []string
	local := map[string]string{clusters.ControlPlaneLabel: "true"}
	differs := func(k string) bool { return local[k] != labels[k] }
	if !slices.ContainsFunc(slices.Collect(maps.Keys(labels)), differs) {
		out = append(out, "")
	}
	return append(out, ts.Labels(labels)...)
}

// Names returns the clusters' names, the local cluster first.
func (ts *Targets) Names() []string {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return append([]string{oam.LocalCluster}, slices.Sorted(maps.Keys(ts.remote))...)
}

// Managed returns all clusters but the local one.
func (ts *Targets) Managed() []*Target {
	ts.mu.RLock()
	defer ts.mu.RUnlock()
	return slices.Collect(maps.Values(ts.remote))
}

// Config configures targets.
type Config struct {
	Log *slog.Logger
	Now func() time.Time
	// Changed is called for the Application that owns a changed object.
	Changed func(owner types.NamespacedName)
	// Turned is called after a managed cluster was added, removed or relabelled, or when its
	// reachability has changed.
	Turned func(cluster string)
	// Fence is the fence for the writers of managed clusters; nil means none.
	Fence apiwriter.Fence
	// Measured returns a copy of a managed cluster's configuration that counts requests.
	Measured func(cluster string, cfg *rest.Config) *rest.Config
}

// New returns the local cluster as the only target.
func New(cfg Config, local *rest.Config, writer apiwriter.Writer) (*Targets, error) {
	ts := &Targets{cfg: cfg, remote: map[string]*Target{}}
	var err error
	ts.Local, err = ts.newTarget("", local, writer)
	return ts, err
}

// newTarget returns the target for a cluster, with its clients and with no watches yet.
func (ts *Targets) newTarget(name string, cfg *rest.Config, writer apiwriter.Writer) (*Target, error) {
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
	t := &Target{Name: name, Kinds: &kinds{client: disco, now: ts.cfg.Now}, Writer: writer, rest: cfg}
	t.Objects = &ManagedObjects{client: dyn, rest: cfg, kinds: t.Kinds, log: ts.cfg.Log, now: ts.cfg.Now, changed: ts.cfg.Changed, watches: map[schema.GroupVersionKind]*kindWatch{}}
	return t, nil
}

// discoveryTimeout bounds one discovery request.
const discoveryTimeout = 10 * time.Second

// Start begins the watches of the local cluster. The watches of managed clusters that are added
// later end with ctx, too.
func (ts *Targets) Start(ctx context.Context) {
	ts.ctx = ctx
	ts.Local.Objects.start(ctx)
}

// StopAll stops the watches and writers of all clusters. Call it after the registry of clusters
// has ended.
func (ts *Targets) StopAll() {
	ts.Local.Objects.stop()
	for _, t := range ts.Managed() {
		t.stop()
	}
}

// Joined creates the target of a managed cluster that was added.
func (ts *Targets) Joined(m *clusters.Cluster) {
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
		t.Objects.stop()
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

// Left removes the target of a managed cluster. Objects in that cluster stay.
func (ts *Targets) Left(m *clusters.Cluster) {
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

// Turned handles a change of a cluster's reachability. Watches run only while the cluster can be
// reached.
func (ts *Targets) Turned(m *clusters.Cluster) {
	t := ts.Get(m.Name)
	if t == nil {
		return
	}
	if m.Unreachable() != nil {
		t.Objects.stop()
	} else {
		known := t.Kinds.known() != nil
		if err := t.Kinds.Learn(); err != nil {
			ts.cfg.Log.Warn("a managed cluster does not say what kinds it has", "cluster", m.Name, "error", err)
		}
		t.Objects.start(ts.ctx)
		if !known {
			ts.changed()
		}
	}
	ts.cfg.Turned(m.Name)
}

// Relabelled handles a change of a managed cluster's labels.
func (ts *Targets) Relabelled(m *clusters.Cluster) {
	ts.changed()
	ts.cfg.Turned(m.Name)
}

func (ts *Targets) changed() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.changes++
}

// Seen returns an object as last seen, or nil.
func (ts *Targets) Seen(ref plan.Ref) *Object {
	t := ts.Get(ref.Cluster)
	if t == nil {
		return nil
	}
	return t.Objects.Get(ref)
}

// Reach returns the cluster of that name, and an error if the cluster is unknown or cannot be used
// at present.
func (ts *Targets) Reach(name string) (*Target, error) {
	t := ts.Get(name)
	if t == nil {
		return nil, ErrLeft(name)
	}
	return t, t.Down()
}

// ErrLeft is the error for objects in clusters that are no longer managed. Its value is the
// cluster's name.
type ErrLeft string

func (e ErrLeft) Error() string { return "cluster " + string(e) + " is no longer managed" }

// ErrDown is the error for what cannot be reached at present and may come back: a cluster, or one
// of a cluster's APIs. The Applications are enqueued when the cluster can be reached again. Nothing
// says when an API can be reached again; a discovery at most every RelearnInterval finds it.
type ErrDown struct{ Err error }

func (e *ErrDown) Error() string { return e.Err.Error() }

// Unwrap returns Err.
func (e *ErrDown) Unwrap() error { return e.Err }

// ErrNoRight is the error for a kind that the manager may not watch. Its text has a manifest that
// gives the rights. The Applications are enqueued when the manager has them.
type ErrNoRight struct {
	Resource schema.GroupResource
	Err      error
}

func (e *ErrNoRight) Error() string {
	return fmt.Sprintf("%v. This ClusterRole gives the rights: {apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRole, metadata: {name: applications-%s, "+
		"labels: {%s: \"true\"}}, rules: [{apiGroups: [%q], resources: [%s], verbs: [get, list, watch, delete]}]}; for all kinds, \"lockstep install --any-kind\" does",
		e.Err, e.Resource, oam.AggregateLabel, e.Resource.Group, e.Resource.Resource)
}

// Unwrap returns Err.
func (e *ErrNoRight) Unwrap() error { return e.Err }

var _ plan.Clusters = (*Targets)(nil)
