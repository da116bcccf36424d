package handover

import (
	"encoding/json"
	"fmt"
	"strings"

	"lockstep.dev/lockstep/internal/unpack"
)

// PlanEnv is the environment variable that holds a container's plan. The user's command does not see it.
const PlanEnv = "LOCKSTEP_PLAN"

// Where things are in a pod.
const (
	// Dir is a volume that the containers of a pod share, when they need one.
	Dir = "/var/run/argo"
	// StagedExec is where the init container puts the program.
	StagedExec = Dir + "/lockstep-exec"
	// ImageDir is where the program's image is mounted, on clusters that can mount images; ImageExec the program in it.
	ImageDir  = "/var/run/lockstep-image"
	ImageExec = ImageDir + "/lockstep-exec"
	// OwnExec and OwnIO are the programs in their own image.
	OwnExec = "/lockstep-exec"
	OwnIO   = "/lockstep-exec-io"
	// Script is where a script's source is.
	Script = "/argo/staging/script"
	// InputDir is where input artifacts are put before main starts.
	InputDir = "/argo/inputs/artifacts"
	// MainRoot is where the init container finds main's volumes.
	MainRoot = "/mainctrfs"
	// RepositoryDir is where a volume that is an artifact repository is mounted.
	RepositoryDir = "/argo/repository"
	// SecretDir is where secrets for artifacts are mounted, each in a directory of its name.
	SecretDir = "/argo/secret"
	// Staged is where main leaves artifacts that the wait container uploads.
	Staged = Dir + "/outputs"
	// ProgressFile is where a program may write N/M.
	ProgressFile = Dir + "/progress"
)

// MaxResult is how much of a command's output is kept as its result: the last so many bytes.
const MaxResult = 256 << 10

// MaxPlan bounds a plan's text in bytes: it is one environment string.
const MaxPlan = 120 << 10

// Plan is what lockstep-exec does around a container's command. The command itself is in its arguments.
type Plan struct {
	Container string `json:"container,omitempty"`
	// After are the containers that have to succeed first.
	After []string `json:"after,omitempty"`
	// Announce makes the container's end known to others by files in Dir.
	Announce bool `json:"announce,omitempty"`
	// Retries run the command again when it fails, RetryDelay apart (a Go duration).
	Retries    int    `json:"retries,omitempty"`
	RetryDelay string `json:"retryDelay,omitempty"`

	Result     bool        `json:"result,omitempty"` // keep what the command writes to stdout
	Parameters []Parameter `json:"parameters,omitempty"`
	Save       []Save      `json:"save,omitempty"`
	Logs       string      `json:"logs,omitempty"` // the file that gets all that the command writes

	// Progress is the file that the command writes its progress to.
	Progress string `json:"progress,omitempty"`
	// Message is the file of the termination message; "": the default.
	Message string `json:"message,omitempty"`
	// GraceSeconds is how long the command has after a signal to end, before it is killed; 0: the kubelet decides.
	GraceSeconds int `json:"graceSeconds,omitempty"`
	// MaxMessage is how large the termination message may be, in bytes.
	MaxMessage int `json:"maxMessage,omitempty"`
	// Task says how to make a WorkflowTaskResult.
	Task *Task `json:"task,omitempty"`
}

// Parameter is an output parameter read from a file.
type Parameter struct {
	Name    string  `json:"name"`
	Path    string  `json:"path"`
	Default *string `json:"default,omitempty"`
}

// Archive is how files are packed.
type Archive string

const (
	ArchiveTar  Archive = "" // tar and gzip
	ArchiveNone Archive = "none"
	ArchiveZip  Archive = "zip"
)

// Save is an output artifact: what is at Path is packed to the file or directory To.
type Save struct {
	Name     string  `json:"name"`
	Path     string  `json:"path"`
	To       string  `json:"to"`
	Archive  Archive `json:"archive,omitempty"`
	Level    *int32  `json:"level,omitempty"` // of gzip
	Optional bool    `json:"optional,omitempty"`
	// Location goes into the report as it is. A Save without one is not reported: somebody else does.
	Location json.RawMessage `json:"location,omitempty"`
}

// Task names a WorkflowTaskResult.
type Task struct {
	Name        string `json:"name"`
	Workflow    string `json:"workflow"`
	WorkflowUID string `json:"workflowUID"`
}

// Encode returns the plan as the value of an environment variable.
func (p *Plan) Encode() (string, error) { return encode(p) }

// packedPlan starts a plan that is compressed.
const packedPlan = "gzip:"

// encode returns a plan as text: JSON, or compressed if that is too long.
func encode(v any) (string, error) {
	data, err := json.Marshal(v)
	if err != nil || len(data) <= MaxPlan {
		return string(data), err
	}
	text, err := pack(data)
	if err == nil && len(text) > MaxPlan {
		err = fmt.Errorf("what the executor has to know takes %d bytes, more than the %d that a pod can carry", len(text), MaxPlan)
	}
	return packedPlan + text, err
}

// decode reads what encode made of a plan; name is of the environment variable that has it.
func decode[P any](name, text string) (*P, error) {
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

// DecodePlan reads the value of PlanEnv.
func DecodePlan(text string) (*Plan, error) { return decode[Plan](PlanEnv, text) }
