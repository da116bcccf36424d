// Package v1alpha1 holds the topology API: NodeTopology, which describes a node's processors, so
// that the scheduler can choose a pod's CPUs together with its node.
//
// +kubebuilder:object:generate=true
// +groupName=topology.lockstep.dev
package v1alpha1
