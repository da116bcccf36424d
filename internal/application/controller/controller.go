package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/author"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/charts"
	"lockstep.dev/lockstep/internal/application/clusters"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/evaluation"
	"lockstep.dev/lockstep/internal/application/external"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/report"
	"lockstep.dev/lockstep/internal/application/steps"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/egress"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/informer"
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
	// rights. See package author.
	ActAsManager bool
	// Recorded returns nil if the API server records the authors of Applications, and otherwise an
	// error that says why it does not. While Recorded returns an error, Applications are off,
	// unless ActAsManager is set. While the error wraps ErrNotKnown, Applications wait and their
	// statuses stay as they are. When the answer changes, call Rebalance. If Recorded is nil,
	// authors are recorded.
	Recorded func() error
	// Gateway reaches the managed clusters that the manager does not reach directly.
	Gateway clusters.Gateway
	// RevisionLimit is the number of revisions that are kept of each Application besides the one in
	// use, if none of its policies says otherwise. Default 10.
	RevisionLimit *int
	// Evaluators evaluates users' templates, charts and expressions. Required. See package sandbox.
	Evaluators evaluation.Pool
	// Requests sends the HTTP requests and e-mails that Applications ask for. Default: to public
	// addresses only.
	Requests *egress.Guard
	// Settle is how long a change may take before its progress is reported. A change that ends
	// earlier is reported once, at its end. Default 1 s.
	Settle time.Duration
	// IdleAfter is how long an Application must be in its desired state before its in-memory state
	// is freed. Default 10 s.
	IdleAfter time.Duration
	// Malformed is called for definitions, policies and workflows that cannot be decoded. If nil,
	// they are not reported.
	Malformed func(runtime.Object, *malformed.Error)
	// Guard recovers from panics that one Application causes. If nil, such panics end the process.
	Guard *panics.Guard
	// Metrics registers the metrics. If nil, they are not registered.
	Metrics prometheus.Registerer
	Log     *slog.Logger
	// Clock gives the time. Default: the real clock.
	Clock clock.WithTicker
}

// RevisionLimitDefault is the default of Config.RevisionLimit.
const RevisionLimitDefault = 10

func (c *Config) complete() error {
	if c.REST == nil || c.Writer == nil || c.Evaluators == nil {
		return errors.New("application controller: REST, Writer and Evaluators are required")
	}
	if c.Workers <= 0 {
		c.Workers = 4
	}
	if c.RevisionLimit == nil {
		limit := RevisionLimitDefault
		c.RevisionLimit = &limit
	}
	if *c.RevisionLimit < 0 {
		return fmt.Errorf("application controller: the limit of revisions is %d: it must not be negative", *c.RevisionLimit)
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
	if c.IdleAfter <= 0 {
		c.IdleAfter = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return nil
}

// Controller reconciles Applications. A Controller runs once.
type Controller struct {
	reconciler
	ctx        context.Context // of Run
	epoch      atomic.Uint64   // number of calls of Lapsed
	defs       *definitions.Library
	served     *objects.ServedKinds
	clusters   *clusters.Registry
	evaluators *evaluation.Cache
	panics     panicked
	metrics    *metrics
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
	c := &Controller{reconciler: reconciler{
		cfg: cfg, log: cfg.Log, authors: author.Finder{ActAsManager: cfg.ActAsManager, Recorded: cfg.Recorded},
		applications: records.NewPackedCache(raw, "applications", nil, records.Summarize, records.ReadApplication),
		trackers:     records.NewPackedCache(raw, "resourcetrackers", records.TrackerIndexes(), records.Expand, records.ReadTracker),
	}}
	c.loop = controlloop.New[types.NamespacedName, record](controlloop.Config[types.NamespacedName]{
		Name: "applications", Workers: cfg.Workers, Turn: c.turn, Clock: cfg.Clock,
	})
	c.evaluators = evaluation.New(cfg.Evaluators, cfg.Log, cfg.Clock, func() context.Context { return c.ctx }, c.loop.WakeAfter)
	c.defs = definitions.New(definitions.Config{
		Beta: client, Alpha: shared, Writer: cfg.Writer, Log: cfg.Log, Clock: cfg.Clock, Owns: cfg.Owns,
		Specs: records.Specs(c.applications, c.trackers), Changed: c.definitionsChanged, Malformed: cfg.Malformed,
	})
	c.watches = objects.NewWatches(c.enqueue)
	c.targets, err = objects.New(objects.Config{
		Log: cfg.Log, Now: cfg.Clock.Now, Changed: c.enqueue, Turned: c.clustersChanged, Fence: cfg.Fence,
		Measured: func(cluster string, rest *rest.Config) *rest.Config { return c.metrics.measured(cluster, rest) },
	}, cfg.REST, cfg.Writer)
	if err != nil {
		return nil, err
	}
	c.clusters, err = clusters.New(clusters.Config{
		REST: cfg.REST, Gateway: cfg.Gateway, Log: cfg.Log, Now: cfg.Clock.Now,
		Events: clusters.Events{
			Joined: c.targets.Joined, Relabelled: c.targets.Relabelled, Turned: c.targets.Turned,
			Left: func(m *clusters.Cluster) { c.targets.Left(m); c.metrics.left(m.Name) },
		},
	})
	if err != nil {
		return nil, err
	}
	c.targets.Labels = c.clusters.Labelled
	if c.served, err = objects.NewServedKinds(c.targets, cfg.Owns, cfg.Clock); err != nil {
		return nil, err
	}
	c.assemble()
	if c.metrics, err = newMetrics(cfg.Metrics, c); err != nil {
		return nil, err
	}
	c.handle()
	return c, nil
}

// assemble creates the parts that act on Applications.
func (c *Controller) assemble() {
	cfg := &c.cfg
	// Charts are cached for all namespaces, so they are evaluated for no tenant.
	openChart := func(archive []byte) (*chart.Chart, error) {
		return chart.Open(func(evaluator string, request []byte) ([]byte, error) {
			return c.cfg.Evaluators.Do(c.ctx, "", evaluator, request)
		}, archive)
	}
	store := charts.New(charts.Config{HTTP: cfg.Requests, Open: openChart, Wake: c.enqueue, Now: cfg.Clock.Now})
	ctx := func() context.Context { return c.ctx }
	access := deploy.Access{Targets: c.targets, Watches: c.watches, Ctx: ctx, Aside: c.loop.Yield}
	c.deployer = deploy.Deployer{Access: access, Evaluators: c.evaluators, Log: cfg.Log, Now: cfg.Clock.Now}
	c.remover = deploy.Remover{Deployer: &c.deployer, Applications: c.applications, Authors: &c.authors}
	c.keeper = records.Keeper{Cache: c.trackers, Writer: cfg.Writer, Log: cfg.Log, Now: cfg.Clock.Now}
	c.planner = deploy.Planner{
		Access: access, Definitions: c.defs, Evaluators: c.evaluators, Charts: store, Requests: &external.Client{Guard: cfg.Requests, Now: cfg.Clock.Now},
		Outside: deploy.NewOutside(), Observe: func(seconds float64) { c.metrics.render.Observe(seconds) }, Now: cfg.Clock.Now,
	}
	c.giver = giver{writer: cfg.Writer, authors: &c.authors, now: cfg.Clock.Now}
	c.steps = steps.Runner{Planner: &c.planner, Trackers: c.trackers, Log: cfg.Log}
	c.reporter = report.Reporter{Writer: cfg.Writer, Log: cfg.Log, Now: cfg.Clock.Now, SettleAfter: cfg.Settle, Definitions: c.defs.Snapshot}
}

// handle registers the watch handlers that fill the queue.
func (c *Controller) handle() {
	c.applications.Handle(informer.Handler[*kubeclient.Raw]{
		Added:   func(o *kubeclient.Raw) { c.enqueue(key(o.Namespace, o.Name)) },
		Updated: c.applicationUpdated,
		Deleted: func(o *kubeclient.Raw) { c.enqueue(key(o.Namespace, o.Name)) },
	})
	// Only this controller changes trackers. An Application needs a turn when a tracker of it appears
	// or is deleted, also by a client. It can become idle once the watch shows its tracker as last
	// written.
	c.trackers.Handle(informer.Handler[*kubeclient.Raw]{
		Added: func(o *kubeclient.Raw) { c.enqueue(objects.OwnerOf(o.Labels)) },
		Updated: func(_, o *kubeclient.Raw) {
			if owner := objects.OwnerOf(o.Labels); o.DeletionTimestamp != nil || c.active(owner) {
				c.enqueue(owner)
			}
		},
		Deleted: func(o *kubeclient.Raw) { c.enqueue(objects.OwnerOf(o.Labels)) },
	})
}

// applicationUpdated enqueues an Application after an update. It ignores an update that changes
// only the status of an idle Application.
func (c *Controller) applicationUpdated(old, new *kubeclient.Raw) {
	same := old.Generation == new.Generation && old.UID == new.UID && new.DeletionTimestamp == nil &&
		maps.Equal(old.Annotations, new.Annotations) && maps.Equal(old.Labels, new.Labels)
	if !same || new.DeletionTimestamp != nil || commandedByStatus(old, new) || c.active(key(new.Namespace, new.Name)) {
		c.enqueue(key(new.Namespace, new.Name))
	}
}

// active reports whether an Application is not idle. The last watch event about an active
// Application may let it become idle.
func (c *Controller) active(k types.NamespacedName) bool { return c.loop.Get(k) != nil }

// commandedByStatus reports whether suspend or terminated in the workflow's status changed, or
// whether that status was removed, which may be another client's command.
func commandedByStatus(old, new *kubeclient.Raw) bool {
	a, b := records.SummaryOf(old), records.SummaryOf(new)
	return a.Workflow && (!b.Workflow || a.Suspend != b.Suspend || a.Terminated != b.Terminated)
}

// definitionsChanged enqueues the Applications that wait for a definition, those that follow
// changes of definitions, and those on which a turn panicked.
func (c *Controller) definitionsChanged() {
	c.changes.Add(1)
	for _, k := range c.panics.forget() { // a definition may have caused the panic
		c.loop.Wake(k)
	}
	c.wakeInterested(func(in *interests) bool { return in.definitions })
}

// clustersChanged enqueues the Applications that the cluster of that name concerns.
func (c *Controller) clustersChanged(name string) {
	c.changes.Add(1)
	c.wakeInterested(func(in *interests) bool { return in.definitions || in.clusters || in.in[name] })
}

// wakeInterested enqueues the active Applications whose interests match. A turn that is under way
// compares Controller.changes at its end.
func (c *Controller) wakeInterested(match func(*interests) bool) {
	c.loop.Each(func(k types.NamespacedName, a *record) {
		if in := a.interests.Load(); in != nil && match(in) {
			c.loop.Wake(k)
		}
	})
}

func (c *Controller) enqueue(k types.NamespacedName) {
	if k.Name != "" {
		c.loop.Wake(k)
	}
}

// Run reconciles Applications until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	local := c.targets.Local
	for err := local.Kinds.Learn(); err != nil; err = local.Kinds.Learn() {
		c.log.Warn("applications wait", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-c.cfg.Clock.After(time.Second):
		}
	}
	c.ctx = ctx
	c.targets.Start(ctx)
	var watching sync.WaitGroup
	all := []definitions.Watched{c.applications, c.trackers, c.clusters, c.defs}
	for _, w := range all {
		watching.Go(func() { w.Run(ctx) })
	}
	watching.Go(func() { c.served.Run(ctx) })
	defer watching.Wait()
	defer c.targets.StopAll()
	for _, w := range all {
		if w.WaitForSync(ctx) != nil {
			return
		}
	}
	c.loop.Run(ctx)
}

// turn works on an Application.
func (c *Controller) turn(k types.NamespacedName) {
	if c.cfg.Owns != nil && !c.cfg.Owns(k.String()) {
		// The in-memory state will be out of date when the Application is owned again. Answers to
		// writes still under way find no record.
		c.forget(k)
		c.letNextStart(k)
		return
	}
	if c.leavesAlone(k) {
		return
	}
	if a := c.loop.Get(k); a != nil && a.epoch != c.epoch.Load() {
		c.forget(k)
		c.letNextStart(k)
	}
	p := c.cfg.Guard.Try("applications", k, func() {
		failpoint.Hit("applications", k)
		c.reconcile(c.recordOf(k))
	})
	if p != nil {
		c.panicked(k, p)
	}
}

// Lapsed makes the controller reconcile every Application from scratch, because writes that were
// under way were cut off with ErrFenced. Call Rebalance afterwards.
func (c *Controller) Lapsed() { c.epoch.Add(1) }

// Rebalance enqueues all Applications, because Owns may now answer differently.
func (c *Controller) Rebalance() {
	c.served.Check()
	for _, o := range c.applications.List() {
		c.enqueue(key(o.Namespace, o.Name))
	}
	for _, rt := range c.trackers.List() {
		c.enqueue(objects.OwnerOf(rt.Labels))
	}
}

// recordOf returns the in-memory state of an Application, and creates it if there is none.
func (c *Controller) recordOf(k types.NamespacedName) *record {
	if a := c.loop.Get(k); a != nil {
		return a
	}
	a := &record{epoch: c.epoch.Load()}
	a.State = &deploy.State{Owner: c.ownerOf(k, a), UIDs: c.idle.wake(k)}
	c.loop.Put(k, a)
	return a
}

// ownerOf returns an Owner that posts functions to the Application's turns. A posted function is
// dropped if a is no longer the Application's record when the turn comes.
func (c *Controller) ownerOf(k types.NamespacedName, a *record) *records.Owner {
	return &records.Owner{
		Key: k, Name: "application/" + k.String(),
		Post: func(do func()) {
			posted := c.loop.Post(k, controlloop.Anyone, func(now *record) {
				if now == a {
					do()
				}
			})
			if !posted {
				c.loop.Wake(k)
			}
		},
		WakeAfter: func(after time.Duration) { c.loop.WakeAfter(k, after) },
	}
}

// key returns the key of an Application.
func key(namespace, name string) types.NamespacedName {
	return types.NamespacedName{Namespace: namespace, Name: name}
}
