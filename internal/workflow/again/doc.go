// Package again makes a finished workflow run again: what it needs to go on from where it failed, or a new one like it.
//
//	finished workflow ──Retry────▶ the same workflow, its failed nodes gone, and the pods to delete before it is written
//	                  ──Resubmit─▶ a new workflow, with memory of the nodes that succeeded if wanted
//
// A node that runs again takes with it what is inside of it and what came after it: its hooks, the later groups of its steps,
// the tasks that depend on it, and likewise for the nodes around it. The steps and dags around it are open again and keep the
// rest. A failure that its step group went on from is left alone, as nothing failed because of it.
package again
