package evict

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Departure is a reason for which pods leave their nodes although no gang claims their room.
type Departure struct {
	Rule Rule
	// Wanted reports whether a pod is to leave. It is called once for each pod that may, the pods of
	// lowest priority of a gang first, then the youngest.
	Wanted func(*Gang, *Pod) bool
}

// Depart decides which pods leave. A gang that cannot work without the pods that are to leave leaves
// whole, unless a budget allows it to lose only some of its pods, or a pod of it must stay: then it
// loses as many of the pods as its budgets allow. Budgets are always respected: the pods that remain
// leave at a later call, when others have found a place. Victims are sorted by gang.
func Depart(s *State, d Departure) []Victim {
	allowed := make([]int, len(s.Budgets))
	for i, b := range s.Budgets {
		allowed[i] = max(0, b.Allowed)
	}
	gangs := make([]*Gang, len(s.Gangs))
	for i := range s.Gangs {
		gangs[i] = &s.Gangs[i]
	}
	slices.SortFunc(gangs, func(a, b *Gang) int { return cmp.Compare(a.Key, b.Key) })
	var victims []Victim
	for _, g := range gangs {
		if pods, whole := d.of(s, g, allowed); len(pods) > 0 {
			victims = append(victims, g.victim(pods, whole, d.Rule))
		}
	}
	return victims
}

// of returns the pods of a gang that leave, and subtracts them from what the budgets allow.
func (d *Departure) of(s *State, g *Gang, allowed []int) (pods []*Pod, whole bool) {
	if g.Priority >= SystemCritical {
		return nil, false
	}
	var wanted, others, staying []*Pod
	for _, p := range g.inOrder() {
		switch {
		case p.Leaving:
		case !p.mayLeave(s):
			staying = append(staying, p)
		case d.Wanted(g, p):
			wanted = append(wanted, p)
		default:
			others = append(others, p)
		}
	}
	if len(wanted) == 0 {
		return nil, false
	}
	if !g.worksWith(slices.Concat(others, staying)) && len(staying) == 0 {
		if all := slices.Concat(wanted, others); covers(allowed, all) {
			return take(allowed, all), true
		}
	}
	return take(allowed, wanted), false
}

// inOrder returns the pods of a gang, those that leave first before others.
func (g *Gang) inOrder() []*Pod {
	pods := make([]*Pod, len(g.Pods))
	for i := range g.Pods {
		pods[i] = &g.Pods[i]
	}
	slices.SortFunc(pods, func(a, b *Pod) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), b.Started.Compare(a.Started),
			cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
	})
	return pods
}

// mayLeave reports whether a pod may be evicted now, whatever its gang and its budgets say.
func (p *Pod) mayLeave(s *State) bool {
	return !p.Protected && p.Priority < SystemCritical && !s.Now.Before(p.Started.Add(p.Cooldown))
}

// worksWith reports whether these pods are enough for the gang to work.
func (g *Gang) worksWith(pods []*Pod) bool {
	have := map[string]int{}
	for _, p := range pods {
		have[p.Task]++
	}
	for task, least := range g.Min {
		if have[task] < least {
			return false
		}
	}
	return len(pods) >= g.MinMember
}

// covers reports whether budgets allow all of the pods to leave.
func covers(allowed []int, pods []*Pod) bool {
	return len(take(slices.Clone(allowed), pods)) == len(pods)
}

// take returns the pods that budgets allow to leave, and subtracts them from the budgets.
func take(allowed []int, pods []*Pod) (taken []*Pod) {
	for _, p := range pods {
		if slices.ContainsFunc(p.Budgets, func(b int) bool { return allowed[b] <= 0 }) {
			continue
		}
		for _, b := range p.Budgets {
			allowed[b]--
		}
		taken = append(taken, p)
	}
	return taken
}

func (g *Gang) victim(pods []*Pod, whole bool, rule Rule) Victim {
	v := Victim{Gang: g.Key, Queue: g.Queue, Priority: g.Priority, Rule: rule, Whole: whole}
	for _, p := range pods {
		v.Pods = append(v.Pods, p.Name)
	}
	slices.SortFunc(v.Pods, func(a, b types.NamespacedName) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return v
}
