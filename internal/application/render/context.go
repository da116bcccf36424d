package render

import (
	"encoding/json"
	"maps"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Context is what a template sees in addition to its parameters.
type Context struct {
	// Name is the component's name.
	Name string
	// Namespace is the namespace of the component's objects.
	Namespace string
	AppName   string
	// AppRevision is the name of the Application's revision, such as NAME-v3.
	AppRevision    string
	AppRevisionNum int64
	AppLabels      map[string]string
	AppAnnotations map[string]string
	// Revision is the component's revision: a hash of its declaration.
	Revision       string
	Cluster        string
	ClusterVersion ClusterVersion
	PublishVersion string
	WorkflowName   string
	ReplicaKey     string
	ComponentType  string
	// PolicyName and the following fields are set for policies of the scope Application: the name in
	// the Application, and the definition with its newest revision.
	PolicyName, PolicyType, PolicyRevisionName string
	PolicyRevision                             int64
	// Components, Policies and Workflow are taken from the whole Application.
	Components []oam.Component
	Policies   []oam.AppPolicy
	Workflow   *oam.WorkflowSpec
}

// applicationFields names the fields of the context that describe the whole Application.
var applicationFields = []string{"components", "appComponents", "appPolicies", "appWorkflow"}

// ClusterVersion is the version of an API server.
type ClusterVersion struct {
	Major      string
	Minor      int64
	GitVersion string
	Platform   string
}

// values returns the context as templates see it. If application is set, it includes the fields
// that describe the whole Application.
func (c *Context) values(application bool) map[string]any {
	v := map[string]any{
		"name": c.Name, "namespace": c.Namespace, "appName": c.AppName, "appRevision": c.AppRevision,
		"appRevisionNum": c.AppRevisionNum, "revision": c.Revision, "componentType": c.ComponentType,
		"cluster": c.Cluster, "publishVersion": c.PublishVersion, "workflowName": c.WorkflowName, "replicaKey": c.ReplicaKey,
		"clusterVersion": map[string]any{
			"major": c.ClusterVersion.Major, "minor": c.ClusterVersion.Minor,
			"gitVersion": c.ClusterVersion.GitVersion, "platform": c.ClusterVersion.Platform,
		},
		"appLabels": anyMap(c.AppLabels), "appAnnotations": anyMap(c.AppAnnotations),
	}
	if c.PolicyType != "" {
		v["policyName"], v["policyType"], v["policyRevision"] = c.PolicyName, c.PolicyType, c.PolicyRevision
	}
	// Empty fields are left out, so that templates can test whether they exist.
	maps.DeleteFunc(v, func(k string, v any) bool { return v == "" && k != "namespace" })
	if c.PolicyType != "" {
		v["policyRevisionName"] = c.PolicyRevisionName
	}
	if !application {
		return v
	}
	if len(c.Components) > 0 {
		list := asJSON(c.Components)
		v["components"], v["appComponents"] = list, list
	}
	if len(c.Policies) > 0 {
		v["appPolicies"] = asJSON(c.Policies)
	}
	if c.Workflow != nil {
		v["appWorkflow"] = asJSON(c.Workflow)
	}
	return v
}

// StepContext is the context of a step's template.
type StepContext struct {
	Context
	// StepName and SessionID are the step's name and ID.
	StepName, SessionID string
	// Application is the Application as decoded JSON, for steps that read its components and
	// policies.
	Application exactMap
}

// Values returns the context as steps, conditions and inputs see it.
func (c *StepContext) Values() map[string]any {
	v := c.Context.values(true)
	if c.StepName != "" {
		v["stepName"], v["stepSessionID"], v["spanID"] = c.StepName, c.SessionID, c.SessionID
	}
	return v
}

// asJSON returns a part of an Application in the form that manifests have.
func asJSON(part any) any {
	data, err := json.Marshal(part)
	if err != nil {
		return nil // cannot happen: part was decoded from JSON
	}
	v, err := decode(data)
	if err != nil {
		return nil
	}
	return v
}

func anyMap(m map[string]string) map[string]any {
	out := make(map[string]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return out
}
