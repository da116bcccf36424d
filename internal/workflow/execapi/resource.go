package execapi

import "encoding/json"

// ResourcePlanEnv is the environment variable that holds a ResourcePlan.
const ResourcePlanEnv = "LOCKSTEP_RESOURCE"

// ResourcePlan is an operation on objects of the cluster.
type ResourcePlan struct {
	Action        string   `json:"action"`                  // get, create, apply, patch, replace, delete
	MergeStrategy string   `json:"mergeStrategy,omitempty"` // of a patch: strategic, merge, json
	Manifest      string   `json:"manifest,omitempty"`      // YAML
	ManifestFile  string   `json:"manifestFile,omitempty"`
	Flags         []string `json:"flags,omitempty"`
	// Owner is an owner reference to set on created objects.
	Owner json.RawMessage `json:"owner,omitempty"`
	// Success and Failure are the conditions to wait for, over fields of the object, in the syntax
	// of label selectors.
	Success    string  `json:"success,omitempty"`
	Failure    string  `json:"failure,omitempty"`
	Parameters []Field `json:"parameters,omitempty"`
	MaxMessage int     `json:"maxMessage,omitempty"`
	Task       *Task   `json:"task,omitempty"`
}

// Field is an output parameter taken from a field of the object.
type Field struct {
	Name     string  `json:"name"`
	JSONPath string  `json:"jsonPath,omitempty"`
	JQ       string  `json:"jq,omitempty"`
	Default  *string `json:"default,omitempty"`
}
