package v1alpha1

import (
	"slices"
	"strings"
)

// Annotations and labels by which a pod requests CPUs of its node, in the formats of Lockstep, Volcano,
// ACK and Koordinator.
const (
	RequestAnnotation = "cpu.lockstep.dev/request"

	VolcanoNUMAAnnotation = "volcano.sh/numa-topology-policy"

	ACKSchedulerAnnotation = "cpuset-scheduler"
	ACKPolicyAnnotation    = "cpu-policy"

	KoordinatorQoSLabel           = "koordinator.sh/qosClass"
	KoordinatorPriorityClassLabel = "koordinator.sh/priority-class"
	KoordinatorSpecAnnotation     = "scheduling.koordinator.sh/resource-spec"
	KoordinatorNUMASpecAnnotation = "scheduling.koordinator.sh/numa-topology-spec"
)

// MoveAnnotation with the value "false" on a pod keeps the pod on the CPUs that it was given first.
const MoveAnnotation = "cpu.lockstep.dev/move"

// SchedulerLabel with the value "lockstep" on a namespace gives its pods that request CPUs and name no
// scheduler Lockstep's, by an admission policy.
const SchedulerLabel = "cpu.lockstep.dev/scheduler"

// RequestRead is the type of a pod's condition that is False if annotations, with which the pod's
// request for CPUs was written for another system, have no effect here.
const RequestRead = "cpu.lockstep.dev/RequestRead"

// Labels and the annotation by which Koordinator's users configure nodes.
const (
	KoordinatorBindPolicyLabel       = "node.koordinator.sh/cpu-bind-policy"
	KoordinatorNUMAPolicyLabel       = "node.koordinator.sh/numa-topology-policy"
	KoordinatorNUMAStrategyLabel     = "node.koordinator.sh/numa-allocate-strategy"
	KoordinatorReservationAnnotation = "node.koordinator.sh/reservation"
)

// AgentLabel is a label of the pods and leases of agents.
const AgentLabel = "topology.lockstep.dev/agent"

// Annotations with the CPUs that a pod was given. Lockstep's own format is always written; the
// other formats are written to pods whose request used them.
const (
	ResultAnnotation            = "cpu.lockstep.dev/result"
	ACKResultAnnotation         = "cpuset"
	KoordinatorResultAnnotation = "scheduling.koordinator.sh/resource-status"
)

// ResultAnnotations returns the annotations with a pod's CPUs, in all formats.
func ResultAnnotations() []string {
	return []string{ResultAnnotation, ACKResultAnnotation, KoordinatorResultAnnotation}
}

// IsRequestAnnotation reports whether a pod's annotation is part of a request for CPUs.
func IsRequestAnnotation(key string) bool {
	switch key {
	case RequestAnnotation, VolcanoNUMAAnnotation, ACKSchedulerAnnotation, ACKPolicyAnnotation, KoordinatorSpecAnnotation,
		KoordinatorNUMASpecAnnotation:
		return true
	}
	return false
}

// RequestAnnotations returns the annotations of a pod that request CPUs, or nil if it has none.
func RequestAnnotations(annotations map[string]string) map[string]string {
	var out map[string]string
	for key, value := range annotations {
		if IsRequestAnnotation(key) {
			if out == nil {
				out = map[string]string{}
			}
			out[key] = value
		}
	}
	return out
}

// foreignDomains are the domains of annotations and labels that only ACK and Koordinator read.
var foreignDomains = []string{"koordinator.sh", "alibabacloud.com", "aliyun.com"}

// IsForeign reports whether an annotation or label belongs to ACK or Koordinator.
func IsForeign(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	return ok && slices.ContainsFunc(foreignDomains, func(d string) bool {
		return domain == d || strings.HasSuffix(domain, "."+d)
	})
}
