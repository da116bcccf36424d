// Package controller deploys Applications and keeps their objects as their specs describe.
//
//	Applications ──watch──┐                   ┌── definitions ──watch── (compiled once each)
//	                      ▼                   ▼
//	     controlloop.Loop ──▶ reconcile: 1 plan ─▶ 2 record ─▶ 3 dispatch ─▶ 4 collect ─▶ 5 report
//	                 ▲  ▲                             │             │             │           │
//	managed objects ─┘  │                             └──────┬──────┴─────────────┘           │
//	                    │                                    ▼                                ▼
//	                    └─ answers, posted ◀── apiwriter: tracker, objects, deletions      status
//
// A turn reconciles one Application: it compares the plan with the watch caches, decides, and hands
// writes to the writer. A turn waits for no write. The state of an Application (record) belongs to
// the turns of its key. Answers to writes, evaluations and reads are posted to the key; watch
// events wake it.
//
// This package ties the parts together. Each part has a package:
//
//   - records: the tracker, which names every object of the Application before it is created
//   - objects: what exists in the clusters, and how it differs from the plan
//   - deploy: plan, dispatch, collect
//   - steps: the workflow of an Application that is deployed in steps
//   - report: the status
//   - definitions, evaluation: templates, and their evaluation in child processes
//   - external: requests to other systems
//   - author: the identity with whose rights writes are made
package controller
