// Package cgroup finds the pods' and containers' cgroups of a kubelet, and reads and writes their CPU sets.
//
//	kubepods | kubepods.slice
//	  ├ pod<UID>                            | kubepods-pod<UID>.slice             guaranteed pods
//	  ├ burstable                           | kubepods-burstable.slice
//	  │   └ pod<UID>                        |   └ kubepods-burstable-pod<UID>.slice
//	  │       └ <ID>                        |       └ cri-containerd-<ID>.scope, crio-<ID>.scope, docker-<ID>.scope
//	  └ besteffort                          | kubepods-besteffort.slice
//
// On the left as the kubelet's cgroupfs driver makes it, on the right as systemd's. Cgroups are found by listing, not by
// computing their names from pods: so those of pods that nobody knows (yet, or any more) are found too.
//
// All of it goes through Files, three methods that the kernel's file system has, and that package fakekernel has too.
package cgroup
