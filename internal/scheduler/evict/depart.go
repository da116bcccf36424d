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
	slices.SortFunc(pods, first)
	return pods
}

// first compares pods: those of lower priority, and then the youngest, come first.
func first(a, b *Pod) int {
	return cmp.Or(cmp.Compare(a.Priority, b.Priority), b.Started.Compare(a.Started),
		cmp.Compare(a.Name.Namespace, b.Name.Namespace), cmp.Compare(a.Name.Name, b.Name.Name))
}

// mayLeave reports whether a pod may be evicted now, whatever its gang and its budgets say.
func (p *Pod) mayLeave(s *State) bool {
	return !p.Protected && p.Priority < SystemCritical && !p.cools(s.Now)
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

// Spare decides which pods leave that their gangs can spare: pods above the minimum, and the pods of
// gangs of one pod. At most a number of pods leave; budgets are respected. wanted reports whether a
// pod is to leave; it is called for pods that may, those of lowest priority first, then the youngest,
// and the pod leaves if it returns true. Victims are sorted by gang.
func Spare(s *State, rule Rule, most int, wanted func(*Gang, *Pod) bool) []Victim {
	allowed := make([]int, len(s.Budgets))
	for i, b := range s.Budgets {
		allowed[i] = max(0, b.Allowed)
	}
	type candidate struct {
		gang *Gang
		pod  *Pod
	}
	var candidates []candidate
	have := map[*Gang][]*Pod{} // the pods that stay
	for i := range s.Gangs {
		g := &s.Gangs[i]
		for _, p := range g.inOrder() {
			if p.Leaving {
				continue
			}
			have[g] = append(have[g], p)
			if g.Priority < SystemCritical && p.mayLeave(s) {
				candidates = append(candidates, candidate{g, p})
			}
		}
	}
	slices.SortFunc(candidates, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.gang.Priority, b.gang.Priority), first(a.pod, b.pod))
	})
	taken := map[*Gang][]*Pod{}
	for _, c := range candidates {
		if most <= 0 {
			break
		}
		rest := slices.DeleteFunc(slices.Clone(have[c.gang]), func(p *Pod) bool { return p == c.pod })
		if len(c.gang.Pods) > 1 && !c.gang.worksWith(rest) || !covers(allowed, []*Pod{c.pod}) || !wanted(c.gang, c.pod) {
			continue
		}
		most--
		have[c.gang] = rest
		taken[c.gang] = append(taken[c.gang], take(allowed, []*Pod{c.pod})...)
	}
	var victims []Victim
	for g, pods := range taken {
		victims = append(victims, g.victim(pods, len(g.Pods) == 1, rule))
	}
	slices.SortFunc(victims, func(a, b Victim) int { return cmp.Compare(a.Gang, b.Gang) })
	return victims
}
