// Package podcontroller tells users what Lockstep does not do for their pods that request CPUs.
//
//	pods that request CPUs ──watch──▶ reconcile ──▶ event CPUsNotChosen: no CPUs are chosen, and why
//	                                           └──▶ condition cpu.lockstep.dev/RequestRead=False:
//	                                                annotations that only ACK or Koordinator reads
//
// The scheduler reports in PodScheduled why a pod waits; this package covers pods that never reach the
// scheduler, and the parts of requests that have no effect.
//
// An event is recorded while the pod is Pending, once in the life of a manager. The condition is
// written once in the life of the pod.
package podcontroller
