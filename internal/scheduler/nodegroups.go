package scheduler

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/pin"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// nodeGroups is the affinity of a queue to groups of nodes. Pods of the queue, and of the queues
// below it that state none of their own, get it in addition to their own node affinity.
type nodeGroups struct {
	queue string // that states it
	// required holds for every term of a pod's required node affinity.
	required  []corev1.NodeSelectorRequirement
	preferred []corev1.PreferredSchedulingTerm
}

// The weights of preferred groups are as large as those of node affinity get.
const nodeGroupWeight = 100

// nodeGroupsOf returns the affinity that a queue states, or nil.
func nodeGroupsOf(q *schedulingv1beta1.Queue) *nodeGroups {
	a := q.Spec.Affinity
	if a == nil {
		return nil
	}
	g := &nodeGroups{queue: q.Name}
	add := func(op corev1.NodeSelectorOperator, required, preferred []string) {
		groups := func(names []string) corev1.NodeSelectorRequirement {
			return corev1.NodeSelectorRequirement{Key: schedulingv1beta1.NodeGroupLabel, Operator: op, Values: slices.Clone(names)}
		}
		if len(required) > 0 {
			g.required = append(g.required, groups(required))
		}
		// A name that is no value of a label is the name of no group.
		preferred = slices.DeleteFunc(slices.Clone(preferred), func(name string) bool { return len(validation.IsValidLabelValue(name)) > 0 })
		if len(preferred) > 0 {
			g.preferred = append(g.preferred, corev1.PreferredSchedulingTerm{
				Weight: nodeGroupWeight, Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{groups(preferred)}},
			})
		}
	}
	if n := a.NodeGroupAffinity; n != nil {
		add(corev1.NodeSelectorOpIn, n.RequiredDuringSchedulingIgnoredDuringExecution, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if n := a.NodeGroupAntiAffinity; n != nil {
		add(corev1.NodeSelectorOpNotIn, n.RequiredDuringSchedulingIgnoredDuringExecution, n.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if len(g.required)+len(g.preferred) == 0 {
		return nil
	}
	return g
}

// String says which nodes the pods may use, as a part of the reason why they wait.
func (g *nodeGroups) String() string {
	var parts []string
	for _, r := range g.required {
		verb := "only"
		if r.Operator == corev1.NodeSelectorOpNotIn {
			verb = "not"
		}
		parts = append(parts, verb+" "+strings.Join(r.Values, ", "))
	}
	return "queue " + g.queue + " uses nodes of these groups: " + strings.Join(parts, "; ")
}

// template returns a copy of a pod template with the affinity added. The parts that differ are
// copied.
func (g *nodeGroups) template(pod *corev1.Pod) *corev1.Pod {
	out := *pod
	affinity := corev1.Affinity{}
	if pod.Spec.Affinity != nil {
		affinity = *pod.Spec.Affinity
	}
	node := corev1.NodeAffinity{}
	if affinity.NodeAffinity != nil {
		node = *affinity.NodeAffinity
	}
	if len(g.required) > 0 {
		terms := []corev1.NodeSelectorTerm{{MatchExpressions: g.required}}
		if r := node.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			terms = slices.Clone(r.NodeSelectorTerms)
			for i := range terms {
				if len(terms[i].MatchExpressions)+len(terms[i].MatchFields) > 0 { // an empty term matches no node
					terms[i].MatchExpressions = slices.Concat(terms[i].MatchExpressions, g.required)
				}
			}
		}
		node.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{NodeSelectorTerms: terms}
	}
	node.PreferredDuringSchedulingIgnoredDuringExecution = slices.Concat(node.PreferredDuringSchedulingIgnoredDuringExecution, g.preferred)
	affinity.NodeAffinity = &node
	out.Spec.Affinity = &affinity
	return &out
}

// groupedClass is a class with the affinity of a queue.
type groupedClass struct {
	class  *place.Class
	groups *nodeGroups
}

// nodeGroups returns the affinity of a queue, or of the nearest queue above it that states one; nil
// if none does.
func (s *Scheduler) nodeGroups(queue string) *nodeGroups {
	for range queueDepthMax {
		q := s.evictions.stated[queue]
		if q == nil {
			return nil
		}
		if q.groups != nil {
			return q.groups
		}
		queue = q.object.Spec.Parent
	}
	return nil
}

// group sets the classes of a pending gang to those with the affinity of its queue.
func (s *Scheduler) group(e *pendingGang) {
	if e.groups = s.nodeGroups(e.gang.Queue); e.groups == nil {
		e.classes = e.plain
		return
	}
	e.classes = make([]*place.Class, len(e.plain))
	for i, c := range e.plain {
		e.classes[i] = s.grouped(c, e.groups)
	}
}

// grouped returns a class with the affinity of a queue.
func (s *Scheduler) grouped(c *place.Class, groups *nodeGroups) *place.Class {
	key := groupedClass{c, groups}
	if known := s.groupedClasses[key]; known != nil {
		return known
	}
	with, err := place.NewClass(s.cluster.Dims(), groups.template(c.Template))
	if err == nil {
		with, err = pin.Compile(with)
	}
	if err != nil { // c was made of the same template, and the added terms are well-formed
		s.log.Error("the affinity of a queue could not be added to its pods", "queue", groups.queue, "error", err)
		return c
	}
	if len(s.groupedClasses) >= classesMax {
		clear(s.groupedClasses)
	}
	s.groupedClasses[key] = with
	return with
}

// regroup follows changes of the queues' affinities.
func (s *Scheduler) regroup() {
	if !s.evictions.regrouped {
		return
	}
	s.evictions.regrouped = false
	clear(s.groupedClasses) // of affinities that no queue has any more
	for _, e := range s.pending.gangs {
		if e.fault != "" || e.groups == s.nodeGroups(e.gang.Queue) {
			continue
		}
		s.pending.remove(e)
		s.group(e)
		s.pending.add(e)
	}
}
