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
	"lockstep.dev/lockstep/internal/contain"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
)

// Config says what the controller works with. REST, Writer and Evaluators are required.
type Config struct {
	// REST is the cluster, for reading.
	REST   *rest.Config
	Writer apiwriter.Writer
	// Fence is the fence of the writers of managed clusters, the same as Writer has. nil: they have none.
	Fence apiwriter.Fence
	// Workers is how many applications are worked on at a time. Default 4.
	Workers int
	// Owns says whether an application, as namespace/name, is this controller's to work on now; nil: all are. When that
	// changes, Rebalance must be called.
	Owns func(key string) bool
	// ActAsManager makes applications act with the manager's rights instead of their authors': see as.go.
	ActAsManager bool
	// Recorded says why the API server does not record who writes applications, and nil where it does: until then applications
	// are off, unless they act as the manager. While an error wraps ErrNotKnown they wait, and their statuses stay as they are.
	// When its answer changes, Rebalance must be called. nil: it does.
	Recorded func() error
	// Gateway is where managed clusters are reached that are not reached directly.
	Gateway clusters.Gateway
	// RevisionLimit is how many revisions of an application are kept. Default 10.
	RevisionLimit int
	// ApplicationRevisions writes an ApplicationRevision of each state of every application, and not only of those that have
	// a publishVersion: one more write for each change.
	ApplicationRevisions bool
	// Evaluators evaluate templates, charts and expressions of users. Required: see sandbox.
	Evaluators Evaluators
	// UnconfinedSteps lets steps of workflows read and write outside of the namespace of their application.
	UnconfinedSteps bool
	// Requests sends what applications ask of others. Default: to public addresses alone.
	Requests *egress.Guard
	// Settle is how long a change may take before its progress is reported: what is done sooner is reported once, when
	// it is done. Default 1 s.
	Settle time.Duration
	// Rest is how long an application has been as it should be when what has been worked out for it is let go. Default 10 s.
	Rest time.Duration
	// Malformed is told of definitions, policies and workflows that cannot be decoded; nil: nobody is.
	Malformed func(runtime.Object, *malformed.Error)
	// Guard recovers from panics that one application causes. nil: they end the process.
	Guard *contain.Guard
	// Metrics takes the metrics; nil keeps them nowhere.
	Metrics prometheus.Registerer
	Log     *slog.Logger
	// Now is the clock. Default time.Now.
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

// Controller makes applications real. It runs once.
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

	// What steps of workflows use.
	spies   *spies
	charts  *charts.Store
	outside chan struct{}
	reading sync.Mutex // held while a fetched text is parsed

	epoch    atomic.Uint64 // how often Lapsed was called
	revising atomic.Bool   // says that the watches of definitions and of their revisions show what there is

	mu   sync.Mutex
	apps map[types.NamespacedName]*app // those that are not at rest
	// failed are the applications on which a pass has panicked.
	failed map[types.NamespacedName]failed
	// resting are the objects that applications at rest have made.
	resting map[types.NamespacedName][]types.UID
	revised map[definitionKey]assigned
}

// New prepares a controller. Nothing is read before Run.
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

// handle brings changes of what is watched to the queue.
func (c *Controller) handle() {
	c.applications.Handle(cluster.Handler[*kubeclient.Raw]{
		Added:   func(o *kubeclient.Raw) { c.enqueue(key(o.Namespace, o.Name)) },
		Updated: c.applicationUpdated,
		Deleted: func(o *kubeclient.Raw) { c.enqueue(key(o.Namespace, o.Name)) },
	})
	// A tracker changes by our hand alone; it is its absence, or that of its application, which asks for something, and an
	// application rests when its tracker has been seen as it was written.
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

// applicationUpdated leaves out writes of the status of applications at rest.
func (c *Controller) applicationUpdated(old, new *kubeclient.Raw) {
	same := old.Generation == new.Generation && old.UID == new.UID && new.DeletionTimestamp == nil &&
		equalMaps(old.Annotations, new.Annotations) && equalMaps(old.Labels, new.Labels)
	if !same || new.DeletionTimestamp != nil || commandedByStatus(old, new) || c.awake(key(new.Namespace, new.Name)) {
		c.enqueue(key(new.Namespace, new.Name))
	}
}

// awake says whether an application is not at rest: the last thing that is seen of it may let it rest.
func (c *Controller) awake(k types.NamespacedName) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.apps[k] != nil
}

// commandedByStatus says whether the status says something about the workflow that somebody may have written who is not
// us.
func commandedByStatus(old, new *kubeclient.Raw) bool {
	a, b := glanceOf(old), glanceOf(new)
	return a.workflow && b.workflow && (a.suspend != b.suspend || a.terminated != b.terminated)
}

// definitionsChanged brings back the applications that wait for a definition, and those that follow changes of them.
func (c *Controller) definitionsChanged() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.failed { // what it panicked on may have been a definition's
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

// Run works until ctx is done.
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

// stopTargets ends what runs for clusters, after the registry has ended.
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
		// What is known of it is past when it comes back. Answers that are still to come find nobody.
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

// Lapsed has every application looked at as if for the first time: writes about them that were under way have been cut off, with
// ErrFenced. Call Rebalance after it.
func (c *Controller) Lapsed() { c.epoch.Add(1) }

// Rebalance looks at all applications, for other ones than before may be this controller's.
func (c *Controller) Rebalance() {
	for _, o := range c.applications.List() {
		c.enqueue(key(o.Namespace, o.Name))
	}
	for _, rt := range c.trackers.List() {
		c.enqueue(ownerOf(rt.Labels))
	}
}

// appOf is the application's state in memory, made when there is none.
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
