// Package display formats a workflow as text for a terminal: its head, the tree of its nodes, or a
// row of a list.
//
//	Workflow ──▶ tree: who is shown under whom ──▶ rows: prefix, icon, name, cells ──▶ aligned lines
//
// The tree follows from the names and boundaries of nodes, not from the edges alone: a node is
// shown under its boundary, attempts under their Retry node, loop items under their TaskGroup,
// steps under their StepGroup. A StepGroup has no line of its own: its steps are drawn as a bundle.
//
//	✔ example        main
//	├───✔ generate   gen        a group of one step
//	├─┬─✔ left       use        a group of two
//	│ └─✔ right      use
//	└───✔ diamond    dag        a step that is itself a graph
//	    ├─✔ a        task
//	    └─✔ b        task
//
// The package is pure: the results depend only on the arguments, which include the time.
package display
