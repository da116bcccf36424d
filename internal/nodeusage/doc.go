// Package nodeusage reads how much of each node is used, at intervals, for the scheduler.
//
//	metrics.k8s.io, or Prometheus ──Reader──▶ usage.Use of each node ──▶ scheduler.SetUsage
//
// A reading that fails changes nothing: what was read before counts until it is too old, which the
// scheduler decides. One reading is made at a time, with a bound on its time and its size.
package nodeusage
