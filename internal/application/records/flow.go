package records

import (
	"encoding/json"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
)

// Flow is the part of a workflow's state that the tracker stores in addition to the status.
type Flow struct {
	// Run identifies one run of the workflow.
	Run string `json:"run"`
	// Restarts is the number of times that the revision's workflow has been run again.
	Restarts int `json:"restarts,omitempty"`
	// Outputs has the output values of steps and components.
	Outputs map[string]json.RawMessage `json:"outputs,omitempty"`
	// Placed has, by plan.Component.Place, the outputs of components that are deployed to several
	// places.
	Placed map[string]map[string]json.RawMessage `json:"placed,omitempty"`
	// Resumed has the suspended steps that were resumed.
	Resumed map[string]bool `json:"resumed,omitempty"`
	// Suspended is set while a user has suspended the whole workflow.
	Suspended bool `json:"held,omitempty"`
	// Paused has the steps that a user has suspended.
	Paused map[string]bool `json:"paused,omitempty"`
	// Command is the last command that was carried out.
	Command string `json:"command,omitempty"`
	// Terminated is set once a user has terminated the run. Again has the failed steps that a user has
	// run again, with the times at which they had begun. The effect of both is in the status, which is
	// written after the tracker: a manager that ends in between leaves them to the next one.
	Terminated bool                   `json:"terminated,omitempty"`
	Again      map[string]metav1.Time `json:"again,omitempty"`
	// Units has, by key, the units that steps of users' definitions deploy.
	Units map[string]plan.DeployUnit `json:"units,omitempty"`
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

// Command returns the last command to the workflow that was carried out.
func (r *Tracker) Command() string {
	if r.Flow == nil {
		return ""
	}
	return r.Flow.Command
}

// SetCommand records that a command is carried out.
func (r *Tracker) SetCommand(value string) {
	if r.Flow == nil {
		r.Flow = &Flow{}
	}
	r.Flow.Command = value
}

// Run returns the name of the present run of a revision's workflow: the revision and its hash,
// followed by the number of restarts if there were any.
func (r *Tracker) Run(revision, hash string) string {
	base := revision + ":" + hash
	if r.Flow != nil && strings.HasPrefix(r.Flow.Run, base+"#") {
		return r.Flow.Run
	}
	return base
}

// WithoutCommands returns the annotations without those that request one action.
func WithoutCommands(annotations map[string]string) map[string]string {
	_, command := annotations[oam.WorkflowCommandAnnotation]
	_, restart := annotations[oam.RestartWorkflowAnnotation]
	if !command && !restart {
		return annotations
	}
	out := maps.Clone(annotations)
	delete(out, oam.WorkflowCommandAnnotation)
	delete(out, oam.RestartWorkflowAnnotation)
	return out
}
