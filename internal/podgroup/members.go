package podgroup

import (
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler"
)

// members are the pods of a group, counted by state.
type members struct {
	waiting []*corev1.Pod // may be placed
	binding int           // placed, and not yet seen bound
	gated   int           // waiting for scheduling gates to be removed
	bound   int           // with a node, and not ended
	running int
	ended   struct{ succeeded, failed int }
	// holding is, per task, the number of pods that count towards the minimum: with a node, being
	// bound, or succeeded.
	holding map[string]int
	total   int           // sum of holding
	held    []*corev1.Pod // those counted in holding
	queue   string        // that the group is in
	// lacks means that fewer sub-groups than the gang needs hold their pods.
	lacks bool
}

// countMembers counts the pods by state. binding reports whether a bind of the pod is in flight.
func countMembers(pods []*corev1.Pod, binding func(*corev1.Pod) bool) members {
	m := members{holding: map[string]int{}}
	hold := func(p *corev1.Pod) {
		m.holding[taskOf(p)]++
		m.total++
		m.held = append(m.held, p)
	}
	for _, p := range pods {
		switch {
		case p.Status.Phase == corev1.PodSucceeded:
			m.ended.succeeded++
			hold(p)
		case p.Status.Phase == corev1.PodFailed:
			m.ended.failed++
		case p.Spec.NodeName != "":
			m.bound++
			if p.Status.Phase == corev1.PodRunning {
				m.running++
			}
			if p.DeletionTimestamp == nil {
				hold(p)
			}
		case p.DeletionTimestamp != nil:
		case binding(p):
			m.binding++
			hold(p)
		case len(p.Spec.SchedulingGates) > 0:
			m.gated++
		default:
			m.waiting = append(m.waiting, p)
		}
	}
	slices.SortFunc(m.waiting, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
	})
	return m
}

// namesOf returns the names of pods, sorted.
func namesOf(pods []*corev1.Pod) []types.NamespacedName {
	names := make([]types.NamespacedName, len(pods))
	for i, p := range pods {
		names[i] = types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	}
	slices.SortFunc(names, func(a, b types.NamespacedName) int { return cmp.Compare(a.Name, b.Name) })
	return names
}

// taskOf returns the name of the task that a pod belongs to, for minTaskMember.
func taskOf(p *corev1.Pod) string { return p.Annotations[batchv1alpha1.TaskSpecKey] }

// gangRequest is the request of a group to the scheduler.
type gangRequest struct {
	minMember int
	demands   []scheduler.Demand
	parts     []scheduler.Part
	minParts  []int
	// missing says why the group cannot be requested yet: some of its pods do not exist. reason is
	// the reason of the condition.
	missing, reason string
}

const (
	fewerThanMinMember = "fewer pods exist than minMember"
	fewerThanMinCount  = "fewer pods exist than spec.schedulingPolicy.gang.minCount" // of Kubernetes' PodGroup
)

// units returns the number of pods in the demands.
func (r *gangRequest) units() (n int) {
	for i := range r.demands {
		n += len(r.demands[i].Units)
	}
	return n
}

// ask returns what a group with these members must request to reach its minimum. templates returns
// the shared template of a pod.
func ask(minMember int, minTask map[string]int32, policies subGroupPolicies, m members, templates func(*corev1.Pod) *corev1.Pod) gangRequest {
	var r gangRequest
	r.minMember = max(0, minMember-m.total)
	if len(m.waiting) < r.minMember {
		r.missing, r.reason = fewerThanMinMember, schedulingv1beta1.ReasonNotEnoughTasks
		return r
	}
	// 1. Sub-groups of which too few pods exist wait for the others.
	groups := policies.divide(&m)
	if p := policies.lacking(groups, (*subGroup).exist); p != nil {
		return gangRequest{missing: "fewer sub-groups of " + p.path + " have all their pods than minSubGroups", reason: schedulingv1beta1.ReasonNotEnoughTasks}
	}
	within, divided := map[types.UID]int{}, map[string]bool{} // the sub-group of pods, and tasks with such pods
	for i, g := range groups {
		for _, p := range g.waiting {
			within[p.UID], divided[taskOf(p)] = i, true
		}
		for _, p := range g.held {
			divided[taskOf(p)] = true
		}
	}

	// 2. Pods with the same task, template and sub-group form one demand.
	type kind struct {
		task     string
		template *corev1.Pod
		group    int // or -1
	}
	index := map[kind]int{}
	var tasks []string // of each demand
	of := make([][]int, len(groups))
	for _, p := range m.waiting {
		k := kind{taskOf(p), templates(p), -1}
		if g, in := within[p.UID]; in {
			if k.group = g; groups[g].exist() < policies[groups[g].key.policy].size {
				continue
			}
		}
		i, ok := index[k]
		if !ok {
			i = len(r.demands)
			index[k] = i
			r.demands = append(r.demands, scheduler.Demand{Template: k.template})
			tasks = append(tasks, k.task)
			if k.group >= 0 {
				of[k.group] = append(of[k.group], i)
			}
		}
		r.demands[i].Units = append(r.demands[i].Units, types.NamespacedName{Namespace: p.Namespace, Name: p.Name})
	}
	if units := r.units(); units < r.minMember || units == 0 && len(m.waiting) > 0 {
		return gangRequest{missing: "fewer pods exist than subGroupSize of spec.subGroupPolicy", reason: schedulingv1beta1.ReasonNotEnoughTasks}
	}

	// 3. The minimum of each task is taken from its demands in turn. For pods in sub-groups, the minimum
	// of these counts instead.
	sum := 0
	for _, task := range slices.Sorted(maps.Keys(minTask)) { // in this order, so that missing stays the same
		if divided[task] {
			continue
		}
		need := int(minTask[task]) - m.holding[task]
		for i := range r.demands {
			if tasks[i] == task && need > 0 {
				r.demands[i].Min = min(need, len(r.demands[i].Units))
				need -= r.demands[i].Min
				sum += r.demands[i].Min
			}
		}
		if need > 0 {
			return gangRequest{missing: "fewer pods of task " + task + " exist than minTaskMember", reason: schedulingv1beta1.ReasonNotEnoughPodsOfTask}
		}
	}
	r.minMember = max(r.minMember, sum)
	if len(groups) > 0 {
		position := make(map[*subGroup]int, len(groups))
		for i, g := range groups {
			position[g] = i
		}
		r.addParts(policies, groups, func(g *subGroup) []int { return of[position[g]] })
	}
	return r
}

// perPodLabels are labels that differ among the pods of one owner and have no effect on placement.
var perPodLabels = []string{
	"statefulset.kubernetes.io/pod-name", "apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index",
}

// templateKey returns a string that is equal for pods with the same placement requirements.
func templateKey(p *corev1.Pod) string {
	spec := p.Spec
	spec.NodeName = ""
	spec.SchedulingGates, spec.SchedulingGroup = nil, nil
	labels := make(map[string]string, len(p.Labels))
	for k, v := range p.Labels {
		if !slices.Contains(perPodLabels, k) {
			labels[k] = v
		}
	}
	raw, err := spec.Marshal() // the generated encoding sorts maps
	if err != nil {
		return string(p.UID)
	}
	more, err := json.Marshal([]any{labels, topologyv1alpha1.RequestAnnotations(p.Annotations)})
	if err != nil {
		return string(p.UID)
	}
	return strings.Join([]string{p.Namespace, string(raw), string(more)}, "\x00")
}

// templates shares one template among pods with the same placement requirements.
type templates struct {
	byKey map[string]*corev1.Pod
	byPod map[types.UID]*corev1.Pod // saves computing the key again
}

// templatesMax bounds byKey, which is cleared when it reaches the bound.
const templatesMax = 4096

func newTemplates() templates {
	return templates{byKey: map[string]*corev1.Pod{}, byPod: map[types.UID]*corev1.Pod{}}
}

// of returns the template of p, which has no group.
func (t templates) of(p *corev1.Pod) *corev1.Pod { return t.within(nil)(p) }

// within returns a function that returns the template of a pod of a group, which may be nil: the first
// pod seen with the same placement requirements. These requirements do not change once the pod's
// scheduling gates are removed, apart from the revocable zones that a pod has from its group.
func (t templates) within(group *schedulingv1beta1.PodGroup) func(*corev1.Pod) *corev1.Pod {
	return func(p *corev1.Pod) *corev1.Pod { return t.template(p, zonesOf(p, group)) }
}

// zonesOf returns the revocable zones that a pod, or else its group, allows.
func zonesOf(p *corev1.Pod, group *schedulingv1beta1.PodGroup) string {
	_, preemptable := p.Annotations[schedulingv1beta1.PreemptableAnnotation]
	_, stated := p.Annotations[schedulingv1beta1.RevocableZoneAnnotation]
	of := p.Annotations
	if group != nil && !preemptable && !stated {
		of = group.Annotations
	}
	zones, _ := schedulingv1beta1.ZonesOf(of)
	return zones
}

func (t templates) template(p *corev1.Pod, zones string) *corev1.Pod {
	if known := t.byPod[p.UID]; known != nil {
		if of, _ := schedulingv1beta1.ZonesOf(known.Annotations); of == zones {
			return known
		}
	}
	key := templateKey(p) + "\x00" + zones
	first := t.byKey[key]
	if first == nil {
		if len(t.byKey) >= templatesMax {
			clear(t.byKey)
		}
		first = p
		if of, _ := schedulingv1beta1.ZonesOf(p.Annotations); of != zones {
			changed := *p
			changed.Annotations = maps.Clone(p.Annotations)
			if changed.Annotations == nil {
				changed.Annotations = map[string]string{}
			}
			changed.Annotations[schedulingv1beta1.RevocableZoneAnnotation] = zones
			first = &changed
		}
		t.byKey[key] = first
	}
	t.byPod[p.UID] = first
	return first
}

func (t templates) forget(pod types.UID) { delete(t.byPod, pod) }
