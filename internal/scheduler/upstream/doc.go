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
// Claims that are bound when their first pod has a node (WaitForFirstConsumer) get their volumes
// before pods exist, or are bound:
//
//	the gang is placed ──▶ ChooseVolumes: a free volume that the node can use gets a reference to the
//	                       claim, or the claim gets the node for which a volume is provisioned
//	                  ──▶ the gang waits (WaitingVolumes), and holds no capacity
//	the claim is bound ──▶ the gang is placed again, where its volumes can be used
//
// Ephemeral volumes and resource claims belong to single pods, and would need writes after their pods
// exist. These are not implemented. No node takes such pods, and the reason says so.
//
// Only this package and cmd/lockstep-kube import k8s.io/kubernetes, which is slow to build.
package upstream
