// Package apply brings pods' cgroups to their wanted CPU sets.
//
//	targets ─▶ read ─▶ differences ─▶ order ─▶ one transaction for each pod ─▶ read back ─▶ report
//
// # Order
//
// A pod that gives CPUs up goes before the pod that takes them: no container runs on CPUs that
// another container holds exclusively and still uses, except when pods swap CPUs and there is no
// other way.
//
// Within a pod, the order is from the top down and up again. The pod's cgroup is widened as far as
// its containers need, containers that give CPUs up go before those that take them, and the pod's
// cgroup is narrowed to its wanted set. Version 1 refuses any other order; in version 2 this order
// keeps containers from running on wrong CPUs.
//
// # Invariants
//
//   - Level-triggered: Apply compares the files with the wanted state, and writes the difference.
//     After a crash between any two writes, the next Apply ends in the same state as without the
//     crash.
//   - A pod's transaction is completed or rolled back: an error leaves the pod as it was, except
//     for containers that would then run on CPUs that are neither theirs nor the pool's: these go
//     to the pool (Target.Pool).
//   - A missing cgroup is not an error: its container has ended.
//   - Without a difference nothing is written.
package apply
