package scheduler

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/prometheus/client_golang/prometheus"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/scheduler/pin"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
	"lockstep.dev/lockstep/internal/scheduler/usage"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

// Config configures a Scheduler. Only Cluster is required.
type Config struct {
	Cluster *cluster.Cluster
	// Place configures placement; its zero value is the kube-scheduler's default profile on the
	// fast path only.
	Place place.Options
	// Refresh, if set, is called with the current nodes before the placements of a cycle, for a
	// rare filter that keeps state of its own. The argument rare reports whether waiting gangs need
	// that filter.
	Refresh func(nodes *place.Snapshot, rare bool)
	// Volumes binds the claims of pods that wait for a node; nil if there are none.
	Volumes Volumes
	// CPUsRepacked means that pinned pods may be moved within their nodes, to any NUMA node, even
	// if they do not request it. Nodes for pinned pods are then chosen by what repacking could make
	// of them (allocate.Allocator.Repacks).
	CPUsRepacked bool
	// CPUsShort, if set, is called when a pod finds too few CPUs of its own on nodes with room for it,
	// so that others may be moved. It must not block.
	CPUsShort func()
	// RetryEvery is the interval at which gangs that wait for room are retried even if nothing
	// seems to have changed, in case a helpful change was not recognised. The default is 30 s and
	// the minimum 1 s.
	RetryEvery time.Duration
	// CyclePods is the number of pods that a cycle places before the next cycle handles new events.
	// Default 2000.
	CyclePods int
	// OverdueAfter is how long the first gang of a queue waits before capacity is kept for it. 0 means
	// that only gangs with a bound of their own (Gang.WaitAtMost) get capacity.
	OverdueAfter time.Duration
	// UsageHalfLife, if it is not 0, has queues take turns by what they have used, which counts half as
	// much after this time, and not by what they hold alone.
	UsageHalfLife time.Duration
	// PodsAhead is about how many pods of waiting gangs may exist without nodes (see aheadPods); 0 means
	// that gangs get their pods when they have nodes.
	PodsAhead int
	// Evictions configures which pods leave for others. Without SetEvictors none do.
	Evictions Evictions
	// Zones are the revocable zones; nil means that labels of nodes say nothing of zones.
	Zones *zones.Config
	// Usage says what is done with the use of nodes that SetUsage sets; nil means nothing.
	Usage *usage.Config
	// Guard recovers from panics caused by one gang. With a nil Guard such panics end the process.
	Guard *panics.Guard
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	// Metrics is where metrics are registered; nil registers none.
	Metrics prometheus.Registerer
	Log     *slog.Logger
}

// Scheduler places gangs. All methods are safe for concurrent use.
//
// Placement does not wait for earlier placements to be written. The writer takes turns among
// owners, so a one-pod job placed behind a 10,000-pod gang is written long before the gang is; a
// bound on unwritten pods would prevent that. If a placement becomes stale in the meantime (its
// node was deleted), its owner must forget it.
type Scheduler struct {
	cfg     Config
	cluster *cluster.Cluster
	clock   clock.WithTicker
	log     *slog.Logger
	metrics *metrics

	mu    sync.Mutex
	inbox map[string]*pendingGang // submitted since the last cycle; nil means withdrawn
	moves []moves                 // requested since the last cycle
	// promised are the promises that were set since the last cycle.
	promised map[string]promise
	classes  map[*corev1.Pod]*place.Class
	wake     chan struct{}

	// The fields below belong to the goroutine that runs cycles.
	view         *cluster.View
	placer       *place.Placer
	pinner       *pin.Pinner
	pending      *pendingGangs
	ledger       *share.Ledger
	held         map[string]held   // amounts charged to the ledger, per line
	jobs         map[string]int    // jobs charged to the ledger, per queue
	queues       map[string]bool   // queues and parts of queues that have been set in the ledger
	shared       map[string]string // by whom queues are shared, as in cluster.Queue.SharedBy
	usersVersion int64
	usages       usages
	retry        time.Time // when all blocked shape queues are tried again
	evictions    *evictions
	// groupedClasses are the classes with the affinity of their queues.
	groupedClasses map[groupedClass]*place.Class
	// overdue makes claims for gangs that evict nobody.
	overdue   *overdue
	promises  *promises
	standings *standings
	ahead     *aheadPods
}

// New returns a Scheduler, which does nothing before Run.
func New(cfg Config) (*Scheduler, error) {
	if cfg.Cluster == nil {
		return nil, fmt.Errorf("scheduler: no cluster")
	}
	cfg.RetryEvery = cmp.Or(cfg.RetryEvery, 30*time.Second)
	if cfg.UsageHalfLife < 0 {
		return nil, fmt.Errorf("scheduler: a half-life of usage of %v; the least is 0", cfg.UsageHalfLife)
	}
	if cfg.RetryEvery < time.Second {
		return nil, fmt.Errorf("scheduler: retrying every %v is a busy loop; the least is 1s", cfg.RetryEvery)
	}
	cfg.CyclePods = cmp.Or(max(cfg.CyclePods, 0), 2000)
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	s := &Scheduler{
		cfg:      cfg,
		cluster:  cfg.Cluster,
		clock:    cfg.Clock,
		log:      cfg.Log,
		inbox:    map[string]*pendingGang{},
		promised: map[string]promise{},
		classes:  map[*corev1.Pod]*place.Class{},

		groupedClasses: map[groupedClass]*place.Class{},
		wake:           make(chan struct{}, 1),
		view:           cfg.Cluster.NewView(),
		ledger:         share.New(cfg.Cluster.Dims(), nil),
		held:           map[string]held{},
		jobs:           map[string]int{},
		queues:         map[string]bool{},
	}
	s.metrics = newMetrics(cfg.Cluster, s.Usage)
	s.newPlacer()
	s.ledger.SetHalfLife(cfg.UsageHalfLife)
	s.ledger.SetTime(s.clock.Now())
	s.usages = newUsages(cfg.UsageHalfLife > 0)
	s.pending = newPendingGangs(s.ledger, s.line)
	s.pending.waitingIn = s.metrics.waitingIn
	s.pending.byNamespace = cfg.Evictions.Mode == EvictionDryRun
	s.evictions = newEvictions(s, cfg.Evictions)
	s.overdue = &overdue{s: s, after: cfg.OverdueAfter}
	s.promises = &promises{s: s, gangs: map[string]promise{}}
	s.standings = &standings{s: s, zones: cfg.Zones, usage: cfg.Usage}
	s.ahead = &aheadPods{s: s, max: cfg.PodsAhead}
	s.retry = s.clock.Now().Add(cfg.RetryEvery)
	if cfg.Metrics != nil {
		if err := s.metrics.register(cfg.Metrics); err != nil {
			return nil, fmt.Errorf("scheduler: %w", err)
		}
	}
	return s, nil
}

// newPlacer creates the pinner and the placer for the current view.
func (s *Scheduler) newPlacer() {
	s.pinner = pin.New(s.view, s.cfg.CPUsRepacked, s.cfg.CPUsShort, s.cfg.Log)
	s.cfg.Place.Pin = s.pinner
	s.placer = place.NewPlacer(s.view.Snapshot, s.cfg.Place)
}

// place finds nodes for a gang. If placement panics, the view may be half-changed. It is then
// replaced by a new view made from the cluster model, which has not been changed, and the gang
// waits until it is submitted again.
func (s *Scheduler) place(e *pendingGang, gang place.Gang) (decision place.Decision, placed bool) {
	p := s.cfg.Guard.Try("scheduler", gangName(gang.Key), func() {
		failpoint.Hit("scheduler", gang.Key)
		decision = s.placer.Place(gang)
	})
	if p == nil {
		return decision, true
	}
	s.view = s.cluster.NewView()
	s.newPlacer()
	s.cluster.Refresh(s.view)
	s.promises.free = nil
	if s.cfg.Refresh != nil {
		s.cfg.Refresh(&place.Snapshot{}, true) // drops the filter's state for every node
		s.cfg.Refresh(s.view.Snapshot, s.pending.rare > 0)
	}
	s.pending.remove(e)
	e.fault = p.Error()
	s.pending.add(e)
	return decision, false
}

// gangName is the key of a gang, as a fmt.Stringer.
type gangName string

// String implements fmt.Stringer.
func (g gangName) String() string { return string(g) }

// Submit queues a gang, or replaces the gang with the same key. Submitting the same gang again is
// harmless.
//
// A Commit for the replaced gang may be running in another goroutine at the same time. The owner
// recognises it by the *Gang passed to Commit, and calls cluster.Forget for units that it no longer
// wants placed.
func (s *Scheduler) Submit(g *Gang) {
	e := &pendingGang{gang: apart(g), submitted: s.clock.Now()}
	s.mu.Lock()
	s.compile(e)
	s.inbox[g.Key] = e
	s.mu.Unlock()
	s.poke()
}

// Withdraw removes a gang from the queue. Units that have been committed stay committed. As with
// Submit, a Commit may be running at the same time.
func (s *Scheduler) Withdraw(key string) {
	s.mu.Lock()
	s.inbox[key] = nil
	s.mu.Unlock()
	s.poke()
}

// Run schedules until ctx is done.
func (s *Scheduler) Run(ctx context.Context) {
	timer := s.clock.NewTimer(s.cfg.RetryEvery)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		case <-s.cluster.Changed():
		case <-timer.C():
		}
		for s.cycle() {
			if ctx.Err() != nil {
				return
			}
		}
		timer.Reset(max(0, s.due().Sub(s.clock.Now())))
	}
}

// cycle processes submissions and cluster changes and places up to CyclePods pods. It reports
// whether there may be more to place.
func (s *Scheduler) cycle() (more bool) {
	start := s.clock.Now()

	// 1. Process what was submitted or withdrawn.
	s.takeInbox()

	// 2. Apply changes of the cluster, and reopen the shape queues that they may help.
	s.standings.follow()
	changes := s.cluster.TakeChanges()
	s.updateQueues()
	s.regroup()
	s.evictions.check()
	s.standings.vacate()
	s.standings.rebalance()
	s.reopenHelped(&changes)
	s.move()
	if _, waiting := s.ledger.Next(); waiting {
		s.refresh()
	}

	// 3. Place gangs in the order that the ledger gives.
	pods := 0
	for pods < s.cfg.CyclePods {
		next, ok := s.ledger.Next()
		if !ok {
			break
		}
		placed, superseded := s.attempt(s.pending.gangs[next.Key])
		if superseded {
			// Its successor is next, and not a gang of another queue.
			more = true
			break
		}
		pods += placed
	}

	// 4. Report why gangs wait, and listen for changes that may help them.
	s.reportWaiting()
	s.ahead.update()
	s.listen()
	s.publishUsage()

	s.metrics.cycle(s.clock.Since(start), pods, len(s.pending.gangs), len(s.pending.shapes))
	return more || pods >= s.cfg.CyclePods
}

// attempt places a gang, or blocks its shape queue. It returns the number of pods placed, and whether
// the gang was replaced or withdrawn meanwhile.
func (s *Scheduler) attempt(e *pendingGang) (pods int, superseded bool) {
	if e.fault != "" {
		s.evictions.release(e.gang.Key)
		s.pending.block(e.queue, &blockReason{reason: Reason{Code: "Unschedulable", Message: e.fault}, byQueue: true})
		return 0, false
	}
	s.locate(e)
	// 1. Cut the gang down to what its queue may use. Capacity that is kept for the gang is free.
	if len(s.evictions.claims) > 0 {
		s.overdue.lift(e)
		defer s.overdue.restore()
	}
	s.evictions.uncharge(e.gang.Key)
	starts, line, all := s.isStart(e), e.queue.key.line, e.asPlaced()
	gang, refused := s.ledger.Admit(all, starts)
	if refused != nil {
		reason := refusalReason(refused, e)
		if refused.Code == share.QueueOverCapability {
			s.overdue.explain(e, &reason, s.dependsOnPods(e))
		} else {
			s.evictions.release(e.gang.Key)
		}
		s.metrics.attempts.WithLabelValues(resultQueue).Inc()
		s.pending.block(e.queue, &blockReason{reason: reason, byQueue: true})
		return 0, false
	}
	gang.Most = s.most(e)
	if reason := s.promises.refuse(e); reason != nil {
		s.evictions.release(e.gang.Key)
		s.metrics.attempts.WithLabelValues(resultQueue).Inc()
		s.pending.block(e.queue, &blockReason{reason: *reason, byQueue: true, announced: true})
		return 0, false
	}
	// 2. Find nodes. Volumes that pods need must be bound first.
	if waiting := s.waitingVolumes(e); len(waiting) > 0 {
		s.awaitVolumes(e, waiting)
		return 0, false
	}
	decision, version, rare := place.Decision{}, s.evictions.shown(), s.dependsOnPods(e)
	plain := !rare && isPlain(e) &&
		slices.EqualFunc(gang.Demands, all.Demands, func(a, b place.Demand) bool { return a.Count == b.Count })
	again := plain && e.queue.fails(e, version)
	if !again {
		s.evictions.lift(e.gang.Key)
		ok := false
		if decision, ok = s.place(e, gang); !ok {
			s.evictions.release(e.gang.Key)
			return 0, false
		}
	}
	if again || decision.Shortage != nil {
		s.metrics.attempts.WithLabelValues(resultRoom).Inc()
		s.releaseDevices(e)
		reason := e.queue.failed.reason
		if !again {
			reason, e.queue.failed = shortageReason(decision.Shortage, e), failed{}
			if plain {
				e.queue.failed = failed{e, version, reason}
			}
		}
		s.overdue.explain(e, &reason, rare)
		s.pending.block(e.queue, &blockReason{reason: reason, rare: rare})
		return 0, false
	}
	// 3. Revert the placement if the gang was replaced or withdrawn meanwhile.
	if s.isSuperseded(e.gang.Key) {
		s.placer.Undo(gang, decision)
		s.pending.remove(e)
		if c := s.evictions.claims[e.gang.Key]; c != nil {
			s.evictions.restore(c)
		}
		return 0, true
	}
	if waiting := s.chooseVolumes(e, decision); len(waiting) > 0 {
		s.placer.Undo(gang, decision)
		s.keepForVolumes(e, decision)
		s.awaitVolumes(e, waiting)
		return 0, false
	}
	// 4. Assume the pods in the model, then let the owner write.
	placed := e.take(decision.Placed, func(i int32) string { return s.view.Node(i).Name })
	s.grant(e, placed, decision.Pins)
	added := place.Vector(nil)
	for i := range placed {
		a := &placed[i]
		class := e.classes[a.Demand]
		added = added.Plus(class.Request, 1)
		a.Assumption = s.cluster.Assume(e.gang.Demands[a.Demand].Units[a.Unit], a.Node, e.gang.Queue, e.gang.Key, class, a.cpus)
	}
	s.hold(line, e.gang.Queue, s.held[line].amount.Plus(added, 1))
	if starts && len(placed) > 0 {
		s.holdJobs(e.gang.Queue, s.jobs[e.gang.Queue]+1)
	}
	s.promises.started(e, added)
	s.pending.remove(e)
	s.evictions.release(e.gang.Key)
	now := s.clock.Now()
	s.metrics.placed(now.Sub(e.submitted))
	if rest := e.remainder(placed, now); rest != nil {
		s.pending.add(rest)
	}
	e.gang.Owner.Commit(e.gang, placed)
	return len(placed), false
}

// isPlain reports whether only the resources and the objects of single nodes decide where a gang's pods
// can go.
func isPlain(e *pendingGang) bool {
	return e.near == nil && len(e.parts) == 0 &&
		!slices.ContainsFunc(e.classes, func(c *place.Class) bool { return c.Rare || c.Pins != nil })
}

// fails reports whether placing the head would have no success: as before, on nodes that are the same or
// have no more room for it.
func (l *shapeQueue) fails(e *pendingGang, version int64) bool {
	return l.failed.gang == e && (l.failed.version == version || l.unhelped)
}

// most bounds how many pods of a gang are placed at once: those of its minimum; if it has been placed,
// as many as the gang's queue is given before it is another queue's turn, and at least one part and what
// is kept for the gang.
func (s *Scheduler) most(e *pendingGang) int {
	if e.need > 0 {
		return e.need
	}
	left, largest := 0, place.Vector(nil)
	for d, units := range e.left {
		if len(units) > 0 {
			left += len(units)
			largest = largest.Max(e.classes[d].Request)
		}
	}
	turn := max(e.minMember, s.ledger.Turn(e.queue.key.line, largest, left))
	for i := range e.parts {
		turn = max(turn, e.parts[i].Size)
	}
	if c := s.evictions.claims[e.gang.Key]; c != nil {
		turn = max(turn, len(c.room))
	}
	return turn
}

// grant assigns to the placed pods the CPUs that were taken for them. pins lists the CPUs in the
// same order as placed lists the pods.
func (s *Scheduler) grant(e *pendingGang, placed []Assignment, pins [][]place.Pin) {
	if pins == nil {
		return
	}
	next := make([]int, len(pins))
	for i := range placed {
		a := &placed[i]
		if k := next[a.Demand]; k < len(pins[a.Demand]) {
			next[a.Demand]++
			a.cpus, a.Annotations = s.pinner.Grant(pins[a.Demand][k], e.gang.Demands[a.Demand].Units[a.Unit])
		}
	}
}

// refresh updates the view, and the rare filter with it.
func (s *Scheduler) refresh() {
	s.cluster.Refresh(s.view)
	s.followNetwork()
	s.promises.free = nil
	if s.cfg.Refresh != nil {
		s.cfg.Refresh(s.view.Snapshot, s.pending.rare > 0)
	}
}

// due returns when the next cycle is due although nothing has woken the scheduler.
func (s *Scheduler) due() time.Time {
	due := s.retry
	for _, at := range []time.Time{s.evictions.due(), s.overdue.due(), s.standings.due(), s.ahead.due()} {
		if !at.IsZero() && at.Before(due) {
			due = at
		}
	}
	return due
}

func (s *Scheduler) takeInbox() {
	s.mu.Lock()
	inbox := s.inbox
	s.inbox = make(map[string]*pendingGang, len(inbox))
	promised := s.promised
	s.promised = make(map[string]promise, len(promised))
	s.mu.Unlock()
	for key, p := range promised {
		s.promises.set(key, p)
	}
	for key, e := range inbox {
		old := s.pending.gangs[key]
		if old != nil {
			s.pending.remove(old)
		}
		if e == nil {
			continue
		}
		if old != nil {
			e.submitted = old.submitted
		}
		e.claimed = s.evictions.claims[key] != nil
		s.group(e)
		s.pending.add(e)
	}
}

// reopenHelped reopens the shape queues that a change may have helped, and blocks the shape queues
// whose queue accepts no gangs.
func (s *Scheduler) reopenHelped(changes *cluster.Changes) {
	now := s.clock.Now()
	all := !now.Before(s.retry)
	if all {
		s.retry = now.Add(s.cfg.RetryEvery)
	}
	if len(changes.Nodes) > 0 {
		s.cluster.Refresh(s.view) // nodesHelp needs the current nodes
	}
	evictsNow, overdue := s.evictions.again(), s.overdue.again()
	for _, l := range s.pending.shapes {
		if why := s.ledger.Blocked(l.key.line); why != nil && !(why.Code == share.QueueClosed && l.gangs[0].gang.Resume) {
			if reason := refusalReason(why, l.gangs[0]); l.blocked == nil || l.blocked.reason.key() != reason.key() {
				s.pending.block(l, &blockReason{reason: reason, byQueue: true})
			}
			continue
		}
		b := l.blocked
		if b == nil {
			continue
		}
		helped := all && !s.evictions.leaves(l.gangs[0].gang.Key) || b.byQueue && changes.Queues || b.rare && (changes.Pods || changes.Volumes) ||
			changes.Network && l.gangs[0].isNear() && !b.byQueue ||
			b.announced && (s.promises.fewer || len(changes.Nodes) > 0) ||
			!b.byQueue && (s.nodesHelp(l, changes.Nodes) || len(changes.Nodes) > 0 && s.overdue.passesAny(l.gangs[0]))
		if helped || evictsNow(l) || overdue[l] {
			s.pending.reopen(l)
			l.unhelped = !helped
		}
	}
	s.promises.fewer = false
}

// nodesHelp reports whether one of the nodes has room for a pod of the shape queue's gangs.
func (s *Scheduler) nodesHelp(l *shapeQueue, nodes map[string]struct{}) bool {
	for name := range nodes {
		i, ok := s.view.Index(name)
		if !ok {
			continue
		}
		n := s.view.Node(i)
		if n.Unschedulable {
			continue
		}
		for d, c := range l.gangs[0].classes {
			if len(l.gangs[0].left[d]) > 0 && roomFor(n, c) && (c.Pins == nil || s.pinner.MayTake(c, i)) {
				return true
			}
		}
	}
	return false
}

func roomFor(n *place.Node, c *place.Class) bool {
	for dim, amount := range c.Request {
		if amount > 0 && n.Used.At(dim)+amount > n.Allocatable.At(dim) {
			return false
		}
	}
	return true
}

// dependsOnPods reports whether other pods may be the reason why a gang does not fit.
func (s *Scheduler) dependsOnPods(e *pendingGang) bool {
	return slices.ContainsFunc(e.classes, func(c *place.Class) bool {
		return c.Rare && !c.Soft() || s.cfg.Place.Rare != nil && s.cfg.Place.Rare.Concerns(c)
	})
}

// reportWaiting calls Waiting for the gangs whose owners have not been told what blocks them.
func (s *Scheduler) reportWaiting() {
	for _, l := range s.pending.shapes {
		var reason Reason
		if l.blocked != nil {
			reason = l.blocked.reason
		} else if behind := s.ledger.Behind(l.gangs[0].gang.Key); behind != nil {
			reason = refusalReason(behind, l.gangs[0])
			l.tell(reason.key())
		} else {
			continue
		}
		if len(l.unreported) == 0 {
			continue
		}
		key := reason.key()
		for _, e := range l.unreported {
			// The gang may have left the shape queue, or its owner may know the reason from another
			// shape queue.
			if e.queue == l && e.reportedKey != key {
				e.reportedKey = key
				e.gang.Owner.Waiting(e.gang, reason)
			}
		}
		clear(l.unreported)
		l.unreported = l.unreported[:0]
	}
}

// listen tells the model which kinds of change may help the waiting gangs.
func (s *Scheduler) listen() {
	pods := false
	for _, l := range s.pending.shapes {
		pods = pods || l.blocked != nil && l.blocked.rare
	}
	s.cluster.Listen(len(s.pending.gangs) > 0, pods)
}

func (s *Scheduler) isSuperseded(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.inbox[key]
	return ok
}

func (s *Scheduler) poke() {
	select {
	case s.wake <- struct{}{}:
	default: // a wake-up is already pending
	}
}
