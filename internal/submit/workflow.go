package submit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/resource"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// workflowOutcome returns the state of a workflow.
func workflowOutcome(u *unstructured.Unstructured) Outcome {
	phase, _, _ := unstructured.NestedString(u.Object, "status", "phase")
	message, _, _ := unstructured.NestedString(u.Object, "status", "message")
	p := wf.WorkflowPhase(phase)
	return Outcome{Phase: phase, Message: message, Finished: p.Completed(),
		Failed: p.Completed() && p != wf.WorkflowSucceeded}
}

// IsWorkflow reports whether the object is a workflow.
func (o *Object) IsWorkflow() bool {
	return o.info.Mapping.GroupVersionKind.GroupKind() == wf.Kind("Workflow")
}

// IsCronWorkflow reports whether the object is a cron of workflows.
func (o *Object) IsCronWorkflow() bool {
	return o.info.Mapping.GroupVersionKind.GroupKind() == wf.Kind("CronWorkflow")
}

// Name returns the object's namespace and name.
func (o *Object) Name() (namespace, name string) { return o.info.Namespace, o.info.Name }

// Overrides are changes to a workflow before it is sent. Zero fields change nothing.
type Overrides struct {
	Name, GenerateName         string
	Entrypoint, ServiceAccount string
	Labels                     map[string]string
	// Parameters are values of arguments. Parameters that the workflow does not have are added.
	Parameters map[string]string
	Priority   *int32
}

// ReadParameters reads a file of parameters: a YAML or JSON object. Values that are not strings are
// converted to JSON.
func ReadParameters(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var values map[string]any
	if err := yaml.Unmarshal(data, &values); err != nil {
		return nil, fmt.Errorf("%s: want an object of names and values: %w", path, err)
	}
	out := map[string]string{}
	for name, v := range values {
		if s, ok := v.(string); ok {
			out[name] = s
			continue
		}
		text, err := json.Marshal(v)
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, name, err)
		}
		out[name] = string(text)
	}
	return out, nil
}

// Override changes a workflow. Fields that this program does not know are kept.
func (o *Object) Override(with Overrides) error {
	u, ok := o.info.Object.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("%s is %T", o.Ref(), o.info.Object)
	}
	switch {
	case with.Name != "":
		u.SetName(with.Name)
		u.SetGenerateName("")
	case with.GenerateName != "":
		u.SetGenerateName(with.GenerateName)
		u.SetName("")
	}
	o.info.Name = u.GetName()
	if len(with.Labels) > 0 {
		l := u.GetLabels()
		if l == nil {
			l = map[string]string{}
		}
		maps.Copy(l, with.Labels)
		u.SetLabels(l)
	}
	set := func(value any, field string) error {
		return unstructured.SetNestedField(u.Object, value, "spec", field)
	}
	if with.Entrypoint != "" {
		if err := set(with.Entrypoint, "entrypoint"); err != nil {
			return err
		}
	}
	if with.ServiceAccount != "" {
		if err := set(with.ServiceAccount, "serviceAccountName"); err != nil {
			return err
		}
	}
	if with.Priority != nil {
		if err := set(int64(*with.Priority), "priority"); err != nil {
			return err
		}
	}
	if len(with.Parameters) == 0 {
		return nil
	}
	list, _, err := unstructured.NestedSlice(u.Object, "spec", "arguments", "parameters")
	if err != nil {
		return fmt.Errorf("%s: spec.arguments.parameters: %w", o.Ref(), err)
	}
	left := maps.Clone(with.Parameters)
	for _, p := range list {
		if p, ok := p.(map[string]any); ok {
			name, _ := p["name"].(string)
			if value, given := left[name]; given {
				p["value"] = value
				delete(p, "valueFrom")
				delete(left, name)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		list = append(list, map[string]any{"name": name, "value": left[name]})
	}
	return unstructured.SetNestedSlice(u.Object, list, "spec", "arguments", "parameters")
}

// FromTemplate returns a workflow that runs a template.
func FromTemplate(namespace, name string, cluster bool) *wf.Workflow {
	w := &wf.Workflow{}
	w.Namespace, w.GenerateName = namespace, name+"-"
	w.Labels = map[string]string{wf.LabelWorkflowTemplate: name}
	if cluster {
		w.Labels = map[string]string{"workflows.argoproj.io/cluster-workflow-template": name}
	}
	w.Spec.WorkflowTemplateRef = &wf.WorkflowTemplateRef{Name: name, ClusterScope: cluster}
	return w
}

// FromWorkflow returns the Object for a workflow that is to be sent to a cluster.
func FromWorkflow(getter genericclioptions.RESTClientGetter, w *wf.Workflow) ([]*Object, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(w)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	content["apiVersion"], content["kind"] = wf.GroupVersion.String(), "Workflow"
	data, err := json.Marshal(content)
	if err != nil {
		return nil, err
	}
	return built(resource.NewBuilder(getter).Unstructured().Stream(bytes.NewReader(data), "the workflow"))
}
