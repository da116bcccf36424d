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

// KubeGroupOf returns the PodGroup of scheduling.k8s.io that the pod's spec.schedulingGroup names, or
// false. A pod whose annotation names a PodGroup is in that one only.
func KubeGroupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	if _, annotated := GroupOf(pod); annotated || pod.Spec.SchedulingGroup == nil {
		return types.NamespacedName{}, false
	}
	name := pod.Spec.SchedulingGroup.PodGroupName
	if name == nil || *name == "" {
		return types.NamespacedName{}, false
	}
	return types.NamespacedName{Namespace: pod.Namespace, Name: *name}, true
}
