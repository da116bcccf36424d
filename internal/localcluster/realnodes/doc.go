// Package realnodes describes nodes that run containers: real kubelets on this machine, each with a
// containerd of its own.
//
//	host namespaces             namespaces of the pod network            namespaces of each node
//
//	kube-apiserver ◀─ api.sock ◀─ 10.244.0.1:6443 ◀──────────────────── kubelet, kube-proxy, pods
//	      └─ egress.sock ─▶ CONNECT proxy ─▶ 10.244.0.11:10250 ───────▶ kubelet: logs, exec
//	                            DNS 10.244.0.1:53 ◀──────────────────── pods
//	                            bridge, routes ◀───── veth ───────────▶ eth0, ptp CNI, nftables
//
// A node is like a machine: its first process has its own PID, mount, network, IPC and UTS
// namespaces, and containerd, kubelet and kube-proxy find their files at the usual paths. A node
// changes nothing in the host's namespaces: no interface, route, packet filter rule, mount or
// sysctl. When the first process ends, for whatever reason, the kernel ends everything in its
// namespaces and removes the namespaces. Only files in the cluster's directory and empty cgroups
// are left; RemoveCgroups removes the cgroups.
//
// This package creates the files and checks what the machine lacks. Package machine runs the nodes;
// package dns resolves names of services and pods; package ociimage builds image archives from
// local files.
package realnodes
