package execapi

import "encoding/json"

// PluginPlanEnv is the environment variable that holds a PluginPlan.
const PluginPlanEnv = "LOCKSTEP_PLUGIN"

// PluginPlan is a template and the executor plugins that may run it. Each plugin is a sidecar of the
// pod, which serves HTTP at a port of its own.
type PluginPlan struct {
	Workflow PluginWorkflow `json:"workflow"`
	// Template is the template as JSON, with the values of its inputs.
	Template   json.RawMessage `json:"template"`
	Plugins    []Plugin        `json:"plugins"`
	Faults     []string        `json:"faults,omitempty"` // why further plugins cannot be asked
	Result     bool            `json:"result,omitempty"` // some text refers to the outputs
	MaxMessage int             `json:"maxMessage,omitempty"`
	Task       *Task           `json:"task,omitempty"`
}

// PluginWorkflow is what plugins are told of a workflow.
type PluginWorkflow struct {
	Name      string `json:"name"`
	Namespace string `json:"namespace"`
	UID       string `json:"uid"`
}

// Plugin is an executor plugin.
type Plugin struct {
	Name string `json:"name"`
	Port int32  `json:"port"`
}

// PluginDir is the directory below Dir with what one plugin may read, which is its token.
func PluginDir(name string) string { return "plugin-" + name }

// PluginToken is the name of the file with a plugin's token, in Dir as the plugin sees it.
const PluginToken = "token"
