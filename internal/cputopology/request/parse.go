package request

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// Annotations and labels that request CPUs.
const (
	LockstepRequest     = topologyv1alpha1.RequestAnnotation
	ACKScheduler        = topologyv1alpha1.ACKSchedulerAnnotation
	ACKPolicy           = topologyv1alpha1.ACKPolicyAnnotation
	KoordinatorQoS      = topologyv1alpha1.KoordinatorQoSLabel
	KoordinatorSpec     = topologyv1alpha1.KoordinatorSpecAnnotation
	KoordinatorNUMASpec = topologyv1alpha1.KoordinatorNUMASpecAnnotation
	VolcanoNUMA         = topologyv1alpha1.VolcanoNUMAAnnotation
)

// shareMax bounds share counts, and with them the reference counters of the allocator.
const shareMax = 1000

// annotationBytesMax bounds the size of a parsed annotation. The API server's own limit applies to
// all annotations together.
const annotationBytesMax = 16 << 10

// Parse parses a pod's request. It returns nil without an error for a pod that does not request CPU
// topology, and Errors for an invalid request.
func Parse(pod *corev1.Pod) (*Pod, error) {
	a := pod.Annotations
	_, lockstep := a[LockstepRequest]
	_, ackScheduler := a[ACKScheduler]
	_, ackPolicy := a[ACKPolicy]
	qos := pod.Labels[KoordinatorQoS]
	koordinator := qos == "LSE" || qos == "LSR"
	numa := a[VolcanoNUMA]
	var p parser
	switch {
	case numa != "" && numa != "none":
		if lockstep || ackScheduler || ackPolicy || koordinator {
			p.fail(VolcanoNUMA, "", "cannot be combined with other requests for CPUs (%s)", strings.Join(otherMarks(pod), ", "))
			break
		}
		p.volcano(pod, numa)
	case lockstep && (ackScheduler || ackPolicy):
		p.fail(LockstepRequest, "", "cannot be combined with %s or %s", ACKScheduler, ACKPolicy)
	case lockstep && koordinator:
		p.fail(LockstepRequest, "", "cannot be combined with the label %s=%s", KoordinatorQoS, qos)
	case (ackScheduler || ackPolicy) && koordinator:
		p.fail(ACKScheduler, "", "cannot be combined with the label %s=%s", KoordinatorQoS, qos)
	case lockstep:
		p.lockstep(pod, a[LockstepRequest])
	case ackScheduler || ackPolicy:
		p.ack(pod)
	case koordinator:
		p.koordinator(pod, qos)
	default:
		return nil, nil
	}
	if len(p.errs) > 0 {
		return nil, p.errs
	}
	if len(p.out.Containers) == 0 {
		return nil, nil
	}
	return &p.out, nil
}

type parser struct {
	out  Pod
	errs Errors
}

func (p *parser) fail(annotation, field, format string, args ...any) {
	p.errs = append(p.errs, Error{annotation, field, fmt.Sprintf(format, args...)})
}

// ack parses ACK's annotations. A container gets as many CPUs as limits.cpu. If the limits exceed
// the machine, CPUs are shared, least-used first.
func (p *parser) ack(pod *corev1.Pod) {
	p.out.Language = ACK
	switch v := pod.Annotations[ACKScheduler]; v {
	case "true":
	case "false", "":
		if _, set := pod.Annotations[ACKPolicy]; set {
			p.fail(ACKPolicy, "", `needs the annotation %s: "true"`, ACKScheduler)
		}
		return
	case "required":
		p.fail(ACKScheduler, "", `"required" asks for joint CPU and GPU placement, which is not offered; "true" pins CPUs`)
		return
	default:
		p.fail(ACKScheduler, "", `%q is unknown; it is "true" or "false"`, v)
		return
	}
	var policy Policy
	switch v, set := pod.Annotations[ACKPolicy]; {
	case v == "static-burst":
		policy.Burst = true
	case set:
		p.fail(ACKPolicy, "", `%q is unknown; it is "static-burst" or absent`, v)
		return
	}
	eachContainer(pod, func(path string, c *corev1.Container, init bool) {
		limit, ok := c.Resources.Limits[corev1.ResourceCPU]
		if n, whole := wholeCPUs(limit); !ok || !whole || n == 0 {
			return // the container runs in the shared pool
		}
		p.container(ACKScheduler, path+".resources.limits.cpu", c, init, limit, policy)
	})
	if len(p.out.Containers) == 0 && len(p.errs) == 0 {
		p.fail(ACKScheduler, "spec.containers", "no container has a whole limits.cpu, which is the number of CPUs to bind")
	}
}

// volcano parses Volcano's NUMA policy of a pod. As with a kubelet that has the static CPU manager,
// containers of Guaranteed pods that request whole CPUs get them for themselves, and all others run
// on the shared pool.
func (p *parser) volcano(pod *corev1.Pod, value string) {
	p.out.Language = Volcano
	policy := Policy{Share: 1}
	switch value {
	case "best-effort": // every request gets the fewest NUMA nodes that have the CPUs free
	case "restricted":
		policy.Span = FewestNUMA
	case "single-numa-node":
		policy.Span = SingleNUMA
	default:
		p.fail(VolcanoNUMA, "", "%q is unknown; it is none, best-effort, restricted or single-numa-node", value)
		return
	}
	if !Guaranteed(pod) {
		return
	}
	eachContainer(pod, func(path string, c *corev1.Container, init bool) {
		if n, whole := wholeCPUs(c.Resources.Limits[corev1.ResourceCPU]); whole && n > 0 {
			p.container(VolcanoNUMA, path+".resources.limits.cpu", c, init, c.Resources.Limits[corev1.ResourceCPU], policy)
		}
	})
}

// koordinatorSpec is the value of scheduling.koordinator.sh/resource-spec.
type koordinatorSpec struct {
	Required  string `json:"requiredCPUBindPolicy"`
	Preferred string `json:"preferredCPUBindPolicy"`
	Exclusive string `json:"preferredCPUExclusivePolicy"`
}

// koordinatorNUMASpec is the value of scheduling.koordinator.sh/numa-topology-spec.
type koordinatorNUMASpec struct {
	Policy    string `json:"numaTopologyPolicy"`
	Exclusive string `json:"singleNUMANodeExclusive"`
}

// koordinator parses an LSE or LSR pod, which gets exclusive CPUs, one set for the whole pod.
func (p *parser) koordinator(pod *corev1.Pod, qos string) {
	p.out.Language, p.out.PodWide = Koordinator, true
	if !koordinatorProd(pod) {
		p.fail(KoordinatorQoS, "", "%s needs the priority class koord-prod (priority 9000 to 9999)", qos)
		return
	}
	policy := Policy{Share: 1, Bind: FullCore, Prefer: BindField}
	var spec koordinatorSpec
	p.decode(pod, KoordinatorSpec, &spec, false)
	bind, field := spec.Preferred, "preferredCPUBindPolicy"
	if spec.Required != "" && spec.Required != "Default" {
		bind, field = spec.Required, "requiredCPUBindPolicy"
		policy.Prefer = 0
	}
	switch bind {
	case "", "Default", "FullPCPUs":
	case "SpreadByPCPUs":
		policy.Bind = Spread
	case "ConstrainedBurst":
		p.fail(KoordinatorSpec, field, "ConstrainedBurst is not implemented, here or in Koordinator")
	default:
		p.fail(KoordinatorSpec, field, "%q is unknown; it is Default, FullPCPUs or SpreadByPCPUs", bind)
	}
	switch spec.Exclusive {
	case "", "None":
	case "PCPULevel":
		policy.Isolation, policy.Prefer = IsolateCore, policy.Prefer|IsolationField
	case "NUMANodeLevel":
		policy.Isolation, policy.Prefer = IsolateNUMA, policy.Prefer|IsolationField
	default:
		p.fail(KoordinatorSpec, "preferredCPUExclusivePolicy", "%q is unknown; it is None, PCPULevel or NUMANodeLevel",
			spec.Exclusive)
	}
	var numa koordinatorNUMASpec
	p.decode(pod, KoordinatorNUMASpec, &numa, false)
	switch numa.Policy {
	case "", "BestEffort", "Restricted": // every request gets the fewest possible NUMA nodes
	case singleNUMANode:
		policy.Span = SingleNUMA
	default:
		p.fail(KoordinatorNUMASpec, "numaTopologyPolicy", "%q is unknown; it is BestEffort, Restricted or SingleNUMANode",
			numa.Policy)
	}
	p.out.NUMAPolicy = numa.Policy
	eachContainer(pod, func(path string, c *corev1.Container, init bool) {
		if request, ok := c.Resources.Requests[corev1.ResourceCPU]; ok {
			p.container(KoordinatorQoS, path+".resources.requests.cpu", c, init, request, policy)
		}
	})
	if len(p.out.Containers) == 0 && len(p.errs) == 0 {
		p.fail(KoordinatorQoS, "spec.containers", "no container has requests.cpu, which is the number of CPUs to bind")
	}
}

// koordinatorProd reports whether the pod has Koordinator's priority class koord-prod: by the
// label, which takes precedence as in Koordinator, by the name of its PriorityClass, or by its
// value.
func koordinatorProd(pod *corev1.Pod) bool {
	if class, ok := pod.Labels[topologyv1alpha1.KoordinatorPriorityClassLabel]; ok {
		return class == "koord-prod"
	}
	if strings.HasPrefix(pod.Spec.PriorityClassName, "koord-prod") {
		return true
	}
	return pod.Spec.Priority != nil && *pod.Spec.Priority >= 9000 && *pod.Spec.Priority <= 9999
}

// lockstepPolicy is a policy in Lockstep's own form, for the pod or for one container. A container
// inherits absent fields from the pod.
type lockstepPolicy struct {
	Pin       *bool     `json:"pin"`
	Bind      *string   `json:"bind"`
	Isolation *string   `json:"isolation"`
	Span      *string   `json:"span"`
	Memory    *string   `json:"memory"`
	Cores     *string   `json:"cores"`
	Prefer    *[]string `json:"prefer"`
	Share     *int      `json:"share"`
	Burst     *bool     `json:"burst"`
}

// lockstepRequest is the value of cpu.lockstep.dev/request.
type lockstepRequest struct {
	lockstepPolicy `json:",inline"`
	Containers     map[string]lockstepPolicy `json:"containers"`
}

func (p *parser) lockstep(pod *corev1.Pod, value string) {
	p.out.Language = Lockstep
	if value == "false" {
		return
	}
	var r lockstepRequest
	if value != "true" && !p.decode(pod, LockstepRequest, &r, true) {
		return
	}
	base := p.policy(Policy{Share: 1}, "", r.lockstepPolicy)
	seen := map[string]bool{}
	eachContainer(pod, func(path string, c *corev1.Container, init bool) {
		seen[c.Name] = true
		own := r.Containers[c.Name]
		policy := p.policy(base, "containers."+c.Name+".", own)
		pin := true
		for _, v := range []*bool{r.Pin, own.Pin} {
			if v != nil {
				pin = *v
			}
		}
		if !pin {
			return
		}
		count, ok := c.Resources.Limits[corev1.ResourceCPU]
		field := path + ".resources.limits.cpu"
		if !ok {
			count, ok = c.Resources.Requests[corev1.ResourceCPU]
			field = path + ".resources.requests.cpu"
		}
		if !ok {
			p.fail(LockstepRequest, path+".resources.limits.cpu",
				`missing: it is the number of CPUs to bind (or set containers.%s.pin: false)`, c.Name)
			return
		}
		p.container(LockstepRequest, field, c, init, count, policy)
	})
	for _, name := range slices.Sorted(maps.Keys(r.Containers)) {
		if !seen[name] {
			p.fail(LockstepRequest, "containers."+name, "the pod has no such container")
		}
	}
}

// policy applies the fields set in o to base.
func (p *parser) policy(base Policy, at string, o lockstepPolicy) Policy {
	choose := func(field string, names []string, v *string, set func(int)) {
		if v == nil {
			return
		}
		i := slices.Index(names, *v)
		if i < 0 {
			p.fail(LockstepRequest, at+field, "%q is unknown; it is one of %s", *v, strings.Join(names, ", "))
			return
		}
		set(i)
	}
	choose("bind", bindNames, o.Bind, func(i int) { base.Bind = Bind(i) })
	choose("isolation", isolationNames, o.Isolation, func(i int) { base.Isolation = Isolation(i) })
	choose("span", spanNames, o.Span, func(i int) { base.Span = Span(i) })
	choose("memory", memoryNames, o.Memory, func(i int) { base.Memory = Memory(i) })
	choose("cores", coresNames, o.Cores, func(i int) { base.Cores = Cores(i) })
	if o.Prefer != nil {
		base.Prefer = 0
		for _, name := range *o.Prefer {
			choose("prefer", fieldNames, &name, func(i int) { base.Prefer |= 1 << i })
		}
	}
	if o.Burst != nil {
		base.Burst = *o.Burst
		if base.Burst && o.Share == nil {
			base.Share = 0 // only other burst containers share the CPUs of a burst container
		}
	}
	if o.Share != nil {
		base.Share = *o.Share
		if *o.Share < 0 || *o.Share > shareMax {
			p.fail(LockstepRequest, at+"share", "%d is outside 0-%d (0: no limit, 1: exclusive)", *o.Share, shareMax)
		}
	}
	if base.Burst && base.Share == 1 {
		p.fail(LockstepRequest, at+"burst", "a widened set is shared: share: 1 contradicts it")
	}
	if base.Isolation != NoIsolation && base.Share != 1 {
		p.fail(LockstepRequest, at+"isolation", "%s keeps others out: it needs share: 1", base.Isolation)
	}
	if base.Burst && base.Cores != AnyCores {
		p.fail(LockstepRequest, at+"burst", "a widened set has all kinds of cores: cores: %s contradicts it", base.Cores)
	}
	if base.Burst && base.Bind == WholeL3 {
		p.fail(LockstepRequest, at+"burst", "bind: l3 already takes whole L3 domains")
	}
	return base
}

// decode parses a JSON or YAML annotation into v. With strict, unknown fields are errors.
func (p *parser) decode(pod *corev1.Pod, annotation string, v any, strict bool) bool {
	value, set := pod.Annotations[annotation]
	if !set {
		return true
	}
	if len(value) > annotationBytesMax {
		p.fail(annotation, "", "longer than %d bytes", annotationBytesMax)
		return false
	}
	var err error
	if strict {
		err = yamldoc.UnmarshalStrict([]byte(value), v, "the text")
	} else {
		err = json.Unmarshal([]byte(value), v)
	}
	if err != nil {
		p.fail(annotation, "", "%v", err)
	}
	return err == nil
}

// container adds a container that asks for count CPUs.
func (p *parser) container(annotation, field string, c *corev1.Container, init bool, count resource.Quantity,
	policy Policy) {
	n, whole := wholeCPUs(count)
	switch {
	case !whole:
		p.fail(annotation, field, "%s is not a whole number of CPUs", count.String())
	case n < 1 || n > 4096:
		p.fail(annotation, field, "%s is not a number of CPUs from 1 to 4096", count.String())
	default:
		if policy.Memory == PreferLocalMemory {
			policy.Prefer |= MemoryField
		}
		p.out.Containers = append(p.out.Containers, Container{
			Name: c.Name, CPUs: int(n), Init: init, Policy: policy,
			MemoryBytes: c.Resources.Requests.Memory().Value(),
		})
	}
}

// wholeCPUs returns a quantity as a number, and whether it is one: "4000m" is 4, and "4.5" is none.
func wholeCPUs(q resource.Quantity) (n int64, whole bool) {
	n, whole = q.AsInt64()
	if !whole && q.MilliValue()%1000 == 0 {
		n, whole = q.MilliValue()/1000, true
	}
	return n, whole
}

// eachContainer visits the init containers and then the other containers. Restartable init
// containers (sidecars) run together with the other containers and are visited with init false.
func eachContainer(pod *corev1.Pod, visit func(path string, c *corev1.Container, init bool)) {
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		sidecar := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		visit(fmt.Sprintf("spec.initContainers[%s]", c.Name), c, !sidecar)
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		visit(fmt.Sprintf("spec.containers[%s]", c.Name), c, false)
	}
}
