package pods

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// DefaultImage is the image of lockstep-exec that `lockstep up --real-nodes` loads.
const DefaultImage = "localhost/lockstep-exec:1"

// Options are what pods depend on beside their workflow.
type Options struct {
	// Image holds lockstep-exec. "": DefaultImage.
	Image           string
	ImagePullPolicy corev1.PullPolicy // "": the cluster's default
	// ImageVolumes says that the cluster's nodes can mount images as volumes.
	ImageVolumes bool
	// SchedulerName is of pods whose workflow names none. "": the cluster's default.
	SchedulerName string
	// Repository is where artifacts without a location of their own go. nil: nowhere, they are an error.
	Repository *Repository
	// Evaluate evaluates expressions in the key format of the repository; nil: those that are not cheap are errors.
	Evaluate template.Run
	// Entrypoints are what images run when a container has no command. Needed only for containers that are wrapped.
	Entrypoints map[string]Entrypoint
}

// Entrypoint is what an image runs.
type Entrypoint struct {
	Command []string `json:"entrypoint,omitempty"`
	Args    []string `json:"cmd,omitempty"`
}

// ParseEntrypoints reads what images run from YAML, by image.
func ParseEntrypoints(data []byte) (map[string]Entrypoint, error) {
	var out map[string]Entrypoint
	if err := yaml.UnmarshalStrict(data, &out); err != nil {
		return nil, err
	}
	for image, e := range out {
		if len(e.Command)+len(e.Args) == 0 {
			return nil, fmt.Errorf("%s: neither entrypoint nor cmd", image)
		}
	}
	return out, nil
}

// Repository is an artifact repository.
type Repository struct {
	// Location is the store, without a key.
	Location wf.ArtifactLocation
	// KeyFormat makes the key of an artifact, before "/" and its file name. Variables: workflow.name, workflow.namespace,
	// workflow.uid, workflow.creationTimestamp and its parts, workflow.parameters, workflow.labels, pod.name, node.name.
	// "": {{workflow.name}}/{{pod.name}}.
	KeyFormat string
	// ArchiveLogs keeps the logs of every pod, unless its workflow or template says otherwise.
	ArchiveLogs bool
}
