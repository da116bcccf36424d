// Package data runs data templates from their own pods: it lists the paths of artifacts in a store,
// and passes the list through the template's expressions.
//
//	store ──list──▶ ["a.pdf", "b.txt"] ──expression──▶ ... ──expression──▶ JSON, the node's result
package data
