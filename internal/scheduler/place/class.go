package place

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/klog/v2"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// NewClass compiles a pod template. It fails if the kube-scheduler would refuse the pod regardless
// of the nodes: if a preferred node affinity does not parse.
func NewClass(dims *Dims, pod *corev1.Pod) (*Class, error) {
	c := &Class{
		Required:    nodeaffinity.GetRequiredNodeAffinity(pod),
		Tolerations: pod.Spec.Tolerations,
		Ports:       PodPorts(pod),
		Template:    pod,
		Rare:        rare(pod),
	}
	c.soft = c.Rare && soft(pod)
	c.Request, c.NonZero = dims.PodVector(pod)
	c.setNeeds()
	affinity := nodeAffinity(pod)
	if len(affinity.PreferredDuringSchedulingIgnoredDuringExecution) > 0 {
		terms, err := nodeaffinity.NewPreferredSchedulingTerms(affinity.PreferredDuringSchedulingIgnoredDuringExecution)
		if err != nil {
			return nil, fmt.Errorf("preferred node affinity: %w", err)
		}
		c.Preferred = terms
	}
	c.selective = len(pod.Spec.NodeSelector) > 0 || affinity.RequiredDuringSchedulingIgnoredDuringExecution != nil

	var err error
	if c.staticKey, err = staticKey(pod, affinity); err != nil {
		return nil, err
	}
	if c.zones, _ = schedulingv1beta1.ZonesOf(pod.Annotations); c.zones != "" {
		c.staticKey += "|zones " + c.zones
	}
	c.key = c.staticKey + dynamicKey(c)
	return c, nil
}

// Pinned returns a copy of the class with a request for CPUs. CPUs that are held exclusively are
// lost to all other pods, even if the pods request fewer, so the copy requests at least as many
// CPUs as it holds exclusively.
func (c *Class) Pinned(p Pins) *Class {
	out := *c
	out.Pins = p
	if exclusive := 1000 * int64(p.Exclusive()); exclusive > out.Request[CPU] {
		out.Request, out.NonZero = slices.Clone(c.Request), slices.Clone(c.NonZero)
		out.Request[CPU], out.NonZero[CPU] = exclusive, max(exclusive, c.NonZero[CPU])
		out.setNeeds()
	}
	out.key = out.staticKey + dynamicKey(&out) + "|" + p.Key()
	return &out
}

// Key returns a string that is equal for classes whose pods can go to the same nodes with the same
// preference, as far as the fast path sees.
func (c *Class) Key() string { return c.key }

// StaticKey returns a string that is equal for classes that Admits gives the same answers.
func (c *Class) StaticKey() string { return c.staticKey }

// Admits reports whether a node takes pods of the class, as far as the node's own object says:
// whether it is schedulable, its taints and its labels.
func (c *Class) Admits(n *Node) bool { return (&static{class: c}).filter(n) == passes }

func (c *Class) setNeeds() {
	c.needs = nil
	for dim, amount := range c.Request {
		if amount != 0 {
			c.needs = append(c.needs, need{dim, amount, 1 / float64(amount)})
		}
	}
	c.bestEffort = c.Request[CPU] == 0 && c.Request[Memory] == 0
}

// need is one dimension of a request that is not zero. Only these dimensions are compared with a
// node: as in the kube-scheduler, a pod that asks for none of a resource may go where that resource
// is overcommitted.
type need struct {
	dim     int
	amount  int64
	inverse float64
}

func nodeAffinity(pod *corev1.Pod) corev1.NodeAffinity {
	if pod.Spec.Affinity == nil || pod.Spec.Affinity.NodeAffinity == nil {
		return corev1.NodeAffinity{}
	}
	return *pod.Spec.Affinity.NodeAffinity
}

// PodPorts returns the host ports that a pod uses while it runs: the ports of its containers and
// restartable init containers.
func PodPorts(pod *corev1.Pod) []HostPort {
	var ports []HostPort
	add := func(c *corev1.Container) {
		for _, p := range c.Ports {
			if p.HostPort > 0 {
				ports = append(ports, HostPort{IP: p.HostIP, Protocol: p.Protocol, Port: p.HostPort}.normal())
			}
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c)
		}
	}
	for i := range pod.Spec.Containers {
		add(&pod.Spec.Containers[i])
	}
	return ports
}

// normal fills in a port's defaults, so that equal ports compare equal.
func (p HostPort) normal() HostPort {
	if p.IP == "0.0.0.0" {
		p.IP = ""
	}
	p.Protocol = cmp.Or(p.Protocol, corev1.ProtocolTCP)
	return p
}

// Conflicts reports whether a pod with this port cannot go to a node with these ports. The wildcard
// address conflicts with every address; a single address conflicts with itself and with the
// wildcard address.
func (s PortSet) Conflicts(p HostPort) bool {
	if len(s) == 0 {
		return false
	}
	if p.IP != "" {
		_, same := s[p]
		p.IP = ""
		_, all := s[p]
		return same || all
	}
	for taken := range s {
		if taken.Port == p.Port && taken.Protocol == p.Protocol {
			return true
		}
	}
	return false
}

// rare reports whether a pod needs filters outside the fast path.
func rare(pod *corev1.Pod) bool {
	s := &pod.Spec
	if a := s.Affinity; a != nil && (a.PodAffinity != nil || a.PodAntiAffinity != nil) {
		return true
	}
	if len(s.TopologySpreadConstraints) > 0 || len(s.ResourceClaims) > 0 {
		return true
	}
	for i := range s.Volumes {
		v := &s.Volumes[i]
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || v.GCEPersistentDisk != nil ||
			v.AWSElasticBlockStore != nil || v.AzureDisk != nil || v.Cinder != nil || v.ISCSI != nil || v.RBD != nil {
			return true
		}
	}
	return false
}

// soft reports whether a rare pod is rare only because it prefers nodes with other pods, or without.
func soft(pod *corev1.Pod) bool {
	a := pod.Spec.Affinity
	if a == nil || a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
		a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
		return false
	}
	without := corev1.Pod{Spec: pod.Spec}
	without.Spec.Affinity = nil
	return !rare(&without)
}

// Soft reports whether the class is Rare for preferences only, which refuse no node.
func (c *Class) Soft() bool { return c.soft }

// staticKey returns a string that is equal for pods that get the same answers from the filters and
// scores that depend only on the node's object.
func staticKey(pod *corev1.Pod, affinity corev1.NodeAffinity) (string, error) {
	s := &pod.Spec
	if s.NodeName == "" && len(s.NodeSelector) == 0 && s.Affinity == nil && len(s.Tolerations) == 0 {
		return "", nil
	}
	// JSON sorts the keys of maps and delimits fields unambiguously.
	key, err := json.Marshal([]any{s.NodeName, s.NodeSelector, affinity, s.Tolerations})
	if err != nil {
		return "", fmt.Errorf("node selection of the template: %w", err)
	}
	return string(key), nil
}

// dynamicKey returns the rest of what placement depends on: requests and host ports.
func dynamicKey(c *Class) string {
	key := make([]byte, 0, 64)
	for i, v := range []Vector{c.Request, c.NonZero} {
		key = append(key, "|/"[i])
		for dim, amount := range v {
			if amount != 0 { // the length of a vector must not matter
				key = strconv.AppendInt(key, int64(dim), 10)
				key = append(key, ':')
				key = strconv.AppendInt(key, amount, 10)
				key = append(key, ',')
			}
		}
	}
	for _, p := range c.Ports {
		key = fmt.Appendf(key, "%s-%s-%d,", p.IP, p.Protocol, p.Port)
	}
	return string(key)
}

// allows reports whether pods of the class may be in a revocable zone.
func (c *Class) allows(zone string) bool {
	if c.zones == "" || c.zones == schedulingv1beta1.AllZones {
		return c.zones != ""
	}
	return slices.Contains(strings.Split(c.zones, ","), zone)
}

// tolerates reports whether one of the class's tolerations covers the taint. Comparison operators
// (Lt, Gt) are an alpha feature that is off by default, so they tolerate nothing here either.
func (c *Class) tolerates(t *corev1.Taint) bool {
	for i := range c.Tolerations {
		if c.Tolerations[i].ToleratesTaint(klog.Logger{}, t, false) {
			return true
		}
	}
	return false
}
