package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/evict"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/usage"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

// standings tells the model what is known of nodes beside their objects and their pods, and has pods
// evicted from nodes on which they may not stay:
//
//	the use of nodes, as measured ─┬─▶ cluster.SetStandings ──▶ filters and scores of package place
//	revocable zones, by the hour ──┴─▶ evict.Depart, evict.Spare ──▶ Evictor.Evict
//
// Without a configuration of zones, or of the use of nodes, it does nothing.
type standings struct {
	s     *Scheduler
	zones *zones.Config
	usage *usage.Config

	// used is the last reading of the use of nodes, and set means that it has come since the last look.
	mu   sync.Mutex
	used map[string]usage.Use
	set  bool

	open      map[string]bool // by zone; nil before the first look
	next      time.Time       // when zones may open or close, or measurements become too old
	nextEvict time.Time       // when pods of closed zones are evicted next
	unknown   int             // nodes whose use is not known
	nextMove  time.Time       // when pods are moved next
	moved     time.Time       // when pods were last moved
}

// SetUsage sets the use of the nodes that is known, by name. It is used only if Config.Usage is set.
func (s *Scheduler) SetUsage(of map[string]usage.Use) {
	s.standings.mu.Lock()
	s.standings.used, s.standings.set = of, true
	s.standings.mu.Unlock()
	s.poke()
}

// follow brings the model up to date.
func (d *standings) follow() {
	if d.zones == nil && d.usage == nil {
		return
	}
	now := d.s.clock.Now()
	d.mu.Lock()
	used, set := d.used, d.set
	d.set = false
	d.mu.Unlock()
	if !set && now.Before(d.next) {
		return
	}
	d.next = zones.Next(now)
	open := map[string]bool{}
	if d.zones != nil {
		for zone := range d.zones.Windows {
			open[zone] = d.zones.Open(zone, now)
		}
	}
	changed := d.open == nil || !maps.Equal(open, d.open)
	if changed && d.open != nil {
		d.s.log.Info("revocable zones open or close", "open", zonesIn(open, true), "closed", zonesIn(open, false))
	}
	if changed {
		d.open, d.nextEvict = open, now
	}
	if changed || d.usage != nil {
		d.s.cluster.SetStandings(func(n *corev1.Node) (s place.Standing) {
			if d.zones != nil {
				s.Zone = n.Labels[schedulingv1beta1.RevocableZoneLabel]
				s.Closed = s.Zone != "" && !open[s.Zone]
			}
			if u, known := used[n.Name]; known && d.usage != nil && d.usage.Fresh(u, now) {
				s.Overused, s.Score = d.usage.Judge(u)
			}
			return s
		})
	}
	if d.usage != nil {
		d.count(used, now)
	}
}

// count reports how many nodes are overused, and of how many the use is not known.
func (d *standings) count(used map[string]usage.Use, now time.Time) {
	d.s.cluster.Refresh(d.s.view)
	overused, unknown := 0, 0
	for _, n := range d.s.view.All() {
		if n.Standing.Overused {
			overused++
		}
		if u, known := used[n.Name]; !known || !d.usage.Fresh(u, now) {
			unknown++
		}
	}
	if unknown != d.unknown {
		d.s.log.Info("nodes whose use is not known count as little used", "nodes", unknown)
		d.unknown = unknown
	}
	d.s.metrics.overused.Set(float64(overused))
	d.s.metrics.unmeasured.Set(float64(unknown))
}

// zonesIn returns the names of the zones that are open, or of those that are not.
func zonesIn(open map[string]bool, want bool) (names []string) {
	for zone, is := range open {
		if is == want {
			names = append(names, zone)
		}
	}
	slices.Sort(names)
	return names
}

// vacate has the pods evicted that leave closed zones.
func (d *standings) vacate() {
	v := d.s.evictions
	now := d.s.clock.Now()
	if d.zones == nil || now.Before(d.nextEvict) {
		return
	}
	d.nextEvict = now.Add(cmp.Or(d.zones.EvictEvery, zones.EvictEveryDefault))
	if d.zones.NoEvictions || v.cfg.Mode == EvictionOff {
		return
	}
	d.s.refresh()
	closed := map[string]bool{}
	found, gangs := false, map[string]bool{}
	for _, n := range d.s.view.All() {
		if _, known := d.zones.Windows[n.Standing.Zone]; known && n.Standing.Closed {
			closed[n.Name] = true
			found = found || slices.ContainsFunc(d.s.cluster.OccupantsOf(n.Name), func(o *cluster.Occupant) bool {
				return o.Object != nil && !v.isLeaving(o.Object) && v.isPreemptable(o.Object, gangs)
			})
		}
	}
	if !found {
		return
	}
	v.depart(func(state *evict.State) []evict.Victim {
		return evict.Depart(state, evict.Departure{Rule: evict.Revoked, Wanted: func(_ *evict.Gang, p *evict.Pod) bool {
			return closed[p.Node] && p.Preemptable
		}})
	})
}

// due returns when the standings may change next, or zero.
func (d *standings) due() time.Time {
	due := d.next
	if d.zones != nil && d.nextEvict.Before(due) {
		due = d.nextEvict
	}
	if d.usage != nil && d.usage.Balance != nil && d.nextMove.Before(due) {
		due = d.nextMove
	}
	return due
}
