// Package agent is the part of Lockstep that runs on each node: it reports the node's processors to
// the cluster, and gives each container the CPUs that were chosen for it.
//
//	sysfs ────────────▶ machine ──────────┬─────────────────▶ NodeTopology.spec
//	pods of this node ─▶ (watch) ────┐    │
//	kubelet's checkpoint ────────────┤    ▼
//	                                 └▶ enforce.Pass ─▶ cgroups ─▶ NodeTopology.status
//	cgroups ─▶ (inotify) ──┐            ▲
//	a clock ───────────────┴── wake ────┘
//
// The spec is written when the machine changes, and the status when a pass changes it.
//
//	desired   the wanted state of all containers: pure
//	apply     the order of writes, and rollback when a write is refused
//	enforce   one pass over the node's cgroups
//	cgroup    finds, reads and writes cgroups
//	kubelet   the pins of the kubelet's own CPU manager
//	nri       creates containers with their CPUs, if the runtime has NRI
//	bundle    names of containers from the runtime's files
//	watch     reports changes of cgroups by other programs
//
// # How soon
//
// inotify reports new cgroups, and CPU sets written by other programs, if that happens in the
// agent's cgroup namespace. All files are also read once a second. A pod's own cgroup is narrowed
// as soon as it appears, which is before its containers are created: they start on the right CPUs.
//
// # When the agent does not run
//
// CPU sets that the agent has applied stay. It stores nothing on disk: a new agent finds everything
// in the API and in the cgroup files, and repairs what was left half-way. Release removes all CPU
// sets.
package agent
