// Package v1alpha1 holds the HyperNode API: the network of the cluster's nodes, as a tree of
// domains, so that pods that exchange much data get nodes near each other.
//
// +kubebuilder:object:generate=true
// +groupName=topology.volcano.sh
package v1alpha1
