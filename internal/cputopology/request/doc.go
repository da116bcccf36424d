// Package request parses a pod's request for CPU topology, in the three annotation languages that
// users write, and writes the result in the form that each language's tools expect.
//
//	language     request                             CPUs of a container    result
//	Lockstep     cpu.lockstep.dev/request            limits, else requests  cpu.lockstep.dev/result
//	ACK          cpuset-scheduler, cpu-policy        limits                 + cpuset
//	Koordinator  qosClass LSE or LSR, resource-spec  requests               + resource-status
//
// A pod uses one language; two at once are an error. The result in Lockstep's own form is always
// written: the node agent and a restarted scheduler read that form.
package request
