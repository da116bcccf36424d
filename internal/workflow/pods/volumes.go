package pods

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// ClaimName returns the name of the claim that a workflow's volumeClaimTemplate becomes.
func ClaimName(workflow, template string) string { return workflow + "-" + template }

// Claims returns the claims that must exist before a workflow's first pod.
func Claims(w *wf.Workflow, spec *wf.WorkflowSpec) []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for i := range spec.VolumeClaimTemplates {
		c := spec.VolumeClaimTemplates[i].DeepCopy()
		c.Name, c.Namespace = ClaimName(w.Name, c.Name), w.Namespace
		c.Status = corev1.PersistentVolumeClaimStatus{}
		if c.Labels == nil {
			c.Labels = map[string]string{}
		}
		c.Labels[wf.LabelWorkflow] = w.Name
		c.OwnerReferences = []metav1.OwnerReference{*OwnerReference(w)}
		claims = append(claims, c)
	}
	return claims
}

// volumes adds the template's volumes and the workflow's volumes that a container mounts. It
// returns an error if a container mounts a volume that neither has.
func (b *builder) volumes() error {
	p := &b.pod.Spec
	if len(b.files) > 0 {
		p.Volumes = append(p.Volumes, corev1.Volume{Name: filesVolume, VolumeSource: corev1.VolumeSource{
			DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: b.files},
		}})
	}
	for _, v := range b.t.Volumes {
		b.addVolume(v)
	}
	shared := map[string]corev1.Volume{}
	for _, v := range b.spec.VolumeClaimTemplates {
		shared[v.Name] = corev1.Volume{Name: v.Name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: ClaimName(b.workflow.Name, v.Name)},
		}}
	}
	for _, v := range b.spec.Volumes {
		shared[v.Name] = v
	}
	for _, c := range slices.Concat(p.InitContainers, p.Containers) {
		var names []string
		for _, m := range c.VolumeMounts {
			names = append(names, m.Name)
		}
		for _, d := range c.VolumeDevices {
			names = append(names, d.Name)
		}
		for _, name := range names {
			if v, found := shared[name]; found {
				b.addVolume(v)
			} else if !b.hasVolume(name) {
				return fmt.Errorf("container %s mounts volume '%s', which neither the template nor the workflow has", c.Name, name)
			}
		}
	}
	return nil
}
