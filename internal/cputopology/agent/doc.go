// Package agent is the part of Lockstep on each node: it tells the cluster what the node's processors look like, and gives
// each container the CPUs that were chosen for it.
//
//	sysfs ────────────▶ machine ──────────┬─────────────────▶ NodeTopology.spec    (written when the machine changes)
//	pods of this node ─▶ (watch) ────┐    │
//	kubelet's checkpoint ────────────┤    ▼
//	                                 └▶ enforce.Pass ─▶ cgroups ─▶ NodeTopology.status  (written when it changes)
//	cgroups ─▶ (inotify) ──┐            ▲
//	a clock ───────────────┴── wake ────┘
//
//	desire    what shall be: pure
//	apply     the order of writes, and what happens when one is refused
//	enforce   one pass over the node
//	cgroup    where the cgroups are
//	kubelet   what the kubelet's own CPU manager holds
//	nri       containers are made with their CPUs, where the runtime asks
//	bundle    names of containers from the runtime's files
//	watch     cgroups that somebody else changes
//
// # How soon
//
// inotify tells of new cgroups and of CPU sets that somebody writes, as long as it happens in the agent's cgroup namespace;
// all files are read once a second all the same. A pod's own cgroup is narrowed as soon as it appears, which is before its
// containers are made: these start where they shall run.
//
// # When the agent is not there
//
// What it has applied stays. It keeps nothing on disk: a new one finds all in the API and in the files, and repairs what was
// left half-way. Release gives everything back.
package agent
