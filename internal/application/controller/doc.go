// Package controller makes applications real and keeps them so.
//
//	Applications ──watch──┐                     ┌── definitions ──watch── (compiled once per definition)
//	                      ▼                     ▼
//	             queue of keys ──▶ pass: 1 plan ─▶ 2 record ─▶ 3 dispatch ─▶ 4 collect ─▶ 5 report
//	                      ▲                          │            │             │            │
//	managed objects ──────┘                          └──────┬─────┴─────────────┘            │
//	  ▲   (one watch per kind, by label)                    ▼                                ▼
//	  └──────────────────────────────────── apiwriter: tracker, objects, deletions,  coalesced status
//
// A pass looks at what is, decides, and hands writes over; it waits for nothing. Answers and watches bring the key back.
//
// # Bookkeeping
//
// One ResourceTracker for each application names every object that the application has made, before it is made, so
// that nothing is ever orphaned. It also keeps, packed, the objects as they were last applied, which are the base of
// three-way patches, and the application's last revisions.
//
// # Bounds on templates
//
// Templates, status sections, conditions and charts are evaluated on goroutines of a bounded number with a deadline; what
// misses it is set aside until the application or a definition changes, and keeps its place until it ends (evaluate.go).
// See packages render and chart for what else is bounded.
package controller
