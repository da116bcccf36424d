// Package lab measures a batch system against the floor that its API server sets. Run is the whole
// experiment; each part of it is a package of its own, and the package that draws conclusions,
// analyse, is pure.
//
//	scenario ─▶ shapes of load                system ─▶ what is under test: its jobs, its processes
//	    │                                        │
//	    └──────────────┬─────────────────────────┘
//	                   ▼
//	localcluster: a fresh control plane ──▶ drive: a bare client creates the jobs ──▶ API server ─▶ audit log
//	                   │                                                                              │
//	                   │  the manager stopped, the same control plane                              observe
//	                   ▼                                                                              │
//	               floor: the bare client writes the same objects ──▶ API server ─▶ audit log ─▶ observe
//	                                                                                                  ▼
//	               usage: CPU and memory of each process ─────────────────────────────▶ analyse: curves, stalls,
//	                                                                                     percentiles, write counts,
//	                                                                                     invariants
//	                                                                                                  ▼
//	                                                                           report: JSON, table, one HTML page
//
// Runs of several systems alternate, so that a slow phase of the machine affects all of them.
// Figures that are to hold on another machine are ratios: to the floor of the same run, or to the
// other system of the same experiment.
package lab
