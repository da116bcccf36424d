// Package cgroup finds the cgroups of a kubelet's pods and containers, and reads and writes their
// CPU sets.
//
//	kubepods | kubepods.slice
//	  ├ pod<UID>                            | kubepods-pod<UID>.slice             guaranteed pods
//	  ├ burstable                           | kubepods-burstable.slice
//	  │   └ pod<UID>                        |   └ kubepods-burstable-pod<UID>.slice
//	  │       └ <ID>                        |       └ cri-containerd-<ID>.scope, crio-<ID>.scope,
//	  │                                     |         docker-<ID>.scope
//	  └ besteffort                          | kubepods-besteffort.slice
//
// The left side shows the names of the kubelet's cgroupfs driver, the right side those of the
// systemd driver. Cgroups are found by listing directories, not by computing names from pods, so
// cgroups of pods that the API does not list (yet, or any more) are found too.
//
// All access goes through Files, an interface of three methods that the kernel's file system and
// package fakekernel implement.
package cgroup
