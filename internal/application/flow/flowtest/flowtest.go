// Package flowtest formats the state of an Application's workflow as one line, for tests that
// compare it.
package flowtest

import (
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Steps returns the steps of a workflow with their phases, reasons and sub-steps, such as
// "one=succeeded two=running/Wait". For a nil status, Steps returns "".
func Steps(w *oam.WorkflowStatus) string {
	if w == nil {
		return ""
	}
	var parts []string
	for _, s := range w.Steps {
		text := s.Name + "=" + string(s.Phase)
		if s.Reason != "" {
			text += "/" + s.Reason
		}
		for _, sub := range s.SubSteps {
			text += " " + s.Name + "." + sub.Name + "=" + string(sub.Phase)
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, " ")
}
