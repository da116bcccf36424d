package render

import (
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
	// Components are all components of the application.
	Components []oam.Component
}

// ClusterVersion is the version of an API server.
type ClusterVersion struct {
	Major      string
	Minor      int64
	GitVersion string
	Platform   string
}

// values is the context as templates see it, for those that look at its components or do not.
func (c *Context) values(components bool) map[string]any {
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
	if components && len(c.Components) > 0 {
		list := make([]any, len(c.Components))
		for i, comp := range c.Components {
			item := map[string]any{"name": comp.Name, "type": comp.Type}
			if comp.Properties != nil {
				if props, err := decode(comp.Properties.Raw); err == nil {
					item["properties"] = props
				}
			}
			list[i] = item
		}
		v["components"] = list
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
