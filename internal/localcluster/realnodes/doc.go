// Package realnodes describes nodes that run containers: real kubelets on this machine, each with a containerd of its own.
//
//	host namespaces             namespaces of the pod network            namespaces of each node
//
//	kube-apiserver ◀─ api.sock ◀─ 10.244.0.1:6443 ◀──────────────────── kubelet, kube-proxy, pods
//	      └─ egress.sock ─▶ CONNECT proxy ─▶ 10.244.0.11:10250 ────────▶ kubelet: logs, exec, port-forward
//	                            DNS 10.244.0.1:53 ◀──────────────────── pods
//	                            bridge, routes ◀───── veth ────────────▶ eth0, ptp CNI, nftables
//
// A node is like a machine: its first process has PID, mount, network, IPC and UTS namespaces of its own, and containerd,
// kubelet and kube-proxy find their files at the usual paths. Nothing of it is in the host's namespaces: no interface,
// no route, no packet filter rule, no mount, no changed sysctl. When the first process ends, by whatever cause, the
// kernel ends all that is in its namespaces; then the namespaces are gone too. What is left are files in the cluster's
// directory and empty cgroups; RemoveCgroups removes those.
//
// This package makes the files and looks at what the machine lacks. Package machine is what runs; package dns resolves
// names of services and pods; package ociimage makes image archives of local files.
package realnodes
