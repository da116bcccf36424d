package scheduler

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/evict"
)

// roster has the gangs with pods on nodes, as searches read them. It is kept from one look to the next,
// because in a large cluster most pods stay as they are:
//
//	cluster ──changed nodes──▶ follow ──gangs with changed pods──▶ survey ──these, and gangs whose terms
//	                                                                        or budgets changed──▶ enroll
//
// The outcome is a function of the model's state alone, not of its history.
type roster struct {
	cluster.Occupants
	on      map[string][]*cluster.Occupant // as far as gangs knows them
	gangs   map[string]*enrolled
	order   []*enrolled // sorted by key; nil if gangs came or went
	budgets coverage
	// moved are the nodes whose pods may have changed since the claims were last checked.
	moved map[string]bool
}

// enrolled is a gang with pods on nodes. Its Pods are replaced and never changed, since searches keep
// them.
type enrolled struct {
	evict.Gang
	terms   GangTerms
	members []*cluster.Occupant // by node and name
	have    int                 // number of pods that are not leaving
	own     int                 // index of the gang's own budget, or -1
	// disrupted are the PodDisruptionBudgets of pods whose eviction was requested, as long as the
	// statuses of the budgets do not count it.
	disrupted []int
	stale     bool // Pods must be made anew
}

// coverage says which PodDisruptionBudgets cover a pod.
type coverage struct {
	list []*policyv1.PodDisruptionBudget
	of   map[string][]covering // by namespace
}

// covering is a PodDisruptionBudget by its index in evict.State.Budgets.
type covering struct {
	labels.Selector
	index int
}

// all returns the pods on nodes, in no order.
func (r *roster) all() iter.Seq[*cluster.Occupant] {
	return func(yield func(*cluster.Occupant) bool) {
		for _, list := range r.On {
			for _, o := range list {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// object returns a pod on a node, or nil.
func (r *roster) object(node string, name types.NamespacedName) *corev1.Pod {
	for _, o := range r.On[node] {
		if o.Name == name {
			return o.Object
		}
	}
	return nil
}

// touch has the pods of a gang made anew: they are leaving by now, or no longer.
func (r *roster) touch(gang string) {
	if g := r.gangs[gang]; g != nil {
		g.stale = true
	}
}

// follow brings the pods and the view up to date with the model.
func (r *roster) follow(v *evictions) {
	if r.gangs == nil {
		r.on, r.gangs = map[string][]*cluster.Occupant{}, map[string]*enrolled{}
	}
	if r.moved == nil {
		r.moved = map[string]bool{}
	}
	changed := v.s.cluster.FollowOccupants(&r.Occupants, v.s.view)
	if len(changed) == 0 {
		return
	}
	// 1. Which pods of which gangs came and went?
	affected := map[string]*turnover{}
	of := func(o *cluster.Occupant) *turnover {
		t := affected[o.Gang]
		if t == nil {
			t = &turnover{}
			affected[o.Gang] = t
		}
		return t
	}
	for _, node := range changed {
		r.moved[node] = true
		before, now := r.on[node], r.On[node]
		for _, o := range before {
			if o.Gang != "" && !slices.Contains(now, o) {
				t := of(o)
				t.went = append(t.went, o)
			}
		}
		for _, o := range now {
			if slices.Contains(before, o) {
				continue
			}
			if o.Object != nil {
				o.Gang = v.gangOf(o.Object)
			}
			if o.Gang != "" { // otherwise it stays where it is
				t := of(o)
				t.came = append(t.came, o)
			}
		}
		if r.on[node] = now; len(now) == 0 {
			delete(r.on, node)
		}
	}
	// 2. The gangs with their pods.
	for key, t := range affected {
		g := r.gangs[key]
		if g == nil {
			g = &enrolled{Gang: evict.Gang{Key: key}}
			r.gangs[key], r.order = g, nil
		}
		if g.replace(t); len(g.members) == 0 {
			delete(r.gangs, key)
			r.order = nil
		}
	}
}

// turnover is the pods that came to a gang, and those that went.
type turnover struct{ came, went []*cluster.Occupant }

// replace brings the members up to date.
func (g *enrolled) replace(t *turnover) {
	went := make(map[*cluster.Occupant]bool, len(t.went))
	for _, o := range t.went {
		went[o] = true
	}
	g.members = append(slices.DeleteFunc(g.members, func(o *cluster.Occupant) bool { return went[o] }), t.came...)
	slices.SortFunc(g.members, func(a, b *cluster.Occupant) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Name.Namespace, b.Name.Namespace),
			strings.Compare(a.Name.Name, b.Name.Name))
	})
	g.stale = true
}

// sorted returns the gangs by key.
func (r *roster) sorted() []*enrolled {
	if r.order == nil {
		r.order = slices.SortedFunc(maps.Values(r.gangs), func(a, b *enrolled) int { return strings.Compare(a.Key, b.Key) })
	}
	return r.order
}

// survey returns the present state of the model.
func (v *evictions) survey(now time.Time) *evict.State {
	s, r := v.s, &v.roster
	r.follow(v)
	s.refresh()
	options := s.cfg.Place
	options.Rare, options.Pin = nil, nil
	state := &evict.State{
		Now: now, Nodes: s.view.Snapshot, Place: options, Queues: v.queues(),
		Rules: evict.Rules{
			Preempt: !v.cfg.NoPreemption, PreemptAcross: v.cfg.PreemptAcross && !v.cfg.NoPreemption,
			Reclaim: !v.cfg.NoReclaim, EvictionsMax: evictionsMax, Window: evictionsWindow,
		},
	}
	budgets, covers := v.readBudgets()
	state.Budgets = budgets
	state.Gangs = make([]evict.Gang, 0, len(r.gangs))
	for _, g := range r.sorted() {
		terms, found := v.describe(g.Key)
		terms.Protected = terms.Protected || !found
		own := -1
		if terms.Budget != nil {
			own = len(state.Budgets)
		}
		if g.stale || covers || own != g.own || !g.terms.same(&terms) {
			g.terms, g.own = terms, own
			v.enroll(g)
		}
		g.Evicted = v.lost[g.Key]
		if b := terms.Budget; b != nil {
			allowed := b.Allowed(max(terms.Pods, g.have), g.have)
			state.Budgets = append(state.Budgets, evict.Budget{Name: g.Pods[0].Name, Allowed: allowed})
		}
		for _, b := range g.disrupted {
			state.Budgets[b].Allowed--
		}
		state.Gangs = append(state.Gangs, g.Gang)
	}
	return state
}

// enroll makes the pods of a gang anew.
func (v *evictions) enroll(g *enrolled) {
	t := &g.terms
	g.stale, g.have, g.disrupted = false, 0, nil
	g.Queue, g.Priority, g.MinMember, g.Min = g.members[0].Queue, t.Priority, t.MinMember, t.Min
	g.Pods = make([]evict.Pod, len(g.members))
	for i, o := range g.members {
		p := &g.Pods[i]
		*p = evict.Pod{
			Name: o.Name, Node: o.Node, Request: o.Request, NonZero: o.NonZero, Ports: o.Ports,
			Cooldown: t.Cooldown, Protected: t.Protected || o.Object == nil || o.Name.Namespace == metav1.NamespaceSystem,
		}
		if o.Object != nil {
			v.fill(p, o.Object)
			p.Preemptable = p.Preemptable || t.Preemptable && !p.Protected
			p.Budgets = v.roster.budgets.covering(o.Object)
			if p.Leaving && o.Object.DeletionTimestamp == nil {
				g.disrupted = append(g.disrupted, p.Budgets...)
			}
		}
		if !p.Leaving {
			g.have++
		}
		if g.own >= 0 {
			p.Budgets = append(p.Budgets, g.own)
		}
	}
}

// same reports whether two descriptions say the same.
func (t *GangTerms) same(o *GangTerms) bool {
	return t.Priority == o.Priority && t.MinMember == o.MinMember && maps.Equal(t.Min, o.Min) && t.Protected == o.Protected &&
		t.Cooldown == o.Cooldown && t.Preemptable == o.Preemptable && t.Pods == o.Pods &&
		(t.Budget == o.Budget || t.Budget != nil && o.Budget != nil && *t.Budget == *o.Budget)
}

// readBudgets returns the PodDisruptionBudgets, and whether they cover other pods than when it was last
// called.
func (v *evictions) readBudgets() (budgets []evict.Budget, changed bool) {
	c := &v.roster.budgets
	var list []*policyv1.PodDisruptionBudget
	if v.cfg.Budgets != nil {
		list = slices.Clone(v.cfg.Budgets())
	}
	slices.SortFunc(list, func(a, b *policyv1.PodDisruptionBudget) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	changed = !slices.EqualFunc(list, c.list, func(a, b *policyv1.PodDisruptionBudget) bool {
		return a == b || a.Namespace == b.Namespace && a.Name == b.Name && equality.Semantic.DeepEqual(a.Spec.Selector, b.Spec.Selector)
	})
	c.list = list
	if changed {
		c.of = map[string][]covering{}
	}
	for i, b := range list {
		allowed := int(b.Status.DisruptionsAllowed)
		if b.Status.ObservedGeneration < b.Generation {
			allowed = 0 // the status says nothing about this spec
		}
		budgets = append(budgets, evict.Budget{Name: types.NamespacedName{Namespace: b.Namespace, Name: b.Name}, Allowed: allowed})
		if !changed {
			continue
		}
		if selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector); err == nil { // otherwise it covers no pods
			c.of[b.Namespace] = append(c.of[b.Namespace], covering{selector, i})
		}
	}
	return budgets, changed
}

// covering returns the indices of the PodDisruptionBudgets that cover a pod.
func (c *coverage) covering(p *corev1.Pod) (list []int) {
	for _, b := range c.of[p.Namespace] {
		if b.Matches(labels.Set(p.Labels)) {
			list = append(list, b.index)
		}
	}
	return list
}
