// Package sharing packs pods that share CPUs onto as few L3 domains as their requests need, so that
// whole domains stay idle for pods with CPUs of their own.
//
//	Node, requests of its pods ──NewState──▶ State: load and room of each L3 domain
//	                                           │
//	                                           ├─Rank──▶ the node among many
//	                                           └─Plan──▶ the domains, and by package allocate the CPUs
//
// A pod may use more CPUs than it requests: 100 pods that request 1 CPU and may use 4 would spread over
// 400 CPUs, although they are due 100. A domain is shared while a pod shares CPUs in it. Its load is what
// these pods request, its room what its CPUs leave of that. Pods go to the fullest shared domain with
// room for their request; if there is none, an idle domain becomes a shared one. A domain whose last pod
// ends is idle again; package repack brings the pods of domains that are little used together.
//
// The state follows from the pods and what they request at this moment, so it follows a resize.
package sharing
