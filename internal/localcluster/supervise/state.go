package supervise

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"time"

	"lockstep.dev/lockstep/internal/localcluster"
)

// Phase is the phase of a cluster's life.
type Phase string

// The phases of a cluster.
const (
	PhaseStarting Phase = "Starting"
	PhaseReady    Phase = "Ready"
	// PhaseDegraded means that the supervisor runs but a component does not.
	PhaseDegraded Phase = "Degraded"
	PhaseStopping Phase = "Stopping"
	// PhaseFailed means that the cluster did not start, or that its supervisor was killed.
	PhaseFailed Phase = "Failed"
)

// State is the state of a cluster as its supervisor records it.
type State struct {
	Name      string    `json:"name"`
	Phase     Phase     `json:"phase"`
	CreatedAt time.Time `json:"createdAt"`
	// Durable is false if etcd runs without fsync.
	Durable bool `json:"durable"`
	// Nodes describes the simulated nodes.
	Nodes localcluster.Nodes `json:"nodes"`
	// RealNodes is the number of nodes that run containers.
	RealNodes int    `json:"realNodes,omitempty"`
	Server    string `json:"server,omitempty"`
	// Dir is the directory of all of the cluster's files.
	Dir string `json:"dir"`
	// Kubeconfig is the path of the administrator's kubeconfig, and AuditLog is the path of the API
	// server's audit log.
	Kubeconfig string `json:"kubeconfig"`
	AuditLog   string `json:"auditLog"`
	// Copies are the kubeconfig files that `up` wrote elsewhere; Merged is the kubeconfig into
	// which it merged a context.
	Copies []string `json:"copies,omitempty"`
	Merged string   `json:"merged,omitempty"`

	Supervisor      int                            `json:"supervisorPid"`
	SupervisorTicks localcluster.StartTicks        `json:"supervisorStartTicks"`
	Components      []localcluster.ComponentStatus `json:"components"`
	// Deaths are the latest unexpected ends of components, at most deathsKept.
	Deaths []Death `json:"deaths,omitempty"`
}

// Death is an unexpected end of a component.
type Death struct {
	Time      time.Time              `json:"time"`
	Component localcluster.Component `json:"component"`
	Reason    string                 `json:"reason"`
	LogTail   string                 `json:"logTail,omitempty"`
}

// deathsKept bounds State.Deaths.
const deathsKept = 20

// nameFormat allows names that are suitable as a path element and as part of a kubeconfig context.
var nameFormat = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`)

// ValidName returns an error if name is not a valid name of a cluster.
func ValidName(name string) error {
	if !nameFormat.MatchString(name) {
		return fmt.Errorf("%q: a name has 1 to 40 lower-case letters, digits and dashes, and begins and ends with a "+
			"letter or digit", name)
	}
	return nil
}

// root returns the directory of all clusters, below localcluster.StateDir.
func root() (string, error) {
	dir, err := localcluster.StateDir()
	return filepath.Join(dir, "clusters"), err
}

// stateDir returns the paths of a cluster's files, which are all in dir.
type stateDir struct{ dir string }

func stateDirOf(name string) (stateDir, error) {
	r, err := root()
	if err != nil {
		return stateDir{}, err
	}
	return stateDir{filepath.Join(r, name)}, nil
}

func (p stateDir) state() string { return filepath.Join(p.dir, "state.json") }
func (p stateDir) spec() string  { return filepath.Join(p.dir, "spec.json") }
func (p stateDir) log() string   { return filepath.Join(p.dir, "supervisor.log") }

// lock returns the path of the lock file. It is next to the directory, because Down removes the
// directory while it holds the lock.
func (p stateDir) lock() string { return p.dir + ".lock" }

// ErrNoCluster is returned if there is no cluster of that name.
var ErrNoCluster = errors.New("no such local cluster")

func (p stateDir) read() (*State, error) {
	data, err := os.ReadFile(p.state())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", filepath.Base(p.dir), ErrNoCluster)
	}
	if err != nil {
		return nil, err
	}
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", p.state(), err)
	}
	return &s, nil
}

// writeFile replaces the file at path with v as JSON, with mode 0600. The replacement is atomic, so
// that a reader never sees a part of the file.
func writeFile(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// Names returns the names of this user's clusters, sorted.
func Names() ([]string, error) {
	r, err := root()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(r)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && ValidName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}
