package scheduler

import (
	"cmp"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/evict"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/zones"
)

// standings tells the model what is known of nodes beside their objects and their pods, and has pods
// evicted from nodes on which they may not stay:
//
//	revocable zones, by the hour ──▶ cluster.SetStandings ──▶ filters and scores of package place
//	                            └──▶ evict.Depart ──▶ Evictor.Evict
//
// Without a configuration of zones it does nothing.
type standings struct {
	s     *Scheduler
	zones *zones.Config

	open      map[string]bool // by zone; nil before the first look
	next      time.Time       // when zones may open or close
	nextEvict time.Time       // when pods of closed zones are evicted next
}

// follow brings the model up to date.
func (d *standings) follow() {
	if d.zones == nil {
		return
	}
	now := d.s.clock.Now()
	if now.Before(d.next) {
		return
	}
	d.next = zones.Next(now)
	open := map[string]bool{}
	for zone := range d.zones.Windows {
		open[zone] = d.zones.Open(zone, now)
	}
	if d.open != nil && maps.Equal(open, d.open) {
		return
	}
	if d.open != nil {
		d.s.log.Info("revocable zones open or close", "open", zonesIn(open, true), "closed", zonesIn(open, false))
	}
	d.open, d.nextEvict = open, now
	d.s.cluster.SetStandings(func(n *corev1.Node) place.Standing {
		zone := n.Labels[schedulingv1beta1.RevocableZoneLabel]
		return place.Standing{Zone: zone, Closed: zone != "" && !open[zone]}
	})
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
	found := false
	for _, n := range d.s.view.All() {
		if _, known := d.zones.Windows[n.Standing.Zone]; known && n.Standing.Closed {
			closed[n.Name] = true
			found = found || slices.ContainsFunc(d.s.cluster.OccupantsOf(n.Name), func(o cluster.Occupant) bool {
				return o.Object != nil && !v.isLeaving(o.Object)
			})
		}
	}
	if !found {
		return
	}
	v.depart(evict.Departure{Rule: evict.Revoked, Wanted: func(_ *evict.Gang, p *evict.Pod) bool {
		return closed[p.Node] && p.Preemptable
	}})
}

// due returns when the standings may change next, or zero.
func (d *standings) due() time.Time {
	if d.next.Before(d.nextEvict) {
		return d.next
	}
	return d.nextEvict
}
