// Package place decides which node each pod of a gang gets: a pure function of a snapshot and gangs.
//
//	Snapshot + Gang ── filter and score each class once ── heap of nodes ── k pods ──▶ Decision
//	                          all-or-nothing: an undo log rolls the snapshot back when the minimum does not fit
//
// It has no client, clock, goroutine or log. A gang's pods come in classes (Class); the cost is
// O(classes × nodes + pods × log nodes).
package place
