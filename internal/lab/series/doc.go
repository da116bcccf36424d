// Package series is the engine of the measurements that make one run after another: the steps that
// all runs have, the verdict of a run, the report that grows with each run, and the directory with
// the results.
//
//	Config.StartTrial ──▶ Trial: a fresh control plane, a client, the log of all writes
//	Trial.Load ──▶ drives a load, waits until all is at rest ──▶ Usage of every process
//	Trial.Floor ──▶ a bare client writes the same objects, without a manager
//	Report.MakeAll ──▶ run.json                the configuration and all figures
//	                   report.html             a page with the same content
//	                   report.md, …            exports
//	                   NN-RUN/events.csv.gz    the observed events, one per line
//	Read, Combine ──▶ the reports of earlier invocations, to render again
//
// Each scenario has its own load and figures.
package series
