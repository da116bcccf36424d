// Package apply brings pods' cgroups to the CPU sets that they shall have.
//
//	targets ──▶ read back ──▶ those that differ ──▶ order ──▶ one transaction for each pod ──▶ read back ──▶ report
//
// # Order
//
// A pod that gives CPUs up goes before the pod that gets them: no container runs on CPUs that another holds exclusively
// and still uses, except where pods swap CPUs and there is no other way.
//
// Within a pod, from the top down and up again: its cgroup is widened as far as its containers need it, containers that
// give CPUs up go before those that get them, and the cgroup is narrowed to what it shall have. Version 1 refuses any other
// order; in version 2 it keeps containers from running where they should not.
//
// # Invariants
//
//   - Level-triggered: Apply compares what is in the files with what shall be, and writes the difference. After a crash
//     between any two writes, the next Apply ends in the same state as if there had been none.
//   - A pod's transaction is completed or rolled back: an error leaves the pod as it was.
//   - A cgroup that has gone is no error: its container has ended.
//   - Nothing is written where nothing differs.
package apply
