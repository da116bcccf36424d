package cluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// RefusedByNode says whether a pod failed because its kubelet did not take it, or gave it up for reasons of the node's.
func RefusedByNode(p *corev1.Pod) bool {
	if p.Status.Phase != corev1.PodFailed {
		return false
	}
	switch p.Status.Reason {
	case "NodeAffinity", "NodeName", "NodePorts", "NodeUnschedulable", "TaintToleration", "UnexpectedAdmissionError",
		"TopologyAffinityError", "SMTAlignmentError", "InvalidNodeInfo", "PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch",
		"NodeShutdown", "NodeLost", "Preempting":
		return true
	}
	return strings.HasPrefix(p.Status.Reason, "OutOf")
}
