// Package machine runs real nodes as three kinds of processes, each the parent of the next.
//
//	host         in the host's namespaces: cgroups, relay to the API server, health
//	  └ network  first process of namespaces of its own: bridge, routes, DNS, relay from the API
//	    │        server; deletes dead nodes
//	    └ node   first process of a node's namespaces: mounts, interface, containerd, kubelet,
//	             kube-proxy
//
// The kernel kills the network process when the host process ends, and everything in a PID
// namespace when its first process ends. So no process below a killed one is left.
package machine
