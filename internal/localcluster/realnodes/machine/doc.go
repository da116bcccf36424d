// Package machine runs real nodes as three kinds of processes, each the parent of the next.
//
//	Host      in the host's namespaces: cgroups, the way to the API server, health
//	  └ Network   first process of namespaces of its own: bridge, routes, DNS, the API server's way in; deletes dead nodes
//	      └ Node      first process of a node's namespaces: mounts, interface, containerd, kubelet, kube-proxy
//
// The kernel kills Network when Host ends, and everything in a namespace when its first process
// ends: so killing any of the three leaves nothing running below it.
package machine
