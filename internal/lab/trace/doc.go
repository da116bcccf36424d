// Package trace reads and writes traces of load: when jobs arrive, how many pods each has, and how
// long they run. It is pure.
//
//	CSV of this package, Standard Workload Format,
//	batch_task.csv of Alibaba's cluster-trace-v2018 ──Parse──▶ Trace ──Write──▶ CSV
//	events of a run or of an audit log ──────────Record─────▶ Trace
package trace
