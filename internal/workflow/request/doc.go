// Package request sends the request of an http template, inside of the template's own pod, and judges the answer.
//
// That it is a pod and not the manager that sends it has reasons: the request comes from the workflow's namespace and
// service account, where network policies and meshes apply to it, its secrets are mounted by the kubelet, and what an
// answer costs to read and to judge is bounded by the pod.
package request
