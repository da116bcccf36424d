// Package upstream answers, with the kube-scheduler's own plugins, what the fast path of placement
// does not know: inter-pod affinity, topology spread, volumes, and devices.
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
//	                  ──▶ the gang waits (WaitingVolumes); its capacity is kept
//	the claim is bound ──▶ the gang is placed again, where its volumes can be used
//
// Ephemeral volumes and resource claims belong to single pods, which exist before they are placed.
// Each such pod is a class of its own (plan.OwnClaims):
//
//	Filter ──▶ the plugins find a volume or devices ──Add: hold──▶ taken for the next pod of the gang
//	                                                ──Remove, Refresh: free──▶ free again
//	the gang is placed ──▶ ChooseVolumes: claims are allocated as found, and reserved ──▶ as above
//	the gang does not fit ──▶ ReleaseDevices: claims that are allocated already are freed
//
// The device plugin never writes: of its Reserve the allocation is recorded (claims), and its
// Unreserve, PreBind and PostFilter are not called.
//
// Only this package and cmd/lockstep-kube import k8s.io/kubernetes, which is slow to build.
package upstream
