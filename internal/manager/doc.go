// Package manager assembles the parts of the control plane and runs them as one process.
//
//	        ┌───────────────────────────── informer.Set ◀──watch── API server
//	        ▼                ▼                 ▼                       ▲
//	cluster.Cluster   batch.Controller   podgroup.Controller           │
//	        ▲                │ Submit          │ Submit                │
//	        └── scheduler.Scheduler ◀──────────┘                       │
//	                         │ Commit                                  │
//	                         └──▶ the owners ──▶ apiwriter.W ──────────┘
//
// Run first serves health and metrics, then waits until it leads, reads the whole cluster,
// continues unfinished work, and only then places new pods. All state is read from the API server
// at that moment: managers hand over no state.
//
// One of the managers of a cluster leads: it places all pods, because placing requires knowledge of
// everything already placed, and it runs the jobs. Workflows are divided among all managers
// (package shard), because most of their cost is deciding and writing statuses:
//
//	leads     its share of the workflows, and those with locks or gangs; their pods are created with their node
//	follows   its share of the workflows; their pods are created without a node, and bound by the manager that leads
//
// So a pod of a manager that follows costs a second write. Because only one manager may create
// bound pods in the whole cluster, managers need not agree on each pod about who uses the resources
// of a node.
package manager
