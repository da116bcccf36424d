// Package objects reads what Applications have in their clusters and says how it differs from what
// they want.
//
//	clusters ──▶ Targets ──▶ Target ─┬─ ManagedObjects: one watch per kind, by the Applications' label
//	                                 ├─ Watches: single objects of other owners
//	                                 └─ Writer: answers are stored before the watch shows them
//	Wanted + Object ──▶ Difference: a patch, nothing, or that the object must be created anew
//
// Difference, Deviation and Completed are functions of their arguments. The caches may be used by
// all goroutines.
//
// # Invariants
//
//   - An object never goes back to an older version, and an answer about an object that was deleted is
//     not stored.
//   - An Application is woken after every change of an object that names it as owner.
package objects
