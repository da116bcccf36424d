// Package stats summarises repeated measurements: means, spreads and confidence intervals. It is
// pure.
package stats
