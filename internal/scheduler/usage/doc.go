// Package usage decides what follows from the measured use of nodes: which nodes take no more pods,
// and which nodes are preferred.
//
//	metrics of nodes ──package nodeusage──▶ Use, in percent ──Judge──▶ overused; points of score
//
// A node whose use is not known, or was measured too long ago, takes pods like nodes that are little
// used, and gets no points. The package is pure.
package usage
