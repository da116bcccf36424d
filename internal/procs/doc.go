// Package procs sets on how many processors at once a program's Go code runs: as many as it uses, and not as many as there are.
//
//	CPU time used in a window ──▶ most of what was allowed? twice as many
//	                          ──▶ little of it, for a while? half as many
//
// A program that waits for a server most of the time has short things to do at short intervals. Go hands each of them to a
// processor that idles, wakes a thread for it, and lets that look for more. With one processor there is nobody to hand them to:
// the manager under load, of a tenth to a quarter of a processor's work, took a tenth less CPU time on one than on two.
//
// Changes of the container's CPU limit are followed: a program that wants more asks how much there may be, and one that gets less
// uses less.
package procs
