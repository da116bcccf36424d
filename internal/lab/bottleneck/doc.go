// Package bottleneck names what limits a measured system, from the figures of one run and of
// experiments beside it. It is pure.
//
//	Run, Experiments ──Find──▶ Findings, the one that explains most of the time first, with evidence
//	                           and settings
//	Runs of two sizes ──Size──▶ Needs: memory and CPU of a controller by the number of pods
package bottleneck
