package pods

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/handover"
)

// maxAnnotations is what the API server allows all annotations of an object, in bytes, less some room for others.
const maxAnnotations = 250 << 10

// containers are the user's.
func (b *builder) containers() error {
	t := b.t
	switch {
	case t.Container != nil:
		b.addMain(*t.Container.DeepCopy())
	case t.Script != nil:
		c := *t.Script.Container.DeepCopy()
		c.Args = append(c.Args, handover.Script)
		mount, err := b.file("script", t.Script.Source, handover.Script, 0o755)
		if err != nil {
			return fmt.Errorf("script.source: %w", err)
		}
		c.VolumeMounts = append(c.VolumeMounts, mount)
		b.addMain(c)
	case t.ContainerSet != nil:
		for i := range t.ContainerSet.Containers {
			c := *t.ContainerSet.Containers[i].Container.DeepCopy()
			c.VolumeMounts = append(c.VolumeMounts, t.ContainerSet.VolumeMounts...)
			b.mains = append(b.mains, c)
		}
	default:
		return errors.New("the template has no container, script or containerSet")
	}
	return nil
}

// mirror adds the containers around main, with main's mounts for those that ask for them.
func (b *builder) mirror() error {
	for i := range b.t.InitContainers {
		b.inits = append(b.inits, b.around(&b.t.InitContainers[i]))
	}
	for i := range b.t.Sidecars {
		c := b.around(&b.t.Sidecars[i])
		c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		b.sidecars = append(b.sidecars, c)
	}
	return nil
}

func (b *builder) addMain(c corev1.Container) {
	c.Name = MainContainer
	b.mains = append(b.mains, c)
}

// around returns an init container or sidecar.
func (b *builder) around(u *wf.UserContainer) corev1.Container {
	c := *u.Container.DeepCopy()
	if u.MirrorVolumeMounts != nil && *u.MirrorVolumeMounts {
		c.VolumeMounts = append(c.VolumeMounts, b.mains[0].VolumeMounts...)
	}
	return c
}

const (
	// filesVolume holds what the kubelet makes from annotations.
	filesVolume = "lockstep-files"
	// annotationFile starts the names of the annotations.
	annotationFile = "lockstep.dev/file."
)

// file makes a file of a text, without a container that writes it, and returns its mount at a path. It is read-only.
func (b *builder) file(name, text, path string, mode int32) (corev1.VolumeMount, error) {
	size := len(text)
	for key, value := range b.pod.Annotations {
		size += len(key) + len(value)
	}
	if size > maxAnnotations {
		return corev1.VolumeMount{}, fmt.Errorf("%d bytes are more than a pod can carry; use an artifact or a ConfigMap", len(text))
	}
	b.pod.Annotations[annotationFile+name] = text
	b.files = append(b.files, corev1.DownwardAPIVolumeFile{
		Path: name, Mode: &mode,
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.annotations['%s%s']", annotationFile, name)},
	})
	return corev1.VolumeMount{Name: filesVolume, MountPath: path, SubPath: name, ReadOnly: true}, nil
}
