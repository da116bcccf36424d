// Package request reads what a pod asks of CPU topology, in the three languages users write it in, and writes the
// answer in the form each language's tools expect.
//
//	language      asks by                                             CPUs of a container   answer
//	Lockstep      cpu.lockstep.dev/request                            limits, else requests cpu.lockstep.dev/result
//	ACK           cpuset-scheduler, cpu-policy                        limits                + cpuset
//	Koordinator   koordinator.sh/qosClass LSE or LSR, resource-spec   requests              + scheduling.koordinator.sh/resource-status
//
// A pod speaks one language; two at once are refused. The answer in Lockstep's own form is always written: it is the one
// that the node agent and a restarted scheduler read.
package request
