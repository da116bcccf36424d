package informer

import corev1 "k8s.io/api/core/v1"

// TrimPods returns the function that trims the pods of a cache.
func TrimPods() func(*corev1.Pod) { return newTrimmer().pod }

// WatchedPod returns a pod as the API server sends it.
var WatchedPod = watchedPod
