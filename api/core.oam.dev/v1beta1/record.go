package v1beta1

import (
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// RecordNumber returns the number of the record that a ResourceTracker has, or false if it has none.
// Of several trackers of an application the one with the largest number counts. Trackers that were
// written before there was one for each generation are named NAMESPACE.NAME and have the number 0.
func RecordNumber(rt metav1.Object) (int64, bool) {
	if n, err := strconv.ParseInt(rt.GetAnnotations()[RecordAnnotation], 10, 64); err == nil && n > 0 {
		return n, true
	}
	labels := rt.GetLabels()
	return 0, rt.GetName() == labels[AppNamespaceLabel]+"."+labels[AppNameLabel]
}
