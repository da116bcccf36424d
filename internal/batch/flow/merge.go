package flow

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation"
	kjson "sigs.k8s.io/json"

	batch "lockstep.dev/lockstep/api/batch/v1alpha1"
	api "lockstep.dev/lockstep/api/flow/v1alpha1"
)

// jobOf returns the Job of entry i of a JobFlow. An error begins with the path of the field.
func jobOf(f *api.JobFlow, i int, template *api.JobTemplate) (*batch.Job, error) {
	entry := &f.Spec.Flows[i]
	spec := template.Spec.DeepCopy()
	if entry.Patch != nil {
		var err error
		if spec, err = merge(spec, entry.Patch.JobSpec.Raw); err != nil {
			return nil, fmt.Errorf("spec.flows[%d].patch.jobSpec: %w", i, err)
		}
	}
	j := &batch.Job{
		TypeMeta: metav1.TypeMeta{APIVersion: batch.GroupVersion.String(), Kind: "Job"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace, Name: jobName(f.Name, entry.Name), Labels: map[string]string{},
			Annotations: map[string]string{
				api.CreatedByJobFlowKey:     f.Namespace + "." + f.Name,
				api.CreatedByJobTemplateKey: f.Namespace + "." + entry.Name,
			},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(f, api.GroupVersion.WithKind(kind))},
		},
		Spec: *spec,
	}
	maps.Copy(j.Labels, j.Annotations)
	maps.DeleteFunc(j.Labels, func(_, value string) bool { return len(validation.IsValidLabelValue(value)) > 0 })
	return j, nil
}

// merge returns the spec after a strategic merge patch. It changes the spec that it is given.
func merge(spec *batch.JobSpec, patch []byte) (*batch.JobSpec, error) {
	unknown, err := kjson.UnmarshalStrict(patch, &batch.JobSpec{})
	if err != nil {
		return nil, err
	}
	for _, u := range unknown {
		if !strings.Contains(u.Error(), "$") { // perhaps a directive, such as $patch
			return nil, u
		}
	}
	named := &batch.Job{Spec: *spec}
	for i := range spec.Tasks {
		spec.Tasks[i].Name = named.TaskName(i) // tasks are merged by name
	}
	before, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	after, err := strategicpatch.StrategicMergePatch(before, patch, batch.JobSpec{})
	if err != nil {
		return nil, err
	}
	merged := &batch.JobSpec{}
	if unknown, err = kjson.UnmarshalStrict(after, merged); err != nil {
		return nil, err
	}
	if len(unknown) > 0 { // the merge has carried out the directives
		return nil, unknown[0]
	}
	return merged, nil
}
