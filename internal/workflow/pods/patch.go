package pods

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"lockstep.dev/lockstep/internal/unpack/yamldoc"
)

// patch applies the podSpecPatch of the workflow, and then the template's, to the pod's spec.
func (b *builder) patch() error {
	for _, p := range []struct{ field, patch string }{{"spec.podSpecPatch", b.spec.PodSpecPatch}, {"podSpecPatch", b.t.PodSpecPatch}} {
		if p.patch == "" {
			continue
		}
		// templateDefaults may have copied the workflow's patch into the template.
		patched, err := patchSpec(&b.pod.Spec, p.patch)
		if err != nil {
			return fmt.Errorf("%s: %w", p.field, err)
		}
		b.pod.Spec = *patched
	}
	return nil
}

// withDefaults returns a container with the defaults of what it does not set. defaults may be nil.
func withDefaults(defaults *corev1.Container, c *corev1.Container) (*corev1.Container, error) {
	if defaults == nil {
		return c, nil
	}
	original, err := json.Marshal(defaults)
	if err != nil {
		return nil, err
	}
	patch, err := json.Marshal(c)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, patch, corev1.Container{})
	if err != nil {
		return nil, err
	}
	out := &corev1.Container{}
	return out, json.Unmarshal(merged, out)
}

func patchSpec(spec *corev1.PodSpec, patch string) (*corev1.PodSpec, error) {
	merge, err := yamldoc.ToJSON([]byte(patch), "the patch")
	if err != nil {
		return nil, err
	}
	original, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	merged, err := strategicpatch.StrategicMergePatch(original, merge, corev1.PodSpec{})
	if err != nil {
		return nil, err
	}
	out := &corev1.PodSpec{}
	return out, json.Unmarshal(merged, out)
}
