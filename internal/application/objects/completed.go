package objects

import (
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"lockstep.dev/lockstep/internal/application/plan"
)

// Completed reports whether an object that later waves wait for is complete: a
// CustomResourceDefinition is established, a Job is complete, a Pod has succeeded. Any other object
// is complete when it exists. The error says that a Job or a Pod has failed.
func Completed(ref plan.Ref, there *Object) (bool, error) {
	object := Map(there)
	if object == nil {
		return false, nil
	}
	condition := func(kind string) (is bool, message string) {
		list, _, _ := unstructured.NestedSlice(object, "status", "conditions")
		for _, x := range list {
			if m, ok := x.(map[string]any); ok && m["type"] == kind && m["status"] == "True" {
				message, _ := m["message"].(string)
				return true, message
			}
		}
		return false, ""
	}
	switch ref.GVK.Kind {
	case "CustomResourceDefinition":
		is, _ := condition("Established")
		return is, nil
	case "Job":
		if failed, why := condition("Failed"); failed {
			return false, fmt.Errorf("hook %s failed: %s", ref, why)
		}
		is, _ := condition("Complete")
		return is, nil
	case "Pod":
		switch phase, _, _ := unstructured.NestedString(object, "status", "phase"); phase {
		case "Succeeded":
			return true, nil
		case "Failed":
			return false, fmt.Errorf("hook %s failed", ref)
		}
		return false, nil
	}
	return true, nil
}
