// Package localcluster runs a control plane on this machine: the real etcd, kube-apiserver,
// kube-controller-manager and, if configured, kube-scheduler, KWOK with simulated nodes, and
// Lockstep's manager. Each is a process of its own, so that its CPU time and memory can be measured
// and it can be killed separately.
//
//	Start ─▶ credentials ─▶ etcd ∥ kube-apiserver ─▶ nodes ∥ kube-controller-manager ∥ KWOK ∥ ...
//	             │                 │                   ∥ (install ─▶ manager)
//	             ▼                 ▼                            │
//	          Dir/pki     Dir/logs, Dir/audit.log               ▼
//	                                                   all healthy: ready
//
// All components listen on 127.0.0.1 with TLS, on ports reserved among all local clusters of the
// machine. Each component has an identity of its own, and RBAC is on. Files are private to the
// user.
//
// A component never outlives its parent process: the kernel kills it. A stopped cluster leaves only
// Dir, which the caller removes.
//
// Package localtest starts clusters for tests.
package localcluster
