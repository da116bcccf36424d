package pods

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/execapi"
)

const (
	// collectedMax is the maximum number of artifacts that one pod deletes.
	collectedMax = 500
	// collectSeconds is the active deadline of a pod that deletes artifacts.
	collectSeconds = 1800
)

// Collection is a pod that deletes artifacts of a finished workflow. The pod's name is a hash of
// its work.
type Collection struct {
	Pod       *corev1.Pod
	Artifacts []Collected
}

// Collected is an artifact to delete.
type Collected struct {
	NodeID, Name string
	Location     wf.ArtifactLocation // as in the status
}

// CollectsArtifacts reports whether a workflow wants any of its artifacts deleted. spec is the spec
// that the workflow runs; stored are its stored templates.
func CollectsArtifacts(spec *wf.WorkflowSpec, stored map[string]wf.Template) bool {
	collected := func(s string) bool { return s != "" && s != wf.ArtifactGCNever }
	if spec.ArtifactGC != nil && collected(spec.ArtifactGC.Strategy) {
		return true
	}
	own := func(t *wf.Template) bool {
		return slices.ContainsFunc(t.Outputs.Artifacts, func(a wf.Artifact) bool { return a.ArtifactGC != nil && collected(a.ArtifactGC.Strategy) })
	}
	for i := range spec.Templates {
		if own(&spec.Templates[i]) {
			return true
		}
	}
	for _, t := range stored {
		if own(&t) {
			return true
		}
	}
	return false
}

// Collections returns the pods that delete the artifacts of a workflow's nodes whose strategy is
// one of due. There is one pod, unless artifacts name different settings for it, or there are more
// than collectedMax. options.Repository is the workflow's.
func Collections(w *wf.Workflow, nodes wf.Nodes, due []string, options Options) ([]Collection, error) {
	spec, err := engine.SettingsOf(w, options.Evaluate)
	if err != nil {
		return nil, err
	}
	common := wf.WorkflowLevelArtifactGC{}
	if spec.ArtifactGC != nil {
		common = *spec.ArtifactGC
	}
	groups := map[string]*collector{}
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		n := nodes[id]
		if n.Outputs == nil || !n.Type.HasPod() {
			continue // other nodes only pass on the artifacts of pods
		}
		for i := range n.Outputs.Artifacts {
			a := &n.Outputs.Artifacts[i]
			gc := common.ArtifactGC
			if own := a.ArtifactGC; own != nil {
				gc = mergedGC(&gc, own)
			}
			if a.Deleted || a.Raw != nil || !slices.Contains(due, gc.Strategy) {
				continue
			}
			alike := gc
			alike.Strategy = ""
			who, err := json.Marshal(alike)
			if err != nil {
				return nil, err
			}
			group := groups[string(who)]
			if group == nil {
				group = &collector{workflow: w, spec: spec, gc: gc, options: options}
				groups[string(who)] = group
			}
			group.list = append(group.list, Collected{NodeID: id, Name: a.Name, Location: a.ArtifactLocation})
		}
	}
	var all []Collection
	for _, who := range slices.Sorted(maps.Keys(groups)) {
		for list := range slices.Chunk(groups[who].list, collectedMax) {
			c, err := groups[who].build(list, common.PodSpecPatch)
			if err != nil {
				return nil, err
			}
			all = append(all, c)
		}
	}
	return all, nil
}

// mergedGC returns the workflow's settings with those of an artifact, which win.
func mergedGC(common, own *wf.ArtifactGC) wf.ArtifactGC {
	gc := wf.ArtifactGC{
		Strategy: cmp.Or(own.Strategy, common.Strategy), ServiceAccountName: cmp.Or(own.ServiceAccountName, common.ServiceAccountName),
		PodMetadata:  common.PodMetadata,
		Env:          overridden(common.Env, own.Env, func(e corev1.EnvVar) string { return e.Name }),
		Volumes:      overridden(common.Volumes, own.Volumes, func(v corev1.Volume) string { return v.Name }),
		VolumeMounts: overridden(common.VolumeMounts, own.VolumeMounts, func(m corev1.VolumeMount) string { return path.Clean(m.MountPath) }),
	}
	if m := own.PodMetadata; m != nil {
		gc.PodMetadata = &wf.Metadata{Labels: map[string]string{}, Annotations: map[string]string{}}
		if common.PodMetadata != nil {
			maps.Copy(gc.PodMetadata.Labels, common.PodMetadata.Labels)
			maps.Copy(gc.PodMetadata.Annotations, common.PodMetadata.Annotations)
		}
		maps.Copy(gc.PodMetadata.Labels, m.Labels)
		maps.Copy(gc.PodMetadata.Annotations, m.Annotations)
	}
	return gc
}

// overridden returns a list without the items whose keys another list has, and then that list.
func overridden[T any](list, by []T, key func(T) string) []T {
	kept := slices.DeleteFunc(slices.Clone(list), func(item T) bool {
		return slices.ContainsFunc(by, func(other T) bool { return key(other) == key(item) })
	})
	return append(kept, by...)
}

// collector builds the pods for artifacts that are deleted with the same settings.
type collector struct {
	workflow *wf.Workflow
	spec     *wf.WorkflowSpec
	gc       wf.ArtifactGC
	options  Options
	list     []Collected
}

func (g *collector) build(list []Collected, patch string) (Collection, error) {
	spec := &wf.WorkflowSpec{ // where the workflow's pods may run, and nothing about their content
		NodeSelector: g.spec.NodeSelector, Affinity: g.spec.Affinity, Tolerations: g.spec.Tolerations, SchedulerName: g.spec.SchedulerName,
		ServiceAccountName: g.spec.ServiceAccountName, SecurityContext: g.spec.SecurityContext, ImagePullSecrets: g.spec.ImagePullSecrets,
		PodPriorityClassName: g.spec.PodPriorityClassName, HostNetwork: g.spec.HostNetwork, DNSPolicy: g.spec.DNSPolicy, DNSConfig: g.spec.DNSConfig,
		HostAliases: g.spec.HostAliases, PodSpecPatch: patch, PodMetadata: g.gc.PodMetadata,
	}
	t := &wf.Template{ServiceAccountName: g.gc.ServiceAccountName, Volumes: g.gc.Volumes}
	b := &builder{workflow: g.workflow, spec: spec, t: t, create: engine.CreatePod{Template: t}, options: g.options}
	b.options.Image = cmp.Or(b.options.Image, DefaultImage)
	plan := &execapi.ArtifactPlan{MaxMessage: execapi.MaxMessage}
	carries := newCarrier()
	for _, a := range list {
		name := a.NodeID + "/" + a.Name
		location, err := b.input(&wf.Artifact{Name: a.Name, ArtifactLocation: a.Location})
		if err != nil {
			return Collection{}, fmt.Errorf("artifact '%s': %w", name, err)
		}
		d := execapi.Delete{Name: name}
		if d.At, err = carries.location(&location); err != nil {
			return Collection{}, fmt.Errorf("artifact '%s': %w", name, err)
		}
		if location.Volume != nil {
			d.Prune = ownDirectories(volumeKey(location.Volume), g.workflow.Name)
		}
		plan.Delete = append(plan.Delete, d)
	}
	b.metadata()
	delete(b.pod.Annotations, wf.AnnotationNodeID)
	delete(b.pod.Annotations, wf.AnnotationNodeName)
	b.pod.Labels[wf.LabelComponent] = wf.ComponentArtifactGC
	if err := b.settings(); err != nil {
		return Collection{}, err
	}
	main := corev1.Container{
		Name: MainContainer, Command: []string{execapi.OwnIO, "gc"}, Env: slices.Clone(g.gc.Env), VolumeMounts: slices.Clone(g.gc.VolumeMounts),
	}
	if err := b.carrier(&main, plan, carries); err != nil {
		return Collection{}, err
	}
	b.mains = []corev1.Container{main}
	b.pod.Spec.ActiveDeadlineSeconds = ptr.To[int64](collectSeconds)
	if err := b.assemble(); err != nil {
		return Collection{}, err
	}
	if err := b.patch(); err != nil {
		return Collection{}, fmt.Errorf("artifactGC.%w", err)
	}
	if err := b.volumes(); err != nil {
		return Collection{}, fmt.Errorf("artifactGC.volumeMounts: %w", err)
	}
	pod := b.pod
	prefix := g.workflow.Name
	if len(prefix) > 230 {
		prefix = prefix[:230]
	}
	text, err := execapi.Encode(plan)
	if err != nil {
		return Collection{}, err
	}
	pod.Name = prefix + "-artgc-" + wf.Hash(text+" of "+string(g.workflow.UID))
	pod.OwnerReferences[0].Controller = nil // the pod belongs to no node of the workflow
	if slices.Contains(g.workflow.Finalizers, metav1.FinalizerDeleteDependents) {
		pod.OwnerReferences = nil // with an owner the pod would be deleted before it could do anything
	}
	return Collection{Pod: pod, Artifacts: list}, nil
}

// ownDirectories returns how many directories around a key belong to the workflow alone: the
// directory with the workflow's name and the ones below it.
func ownDirectories(key, workflow string) int {
	parts := strings.Split(path.Dir(key), "/")
	if i := slices.Index(parts, workflow); i >= 0 {
		return len(parts) - i
	}
	return 0
}
