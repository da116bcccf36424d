package render

import (
	"encoding/json"
	"maps"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Context is what templates know of where they are, beside the parameters.
type Context struct {
	// Name is the component's.
	Name string
	// Namespace is where the component's objects go.
	Namespace string
	AppName   string
	// AppRevision is the application's revision, as name-vN.
	AppRevision    string
	AppRevisionNum int64
	AppLabels      map[string]string
	AppAnnotations map[string]string
	// Revision is the component's, a hash of what was declared.
	Revision       string
	Cluster        string
	ClusterVersion ClusterVersion
	PublishVersion string
	WorkflowName   string
	ReplicaKey     string
	ComponentType  string
	// Components, Policies and Workflow are all of the application's.
	Components []oam.Component
	Policies   []oam.AppPolicy
	Workflow   *oam.WorkflowSpec
}

// applicationFields are the parts of the context that are of the whole application.
var applicationFields = []string{"components", "appComponents", "appPolicies", "appWorkflow"}

// ClusterVersion is the version of an API server.
type ClusterVersion struct {
	Major      string
	Minor      int64
	GitVersion string
	Platform   string
}

// values is the context as templates see it, for those that look at the whole application or do not.
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
	// Absent rather than empty, so that templates can ask whether they are there.
	maps.DeleteFunc(v, func(k string, v any) bool { return v == "" && k != "namespace" })
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

// asJSON is a part of an application as manifests have it.
func asJSON(part any) any {
	data, err := json.Marshal(part)
	if err != nil {
		return nil // it has come as JSON
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
