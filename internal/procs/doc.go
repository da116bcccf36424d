// Package procs sets GOMAXPROCS, the number of processors on which a program's Go code runs at the
// same time, to the number that the program uses instead of the number that exists.
//
//	CPU time used in a window ──▶ most of the allowed time? twice as many
//	                          ──▶ little of it, for some time? half as many
//
// A program that mostly waits for a server has short tasks at short intervals. Go hands each task
// to an idle processor, wakes a thread for it, and lets the thread look for more work. With one
// processor there is no other to hand the task to: the manager under a load of a tenth to a quarter
// of a processor used a tenth less CPU time on one processor than on two.
//
// The package follows changes of the container's CPU limit: for a program that needs more
// processors it reads the current limit, and a program that is limited further uses less.
package procs
