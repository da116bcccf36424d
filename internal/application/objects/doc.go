// Package objects reads the objects that Applications have in their clusters, and computes how they
// differ from what the Applications want.
//
//	clusters ──▶ Targets ──▶ Target ─┬─ ManagedObjects: one watch per kind, by label
//	                                 ├─ Watches: single objects of other owners
//	                                 └─ Writer: answers are stored before the watch shows them
//	Wanted + Object ──▶ Difference: a patch, nothing, or recreate
//
// Difference, Deviation and Completed are functions of their arguments. The caches are safe for
// concurrent use.
//
// # Invariants
//
//   - An object never goes back to an older version, and an answer about a deleted object is not
//     stored.
//   - An Application is woken after every change of an object that names it as owner.
package objects
