// Package controller deploys Applications and keeps their objects as their specs describe.
//
//	Applications ──watch──┐                     ┌── definitions ──watch── (compiled once per definition)
//	                      ▼                     ▼
//	             queue of keys ──▶ pass: 1 plan ─▶ 2 record ─▶ 3 dispatch ─▶ 4 collect ─▶ 5 report
//	                      ▲                          │            │             │            │
//	managed objects ──────┘                          └──────┬─────┴─────────────┘            │
//	  ▲   (one watch per kind, by label)                    ▼                                ▼
//	  └──────────────────────────────────── apiwriter: tracker, objects, deletions,  coalesced status
//
// A pass reconciles one Application: it compares the plan with the watch caches, decides, and hands
// writes to the writer. A pass never waits for a write. Answers to writes and watch events put the
// key back into the queue.
//
// # Bookkeeping
//
// Each Application has one ResourceTracker. The tracker names every object of the Application
// before that object is created, so no object is ever orphaned. The tracker also keeps, compressed,
// the objects as last applied, which are the base of three-way patches, and the last revisions of
// the Application.
//
// # Bounds on templates
//
// Templates, status sections, conditions and charts are evaluated in child processes with limits,
// see package sandbox. A worker waits for an answer only briefly; then the pass ends, and the
// Application returns to the queue when there is an answer (evaluate.go). Outcomes, including
// failures, are cached by request. Packages render and chart describe the other bounds.
package controller
