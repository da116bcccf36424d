// Package flowtest says in one line how far an application's workflow is, for tests that compare it.
package flowtest

import (
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Steps are the steps of a workflow, each with its phase, its reason and its sub-steps: "one=succeeded two=running/Wait". A
// workflow that has no status yet has none.
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
