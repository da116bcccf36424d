package pods

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

// maxAnnotations is the maximum size of a pod's annotations in bytes, a little below the API
// server's limit.
const maxAnnotations = 250 << 10

// containers adds the user's main containers, or one that runs lockstep-exec-io for a resource or
// HTTP template.
func (b *builder) containers() error {
	t := b.t
	switch {
	case t.Container != nil:
		b.addMain(*t.Container.DeepCopy())
	case t.Script != nil:
		c := *t.Script.Container.DeepCopy()
		c.Args = append(c.Args, execapi.Script)
		mount, err := b.file("script", t.Script.Source, execapi.Script, 0o755)
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
	case t.Resource != nil:
		return b.resource()
	case t.HTTP != nil:
		return b.request()
	default:
		return errors.New("the template has no container, script, containerSet, resource or http")
	}
	for i := range b.mains {
		c, err := withDefaults(b.options.MainContainer, &b.mains[i])
		if err != nil {
			return fmt.Errorf("the defaults of main containers: %w", err)
		}
		b.mains[i] = *c
	}
	return nil
}

// resource adds a main container from our image that acts on objects of the cluster.
func (b *builder) resource() error {
	r := b.t.Resource
	plan := execapi.ResourcePlan{
		Action: r.Action, MergeStrategy: r.MergeStrategy, Manifest: r.Manifest, Flags: r.Flags, Success: r.SuccessCondition, Failure: r.FailureCondition,
		MaxMessage: b.maxMessage(1), Task: b.task(),
	}
	c := b.own(corev1.Container{Name: MainContainer, Command: []string{execapi.OwnIO, "resource"}})
	if r.ManifestFrom != nil && r.ManifestFrom.Artifact != nil {
		a := *r.ManifestFrom.Artifact
		a.Name, a.Path = manifestArtifact, path.Join(execapi.InputDir, manifestArtifact)
		in := wf.Inputs{Artifacts: []wf.Artifact{a}}
		if b.create.Inputs != nil {
			for _, input := range b.create.Inputs.Artifacts {
				if input.Name == r.ManifestFrom.Artifact.Name && a.ArtifactLocation == (wf.ArtifactLocation{}) {
					in.Artifacts[0].ArtifactLocation, in.Artifacts[0].Archive = input.ArtifactLocation, input.Archive
				} else {
					in.Artifacts = append(in.Artifacts, input)
				}
			}
		}
		b.create.Inputs, plan.ManifestFile = &in, a.Path
	}
	if r.SetOwnerReference {
		owner, err := json.Marshal(metav1.OwnerReference{APIVersion: wf.GroupVersion.String(), Kind: "Workflow", Name: b.workflow.Name, UID: b.workflow.UID})
		if err != nil {
			return err
		}
		plan.Owner = owner
	}
	if out := b.create.Outputs; out != nil {
		for _, p := range out.Parameters {
			if p.ValueFrom == nil || p.ValueFrom.JSONPath == "" && p.ValueFrom.JQFilter == "" {
				continue
			}
			f := execapi.Field{Name: p.Name, JSONPath: p.ValueFrom.JSONPath, JQ: p.ValueFrom.JQFilter}
			if d := p.ValueFrom.Default; d != nil {
				f.Default = ptr.To(string(*d))
			}
			plan.Parameters = append(plan.Parameters, f)
		}
	}
	text, err := execapi.Encode(plan)
	if err != nil {
		return fmt.Errorf("resource.manifest: %w", err)
	}
	c.Env = []corev1.EnvVar{{Name: execapi.ResourcePlanEnv, Value: text}}
	b.mains = append(b.mains, c)
	return nil
}

// request adds a main container from our image that sends an HTTP request.
func (b *builder) request() error {
	h := b.t.HTTP
	secrets := newCarrier()
	plan := execapi.RequestPlan{
		Method: h.Method, URL: h.URL, Headers: secrets.headers(h.Headers), Body: []byte(h.Body), NoTLS: h.InsecureSkipVerify,
		Success: h.SuccessCondition, Result: b.create.IncludeResult, MaxMessage: b.maxMessage(1), Task: b.task(),
	}
	if h.BodyFrom != nil {
		plan.Body = h.BodyFrom.Bytes
	}
	if h.TimeoutSeconds != nil {
		plan.TimeoutSeconds = *h.TimeoutSeconds
	}
	text, err := execapi.Encode(plan)
	if err != nil {
		return fmt.Errorf("http: %w", err)
	}
	c := b.own(corev1.Container{Name: MainContainer, Command: []string{execapi.OwnIO, "http"}, VolumeMounts: secrets.mounts})
	c.Env = []corev1.EnvVar{{Name: execapi.RequestPlanEnv, Value: text}}
	for _, v := range secrets.volumes {
		b.addVolume(v)
	}
	b.mains = append(b.mains, c)
	return nil
}

// ours reports whether main runs lockstep-exec-io instead of a user's command.
func (b *builder) ours() bool { return b.t.Resource != nil || b.t.HTTP != nil }

// manifestArtifact is the name of the artifact that holds the manifest of a resource template.
const manifestArtifact = "manifest"

// mirror adds the template's init containers and sidecars, with main's mounts if they ask for them.
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

// around returns the container for an init container or sidecar of the template.
func (b *builder) around(u *wf.UserContainer) corev1.Container {
	c := *u.Container.DeepCopy()
	if ptr.Deref(u.MirrorVolumeMounts, false) {
		c.VolumeMounts = append(c.VolumeMounts, b.mains[0].VolumeMounts...)
	}
	return c
}

// filesVolume is the volume of files that the kubelet makes from annotations.
const filesVolume = "lockstep-files"

// file adds a read-only file with the given text, without a container that writes it: the kubelet
// makes it from an annotation. file returns the mount of the file at path.
func (b *builder) file(name, text, path string, mode int32) (corev1.VolumeMount, error) {
	size := len(text)
	for key, value := range b.pod.Annotations {
		size += len(key) + len(value)
	}
	if size > maxAnnotations {
		return corev1.VolumeMount{}, fmt.Errorf("%d bytes are more than a pod can carry; use an artifact or a ConfigMap", len(text))
	}
	b.pod.Annotations[wf.AnnotationFile+name] = text
	b.files = append(b.files, corev1.DownwardAPIVolumeFile{
		Path: name, Mode: &mode,
		FieldRef: &corev1.ObjectFieldSelector{FieldPath: fmt.Sprintf("metadata.annotations['%s%s']", wf.AnnotationFile, name)},
	})
	return corev1.VolumeMount{Name: filesVolume, MountPath: path, SubPath: name, ReadOnly: true}, nil
}
