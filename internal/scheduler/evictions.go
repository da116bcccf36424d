package scheduler

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/evict"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// EvictionMode says what becomes of gangs that others could make room for. The empty mode is
// EvictionOn.
type EvictionMode string

// The modes of eviction.
const (
	EvictionOn     EvictionMode = "on"
	EvictionDryRun EvictionMode = "dry-run" // owners are told who would have to leave
	EvictionOff    EvictionMode = "off"
)

// Validate returns an error for a mode that does not exist.
func (m EvictionMode) Validate() error {
	switch m {
	case "", EvictionOn, EvictionDryRun, EvictionOff:
		return nil
	}
	return fmt.Errorf("eviction %q: want on, dry-run or off", m)
}

// evicts reports whether pods are evicted in this mode.
func (m EvictionMode) evicts() bool { return m == "" || m == EvictionOn }

// Evictions configures evictions.
type Evictions struct {
	Mode EvictionMode
	// NoPreemption and NoReclaim switch off evictions by priority within a queue, and those by what
	// queues deserve. Guarantees, and the priorities of the tasks of one job, hold nevertheless.
	NoPreemption, NoReclaim bool
	// PreemptAcross has gangs also evict gangs of lower priority in other queues, as far as these have more
	// than they deserve.
	PreemptAcross bool
	// ReclaimByWeight has queues that state nothing deserve what their weights give them.
	ReclaimByWeight bool
	// Budgets returns the PodDisruptionBudgets; nil means that there are none.
	Budgets func() []*policyv1.PodDisruptionBudget
}

// Bounds of eviction.
const (
	// evictionsMax is how often a gang may be evicted whole, and how often a claimant may evict
	// others, within evictionsWindow.
	evictionsMax    = 5
	evictionsWindow = 30 * time.Minute
	// lookEvery is the interval at which victims are looked for again after a refusal, if anything
	// has changed.
	lookEvery = time.Second
	// searchShare bounds the time spent on searches: between two of them passes at least
	// searchShare times the duration of the first.
	searchShare = 10
	// searchesMax bounds the time that searches take in one cycle.
	searchesMax = 200 * time.Millisecond
	// goingPatience is how long an owner may take to delete a victim before it counts as not
	// evicted.
	goingPatience = time.Minute
)

// evictions finds pods that leave so that a waiting gang fits, asks their owners to evict them, and
// keeps the capacity for the gang (the claimant) until they have left:
//
//	no room ──claimFor──▶ refused ──lookEvery──▶ searched again
//	                 └──▶ claim: capacity is kept ──the last victim has left──▶ placed: release
//	                        └── withdrawn, its queue closed, a node gone, does not fit: release
//
// Nothing of this is stored. After a restart the pods that were being evicted still are: to a search
// their capacity is free, so the claimant gets a claim on it without further victims.
type evictions struct {
	s      *Scheduler
	cfg    Evictions
	owners []Evictor

	claims map[string]*claim       // by gang
	going  map[types.UID]goingPod  // pods whose eviction was requested and that are not being deleted yet
	lost   map[string][]time.Time  // when gangs were evicted whole
	made   map[string][]time.Time  // when claimants evicted others
	stated map[string]*statedQueue // by queue: what its spec says
	// regrouped means that the affinity of a queue to groups of nodes has changed.
	regrouped bool

	// surveyed is the state that was last surveyed, and search the last search. It is on that state if it is
	// prepared.
	surveyed *evict.State
	search   *evict.Search
	prepared bool
	roster   roster
	// epoch is the number of states so far in which searches refuse other claims.
	epoch int64
	// leaving are the pods for which claims wait, and leavingOn are the same by node. Claims share their
	// entries, because in a full cluster many of them wait for the same pods.
	leaving   map[types.UID]*leavingPod
	leavingOn map[string][]*leavingPod
	// generation is the version when the search was made; with another one it is outdated.
	generation int64
	// restored is the model's generation after a claim was lifted and restored with no other change
	// between, and unlifted the version before.
	restored, unlifted int64
	// checked is the version, and checkedAt the model's generation, when the claims were last checked.
	checked, checkedAt int64
	searched           time.Time     // when the search was made
	notBefore          time.Time     // when the next search may be made
	nextLook           time.Time     // when refused claimants are considered again
	spent              time.Duration // on searches in this cycle
}

// claim is the capacity that is kept for a claimant.
type claim struct {
	gang, queue string
	room        []cluster.Claim
	sum         place.Vector  // of the requests in room
	leaving     []*leavingPod // pods that must leave first
	why         explanation
	// charged means that the capacity counts against the queue, and kept that nodes show it as used: both
	// but while the claimant is being placed.
	charged, kept bool
	// before is the version before the claim was lifted, and after the one since then.
	before, after int64
	// waits is set if nobody leaves for the claimant: it waits for pods that end by themselves.
	waits *ending
	// volumesUntil is set if the claimant waits for its volumes or devices: until then the capacity is
	// kept.
	volumesUntil time.Time
}

// leavingPod is a pod for which claims wait. It has left if it is gone or, after all, stays.
type leavingPod struct {
	PodRef
	left bool
}

// goingPod is a pod whose eviction was requested, and that the API server does not show as being deleted.
type goingPod struct {
	name  types.NamespacedName
	gang  string
	since time.Time
}

func newEvictions(s *Scheduler, cfg Evictions) *evictions {
	return &evictions{
		s: s, cfg: cfg, claims: map[string]*claim{}, going: map[types.UID]goingPod{},
		leaving: map[types.UID]*leavingPod{}, leavingOn: map[string][]*leavingPod{},
		lost: map[string][]time.Time{}, made: map[string][]time.Time{}, stated: map[string]*statedQueue{},
	}
}

// SetEvictors sets the owners of the gangs that may be evicted. It must be called before Run.
func (s *Scheduler) SetEvictors(owners ...Evictor) { s.evictions.owners = owners }

// mayEvict reports whether a rule could allow a gang to evict pods.
func (v *evictions) mayEvict(e *pendingGang) bool {
	if v.cfg.Mode == EvictionOff || len(v.owners) == 0 || e.fault != "" {
		return false
	}
	return v.mayEvictForMinimum(e) || e.outranks() || e.isSurplus() && v.isHigher(e)
}

// mayEvictForMinimum reports whether a rule could allow a gang to evict pods of other gangs for its
// minimum.
func (v *evictions) mayEvictForMinimum(e *pendingGang) bool {
	return !e.partial && e.need > 0 && v.hasRight(e)
}

// isSurplus reports whether all pods left are above the gang's minimum, each by itself.
func (e *pendingGang) isSurplus() bool { return (e.partial || e.need == 0) && len(e.parts) == 0 }

// outranks reports whether pods of the gang's own may leave for a pod of a task of higher priority. That
// one pod must be all that the gang needs at once.
func (e *pendingGang) outranks() bool {
	return e.gang.Outranks && (e.partial || e.need <= 1) && len(e.parts) == 0 && len(e.left) > 0 && len(e.left[0]) > 0
}

// hasRight reports whether pods of a gang have a right over others: a lower priority in its queue, or
// what the queue is entitled to.
func (v *evictions) hasRight(e *pendingGang) bool {
	return v.isHigher(e) || v.entitled(e.gang.Queue) || v.isOwed(e)
}

// isOwed reports whether a gang's queue has less than its weight gives it.
func (v *evictions) isOwed(e *pendingGang) bool {
	if !v.cfg.ReclaimByWeight || v.cfg.NoReclaim {
		return false
	}
	request := e.request()
	if e.announced != nil {
		request = e.announced
	}
	return v.s.ledger.Owes(e.gang.Queue, request)
}

// isHigher reports whether there are pods of lower priority that a gang may preempt for it.
func (v *evictions) isHigher(e *pendingGang) bool {
	among := e.gang.Queue
	if v.cfg.PreemptAcross {
		among = "" // any queue
	}
	lowest, found := v.s.cluster.LowestPriority(among)
	return found && lowest < e.gang.Priority && !v.cfg.NoPreemption
}

// claimFor decides whether pods leave for a gang that does not fit. It returns what the owner is
// told, which is empty if no rule could allow an eviction. dependsOnPods means that other pods may
// be the reason why the gang does not fit.
func (v *evictions) claimFor(e *pendingGang, dependsOnPods bool) explanation {
	if c := v.claims[e.gang.Key]; c != nil {
		if len(c.leaving) > 0 {
			v.restore(c)
			return c.why
		}
		v.release(e.gang.Key) // the victims have left, and the gang does not fit
	}
	switch {
	case !v.mayEvict(e):
		return explanation{}
	case dependsOnPods || slices.ContainsFunc(e.classes, func(c *place.Class) bool { return c.Pins != nil }):
		return sentence("nothing is evicted for it: whether its pods fit depends on more than free resources " +
			"(affinity to pods, spread, volumes, devices, or chosen CPUs)")
	}
	l := e.queue
	if l.postponed = !v.permitted(); l.postponed {
		return l.why
	}
	plan, known := v.find(e)
	l.searched = v.generation
	switch {
	case known:
		return l.why
	case plan == nil:
		l.why = sentence("nothing is evicted for it, because of an internal error")
	case plan.Refusal != nil:
		l.why = explainRefusal(plan)
		if plan.Refusal.Code != evict.EvictsOften { // which time alone changes
			l.refused = refused{e, v.epoch}
		}
	case len(plan.Victims) == 0 && plan.Leaving == 0:
		l.why = explanation{} // it fits by now: the change that made room reopens the shape queue
	case v.cfg.Mode == EvictionDryRun && len(plan.Victims) == 0:
		l.why = sentence(waitsForLeaving)
	case v.cfg.Mode == EvictionDryRun:
		l.why = explainPlan(plan, namespaceOf(e.gang.Key), "nothing is evicted (--eviction=dry-run); these pods would have to leave: ")
	default:
		return v.accept(e, plan)
	}
	return l.why
}

// permitted reports whether a search may be made now. One that is not outdated may be used at any
// time.
func (v *evictions) permitted() bool {
	now := v.s.clock.Now()
	if v.spent > searchesMax {
		v.notBefore = now.Add(searchShare * v.spent)
		return false
	}
	return v.current() || !now.Before(v.notBefore)
}

// current reports whether the search is not outdated.
func (v *evictions) current() bool {
	return v.surveyed != nil && v.generation == v.version() && v.s.clock.Since(v.searched) < lookEvery
}

// find looks for victims. It returns nil after a panic. known means that the gang has been refused in
// this state of the model.
func (v *evictions) find(e *pendingGang) (plan *evict.Plan, known bool) {
	start := v.s.clock.Now()
	panicked := v.s.cfg.Guard.Try("eviction", gangName(e.gang.Key), func() {
		if !v.current() {
			v.look(start)
			v.searched = start
		}
		if known = e.queue.refused == (refused{e, v.epoch}); known {
			return
		}
		if !v.prepared {
			v.search, v.prepared = v.search.Renew(v.surveyed), true
		}
		claim := evict.Claim{
			Gang: e.asPlaced(), Priority: e.gang.Priority, TaskPriority: v.taskPriority(e), Never: v.never(e),
			Evicted: v.made[e.gang.Key],
		}
		switch {
		case v.mayEvictForMinimum(e):
			plan = v.search.Find(claim)
		case e.outranks():
			claim.TaskPriority = v.s.cluster.PriorityOf(e.gang.Demands[0].Template)
			for i := range claim.Demands[1:] {
				claim.Demands[1+i].Count = 0
			}
			plan = v.findSurplus(claim, 1)
		default:
			claim.TaskPriority = math.MinInt32 // pods of the gang itself stay
			plan = v.findSurplus(claim, math.MaxInt)
		}
	})
	took := v.s.clock.Since(start)
	v.spent += took
	v.notBefore = v.s.clock.Now().Add(searchShare * took)
	v.s.metrics.searchSeconds.Observe(took.Seconds())
	if panicked != nil {
		v.forget()
		return nil, false
	}
	return plan, known
}

// forget has the next look begin afresh: after a panic, what is kept may be half-changed.
func (v *evictions) forget() {
	v.surveyed, v.search, v.roster = nil, nil, roster{moved: v.roster.moved}
}

// findSurplus looks for victims for as many as possible of the pods of a gang that are above its minimum:
// for all of them, then for half as many, and so on, and for one pod when searchesMax has passed.
func (v *evictions) findSurplus(claim evict.Claim, most int) *evict.Plan {
	claim.Surplus = true
	start, pods := v.s.clock.Now(), 0
	for i := range claim.Demands {
		claim.Demands[i].Min = 0
		pods += claim.Demands[i].Count
	}
	for pods = min(pods, most); ; {
		claim.MinMember = max(1, pods)
		plan := v.search.Find(claim)
		refused := plan.Refusal != nil && plan.Refusal.Code != evict.NoVictims && !plan.Refusal.IsClaimants()
		if pods <= 1 || !refused && plan.Cost.Disruptions == 0 {
			return plan
		}
		if pods /= 2; refused && plan.Refusal.Fit > 0 {
			pods = max(pods, min(int(plan.Refusal.Fit), claim.MinMember-1))
		}
		if v.s.clock.Since(start) > searchesMax {
			pods = 1
		}
	}
}

// taskPriority returns the lowest priority of the gang's waiting pods.
func (v *evictions) taskPriority(e *pendingGang) int32 {
	lowest := e.gang.Priority
	for i, d := range e.gang.Demands {
		if len(e.left[i]) > 0 {
			lowest = min(lowest, v.s.cluster.PriorityOf(d.Template))
		}
	}
	return lowest
}

// never reports whether a gang, or a pod of it, evicts no others.
func (v *evictions) never(e *pendingGang) bool {
	if c := e.gang.PriorityClass; c != "" && v.s.cluster.NeverPreempts(c) {
		return true
	}
	return slices.ContainsFunc(e.gang.Demands, func(d Demand) bool {
		if p := d.Template.Spec.PreemptionPolicy; p != nil {
			return *p == corev1.PreemptNever
		}
		return v.s.cluster.NeverPreempts(d.Template.Spec.PriorityClassName)
	})
}

// accept has the victims of a plan evicted, and keeps the capacity for the claimant.
func (v *evictions) accept(e *pendingGang, plan *evict.Plan) explanation {
	v.search.Accept(plan)
	v.epoch++
	now := v.s.clock.Now()
	c := &claim{
		gang: e.gang.Key, queue: e.gang.Queue,
		why: explainPlan(plan, namespaceOf(e.gang.Key), "waits until evicted pods have left: "),
	}
	if len(plan.Victims) == 0 {
		c.why = sentence(waitsForLeaving)
	}
	nodes := map[string]bool{}
	for d, list := range plan.Nodes {
		for _, node := range list {
			nodes[node] = true
			c.room = append(c.room, cluster.Claim{Node: node, Class: e.classes[d]})
			c.sum = c.sum.Plus(e.classes[d].Request, 1)
		}
	}
	victims := map[types.NamespacedName]int{}
	for i := range plan.Victims {
		for _, name := range plan.Victims[i].Pods {
			victims[name] = i
		}
	}
	list := make([]Eviction, len(plan.Victims))
	concerned := maps.Clone(nodes)
	for name := range victims {
		_, node := v.s.cluster.Pod(name)
		concerned[node] = true
	}
	for node := range concerned {
		for _, o := range v.roster.On[node] {
			if o.Object == nil {
				continue
			}
			victim, found := victims[o.Name]
			if found {
				list[victim].Pods = append(list[victim].Pods, v.goes(o, now))
			}
			if found || nodes[node] && v.isLeaving(o.Object) {
				c.leaving = append(c.leaving, v.leavingPod(PodRef{Name: o.Name, UID: o.Object.UID}, node))
			}
		}
	}
	v.claims[c.gang] = c
	v.restore(c)
	v.s.pending.setClaimed(e, true)
	v.evict(e.gang.Key, plan.Victims, list, now)
	v.generation = v.version() // the search knows of the claim
	return c.why
}

// goes notes that the eviction of a pod is requested.
func (v *evictions) goes(o *cluster.Occupant, now time.Time) PodRef {
	ref := PodRef{Name: o.Name, UID: o.Object.UID}
	v.going[ref.UID] = goingPod{ref.Name, o.Gang, now}
	v.roster.touch(o.Gang)
	return ref
}

// leavingPod returns the entry that claims share for a pod.
func (v *evictions) leavingPod(ref PodRef, node string) *leavingPod {
	p := v.leaving[ref.UID]
	if p == nil {
		p = &leavingPod{PodRef: ref}
		v.leaving[ref.UID] = p
		v.leavingOn[node] = append(v.leavingOn[node], p)
	}
	return p
}

// depart has pods evicted that leave for no claimant, as decide says. It reports whether there are any.
func (v *evictions) depart(decide func(*evict.State) []evict.Victim) bool {
	now := v.s.clock.Now()
	var departing []evict.Victim
	if v.s.cfg.Guard.Try("eviction", gangName(""), func() { departing = decide(v.survey(now)) }) != nil {
		v.forget()
		return false
	}
	if len(departing) == 0 {
		return false
	}
	if !v.cfg.Mode.evicts() {
		for i := range departing {
			x := &departing[i]
			v.s.log.Info("pods would be evicted (--eviction=dry-run)", "gang", x.Gang, "pods", len(x.Pods), "why", x.Rule.String())
		}
		return false
	}
	victims := map[types.NamespacedName]int{}
	for i := range departing {
		for _, name := range departing[i].Pods {
			victims[name] = i
		}
	}
	list := make([]Eviction, len(departing))
	for o := range v.roster.all() {
		if victim, found := victims[o.Name]; found && o.Object != nil {
			list[victim].Pods = append(list[victim].Pods, v.goes(o, now))
		}
	}
	v.evict("", departing, list, now)
	v.surveyed = nil // it does not say who is leaving
	return true
}

// evict asks the owners of the victims to evict them. claimant is empty if there is none.
func (v *evictions) evict(claimant string, victims []evict.Victim, list []Eviction, now time.Time) {
	for i, x := range list {
		victim := &victims[i]
		x.Gang, x.Whole, x.For, x.Why = victim.Gang, victim.Whole, claimant, victim.Rule.String()
		v.s.log.Info("evicting pods", "gang", x.Gang, "pods", len(x.Pods), "whole", x.Whole, "for", claimant, "why", x.Why)
		v.s.metrics.evictions.Add(float64(len(x.Pods)))
		if x.Whole {
			v.lost[x.Gang] = append(recent(v.lost[x.Gang], now), now)
		}
		for _, o := range v.owners {
			if o.Owns(x.Gang) {
				o.Evict(x)
			}
		}
	}
	if len(list) > 0 && claimant != "" {
		v.made[claimant] = append(recent(v.made[claimant], now), now)
	}
}

// recent returns the times within the window.
func recent(times []time.Time, now time.Time) []time.Time {
	return slices.DeleteFunc(times, func(t time.Time) bool { return now.Sub(t) >= evictionsWindow })
}

// isLeaving reports whether a pod is being deleted, or will be.
func (v *evictions) isLeaving(p *corev1.Pod) bool {
	_, going := v.going[p.UID]
	return going || p.DeletionTimestamp != nil
}

// uncharge makes what is kept for a gang free in its queue. lift, restore or release must follow.
func (v *evictions) uncharge(gang string) {
	if c := v.claims[gang]; c != nil && c.charged {
		c.charged = false
		v.s.ledger.Charge(c.queue, place.Vector(nil).Plus(c.sum, -1))
	}
}

// lift makes the capacity that is kept for a gang free for its own placement. restore or release
// must follow.
func (v *evictions) lift(gang string) {
	v.uncharge(gang)
	if c := v.claims[gang]; c != nil && c.kept {
		c.kept = false
		before, after := v.s.cluster.SetClaims(c.gang, nil)
		c.before, c.after = v.versionAt(before), v.versionAt(after)
		v.s.refresh()
	}
}

// restore keeps the capacity of a claim.
func (v *evictions) restore(c *claim) {
	if !c.charged {
		c.charged = true
		v.s.ledger.Charge(c.queue, c.sum)
	}
	if c.kept {
		return
	}
	c.kept = true
	before, after := v.s.cluster.SetClaims(c.gang, c.room)
	if c.after != 0 && v.versionAt(before) == c.after {
		v.restored, v.unlifted = after, c.before
	}
	v.s.refresh()
}

// version returns a number that changes whenever a node, or a reservation on a node, does. A claim that is
// lifted and restored, while nothing else changes, changes neither.
func (v *evictions) version() int64 { return v.versionAt(v.s.cluster.Generation()) }

// shown returns the version that the view shows.
func (v *evictions) shown() int64 { return v.versionAt(v.s.view.Generation()) }

func (v *evictions) versionAt(generation int64) int64 {
	if generation == v.restored {
		return v.unlifted
	}
	return generation
}

// release ends the claim of a gang, if it has one.
func (v *evictions) release(gang string) {
	c := v.claims[gang]
	if c == nil {
		return
	}
	v.lift(gang)
	delete(v.claims, gang)
	if e := v.s.pending.gangs[gang]; e != nil && e.claimed {
		v.s.pending.setClaimed(e, false)
	}
	v.s.cluster.Freed(c.room)
}

// check brings the claims up to date with the model, and offers claimants for placement whose
// victims have left.
func (v *evictions) check() {
	v.spent = 0
	if len(v.claims)+len(v.going) == 0 {
		clear(v.leaving)
		clear(v.leavingOn)
		clear(v.roster.moved)
		return
	}
	now := v.s.clock.Now()
	// 1. Which pods have left, or stay after all?
	v.roster.follow(v)
	maps.DeleteFunc(v.going, func(uid types.UID, g goingPod) bool {
		p, node := v.s.cluster.Pod(g.name)
		if p != nil && p.UID == uid && node != "" && p.DeletionTimestamp == nil && now.Sub(g.since) <= goingPatience {
			return false
		}
		v.roster.touch(g.gang)
		v.roster.moved[node] = true
		return true
	})
	for _, list := range []map[string][]time.Time{v.lost, v.made} {
		maps.DeleteFunc(list, func(_ string, times []time.Time) bool {
			return !slices.ContainsFunc(times, func(t time.Time) bool { return now.Sub(t) < evictionsWindow })
		})
	}
	some := v.findLeft()
	// 2. What of the claims?
	version := v.shown()
	changed, since := version != v.checked, v.checkedAt
	v.checked, v.checkedAt = version, v.s.view.Generation()
	for _, key := range slices.Sorted(maps.Keys(v.claims)) {
		c, e := v.claims[key], v.s.pending.gangs[key]
		closed := v.s.ledger.Blocked(c.queue) != nil
		if e == nil || !e.claimed || e.gang.Queue != c.queue || closed && !e.gang.Resume || changed && !v.usable(c, since) ||
			!c.volumesUntil.IsZero() && !now.Before(c.volumesUntil) {
			v.release(key)
			continue
		}
		if some {
			c.leaving = slices.DeleteFunc(c.leaving, func(r *leavingPod) bool { return r.left })
		}
		if !c.volumesUntil.IsZero() {
			continue
		}
		if c.waits == nil && len(c.leaving) == 0 || changed && len(c.room) > 0 && v.covered(c) {
			v.s.pending.reopen(e.queue)
		}
	}
}

// findLeft marks the pods that have left, of those for which claims wait. It reports whether there are any.
func (v *evictions) findLeft() (some bool) {
	for node := range v.roster.moved {
		list := slices.DeleteFunc(v.leavingOn[node], func(r *leavingPod) bool {
			p, at := v.s.cluster.Pod(r.Name)
			if r.left = p == nil || p.UID != r.UID || at == "" || !v.isLeaving(p); r.left {
				delete(v.leaving, r.UID)
				some = true
			}
			return r.left
		})
		if v.leavingOn[node] = list; len(list) == 0 {
			delete(v.leavingOn, node)
		}
	}
	clear(v.roster.moved)
	return some
}

// covered reports whether the nodes of a claim have room for it now, although not all of the pods
// have left that were to leave.
func (v *evictions) covered(c *claim) bool {
	return !slices.ContainsFunc(c.room, func(r cluster.Claim) bool {
		i, _ := v.s.view.Index(r.Node)
		n := v.s.view.Node(i) // its use contains the claim
		for dim, amount := range r.Class.Request {
			if amount > 0 && n.Used.At(dim) > n.Allocatable.At(dim) {
				return true
			}
		}
		return false
	})
}

// usable reports whether the nodes of a claim still take the claimant's pods. Only nodes that have changed
// since a generation are looked at.
func (v *evictions) usable(c *claim, since int64) bool {
	return !slices.ContainsFunc(c.room, func(r cluster.Claim) bool {
		i, found := v.s.view.Index(r.Node)
		if !found {
			return true
		}
		n := v.s.view.Node(i)
		return n.Generation > since && !r.Class.Admits(n)
	})
}

// leaves reports whether a gang has a claim for which pods are still leaving. check notices when they have
// left, or when the claim's nodes have room although they have not.
func (v *evictions) leaves(gang string) bool {
	c := v.claims[gang]
	return c != nil && c.waits == nil && len(c.leaving) > 0
}

// again returns a function that reports whether the head of a blocked shape queue may by now be
// allowed to evict pods.
func (v *evictions) again() func(*shapeQueue) bool {
	now := v.s.clock.Now()
	look := !now.Before(v.nextLook)
	if look {
		v.nextLook = now.Add(max(lookEvery, v.notBefore.Sub(now)))
	}
	generation := v.version()
	return func(l *shapeQueue) bool {
		switch {
		case !l.blocked.curable() || l.gangs[0].claimed:
			return false
		case l.postponed:
			return !now.Before(v.notBefore)
		}
		return look && l.searched != generation && v.mayEvict(l.gangs[0])
	}
}

// due returns when a blocked shape queue should be considered again, or zero.
func (v *evictions) due() (at time.Time) {
	if v.cfg.Mode == EvictionOff || len(v.owners) == 0 {
		return at
	}
	for _, l := range v.s.pending.shapes {
		if l.blocked == nil || !l.blocked.curable() || l.gangs[0].claimed {
			continue
		}
		next := v.nextLook
		if l.postponed {
			next = v.notBefore
		}
		if at.IsZero() || next.Before(at) {
			at = next
		}
	}
	return at
}
