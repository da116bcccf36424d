// Package request sends the request of an http template from the template's own pod, and judges the
// response.
//
// The pod sends the request instead of the manager, for these reasons: the request comes from the
// workflow's namespace and service account, to which network policies and meshes apply; the kubelet
// mounts its secrets; and the pod's limits bound the cost of reading and judging a response.
package request
