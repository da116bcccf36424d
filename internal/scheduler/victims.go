package scheduler

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/evict"
	"lockstep.dev/lockstep/internal/scheduler/place"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// look prepares a search on the present state of the model.
func (v *evictions) look(now time.Time) {
	state := v.survey(now)
	if before := v.surveyed; before == nil || v.generation != v.shown() || !before.Same(state) {
		v.epoch++
	}
	v.surveyed, v.prepared, v.generation = state, false, v.shown()
}

// gangOf returns the key of the gang of a pod, or nothing if the pod is never evicted.
func (v *evictions) gangOf(p *corev1.Pod) string {
	for _, o := range v.owners {
		if key, ok := o.GangOf(p); ok {
			return key
		}
	}
	return ""
}

// isPreemptable reports whether the manifest of a pod, or else that of its gang, says that it may be
// evicted. gangs keeps the answers for gangs.
func (v *evictions) isPreemptable(p *corev1.Pod, gangs map[string]bool) bool {
	t := TermsOf(p)
	if t.Preemptable || t.Protected {
		return t.Preemptable
	}
	key := v.gangOf(p)
	may, known := gangs[key]
	if !known && key != "" {
		of, found := v.describe(key)
		may = found && of.Preemptable
		gangs[key] = may
	}
	return may
}

func (v *evictions) describe(key string) (GangTerms, bool) {
	for _, o := range v.owners {
		if o.Owns(key) {
			return o.Describe(key)
		}
	}
	return GangTerms{}, false
}

// fill sets what follows from the pod itself.
func (v *evictions) fill(p *evict.Pod, object *corev1.Pod) {
	p.Task = object.Annotations[batchv1alpha1.TaskSpecKey]
	p.Priority = v.s.cluster.PriorityOf(object)
	p.Leaving = v.isLeaving(object)
	p.Started = object.CreationTimestamp.Time
	if t := object.Status.StartTime; t != nil {
		p.Started = t.Time
	}
	t := TermsOf(object)
	p.Protected, p.Preemptable = p.Protected || t.Protected, t.Preemptable
	p.Cooldown = max(p.Cooldown, t.Cooldown)
}

// TermsOf returns what the annotations and labels of a pod, or of its PodGroup, say about eviction.
// A value that cannot be parsed protects the pod.
func TermsOf(o metav1.Object) GangTerms {
	var t GangTerms
	value, set := o.GetAnnotations()[schedulingv1beta1.PreemptableAnnotation]
	if !set {
		value, set = o.GetLabels()[schedulingv1beta1.PreemptableAnnotation]
	}
	if set {
		may, err := strconv.ParseBool(value)
		t.Preemptable = err == nil && may
		t.Protected = !t.Preemptable
	}
	t.Budget, _ = schedulingv1beta1.BudgetOf(o)
	if value := o.GetAnnotations()[schedulingv1beta1.CooldownTimeAnnotation]; value != "" {
		var err error
		if t.Cooldown, err = time.ParseDuration(value); err != nil {
			t.Protected = true
		}
	}
	return t
}

// statedQueue is what the spec of a queue says about shares.
type statedQueue struct {
	object                *schedulingv1beta1.Queue
	guarantee             place.Vector
	deserved, capability  share.Limits
	due                   share.Limits // deserved, or the guarantee if that is more
	entitled, reclaimable bool
	groups                *nodeGroups // nil if it states none
}

// state records what a queue's spec says, if it has changed.
func (v *evictions) state(name string, object *schedulingv1beta1.Queue) {
	before := v.stated[name]
	if object == nil {
		v.regrouped = v.regrouped || before != nil && before.groups != nil
		delete(v.stated, name)
		return
	}
	if before != nil && before.object == object {
		return
	}
	dims, spec := v.s.cluster.Dims(), &object.Spec
	q := &statedQueue{
		object: object, guarantee: dims.Vector(spec.Guarantee.Resource),
		deserved: share.NewLimits(dims, spec.Deserved), capability: share.NewLimits(dims, spec.Capability),
		entitled:    len(spec.Deserved)+len(spec.Guarantee.Resource) > 0,
		reclaimable: spec.Reclaimable == nil || *spec.Reclaimable,
		groups:      nodeGroupsOf(object),
	}
	if before != nil && equality.Semantic.DeepEqual(before.object.Spec.Affinity, spec.Affinity) {
		q.groups = before.groups
	}
	v.regrouped = v.regrouped || before == nil && q.groups != nil ||
		before != nil && (before.groups != q.groups || before.object.Spec.Parent != spec.Parent)
	q.due = share.NewLimits(dims, spec.Deserved)
	for dim, amount := range share.NewLimits(dims, spec.Guarantee.Resource) {
		for len(q.due) <= dim {
			q.due = append(q.due, share.Unlimited)
		}
		if amount != share.Unlimited {
			q.due[dim] = max(q.due[dim], amount)
		}
	}
	v.stated[name] = q
}

// queueDepthMax bounds the way to the root, as in package share.
const queueDepthMax = 16

// entitled reports whether a queue, or a queue above it, states a guarantee or what it deserves.
func (v *evictions) entitled(name string) bool {
	for range queueDepthMax {
		q := v.stated[name]
		if q == nil {
			return false
		}
		if q.entitled {
			return true
		}
		name = q.object.Spec.Parent
	}
	return false
}

// queues returns the queues with what their pods and claims have.
func (v *evictions) queues() []evict.Queue {
	byWeight := v.cfg.ReclaimByWeight && !v.cfg.NoReclaim
	if byWeight {
		// A claimant still waits, so its claim must not count as something that its queue has, too: the
		// other queues would deserve less.
		v.chargeClaims(-1)
		defer v.chargeClaims(1)
	}
	claimed := map[string]place.Vector{}
	for _, c := range v.claims {
		if c.kept {
			claimed[c.queue] = claimed[c.queue].Plus(c.sum, 1)
		}
	}
	var list []evict.Queue
	for _, q := range v.s.cluster.Queues() {
		out := evict.Queue{Name: q.Name, Used: q.Used.Plus(claimed[q.Name], 1)}
		if st := v.stated[q.Name]; st != nil {
			out.Parent, out.Guarantee, out.Kept = st.object.Spec.Parent, slices.Clone(st.guarantee), !st.reclaimable
			out.Deserved, out.Capability = slices.Clone(st.deserved), slices.Clone(st.capability)
			if byWeight && len(st.object.Spec.Deserved) == 0 {
				out.Deserved, out.Weighed = share.Limits(v.s.ledger.Deserved(q.Name)), true
			}
		}
		list = append(list, out)
	}
	return list
}

// chargeClaims charges the queues with the capacity that is kept for claimants (times = 1), or no longer
// (times = -1).
func (v *evictions) chargeClaims(times int64) {
	for _, c := range v.claims {
		if c.charged {
			v.s.ledger.Charge(c.queue, place.Vector(nil).Plus(c.sum, times))
		}
	}
}

// explanation says, for users, who leaves for a gang or why nobody does. stable changes only if the
// cause does; detail has the figures of the moment, too.
type explanation struct{ stable, detail string }

func sentence(s string) explanation { return explanation{s, s} }

// waitsForLeaving is told if the gang fits once pods that are being deleted anyway have left.
const waitsForLeaving = "waits until pods that are leaving have left"

// namedMax is the number of victims that an explanation names.
const namedMax = 3

// Pods returns a number of pods as text.
func Pods(n int) string {
	if n == 1 {
		return "1 pod"
	}
	return fmt.Sprintf("%d pods", n)
}

// namespaceOf returns the namespace of a gang, whose key is KIND/NAMESPACE/NAME.
func namespaceOf(gang string) string {
	if parts := strings.Split(gang, "/"); len(parts) > 1 {
		return parts[1]
	}
	return ""
}

// GangFor returns how the users of a namespace are told of a gang. Names of other namespaces'
// objects are not shown to them.
func GangFor(namespace, gang string) string {
	if namespaceOf(gang) != namespace {
		return "a gang of another namespace"
	}
	return gang
}

// explainPlan explains a plan to the users of a namespace. begin is the beginning of the sentence.
func explainPlan(p *evict.Plan, namespace, begin string) explanation {
	var names, all []string
	for i := range p.Victims {
		x := &p.Victims[i]
		what := Pods(len(x.Pods)) + " above its minimum"
		if x.Whole {
			what = "the whole gang, " + Pods(len(x.Pods))
		}
		if i < namedMax {
			gang := GangFor(namespace, x.Gang)
			names = append(names, fmt.Sprintf("%s (%s)", gang, what))
			all = append(all, fmt.Sprintf("%s (%s; it %s)", gang, what, x.Rule))
		}
	}
	more := ""
	if n := len(p.Victims) - namedMax; n > 0 {
		more = fmt.Sprintf(", and pods of %d more", n)
	}
	return explanation{begin + strings.Join(names, ", ") + more, begin + strings.Join(all, ", ") + more}
}

func explainRefusal(p *evict.Plan) explanation {
	e := sentence("nothing is evicted for it: " + p.Refusal.Stable())
	var why []string
	for _, reason := range slices.Sorted(maps.Keys(p.Exempt)) {
		why = append(why, fmt.Sprintf("%d %s", p.Exempt[reason], reason))
	}
	if len(why) > 0 && !p.Refusal.IsClaimants() {
		e.detail += "; pods that stay: " + strings.Join(why, ", ")
	}
	return e
}
