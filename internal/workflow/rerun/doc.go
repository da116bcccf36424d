// Package rerun makes a finished workflow run again: the same workflow from where it failed, or a
// new one like it.
//
//	finished workflow ──Retry────▶ the same workflow without its failed nodes, and the pods to
//	                               delete before it is written
//	                  ──Resubmit─▶ a new workflow, if wanted with the nodes that succeeded
//
// A node that runs again is removed together with the nodes inside it and the nodes after it: its
// hooks, the later groups of its steps, the tasks that depend on it, and likewise for the enclosing
// nodes. The enclosing steps and dag nodes are reopened and keep their other members. A failed step
// whose group succeeded is kept, because it did not make the workflow fail.
package rerun
