package podgroup

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// subGroupPolicy is an element of a PodGroup's spec.subGroupPolicy.
type subGroupPolicy struct {
	path     string // of the element in the PodGroup
	selector labels.Selector
	keys     []string
	size     int // pods that a sub-group needs at once
	least    int // sub-groups that the gang needs
	near     *place.Near
}

// divides reports whether placement must know the sub-groups. If none is required, and each pod of one
// may be anywhere at any time, they are simply the gang's pods.
func (p *subGroupPolicy) divides() bool { return p.size > 1 || p.least > 0 || p.near != nil }

// subGroupPolicies are the policies of one PodGroup.
type subGroupPolicies []subGroupPolicy

// policiesOf reads the policies of a PodGroup. The error names the field that is wrong.
func policiesOf(pg *schedulingv1beta1.PodGroup) (subGroupPolicies, error) {
	var list subGroupPolicies
	for i := range pg.Spec.SubGroupPolicy {
		spec := &pg.Spec.SubGroupPolicy[i]
		p := subGroupPolicy{
			path: fmt.Sprintf("spec.subGroupPolicy[%d]", i), selector: labels.Everything(), keys: spec.MatchLabelKeys, size: 1,
			near: scheduler.NearOf(spec.NetworkTopology),
		}
		if spec.LabelSelector != nil {
			var err error
			if p.selector, err = metav1.LabelSelectorAsSelector(spec.LabelSelector); err != nil {
				return nil, fmt.Errorf("%s.labelSelector: %w", p.path, err)
			}
		}
		if spec.SubGroupSize != nil {
			p.size = max(1, int(*spec.SubGroupSize))
		}
		if spec.MinSubGroups != nil {
			p.least = int(*spec.MinSubGroups)
		}
		list = append(list, p)
	}
	return list, nil
}

// pods returns the number of pods in the sub-groups that the gang needs.
func (ps subGroupPolicies) pods() (n int) {
	for i := range ps {
		n += ps[i].least * ps[i].size
	}
	return n
}

// subGroupKey identifies a sub-group of a PodGroup.
type subGroupKey struct {
	policy int
	values string
}

// of returns the sub-group of a pod.
func (ps subGroupPolicies) of(p *corev1.Pod) (subGroupKey, bool) {
	for i := range ps {
		if !ps[i].selector.Matches(labels.Set(p.Labels)) {
			continue
		}
		values := make([]string, len(ps[i].keys))
		for k, key := range ps[i].keys {
			if values[k] = p.Labels[key]; values[k] == "" {
				return subGroupKey{}, false
			}
		}
		return subGroupKey{i, strings.Join(values, "\x00")}, ps[i].divides()
	}
	return subGroupKey{}, false
}

// subGroup is a sub-group, with its pods by state as in members.
type subGroup struct {
	key           subGroupKey
	held, waiting []*corev1.Pod
}

// divide returns the sub-groups of a PodGroup's members, those of the oldest waiting pods first.
func (ps subGroupPolicies) divide(m *members) (groups []*subGroup) {
	if len(ps) == 0 {
		return nil
	}
	index := map[subGroupKey]*subGroup{}
	of := func(p *corev1.Pod) *subGroup {
		key, divided := ps.of(p)
		if !divided {
			return &subGroup{}
		}
		if index[key] == nil {
			index[key] = &subGroup{key: key}
			groups = append(groups, index[key])
		}
		return index[key]
	}
	for _, p := range m.waiting {
		g := of(p)
		g.waiting = append(g.waiting, p)
	}
	for _, p := range m.held {
		g := of(p)
		g.held = append(g.held, p)
	}
	return groups
}

// lacking returns the first policy of which fewer sub-groups than it needs have all the pods that they
// need, as far as has counts them, or nil.
func (ps subGroupPolicies) lacking(groups []*subGroup, has func(*subGroup) int) *subGroupPolicy {
	for i := range ps {
		whole := 0
		for _, g := range groups {
			if g.key.policy == i && has(g) >= ps[i].size {
				whole++
			}
		}
		if whole < ps[i].least {
			return &ps[i]
		}
	}
	return nil
}

func (g *subGroup) holds() int { return len(g.held) }

func (g *subGroup) exist() int { return len(g.held) + len(g.waiting) }

// addParts makes the sub-groups with waiting pods parts of a request, those first that lack the fewest
// pods. demands returns the indices of a sub-group's demands. Sub-groups of which too few pods exist
// must have been left out.
func (r *gangRequest) addParts(ps subGroupPolicies, groups []*subGroup, demands func(*subGroup) []int) {
	for i := range ps {
		// Pods of sub-groups that have their minimum are in a set of their own, of which none is needed.
		needed, others := len(r.minParts), len(r.minParts)+1
		r.minParts = append(r.minParts, ps[i].least, 0)
		for _, g := range groups {
			if g.key.policy != i {
				continue
			}
			part := scheduler.Part{Kind: "sub-group", Set: needed, Size: ps[i].size - g.holds(), Near: ps[i].near}
			if part.Size <= 0 {
				part.Set, part.Size = others, 1
				r.minParts[needed] = max(0, r.minParts[needed]-1)
			}
			if part.Demands = demands(g); len(part.Demands) == 0 {
				continue
			}
			if part.Near != nil {
				part.Mates = namesOf(g.held)
			}
			r.parts = append(r.parts, part)
		}
	}
	slices.SortStableFunc(r.parts, func(a, b scheduler.Part) int { return a.Size - b.Size })
	r.raiseMinParts()
	r.minMember = max(r.minMember, (&scheduler.Gang{Parts: r.parts, MinParts: r.minParts}).LeastParts())
}

// raiseMinParts raises the numbers of parts that are needed to those without which minMember cannot be
// reached, so that a message about too little room speaks of parts.
func (r *gangRequest) raiseMinParts() {
	units := r.units()
	for set := range r.minParts {
		var sizes []int // pods of each part of the set
		elsewhere := units
		for i := range r.parts {
			if r.parts[i].Set != set {
				continue
			}
			n := 0
			for _, d := range r.parts[i].Demands {
				n += len(r.demands[d].Units)
			}
			sizes = append(sizes, n)
			elsewhere -= n
		}
		slices.Sort(sizes)
		n := 0
		for left := r.minMember - elsewhere; left > 0 && n < len(sizes); n++ {
			left -= sizes[len(sizes)-1-n]
		}
		r.minParts[set] = max(r.minParts[set], n)
	}
}
