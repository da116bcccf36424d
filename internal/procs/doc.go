// Package procs sets on how many processors at once a program's Go code runs: as many as it uses, and not as many as there are.
//
//	CPU time used in a window ──▶ most of what was allowed? twice as many
//	                          ──▶ little of it, for a while? half as many
//
// A program that waits for a server most of the time has short things to do at short intervals. Go hands each of them to a
// processor that idles, wakes a thread for it, and lets that look for more: with several processors a request costs two thread
// switches that it would not with one. A program of a tenth of a processor's work does it with a tenth less CPU time on one than
// on two (measured with the manager under load; what a thread switch costs depends on the machine).
package procs
