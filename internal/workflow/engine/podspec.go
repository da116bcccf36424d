package engine

import (
	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// podSettings are the fields of a workflow's spec that shape its pods and may contain the
// workflow's variables.
type podSettings struct {
	Volumes              []corev1.Volume                `json:"volumes,omitempty"`
	VolumeClaimTemplates []corev1.PersistentVolumeClaim `json:"volumeClaimTemplates,omitempty"`
	NodeSelector         map[string]string              `json:"nodeSelector,omitempty"`
	Affinity             *corev1.Affinity               `json:"affinity,omitempty"`
	Tolerations          []corev1.Toleration            `json:"tolerations,omitempty"`
	ImagePullSecrets     []corev1.LocalObjectReference  `json:"imagePullSecrets,omitempty"`
	HostAliases          []corev1.HostAlias             `json:"hostAliases,omitempty"`
	DNSConfig            *corev1.PodDNSConfig           `json:"dnsConfig,omitempty"`
	ServiceAccountName   string                         `json:"serviceAccountName,omitempty"`
	SchedulerName        string                         `json:"schedulerName,omitempty"`
	PodPriorityClassName string                         `json:"podPriorityClassName,omitempty"`
	Executor             *wf.ExecutorConfig             `json:"executor,omitempty"`
	Repository           *wf.ArtifactRepositoryRef      `json:"artifactRepositoryRef,omitempty"`
	ArtifactGC           *wf.WorkflowLevelArtifactGC    `json:"artifactGC,omitempty"`
}

// podShape are the fields that may also contain variables of the individual pod, such as pod.name,
// inputs and retries.
type podShape struct {
	PodMetadata  *wf.Metadata `json:"podMetadata,omitempty"`
	PodSpecPatch string       `json:"podSpecPatch,omitempty"`
}

// podPlace are the fields that may name an input that only some templates have; for example, a
// volume concerns only the templates that mount it.
type podPlace struct {
	Volumes      []corev1.Volume     `json:"volumes,omitempty"`
	NodeSelector map[string]string   `json:"nodeSelector,omitempty"`
	Affinity     *corev1.Affinity    `json:"affinity,omitempty"`
	Tolerations  []corev1.Toleration `json:"tolerations,omitempty"`
}

// podPrograms are the compiled podShape and podPlace of a spec.
type podPrograms struct{ shape, place *template.Program }

func compileForPods(s *wf.WorkflowSpec) (*podPrograms, error) {
	shape, err := template.Compile(&podShape{s.PodMetadata, s.PodSpecPatch})
	if err != nil {
		return nil, err
	}
	place, err := template.Compile(&podPlace{s.Volumes, s.NodeSelector, s.Affinity, s.Tolerations})
	return &podPrograms{shape, place}, err
}

// knownBefore are the namespaces of variables that must have a value before a workflow's pods are
// built.
var knownBefore = []string{"workflow.", "steps.", "tasks."}

func settingsOf(s *wf.WorkflowSpec) podSettings {
	return podSettings{
		s.Volumes, s.VolumeClaimTemplates, s.NodeSelector, s.Affinity, s.Tolerations, s.ImagePullSecrets, s.HostAliases,
		s.DNSConfig,
		s.ServiceAccountName, s.SchedulerName, s.PodPriorityClassName, s.Executor, s.ArtifactRepositoryRef, s.ArtifactGC,
	}
}

// resolveSpec resolves the workflow's variables in the settings that shape its pods.
func (r *Run) resolveSpec() error {
	s := r.spec
	if r.shape = r.config.Known.shape(s); r.shape != nil {
		return nil
	}
	settings := settingsOf(s)
	program, err := template.Compile(&settings)
	if err != nil {
		return err
	}
	if program.HasTags() {
		r.spec = r.spec.DeepCopy() // the spec is shared with other runs
		s, settings = r.spec, settingsOf(r.spec)
		if err := program.Apply(&settings, []template.Scope{r.globals}, knownBefore...); err != nil {
			return err
		}
		s.Volumes, s.VolumeClaimTemplates, s.NodeSelector, s.Affinity = settings.Volumes, settings.VolumeClaimTemplates,
			settings.NodeSelector, settings.Affinity
		s.Tolerations, s.ImagePullSecrets, s.HostAliases, s.DNSConfig = settings.Tolerations, settings.ImagePullSecrets,
			settings.HostAliases, settings.DNSConfig
		s.ServiceAccountName, s.SchedulerName, s.PodPriorityClassName = settings.ServiceAccountName, settings.SchedulerName,
			settings.PodPriorityClassName
		s.Executor, s.ArtifactRepositoryRef, s.ArtifactGC = settings.Executor, settings.Repository, settings.ArtifactGC
	}
	if r.shape, err = compileForPods(s); err == nil && !program.HasTags() {
		r.config.Known.plain(s, r.shape)
	}
	return err
}

// podSpec returns the workflow's spec with the variables of one pod resolved.
func (r *Run) podSpec(passes []template.Scope) (*wf.WorkflowSpec, error) {
	if !r.shape.shape.HasTags() && !r.shape.place.HasTags() {
		return r.spec, nil
	}
	own := *r.spec
	if r.shape.shape.HasTags() {
		shape := podShape{own.PodMetadata.DeepCopy(), own.PodSpecPatch}
		if err := r.shape.shape.Apply(&shape, passes, known...); err != nil {
			return nil, err
		}
		own.PodMetadata, own.PodSpecPatch = shape.PodMetadata, shape.PodSpecPatch
	}
	if r.shape.place.HasTags() {
		copied := own.DeepCopy()
		place := podPlace{copied.Volumes, copied.NodeSelector, copied.Affinity, copied.Tolerations}
		if err := r.shape.place.Apply(&place, passes, knownBefore...); err != nil {
			return nil, err
		}
		own.Volumes, own.NodeSelector, own.Affinity, own.Tolerations = place.Volumes, place.NodeSelector, place.Affinity,
			place.Tolerations
	}
	return &own, nil
}
