package controller

import (
	"encoding/json"
	"strings"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// flowRecord is the part of a workflow's state that the tracker stores in addition to the status.
type flowRecord struct {
	// Run identifies one run of the workflow.
	Run string `json:"run"`
	// Restarts is the number of times that the revision's workflow has been run again.
	Restarts int `json:"restarts,omitempty"`
	// Outputs has the output values of steps and components.
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"`
	// Resumed has the suspended steps that were resumed.
	Resumed map[string]bool `json:"resumed,omitempty"`
	// Held is set while the whole workflow is suspended by a user.
	Held bool `json:"held,omitempty"`
	// Command is the last command that was carried out.
	Command string `json:"command,omitempty"`
	// Units has, by key, the units that steps of users' definitions deploy.
	Units map[string]plan.Unit `json:"units,omitempty"`
	// Made has, for each object that a step applied, the step's name.
	Made map[string]string `json:"made,omitempty"`
	// Parts has the keys of parts in the order in which they started. It is set once a part renders
	// an object differently than an earlier part. Without Parts, a restarted manager would apply
	// only the earlier part at first, and so undo the later one.
	Parts []string `json:"parts,omitempty"`
	// Taken has the content of objects that a step took over from another step. Seen is the
	// workflow's status at that time. Without them, a restarted manager would have the first step
	// apply its object again.
	Taken map[string]json.RawMessage `json:"taken,omitempty"`
	Seen  *oam.WorkflowStatus        `json:"seen,omitempty"`
}

// command returns the last command to the workflow that was carried out.
func (r *trackerState) command() string {
	if r.Flow == nil {
		return ""
	}
	return r.Flow.Command
}

// setCommand records that a command is carried out.
func (r *trackerState) setCommand(value string) {
	if r.Flow == nil {
		r.Flow = &flowRecord{}
	}
	r.Flow.Command = value
}

// run returns the name of the present run of a revision's workflow: the revision, followed by the
// number of its restarts if there were any.
func (r *trackerState) run(revision, hash string) string {
	base := revision + ":" + hash
	if r.Flow != nil && strings.HasPrefix(r.Flow.Run, base+"#") {
		return r.Flow.Run
	}
	return base
}
