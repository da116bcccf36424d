package v1alpha1

// What a pod asks of its node's CPUs, in three languages: Lockstep's own, and those of ACK and Koordinator.
const (
	RequestAnnotation = "cpu.lockstep.dev/request"

	ACKSchedulerAnnotation = "cpuset-scheduler"
	ACKPolicyAnnotation    = "cpu-policy"

	KoordinatorQoSLabel           = "koordinator.sh/qosClass"
	KoordinatorPriorityClassLabel = "koordinator.sh/priority-class"
	KoordinatorSpecAnnotation     = "scheduling.koordinator.sh/resource-spec"
	KoordinatorNUMASpecAnnotation = "scheduling.koordinator.sh/numa-topology-spec"
)

// MoveAnnotation on a pod, with the value "false", keeps it on the CPUs that it was given first.
const MoveAnnotation = "cpu.lockstep.dev/move"

// AgentLabel is on the pods and leases of agents.
const AgentLabel = "topology.lockstep.dev/agent"

// Which CPUs a pod was given. Lockstep's own form is always written, the others to pods that asked in their language.
const (
	ResultAnnotation            = "cpu.lockstep.dev/result"
	ACKResultAnnotation         = "cpuset"
	KoordinatorResultAnnotation = "scheduling.koordinator.sh/resource-status"
)

// ResultAnnotations are all annotations by which a pod is told its CPUs.
func ResultAnnotations() []string {
	return []string{ResultAnnotation, ACKResultAnnotation, KoordinatorResultAnnotation}
}

// IsRequestAnnotation says whether a pod's annotation is part of what it asks of its node's CPUs.
func IsRequestAnnotation(key string) bool {
	switch key {
	case RequestAnnotation, ACKSchedulerAnnotation, ACKPolicyAnnotation, KoordinatorSpecAnnotation, KoordinatorNUMASpecAnnotation:
		return true
	}
	return false
}

// RequestAnnotations are those of a pod's annotations that ask for CPUs, or nil.
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
