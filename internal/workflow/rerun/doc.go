// Package rerun makes a finished workflow run again: the same workflow from where it failed, or a
// new one like it.
//
//	finished workflow ──Retry────▶ the same workflow, its failed nodes gone, and the pods to delete before it is written
//	                  ──Resubmit─▶ a new workflow, with memory of the nodes that succeeded if wanted
//
// A node that runs again is removed together with the nodes inside it and the nodes after it: its
// hooks, the later groups of its steps, the tasks that depend on it, and likewise for the enclosing
// nodes. The enclosing steps and dag nodes are reopened and keep the rest. A failed step whose
// group went on is left alone, because nothing failed because of it.
package rerun
