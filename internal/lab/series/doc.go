// Package series is the engine of the measurements that make one run after another: the steps that
// all runs have, the verdict of a run, the report that grows with each run, and the directory with
// the results.
//
//	Config.StartTrial ──▶ Trial: a fresh control plane, a client, the log of all writes
//	Trial.Load ──▶ drives a load, waits until all is at rest ──▶ Usage of every process
//	Trial.Floor ──▶ the same objects by a bare client, without a manager
//	Report.MakeAll ──▶ result.json             figures, the configuration among them
//	                   report.html             the same for people, light and dark
//	                   NN-RUN/events.jsonl.gz  what was observed, one event a line
//
// The load of a run and its figures are each scenario's own.
package series
