package plan

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// ExternalReader answers the questions that plans ask other systems. The answers for one revision
// stay the same as long as the revision is deployed. Errors that wrap ErrNotYet are temporary.
type ExternalReader interface {
	// Objects returns the objects that a component's reference selects, at least one. namespace is
	// the component's.
	Objects(namespace string, ref *ObjectReference) ([]map[string]any, error)
	// Manifests returns the objects at a URL.
	Manifests(url string) ([]map[string]any, error)
	// Request returns the decoded body of the response to a request.
	Request(namespace string, r *render.HTTPRequest) (map[string]any, error)
}

// ObjectReference refers to existing objects.
type ObjectReference struct {
	// Resource is a resource's name such as configmap or deployments.apps, or deployments with Group
	// apps. Alternatively, Group and Kind name the kind.
	Resource string `json:"resource,omitempty"`
	Group    string `json:"group,omitempty"`
	Kind     string `json:"kind,omitempty"`
	// Name is the name of one object. Alternatively, LabelSelector selects objects by label.
	Name          string            `json:"name,omitempty"`
	LabelSelector map[string]string `json:"labelSelector,omitempty"`
	// Namespace defaults to the Application's namespace, Cluster to the local cluster.
	Namespace string `json:"namespace,omitempty"`
	Cluster   string `json:"cluster,omitempty"`
}

func (r *ObjectReference) check() error {
	switch {
	case (r.Resource == "") == (r.Kind == ""):
		return errors.New("it must have either resource or kind")
	case r.Resource != "" && r.Group != "" && strings.Contains(r.Resource, "."):
		return fmt.Errorf("resource %s has a group already", r.Resource)
	case (r.Name == "") == (len(r.LabelSelector) == 0):
		return errors.New("it must have either name or labelSelector")
	}
	return nil
}

// refer replaces the references in a component's properties by the objects that they refer to.
func (p *Plan) refer(in *Input, comp *Component) error {
	var properties struct {
		Objects []json.RawMessage `json:"objects,omitempty"`
		URLs    []string          `json:"urls,omitempty"`
	}
	if err := Strict(comp.Properties, &properties); err != nil {
		return err
	}
	objects, asked := []any{}, false
	add := func(found []map[string]any) {
		asked = true
		for _, o := range found {
			objects = append(objects, referred(o))
		}
	}
	for i, raw := range properties.Objects {
		var whole map[string]any
		if err := json.Unmarshal(raw, &whole); err != nil {
			return fmt.Errorf("properties: objects[%d]: %w", i, err)
		}
		if whole["apiVersion"] != nil || whole["metadata"] != nil {
			objects = append(objects, whole)
			continue
		}
		var ref ObjectReference
		if err := Strict(raw, &ref); err != nil {
			return fmt.Errorf("properties: objects[%d]: %w", i, err)
		}
		if err := ref.check(); err != nil {
			return fmt.Errorf("properties: objects[%d]: %w", i, err)
		}
		if in.External == nil {
			return fmt.Errorf("properties: objects[%d]: objects cannot be looked up here", i)
		}
		found, err := in.External.Objects(in.Namespace, &ref)
		if err != nil {
			return fmt.Errorf("properties: objects[%d]: %w", i, err)
		}
		add(found)
	}
	for i, url := range properties.URLs {
		if in.External == nil {
			return fmt.Errorf("properties: urls[%d]: manifests cannot be fetched here", i)
		}
		found, err := in.External.Manifests(url)
		if err != nil {
			return fmt.Errorf("properties: urls[%d]: %w", i, err)
		}
		add(found)
	}
	data, err := json.Marshal(map[string]any{"objects": objects})
	if err != nil {
		return err
	}
	if comp.Properties = data; asked {
		p.Definitions["Objects of "+comp.Name] = Hash(data)
	}
	return nil
}

// referred returns an object without its status, and without the labels, annotations and other
// fields that its present cluster and manager set.
func referred(o map[string]any) map[string]any {
	u := unstructured.Unstructured{Object: o}
	ours := func(k, _ string) bool {
		return strings.HasPrefix(k, "app.oam.dev/") || strings.HasPrefix(k, "oam.dev/") ||
			strings.HasSuffix(strings.Split(k, "/")[0], ".oam.dev") ||
			k == "kubectl.kubernetes.io/last-applied-configuration" || k == "deployment.kubernetes.io/revision" ||
			k == oam.SharedByAnnotation
	}
	metadata := map[string]any{"name": u.GetName()}
	for field, values := range map[string]map[string]string{"labels": u.GetLabels(), "annotations": u.GetAnnotations()} {
		maps.DeleteFunc(values, ours)
		if len(values) > 0 {
			metadata[field] = values
		}
	}
	out := maps.Clone(o)
	out["metadata"] = metadata
	delete(out, "status")
	if u.GetKind() == "Service" && u.GetAPIVersion() == "v1" {
		spec, _ := out["spec"].(map[string]any)
		spec = maps.Clone(spec)
		delete(spec, "clusterIP")
		delete(spec, "clusterIPs")
		out["spec"] = spec
	}
	return out
}

// fetch returns the function that sends the requests of a component's traits, and renders the charts
// that the component's template asks for.
func (p *Plan) fetch(in *Input, comp *Component, target Target) render.Fetch {
	return func(r *render.HTTPRequest) (map[string]any, error) {
		if r.Chart != "" {
			return p.chartAnswer(in, comp, target, r.Chart)
		}
		if in.External == nil {
			return nil, errors.New("requests cannot be sent here")
		}
		answer, err := in.External.Request(in.Namespace, r)
		if err != nil {
			return nil, err
		}
		data, err := json.Marshal([]any{r, answer})
		if err == nil {
			p.Definitions["Answer to "+comp.Name+" of "+r.URL] = Hash(data)
		}
		return answer, err
	}
}
