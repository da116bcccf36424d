// Package plan makes pod plans: the pods that represent equal pods in placement. It is pure, except
// for the Cache.
package plan

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
)

// Of returns the plan of base: the fields that placement reads, as the API server will set them.
// Requests default to limits, and to the defaults in ranges, the LimitRanges of the namespace.
// Other fields are omitted, so that equal pods of different owners have equal plans. ownerLabel is
// the label with the owner's name; it is omitted unless affinity or spread constraints may select
// it. base is not modified.
func Of(base *corev1.Pod, ranges []*corev1.LimitRange, ownerLabel string) *corev1.Pod {
	s := &base.Spec
	p := &corev1.Pod{Spec: corev1.PodSpec{
		SchedulerName:             s.SchedulerName,
		PriorityClassName:         s.PriorityClassName,
		PreemptionPolicy:          s.PreemptionPolicy,
		Containers:                planContainers(s.Containers, ranges),
		InitContainers:            planContainers(s.InitContainers, ranges),
		Resources:                 s.Resources,
		Overhead:                  s.Overhead,
		RuntimeClassName:          s.RuntimeClassName,
		NodeSelector:              s.NodeSelector,
		Affinity:                  s.Affinity,
		Tolerations:               s.Tolerations,
		TopologySpreadConstraints: s.TopologySpreadConstraints,
		SchedulingGates:           s.SchedulingGates,
		ResourceClaims:            s.ResourceClaims,
		HostNetwork:               s.HostNetwork,
	}}
	if s.HostNetwork {
		portsOfHost(s.Containers, p.Spec.Containers)
		portsOfHost(s.InitContainers, p.Spec.InitContainers)
	}
	for _, v := range s.Volumes {
		// Volumes whose files the kubelet provides on any node do not restrict placement.
		if v.ConfigMap == nil && v.Secret == nil && v.EmptyDir == nil && v.Projected == nil && v.DownwardAPI == nil && v.HostPath == nil {
			p.Spec.Volumes = append(p.Spec.Volumes, v)
		}
	}
	p.Namespace, p.Labels = base.Namespace, base.Labels
	p.Annotations = scheduling.WithZones(topology.RequestAnnotations(base.Annotations), base.Annotations)
	if s.Affinity == nil && len(s.TopologySpreadConstraints) == 0 {
		p.Labels = maps.Clone(base.Labels)
		delete(p.Labels, ownerLabel)
	}
	return p
}

// OwnClaims reports whether a pod has volumes or devices that no other pod of its template has:
// ephemeral volumes, and resource claims, which are reserved for each pod.
func OwnClaims(pod *corev1.Pod) bool {
	if len(pod.Spec.ResourceClaims) > 0 {
		return true
	}
	for i := range pod.Spec.Volumes {
		if pod.Spec.Volumes[i].Ephemeral != nil {
			return true
		}
	}
	return false
}

// Ranges returns the LimitRanges of a namespace, sorted by name.
func Ranges(all []*corev1.LimitRange, namespace string) []*corev1.LimitRange {
	out := slices.DeleteFunc(slices.Clone(all), func(l *corev1.LimitRange) bool { return l.Namespace != namespace })
	slices.SortFunc(out, func(a, b *corev1.LimitRange) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// planContainers returns the containers with only the fields that placement reads.
func planContainers(in []corev1.Container, ranges []*corev1.LimitRange) []corev1.Container {
	if len(in) == 0 {
		return nil
	}
	out := make([]corev1.Container, len(in))
	for i := range in {
		c := &in[i]
		out[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
		for _, port := range c.Ports {
			if port.HostPort != 0 {
				out[i].Ports = append(out[i].Ports, port)
			}
		}
		defaultResources(&out[i], ranges)
	}
	return out
}

// portsOfHost sets the host ports in the plans of containers of a pod on the host network: every
// container port is a host port.
func portsOfHost(containers, plans []corev1.Container) {
	for i := range plans {
		plans[i].Ports = nil
		for _, port := range containers[i].Ports {
			port.HostPort = port.ContainerPort
			plans[i].Ports = append(plans[i].Ports, port)
		}
	}
}

func defaultResources(c *corev1.Container, ranges []*corev1.LimitRange) {
	// A container's own limits set its missing requests before LimitRanges do.
	requests, limits := c.Resources.Requests, c.Resources.Limits
	requests = merge(requests, limits)
	for _, r := range ranges {
		for _, item := range r.Spec.Limits {
			if item.Type == corev1.LimitTypeContainer {
				requests = merge(requests, item.DefaultRequest)
				limits = merge(limits, item.Default)
			}
		}
	}
	c.Resources.Requests, c.Resources.Limits = requests, limits
}

// merge returns a plus the entries that only b has. Neither is modified.
func merge(a, b corev1.ResourceList) corev1.ResourceList {
	if len(b) == 0 {
		return a
	}
	out := maps.Clone(b)
	maps.Copy(out, a)
	return out
}

// Matches reports whether the pod that the API server stored has the same requests and node
// constraints as the plan. Admission may have added containers, requests or constraints.
func Matches(plan, stored *corev1.Pod) bool {
	return sameRequests(plan.Spec.Containers, stored.Spec.Containers) && sameCPURequest(plan, stored) &&
		sameRequests(plan.Spec.InitContainers, stored.Spec.InitContainers) &&
		len(plan.Spec.NodeSelector) == len(stored.Spec.NodeSelector) &&
		(plan.Spec.Affinity == nil) == (stored.Spec.Affinity == nil) &&
		len(plan.Spec.TopologySpreadConstraints) == len(stored.Spec.TopologySpreadConstraints) &&
		len(stored.Spec.Overhead) == len(plan.Spec.Overhead)
}

// sameCPURequest reports whether the stored pod still requests the CPUs that placement gave it.
func sameCPURequest(plan, stored *corev1.Pod) bool {
	if !maps.Equal(plan.Annotations, topology.RequestAnnotations(stored.Annotations)) {
		return false
	}
	if plan.Annotations == nil {
		return true
	}
	return slices.EqualFunc(plan.Spec.Containers, stored.Spec.Containers, func(a, b corev1.Container) bool {
		return a.Resources.Limits.Cpu().Cmp(*b.Resources.Limits.Cpu()) == 0
	})
}

func sameRequests(a, b []corev1.Container) bool {
	return slices.EqualFunc(a, b, func(x, y corev1.Container) bool {
		return maps.EqualFunc(x.Resources.Requests, y.Resources.Requests, func(p, q resource.Quantity) bool { return p.Cmp(q) == 0 })
	})
}
