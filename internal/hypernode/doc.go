// Package hypernode maintains the status of HyperNodes: how many nodes each contains, and which of
// its members are not counted and why.
//
//	model of the cluster: Tree ──sweep: has anything changed?──▶ turn of each HyperNode whose status differs ──▶ writer
//
// The Tree decides; see package network. Statuses are compared at intervals, because every node that
// joins the cluster changes several of them.
package hypernode
