// Package backfill chooses the nodes on which capacity is kept for a gang that has waited too long:
// those on which it can start soonest, by what is known of the ends of the pods that run there.
//
//	nodes, pods with their ends ─▶ Find ─▶ Plan: a node for each pod of the gang's minimum, and when
//
// Find lets pods end one by one, in the order of their ends, until the gang's minimum fits. Pods
// whose ends are unknown end after all others, those that have run longest first. The Plan uses only
// capacity that is free by then. From then on nobody else may take that capacity: so the gang starts
// when the last of the pods has ended that ran when the plan was made (the shadow time of EASY
// backfilling: Lifka, The ANL/IBM SP scheduling system, JSSPP 1995).
//
// It is a pure function: no client, clock, goroutine or log.
package backfill
