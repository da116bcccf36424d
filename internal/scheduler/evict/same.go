package evict

import (
	"maps"
	"slices"
	"time"
)

// Same reports whether searches refuse the same claims in both states, apart from claims with Evicted. The
// caller knows that the nodes are the same, and that the Pods of gangs are not changed, but replaced.
// Victims may differ, because pods have grown older.
func (s *State) Same(o *State) bool {
	return s.Rules == o.Rules && s.Place.Network == o.Place.Network && slices.Equal(s.Budgets, o.Budgets) &&
		slices.EqualFunc(s.Queues, o.Queues, sameQueue) &&
		slices.EqualFunc(s.Gangs, o.Gangs, func(a, b Gang) bool { return sameGang(&a, &b, s, o) })
}

func sameQueue(a, b Queue) bool {
	return a.Name == b.Name && a.Parent == b.Parent && a.Kept == b.Kept && a.Weighed == b.Weighed && slices.Equal(a.Used, b.Used) &&
		slices.Equal(a.Guarantee, b.Guarantee) && slices.Equal(a.Deserved, b.Deserved) && slices.Equal(a.Capability, b.Capability)
}

// sameGang compares a gang of one state with one of the other.
func sameGang(a, b *Gang, s, o *State) bool {
	return a.Key == b.Key && a.Queue == b.Queue && a.Priority == b.Priority && a.MinMember == b.MinMember &&
		maps.Equal(a.Min, b.Min) && s.recent(a.Evicted) == o.recent(b.Evicted) &&
		len(a.Pods) == len(b.Pods) && (len(a.Pods) == 0 || &a.Pods[0] == &b.Pods[0]) && !a.cools(s.Now, o.Now)
}

// cools reports whether a pod may be evicted at one of two times only.
func (g *Gang) cools(a, b time.Time) bool {
	for i := range g.Pods {
		if p := &g.Pods[i]; p.Cooldown > 0 && p.cools(a) != p.cools(b) {
			return true
		}
	}
	return false
}

// cools reports whether a pod may not be evicted yet.
func (p *Pod) cools(now time.Time) bool { return now.Before(p.Started.Add(p.Cooldown)) }

// recent returns how many of the times are within the window.
func (s *State) recent(times []time.Time) (n int) {
	for _, t := range times {
		if s.Now.Sub(t) < s.Rules.Window {
			n++
		}
	}
	return n
}
