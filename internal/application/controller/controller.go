package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/workqueue"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// Config configures a Controller. REST, Writer and Evaluators are required.
type Config struct {
	// REST is the configuration of the local cluster, for reading.
	REST   *rest.Config
	Writer apiwriter.Writer
	// Fence is the fence for the writers of managed clusters, the same one that Writer has. If nil,
	// those writers have no fence.
	Fence apiwriter.Fence
	// Workers is the number of Applications that are reconciled at a time. Default 4.
	Workers int
	// Owns reports whether this controller reconciles the Application with this key
	// (namespace/name) at present. If nil, the controller reconciles all Applications. When the
	// answer changes for any key, call Rebalance.
	Owns func(key string) bool
	// ActAsManager makes Applications act with the manager's rights instead of their authors'
	// rights. See as.go.
	ActAsManager bool
	// Recorded returns nil if the API server records the authors of Applications, and otherwise an
	// error that says why it does not. While Recorded returns an error, Applications are off,
	// unless ActAsManager is set. While the error wraps ErrNotKnown, Applications wait and their
	// statuses stay as they are. When the answer changes, call Rebalance. If Recorded is nil,
	// authors are recorded.
	Recorded func() error
	// Gateway reaches the managed clusters that the manager does not reach directly.
	Gateway clusters.Gateway
	// RevisionLimit is the number of revisions that are kept of each Application. Default 10.
	RevisionLimit int
	// ApplicationRevisions makes the controller create an ApplicationRevision for every revision of
	// every Application, instead of only for those that have a publishVersion. That is one more
	// write for each change.
	ApplicationRevisions bool
	// Evaluators evaluates users' templates, charts and expressions. Required. See package sandbox.
	Evaluators Evaluators
	// UnconfinedSteps lets workflow steps read and write outside their Application's namespace.
	UnconfinedSteps bool
	// Requests sends the HTTP requests and e-mails that Applications ask for. Default: to public
	// addresses only.
	Requests *egress.Guard
	// Settle is how long a change may take before its progress is reported. A change that ends
	// earlier is reported once, at its end. Default 1 s.
	Settle time.Duration
	// Rest is how long an Application must be in its desired state before its in-memory state is
	// freed. Default 10 s.
	Rest time.Duration
	// Malformed is called for definitions, policies and workflows that cannot be decoded. If nil,
	// nobody is told.
	Malformed func(runtime.Object, *malformed.Error)
	// Guard recovers from panics that one Application causes. If nil, such panics end the process.
	Guard *panics.Guard
	// Metrics registers the metrics. If nil, they are not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
	// Now returns the current time. Default time.Now.
	Now func() time.Time
}

func (c *Config) complete() error {
	if c.REST == nil || c.Writer == nil || c.Evaluators == nil {
		return errors.New("application controller: REST, Writer and Evaluators are required")
	}
	if c.Workers <= 0 {
		c.Workers = 4
	}
	if c.RevisionLimit <= 0 {
		c.RevisionLimit = 10
	}
	if c.Requests == nil {
		var err error
		if c.Requests, err = egress.New(egress.Config{}); err != nil {
			return err
		}
	}
	if c.Settle <= 0 {
		c.Settle = time.Second
	}
	if c.Rest <= 0 {
		c.Rest = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	return nil
}

// Controller reconciles Applications. A Controller runs once.
type Controller struct {
	evaluators *evaluators
	metrics    *metrics

	cfg  Config
	log  *slog.Logger
	defs *definitions
	memo plan.Memo
	gate gate
	ctx  context.Context // of Run

	targets  *targets
	clusters *clusters.Registry

	applications *held[oam.Application]
	trackers     *held[oam.ResourceTracker]
	queue        workqueue.TypedRateLimitingInterface[types.NamespacedName]

	// State that workflow steps use.
	spies   *spies
	charts  *charts.Store
	outside chan struct{}
	reading sync.Mutex // held while a fetched text is parsed

	epoch    atomic.Uint64 // number of calls of Lapsed
	revising atomic.Bool   // the watches of definitions and their revisions have synced

	mu   sync.Mutex
	apps map[types.NamespacedName]*app // the Applications that are not at rest
	// failed holds the Applications on which a pass has panicked.
	failed map[types.NamespacedName]failed
	// resting holds, for each Application at rest, the UIDs of its objects.
	resting map[types.NamespacedName][]types.UID
	revised map[definitionKey]assigned
}

// New returns a Controller. It reads nothing before Run.
func New(cfg Config) (*Controller, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	client, err := kubeclient.LeanCustom(kubeclient.ForWatch(cfg.REST), nil, oam.GroupVersion, scheme.Scheme, nil)
	if err != nil {
		return nil, err
	}
	raw, err := kubeclient.ForRaw(kubeclient.ForWatch(cfg.REST), nil, oam.GroupVersion)
	if err != nil {
		return nil, err
	}
	shared, err := kubeclient.LeanCustom(cfg.REST, nil, v1alpha1.GroupVersion, scheme.Scheme, nil)
	if err != nil {
		return nil, err
	}
	c := &Controller{
		cfg: cfg, log: cfg.Log,
		applications: newHeld(raw, "applications", glanceAt, readApplication),
		trackers:     newHeld(raw, "resourcetrackers", expand, readTracker),
		defs:         newDefinitions(client, shared),
		queue:        workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](time.Second, 5*time.Minute)),
		apps:         map[types.NamespacedName]*app{}, resting: map[types.NamespacedName][]types.UID{},
		revised: map[definitionKey]assigned{},
		failed:  map[types.NamespacedName]failed{},
	}
	c.evaluators = newEvaluators(cfg.Evaluators, cfg.Log, func() context.Context { return c.ctx }, c.queue.AddAfter)
	c.spies = &spies{changed: c.enqueue, each: map[spied]*spy{}}
	c.outside = make(chan struct{}, outsideMax)
	c.charts = charts.New(charts.Config{HTTP: cfg.Requests, Open: c.openChart, Wake: c.enqueue, Now: cfg.Now})
	local, err := c.newTarget("", cfg.REST, cfg.Writer)
	if err != nil {
		return nil, err
	}
	c.clusters, err = clusters.New(clusters.Config{
		REST: cfg.REST, Gateway: cfg.Gateway, Log: cfg.Log, Now: cfg.Now,
		Events: clusters.Events{Joined: c.joined, Left: c.left, Relabelled: c.relabelled, Turned: c.turned},
	})
	if err != nil {
		return nil, err
	}
	c.targets = &targets{local: local, remote: map[string]*target{}, labels: c.clusters.Labelled}
	if c.metrics, err = newMetrics(cfg.Metrics, c); err != nil {
		return nil, err
	}
	c.handle()
	return c, nil
}

// handle registers the watch handlers that fill the queue.
func (c *Controller) handle() {
	c.applications.Handle(cluster.Handler[*kubeclient.Raw]{
		Added:   func(o *kubeclient.Raw) { c.enqueue(key(o.Namespace, o.Name)) },
		Updated: c.applicationUpdated,
		Deleted: func(o *kubeclient.Raw) { c.enqueue(key(o.Namespace, o.Name)) },
	})
	// Only this controller changes trackers. A tracker's absence, or the absence of its
	// Application, needs a pass. An Application can rest once the watch shows its tracker as last
	// written.
	c.trackers.Handle(cluster.Handler[*kubeclient.Raw]{
		Added: func(o *kubeclient.Raw) { c.enqueue(ownerOf(o.Labels)) },
		Updated: func(_, o *kubeclient.Raw) {
			if owner := ownerOf(o.Labels); c.awake(owner) {
				c.enqueue(owner)
			}
		},
		Deleted: func(o *kubeclient.Raw) { c.enqueue(ownerOf(o.Labels)) },
	})
	c.defs.handle(c.definitionsChanged, c.definitionChanged)
	if c.cfg.Malformed != nil {
		c.defs.onMalformed(c.cfg.Malformed)
	}
}

// applicationUpdated enqueues an Application after an update. Updates that change only the status
// of an Application at rest are left out.
func (c *Controller) applicationUpdated(old, new *kubeclient.Raw) {
	same := old.Generation == new.Generation && old.UID == new.UID && new.DeletionTimestamp == nil &&
		equalMaps(old.Annotations, new.Annotations) && equalMaps(old.Labels, new.Labels)
	if !same || new.DeletionTimestamp != nil || commandedByStatus(old, new) || c.awake(key(new.Namespace, new.Name)) {
		c.enqueue(key(new.Namespace, new.Name))
	}
}

// awake reports whether an Application is not at rest. The last watch event about an Application
// that is awake may let it rest.
func (c *Controller) awake(k types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apps[k] != nil
}

// commandedByStatus reports whether suspend or terminated in the workflow's status changed, which
// may be another client's command.
func commandedByStatus(old, new *kubeclient.Raw) bool {
	a, b := glanceOf(old), glanceOf(new)
	return a.workflow && b.workflow && (a.suspend != b.suspend || a.terminated != b.terminated)
}

// definitionsChanged enqueues the Applications that wait for a definition, those that follow
// changes of definitions, and those on which a pass panicked.
func (c *Controller) definitionsChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.failed { // a definition may have caused the panic
		delete(c.failed, k)
		c.queue.Add(k)
	}
	for k, a := range c.apps {
		if a.follows.Load() {
			c.queue.Add(k)
		}
	}
}

func (c *Controller) enqueue(k types.NamespacedName) {
	if k.Name != "" {
		c.queue.Add(k)
	}
}

// Run reconciles Applications until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	defer c.queue.ShutDown()
	local := c.targets.local
	for err := local.kinds.learn(); err != nil; err = local.kinds.learn() {
		c.log.Warn("applications wait", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Second):
		}
	}
	c.ctx = ctx
	local.live.start(ctx)
	var watching sync.WaitGroup
	all := append(c.defs.watched(), c.applications, c.trackers, c.clusters)
	for _, w := range all {
		watching.Go(func() { w.Run(ctx) })
	}
	defer watching.Wait()
	defer c.stopTargets()
	for _, w := range all {
		if w.WaitForSync(ctx) != nil {
			return
		}
	}
	c.revising.Store(true)
	c.defs.each(func(r *revisedDefinition) { c.definitionChanged(nil, r) })
	var working sync.WaitGroup
	for range c.cfg.Workers {
		working.Go(func() {
			for c.next(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	working.Wait()
}

// stopTargets stops the watches and writers of all clusters. Call it after the registry of clusters
// has ended.
func (c *Controller) stopTargets() {
	c.targets.local.live.stop()
	c.targets.mu.RLock()
	defer c.targets.mu.RUnlock()
	for _, t := range c.targets.remote {
		t.stop()
	}
}

func (c *Controller) next(ctx context.Context) bool {
	k, stop := c.queue.Get()
	if stop {
		return false
	}
	defer c.queue.Done(k)
	if c.cfg.Owns != nil && !c.cfg.Owns(k.String()) {
		// The in-memory state will be out of date when the Application is owned again. Answers to
		// writes still under way find no app.
		c.forget(k)
		c.through(k)
		return true
	}
	c.mu.Lock()
	a := c.apps[k]
	c.mu.Unlock()
	if c.leavesAlone(k) {
		return true
	}
	if a != nil && a.epoch != c.epoch.Load() {
		c.forget(k)
		c.through(k)
	}
	p := c.cfg.Guard.Try("applications", k, func() {
		failpoint.Hit("applications", k)
		c.pass(ctx, k)
	})
	if p != nil {
		c.panicked(k, p)
	}
	return true
}

// Lapsed makes the controller reconcile every Application from scratch: writes about them that were
// under way were cut off with ErrFenced. Call Rebalance afterwards.
func (c *Controller) Lapsed() { c.epoch.Add(1) }

// Rebalance enqueues all Applications, because Owns may now answer differently.
func (c *Controller) Rebalance() {
	for _, o := range c.applications.List() {
		c.enqueue(key(o.Namespace, o.Name))
	}
	for _, rt := range c.trackers.List() {
		c.enqueue(ownerOf(rt.Labels))
	}
}

// appOf returns the in-memory state of an Application, and creates it if there is none.
func (c *Controller) appOf(k types.NamespacedName) *app {
	c.mu.Lock()
	defer c.mu.Unlock()
	a := c.apps[k]
	if a == nil {
		a = &app{epoch: c.epoch.Load(), key: k, owner: "application/" + k.String(), flight: map[string]bool{}, failed: map[string]string{}, accepted: map[string]string{}, uids: c.woken(k)}
		c.apps[k] = a
	}
	return a
}

func (c *Controller) forget(k types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.apps, k)
	delete(c.resting, k)
	c.spies.leave(k, true)
	c.queue.Forget(k)
}

func equalMaps(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if w, ok := b[k]; !ok || v != w {
			return false
		}
	}
	return true
}
