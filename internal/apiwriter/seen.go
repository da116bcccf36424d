package apiwriter

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Seen tells the writer of a pod that is new to the caller's watch. If a create of it is under way, the pod is its outcome,
// whatever becomes of the answer: a further attempt would make the pod again if it has ended and was deleted meanwhile, and run
// what it runs twice.
func (w *W) Seen(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x := w.creating[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}]; x != nil && ours(x.obj, pod) {
		x.seen.Store(pod)
	}
}

// errSeen ends an attempt that is not made, because the pod has been seen.
var errSeen = errors.New("not sent, because what it creates is there")

// created follows the creates of pods from the call to the end. The caller holds mu.
func (w *W) created(x *write, ended bool) {
	switch {
	case x.verb != verbCreate || x.kind != podKind:
	case !ended:
		w.creating[x.name] = x
	case w.creating[x.name] == x:
		delete(w.creating, x.name)
	}
}
