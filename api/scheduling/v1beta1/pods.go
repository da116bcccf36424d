package v1beta1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// GroupOf returns the PodGroup that the pod's annotation names, or false.
func GroupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	for _, key := range []string{GroupNameAnnotation, VolcanoGroupNameAnnotation} {
		if name := pod.Annotations[key]; name != "" {
			return types.NamespacedName{Namespace: pod.Namespace, Name: name}, true
		}
	}
	return types.NamespacedName{}, false
}
