// Package manager puts the control plane's parts together and runs them as one process.
//
//	        ┌──────────────────────── cluster.Informers ◀──watch── API server
//	        ▼                ▼                 ▼                       ▲
//	cluster.Cluster   batch.Controller   podgroup.Controller           │
//	        ▲                │ Submit          │ Submit                │
//	        └── scheduler.Scheduler ◀──────────┘                       │
//	                         │ Commit                                  │
//	                         └──▶ the owners ──▶ apiwriter.W ──────────┘
//
// Run first serves health and metrics, then waits for its turn to lead, then reads the whole cluster, takes up what was
// left unfinished, and only then places anything new. Everything that is known is read from the API server at that
// moment: there is no state to hand over.
//
// Of several managers of a cluster one leads: it places all pods, for only who knows everything that is placed can place
// more, and runs the jobs. Workflows are divided among all of them (package shard), for most of what they cost is deciding
// and writing statuses:
//
//	leads     its share of the workflows, and those with locks or gangs; their pods are created with their node
//	follows   its share of the workflows; their pods are created without a node, and bound by the manager that leads
//
// So a pod of a manager that follows costs a second write. With a manager that may not create bound pods for the whole
// cluster there is no doubt about who may use the room on a node, and nothing to agree on for each pod.
package manager
