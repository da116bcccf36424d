package pods

import (
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// DefaultImage is the image of lockstep-exec that `lockstep up --real-nodes` loads.
const DefaultImage = "localhost/lockstep-exec:1"

// Options configures pods beyond their workflow.
type Options struct {
	// Image is the image that holds lockstep-exec. Default DefaultImage.
	Image           string
	ImagePullPolicy corev1.PullPolicy // "" means the cluster's default
	// ImageVolumes is true if the cluster's nodes can mount images as volumes.
	ImageVolumes bool
	// SchedulerName is for pods whose workflow names none. "" means the cluster's default.
	SchedulerName string
	// Repository stores artifacts without a location of their own. If it is nil, such artifacts are
	// an error.
	Repository *Repository
	// Evaluate evaluates expressions in the key format of the repository. If it is nil, expressions
	// that are not cheap are errors.
	Evaluate template.Run
	// Entrypoints are the commands of images, by image, for containers without a command. They are
	// needed only for containers that are wrapped.
	Entrypoints map[string]Entrypoint
	// Images are further such commands, which count before Entrypoints.
	Images map[string]Entrypoint
	// Looked are commands that registries have told, for images that neither map has.
	Looked map[string]Entrypoint
	// MainContainer has the defaults of main containers, Executor those of the containers that are
	// added for Lockstep. Both may be nil.
	MainContainer, Executor *corev1.Container
	// InstanceID is a label of all pods; "" means none.
	InstanceID string
}

// NoCommandError says that a container has no command, that its outputs are wanted, and that what
// its image runs is not known.
type NoCommandError struct {
	Container, Image string
	// Why says why the image's registry has not told it; "" if it was not asked.
	Why string
}

func (e *NoCommandError) Error() string {
	why := "is not known"
	if e.Why != "" {
		why += " (" + e.Why + ")"
	}
	return fmt.Sprintf("container %s has no command: what image %s runs %s, and its outputs are wanted; "+
		"set command, or give the image's entrypoint in the configuration: images in the ConfigMap of the workflow "+
		"controller, or the manager's --executor-entrypoints", e.Container, strconv.Quote(e.Image), why)
}

// entrypoint returns the command of an image, if it is known.
func (o *Options) entrypoint(image string) (Entrypoint, bool) {
	e, found := o.Images[image]
	if !found {
		e, found = o.Entrypoints[image]
	}
	if !found {
		e, found = o.Looked[image]
	}
	return e, found && len(e.Command)+len(e.Args) > 0
}

// Entrypoint is the command that an image runs.
type Entrypoint struct {
	Command []string `json:"entrypoint,omitempty"`
	Args    []string `json:"cmd,omitempty"`
}

// ParseEntrypoints parses a YAML map from image to entrypoint.
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
	// KeyFormat is the template of an artifact's key, to which "/" and the file name are added.
	// Variables: workflow.name, workflow.namespace, workflow.uid, workflow.creationTimestamp and
	// its parts, workflow.parameters, workflow.labels, pod.name, node.name. Default
	// {{workflow.name}}/{{pod.name}}.
	KeyFormat string
	// ArchiveLogs saves the logs of every pod, unless its workflow or template says otherwise.
	ArchiveLogs bool
}
