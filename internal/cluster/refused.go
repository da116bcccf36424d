package cluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// RefusedByNode reports whether a pod failed because its kubelet did not admit it, or because of an
// event on the node, such as a shutdown.
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
