// Package lab is the laboratory, which measures systems against the floor that their API server
// sets. It has no code of its own. Each measurement is a package: jobs, workflows, applications,
// cpus, soak and replay. Package series is the engine that they share; rig, drive, observe and floor
// are its parts. Package analyse computes the results of batch jobs, metrics those of the processes'
// own metrics, bottleneck names what limits a system, capacity searches the highest rate that a system
// keeps up with, stats summarises repeated runs, threshold compares figures with bounds, and page has
// the form of all reports: they are pure.
//
// A run of package jobs proceeds as follows:
//
//	scenario: shapes of load          system: the jobs and processes under test
//	    └─────────────────┬──────────────────┘
//	                      ▼
//	localcluster: a fresh control plane
//	    ├─▶ drive: a bare client creates the jobs ───────▶ API server ─▶ audit log ─▶ observe ─┐
//	    │                                                                                      │
//	    ├─▶ the manager stops; floor: the bare client                                          │
//	    │   writes the same objects ─────────────────────▶ API server ─▶ audit log ─▶ observe ─┤
//	    │                                                                                      ▼
//	    └─▶ usage: CPU and memory of each process ──────────────────────────────────────▶ analyse:
//	                                 curves, stalls, percentiles, counts of writes, invariants │
//	                                                                                           ▼
//	                                              jobs, page: JSON, table, Markdown, one HTML page
//
// Runs of several systems alternate, so that a slow phase of the machine affects all of them.
// Figures that are to hold on another machine are ratios: to the floor of the same run, or to the
// other system of the same experiment.
package lab
