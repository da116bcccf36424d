// Package localcluster runs a control plane on this machine: the real etcd, kube-apiserver, kube-controller-manager and,
// where wanted, kube-scheduler, KWOK with simulated nodes, and Lockstep's manager, each a process of its own, so that CPU
// and memory can be attributed and each can be killed.
//
//	Start ─▶ credentials ─▶ etcd ∥ kube-apiserver ─▶ /readyz ─▶ install ─▶ nodes ∥ kube-controller-manager ∥ KWOK ∥ manager
//	           │                 │                                            │
//	           ▼                 ▼                                            ▼
//	        Dir/pki           Dir/logs, Dir/audit.log                    all healthy: ready
//
// Everything listens on 127.0.0.1 with TLS, on ports reserved among all local clusters of the machine. Each component has
// an identity of its own, and RBAC is on. Files are private to the user.
//
// A child never outlives its parent: the kernel kills it. Dir is all that a cluster leaves, and the caller's to remove.
//
// Package localtest starts clusters for tests.
package localcluster
