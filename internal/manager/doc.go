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
package manager
