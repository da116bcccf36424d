// Package upstream answers, with the kube-scheduler's own plugins, what the fast path of placement
// does not know: inter-pod affinity, topology spread, and volumes.
//
//	place.Placer ──RareFilter──▶ Filter ──▶ the kube-scheduler's framework
//	                               │
//	cluster.Cluster ──PodsOn──▶ node infos, only those whose generation differs
//
// PreFilter runs once per class and cycle, AddPod and RemovePod as pods are placed and taken back,
// and Filter and Score for each pod.
//
// The filter costs nothing while no gang needs it and no pod on a node has a required
// anti-affinity.
//
// Pods whose volumes have to be bound or provisioned for the node they get, and pods with resource
// claims, would need writes between placement and binding. These writes are not implemented. No
// node takes such pods, and the reason says so.
//
// Only this package and cmd/lockstep-kube import k8s.io/kubernetes, which is slow to build.
package upstream
