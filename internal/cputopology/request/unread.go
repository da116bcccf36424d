package request

import (
	"encoding/json"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Asks reports whether a pod requests CPUs in any language, rightly or not.
func Asks(pod *corev1.Pod) bool {
	asked, err := Parse(pod)
	return asked != nil || err != nil
}

// read are the keys in these domains that this package reads or writes.
var read = []string{
	KoordinatorQoS, topologyv1alpha1.KoordinatorPriorityClassLabel, KoordinatorSpec, KoordinatorNUMASpec, KoordinatorResult,
}

// batchCPU is the resource that Koordinator's BE pods request in place of CPUs.
const batchCPU = "kubernetes.io/batch-cpu"

// Unread returns what another system would read of a pod that requests CPUs in its language and has no
// effect here, each in the words of an entry of a list, sorted. It is empty for other pods.
func Unread(pod *corev1.Pod) []string {
	if why := withoutNUMA(pod); why != "" {
		return []string{VolcanoNUMA + " (" + why + ")"}
	}
	_, ack := pod.Annotations[ACKScheduler]
	qos, koordinator := pod.Labels[KoordinatorQoS]
	if !ack && !koordinator {
		return nil
	}
	var out []string
	for _, m := range []map[string]string{pod.Annotations, pod.Labels} {
		for key := range m {
			if topologyv1alpha1.IsForeign(key) && !slices.Contains(read, key) {
				out = append(out, key)
			}
		}
	}
	if value, set := pod.Annotations[KoordinatorNUMASpec]; set {
		var spec koordinatorNUMASpec
		switch err := json.Unmarshal([]byte(value), &spec); {
		case !koordinator:
			out = append(out, KoordinatorNUMASpec)
		case err == nil && spec.Exclusive != "":
			out = append(out, KoordinatorNUMASpec+": singleNUMANodeExclusive")
		}
	}
	if _, set := pod.Annotations[KoordinatorSpec]; set && !koordinator {
		out = append(out, KoordinatorSpec)
	}
	if qos == "BE" {
		out = append(out, KoordinatorQoS+"=BE (the pod runs on the shared pool, which is not narrowed for it)")
		if requests(pod, batchCPU) {
			out = append(out, "requests of "+batchCPU+" (a node must offer them, and no cgroup is set by them)")
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// withoutNUMA returns why Volcano's NUMA policy of a pod has no effect, or "" if it has or there is none.
func withoutNUMA(pod *corev1.Pod) string {
	switch pod.Annotations[VolcanoNUMA] {
	case "best-effort", "restricted", "single-numa-node":
	default:
		return ""
	}
	switch {
	case !Guaranteed(pod):
		return "the pod is not of the QoS class Guaranteed"
	case !hasWholeCPUs(pod):
		return "no container has a whole limits.cpu"
	}
	return ""
}

// requests reports whether a container of the pod requests the resource.
func requests(pod *corev1.Pod, name corev1.ResourceName) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		_, in := c.Resources.Requests[name]
		return in
	})
}

// otherMarks is Marks without Volcano's NUMA policy.
func otherMarks(pod *corev1.Pod) []string {
	return slices.DeleteFunc(Marks(pod), func(mark string) bool { return mark == VolcanoNUMA })
}

// Marks returns the annotations and labels by which a pod requests CPUs, for messages.
func Marks(pod *corev1.Pod) []string {
	keys := slices.Sorted(maps.Keys(topologyv1alpha1.RequestAnnotations(pod.Annotations)))
	if qos := pod.Labels[KoordinatorQoS]; qos == "LSE" || qos == "LSR" {
		keys = append(keys, KoordinatorQoS+"="+qos)
	}
	return keys
}

// Marked reports whether a pod has an annotation or label of a request for CPUs. It is cheap, and true
// for all pods for which Asks is true or Unread is not empty.
func Marked(pod *corev1.Pod) bool {
	if pod.Labels[KoordinatorQoS] != "" {
		return true
	}
	for key := range pod.Annotations {
		if topologyv1alpha1.IsRequestAnnotation(key) {
			return true
		}
	}
	return false
}

// PinnedByKubelet reports whether a kubelet with the static CPU manager policy gives a container of
// the pod CPUs of its own: the pod is Guaranteed, and the container requests a whole number of CPUs.
func PinnedByKubelet(pod *corev1.Pod) bool {
	return Guaranteed(pod) && hasWholeCPUs(pod)
}

// Guaranteed reports whether a pod with this template has the QoS class Guaranteed.
func Guaranteed(pod *corev1.Pod) bool {
	is := len(pod.Spec.Containers) > 0
	eachContainer(pod, func(_ string, c *corev1.Container, init bool) {
		for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory} {
			limit, limited := c.Resources.Limits[name]
			request, requested := c.Resources.Requests[name]
			// Without a request, the API server fills in the limit.
			is = is && limited && !limit.IsZero() && (!requested || request.Cmp(limit) == 0)
		}
	})
	return is
}

// hasWholeCPUs reports whether a container of the pod has a whole number of CPUs as its limit.
func hasWholeCPUs(pod *corev1.Pod) (has bool) {
	eachContainer(pod, func(_ string, c *corev1.Container, init bool) {
		n, whole := wholeCPUs(c.Resources.Limits[corev1.ResourceCPU])
		has = has || whole && n > 0
	})
	return has
}

// RequestedMilli returns what some containers of a pod request at this moment, in thousandths of a CPU.
func RequestedMilli(pod *corev1.Pod, of func(container string) bool) int64 {
	sum := int64(0)
	eachContainer(pod, func(_ string, c *corev1.Container, init bool) {
		if init || !of(c.Name) {
			return
		}
		cpu, set := c.Resources.Requests[corev1.ResourceCPU]
		if !set {
			cpu = c.Resources.Limits[corev1.ResourceCPU] // what the API server fills in
		}
		sum += cpu.MilliValue()
	})
	return sum
}

// SharedMilli returns what the containers of a pod that share their CPUs, by the pod's result, request.
func (r Result) SharedMilli(pod *corev1.Pod) int64 {
	return RequestedMilli(pod, func(name string) bool {
		c, given := r.Containers[name]
		return given && c.Share != 1 && !c.Shadow
	})
}
