package informer

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// namespacesLimited is the index of the namespaces whose label limits the number of their workflows.
const namespacesLimited = "limited"

func limited(n *corev1.Namespace) []string {
	if n.Labels[argov1alpha1.LabelParallelismLimit] == "" {
		return nil
	}
	return []string{""}
}

// LimitedNamespaces returns the namespaces whose label limits the number of their workflows.
func (s *Set) LimitedNamespaces() []*corev1.Namespace {
	return s.Namespaces.ByIndex(namespacesLimited, "")
}

// trimNamespace keeps the labels and the annotation that are read.
func trimNamespace(n *corev1.Namespace) {
	keep := func(of map[string]string, keys ...string) (kept map[string]string) {
		for _, key := range keys {
			if value := of[key]; value != "" {
				if kept == nil {
					kept = map[string]string{}
				}
				kept[key] = value
			}
		}
		return kept
	}
	n.Labels = keep(n.Labels, argov1alpha1.LabelParallelismLimit, schedulingv1beta1.UserLabel)
	n.Annotations = keep(n.Annotations, schedulingv1beta1.QueueNameAnnotation)
	n.Spec, n.Status = corev1.NamespaceSpec{}, corev1.NamespaceStatus{}
}

// QueueIn returns the queue of an object that names a queue, or none if named is empty. Objects that
// name none, or the default queue, which is what the API server makes of none, are in the queue that
// the annotation QueueNameAnnotation of their namespace names. known is false if the namespace has not
// been seen yet, so that the queue is not known.
func (s *Set) QueueIn(namespace, named string) (queue string, known bool) {
	if named != "" && named != schedulingv1beta1.DefaultQueue {
		return named, true
	}
	n, known := s.Namespaces.Get("", namespace)
	if !known {
		s.unseen.add(namespace)
		n, known = s.Namespaces.Get("", namespace) // it may have appeared before it was noted
	}
	if known && n.Annotations[schedulingv1beta1.QueueNameAnnotation] != "" {
		return n.Annotations[schedulingv1beta1.QueueNameAnnotation], true
	}
	return schedulingv1beta1.DefaultQueue, known
}

// QueueField returns the field that names the queue of an object in a namespace: field, if the object
// names it, else the annotation of the namespace.
func QueueField(namespace, named, queue, field string) string {
	if named == queue || queue == schedulingv1beta1.DefaultQueue {
		return field
	}
	return fmt.Sprintf("metadata.annotations[%s] of namespace %s", schedulingv1beta1.QueueNameAnnotation, namespace)
}

// unseenNamespaces are the namespaces that QueueIn did not know.
type unseenNamespaces struct {
	mu    sync.Mutex
	names map[string]bool
}

func (u *unseenNamespaces) add(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.names == nil {
		u.names = map[string]bool{}
	}
	u.names[name] = true
}

func (u *unseenNamespaces) has(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.names[name]
}

func (u *unseenNamespaces) drop(name string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.names, name)
}

// FollowQueues calls changed with the names of namespaces whose annotation of a queue changes, and of
// those that appear after QueueIn did not know them.
func (s *Set) FollowQueues(changed func(namespace string)) {
	s.Namespaces.Handle(Handler[*corev1.Namespace]{
		Added: func(n *corev1.Namespace) {
			if s.unseen.has(n.Name) {
				changed(n.Name)
			}
		},
		Deleted: func(n *corev1.Namespace) { s.unseen.drop(n.Name) },
		Updated: func(old, now *corev1.Namespace) {
			if key := schedulingv1beta1.QueueNameAnnotation; old.Annotations[key] != now.Annotations[key] {
				changed(now.Name)
			}
		},
	})
}
