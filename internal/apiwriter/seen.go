package apiwriter

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Seen tells the writer about a pod that is new to the caller's watch. If a create of the pod is in
// progress, the pod is its outcome, whatever happens to the response: if the pod has ended and was
// deleted meanwhile, a further attempt would create it again and run its containers twice.
func (w *core) Seen(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.creating[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]; x != nil && ours(x.obj, pod) {
		x.seen.Store(pod)
	}
}

// errSeen ends an attempt without a request, because the pod has been seen.
var errSeen = errors.New("not sent, because what it creates is there")

// created tracks the creates of pods from the call to the end. The caller holds mu.
func (w *core) created(x *write, ended bool) {
	switch {
	case x.verb != verbCreate || x.kind != podKind:
	case !ended:
		w.creating[x.name] = x
	case w.creating[x.name] == x:
		delete(w.creating, x.name)
	}
}
