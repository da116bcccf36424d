package execapi

import (
	"encoding/json"
	"fmt"
	"strings"

	"lockstep.dev/lockstep/internal/unpack"
)

// PlanEnv is the environment variable that holds a container's Plan. The user's command does not
// see it.
const PlanEnv = "LOCKSTEP_PLAN"

// Paths in a pod.
const (
	// Dir is the mount path of the volume that the containers of a pod share if they need one.
	Dir = "/var/run/argo"
	// StagedExec is where the init container puts lockstep-exec.
	StagedExec = Dir + "/lockstep-exec"
	// ImageDir is where the program's image is mounted, on clusters that support image volumes;
	// ImageExec is the program in it.
	ImageDir  = "/var/run/lockstep-image"
	ImageExec = ImageDir + "/lockstep-exec"
	// OwnExec and OwnIO are the programs in their own image.
	OwnExec = "/lockstep-exec"
	OwnIO   = "/lockstep-exec-io"
	// Script is the file with a script's source.
	Script = "/argo/staging/script"
	// InputDir is the directory of the input artifacts before main starts.
	InputDir = "/argo/inputs/artifacts"
	// MainRoot is where the init container mounts main's volumes.
	MainRoot = "/mainctrfs"
	// RepositoryDir is where a volume that is an artifact repository is mounted.
	RepositoryDir = "/argo/repository"
	// SecretDir is where secrets for artifacts are mounted, each in a directory with its name.
	SecretDir = "/argo/secret"
	// ConfigDir is where ConfigMaps for artifacts are mounted.
	ConfigDir = "/argo/config"
	// Staged is where main leaves artifacts for the wait container to upload.
	Staged = Dir + "/outputs"
	// ProgressFile is the file that a program may write its progress to, as N/M.
	ProgressFile = Dir + "/progress"
)

// MaxResult is the maximum size of a result in bytes: the executor keeps the end of the command's
// output.
const MaxResult = 256 << 10

// MaxPlan bounds the size of an encoded plan in bytes. A plan is one environment string.
const MaxPlan = 120 << 10

// Plan lists what lockstep-exec does around a container's command. The command itself is in the
// program's arguments.
type Plan struct {
	Container string `json:"container,omitempty"`
	// After are the containers that have to succeed before this one starts.
	After []string `json:"after,omitempty"`
	// Announce makes the executor write files in Dir that show other containers how this one ended.
	Announce bool `json:"announce,omitempty"`
	// Retries is how often a failed command is run again; RetryDelay is the delay before each
	// retry, a Go duration.
	Retries    int    `json:"retries,omitempty"`
	RetryDelay string `json:"retryDelay,omitempty"`

	Result     bool        `json:"result,omitempty"` // keep the command's standard output
	Parameters []Parameter `json:"parameters,omitempty"`
	Save       []Save      `json:"save,omitempty"`
	Logs       string      `json:"logs,omitempty"` // file that receives all output of the command

	// Progress is the file that the command writes its progress to.
	Progress string `json:"progress,omitempty"`
	// Message is the file of the termination message; "" means the default.
	Message string `json:"message,omitempty"`
	// GraceSeconds is the delay after a signal before the command is killed; 0 leaves that to the
	// kubelet.
	GraceSeconds int `json:"graceSeconds,omitempty"`
	// MaxMessage is the maximum size of the termination message in bytes.
	MaxMessage int `json:"maxMessage,omitempty"`
	// Task identifies the WorkflowTaskResult to write.
	Task *Task `json:"task,omitempty"`
}

// Parameter is an output parameter read from a file.
type Parameter struct {
	Name    string  `json:"name"`
	Path    string  `json:"path"`
	Default *string `json:"default,omitempty"`
}

// Archive is the format in which files are packed.
type Archive string

const (
	ArchiveTar  Archive = "" // tar and gzip
	ArchiveNone Archive = "none"
	ArchiveZip  Archive = "zip"
)

// Save is an output artifact: the file or directory at Path is packed to To.
type Save struct {
	Name     string  `json:"name"`
	Path     string  `json:"path"`
	To       string  `json:"to"`
	Archive  Archive `json:"archive,omitempty"`
	Level    *int32  `json:"level,omitempty"` // gzip level
	Optional bool    `json:"optional,omitempty"`
	// Location is copied into the report. A Save without a Location is reported by the container
	// that uploads it.
	Location json.RawMessage `json:"location,omitempty"`
}

// Task identifies a WorkflowTaskResult.
type Task struct {
	Name        string `json:"name"`
	Workflow    string `json:"workflow"`
	WorkflowUID string `json:"workflowUID"`
}

// packedPlan is the prefix of a compressed plan.
const packedPlan = "gzip:"

// Encode returns a plan as the value of an environment variable: JSON, compressed if it is longer
// than MaxPlan.
func Encode(plan any) (string, error) {
	data, err := json.Marshal(plan)
	if err != nil || len(data) <= MaxPlan {
		return string(data), err
	}
	text, err := pack(data)
	if err == nil && len(text) > MaxPlan {
		err = fmt.Errorf("what the executor has to know takes %d bytes, more than the %d that a pod can carry", len(text),
			MaxPlan)
	}
	return packedPlan + text, err
}

// Decode decodes the result of Encode. name is the environment variable that holds it.
func Decode[P any](name, text string) (*P, error) {
	p, data, err := new(P), []byte(text), error(nil)
	if rest, found := strings.CutPrefix(text, packedPlan); found {
		data, err = unpack.Base64Gzip(rest, unpack.Plan)
	}
	if err == nil {
		err = json.Unmarshal(data, p)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}
