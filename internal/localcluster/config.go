package localcluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

// Component is the name of a process of a local cluster.
type Component string

// The components, in the order in which they start.
const (
	Etcd              Component = "etcd"
	APIServer         Component = "kube-apiserver"
	ControllerManager Component = "kube-controller-manager"
	Scheduler         Component = "kube-scheduler"
	// Kwok simulates the nodes.
	Kwok    Component = "kwok"
	Manager Component = "manager"
	// RealNodes runs the nodes with real containers; see package realnodes.
	RealNodes Component = "real-nodes"
)

// Config configures a local cluster. The zero value, with Dir and KubeBinary set, means etcd,
// kube-apiserver, kube-controller-manager and KWOK without nodes, with a durable etcd.
type Config struct {
	// Name is used in contexts and messages. Default "default".
	Name string
	// Dir is the directory for all files of the cluster: credentials, data, logs. It is created
	// with mode 0700 if it does not exist.
	Dir string
	// KubeBinary is the path of lockstep-kube; see FindKube.
	KubeBinary string
	// ManagerCommand starts the manager, for example {"/path/lockstep", "manager"}; --kubeconfig
	// and other flags are appended. If it is empty there is no manager.
	ManagerCommand []string
	// Programs are further programs.
	Programs []Program

	WithoutControllerManager bool
	WithoutKwok              bool
	// WithScheduler adds the stock kube-scheduler.
	WithScheduler bool
	// NotDurable runs etcd without fsync, for tests. Writes are faster than in any real cluster,
	// and a crash of the machine may lose data.
	NotDurable bool
	// Install, if set, installs Lockstep's own API (CRDs, policies, RBAC) as soon as the API server
	// answers.
	Install func(context.Context, *rest.Config) error
	// Await, if set, waits until everything that Install created is in effect. Start runs it
	// concurrently with the start of the other components.
	Await func(context.Context, *rest.Config) error

	// Nodes are the simulated nodes that Start creates.
	Nodes Nodes
	// RealNodes is the number of nodes that run containers. If there are any, the simulated nodes
	// are tainted, so that pods need a toleration for them. Real nodes need root, and everything
	// that realnodes.Check checks.
	RealNodes int
	// AgentCommand starts Lockstep's agent on each real node, for example {"/path/lockstep",
	// "agent"}; flags are appended. If it is empty there is no agent.
	AgentCommand []string

	// PodGroups makes the API server serve Kubernetes' own PodGroups and Workloads, with all their
	// fields: an alpha API, which is off by default.
	PodGroups bool

	// ExtraArgs are appended to a component's flags; of equal flags the last one wins.
	ExtraArgs map[Component][]string
	// ServerGOGC is the API server's GOGC: larger values spend memory to save CPU time. 0 leaves it to the
	// environment.
	ServerGOGC int
	// Restart restarts a component that ends by itself. Otherwise its end is only reported.
	Restart bool
	// StartTimeout bounds Start. Default 2 minutes, for a cold page cache on a busy machine.
	StartTimeout time.Duration
	// StopGrace is the time between SIGTERM and SIGKILL. Default 10 s.
	StopGrace time.Duration
	// OnEvent is called with each event, in order, from one goroutine at a time. It must not block.
	OnEvent func(Event)
	// Log receives the same events. Default: discarded.
	Log *slog.Logger
}

// Nodes describes the simulated nodes, which are all equal.
type Nodes struct {
	Count int `json:"count"`
	// CPU and Memory are quantities per node, by default "32" and "256Gi". Pods is the maximum
	// number of pods per node, by default 110.
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	Pods   int    `json:"pods"`
	// Labels are added to each node.
	Labels map[string]string `json:"labels,omitempty"`
	// Topology is the name of a machine in internal/cputopology/machines. Each node then has the
	// processors, CPUs and memory of that machine, and a NodeTopology as an agent would report it.
	// It requires Config.Install. If it is empty there are no NodeTopologies.
	Topology string `json:"topology,omitempty"`
	// Tainted gives the nodes the taint NodeTypeLabel=NodeTypeSimulated:NoSchedule.
	Tainted bool `json:"tainted,omitempty"`
}

// Event is an event in the life of a cluster.
type Event struct {
	Time      time.Time
	Component Component // empty for the cluster itself
	Kind      EventKind
	Message   string
	// LogTail is the end of the component's log, for EventDied.
	LogTail string
}

// EventKind is the kind of an Event.
type EventKind string

// The kinds of events.
const (
	EventStarting EventKind = "Starting"
	EventReady    EventKind = "Ready"
	// EventDied means that a component ended by itself.
	EventDied     EventKind = "Died"
	EventStopped  EventKind = "Stopped"
	EventProgress EventKind = "Progress"
)

func (c *Config) defaultAndValidate() error {
	if c.Name == "" {
		c.Name = "default"
	}
	if c.Dir == "" {
		return fmt.Errorf("localcluster: Dir is not set")
	}
	abs, err := filepath.Abs(c.Dir)
	if err != nil {
		return fmt.Errorf("localcluster: Dir: %w", err)
	}
	c.Dir = abs
	if _, err := exec.LookPath(c.KubeBinary); err != nil {
		return fmt.Errorf("localcluster: KubeBinary: %w", err)
	}
	if c.StartTimeout == 0 {
		c.StartTimeout = 2 * time.Minute
	}
	if c.StopGrace == 0 {
		c.StopGrace = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Nodes.Count > 0 && c.WithoutKwok {
		return fmt.Errorf("localcluster: %d simulated nodes need KWOK", c.Nodes.Count)
	}
	if c.RealNodes < 0 || c.RealNodes > realnodes.NodesMax {
		return fmt.Errorf("localcluster: %d real nodes is not between 0 and %d", c.RealNodes, realnodes.NodesMax)
	}
	if len(c.AgentCommand) > 0 && c.RealNodes == 0 {
		return fmt.Errorf("localcluster: the agent needs real nodes")
	}
	if c.RealNodes > 0 && c.WithoutControllerManager {
		return fmt.Errorf("localcluster: real nodes need kube-controller-manager: pods' service accounts and certificates " +
			"come from it")
	}
	if c.RealNodes > 0 {
		c.Nodes.Tainted = true
	}
	if c.Nodes.Topology != "" && c.Install == nil {
		return fmt.Errorf("localcluster: nodes with a topology need Lockstep's API to be installed")
	}
	if err := c.validatePrograms(); err != nil {
		return err
	}
	return c.Nodes.Complete()
}

// Complete sets defaults and validates the fields.
func (n *Nodes) Complete() error {
	if n.Topology != "" {
		t, err := topologyOf(n.Topology)
		if err != nil {
			return fmt.Errorf("node topology: %w", err)
		}
		if n.CPU == "" {
			n.CPU = strconv.Itoa(t.Online().Len())
		}
		if n.Memory == "" {
			n.Memory = resource.NewQuantity(memoryOf(t), resource.BinarySI).String()
		}
	}
	if n.CPU == "" {
		n.CPU = "32"
	}
	if n.Memory == "" {
		n.Memory = "256Gi"
	}
	if n.Pods == 0 {
		n.Pods = 110
	}
	if n.Count < 0 || n.Count > MaxNodes {
		return fmt.Errorf("nodes: %d is not between 0 and %d", n.Count, MaxNodes)
	}
	if n.Pods < 0 || n.Pods > MaxPodsPerNode {
		return fmt.Errorf("node pods: %d is not between 1 and %d", n.Pods, MaxPodsPerNode)
	}
	for what, s := range map[string]string{"node cpu": n.CPU, "node memory": n.Memory} {
		q, err := resource.ParseQuantity(s)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", what, s, err)
		}
		if q.Sign() <= 0 {
			return fmt.Errorf("%s: %q is not positive", what, s)
		}
	}
	return nil
}

// Bounds of what one machine can simulate.
const (
	MaxNodes       = 20_000
	MaxPodsPerNode = 10_000
)

// FindKube returns the path of lockstep-kube; see findProgram.
func FindKube() (string, error) { return findProgram("lockstep-kube", "LOCKSTEP_KUBE") }

// findProgram returns the path of one of Lockstep's programs: the value of the environment
// variable, else next to the running executable, else in bin/ of an enclosing source tree (for
// tests and go run).
func findProgram(name, variable string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		if _, err := exec.LookPath(path); err != nil {
			return "", fmt.Errorf("%s: %w", variable, err)
		}
		return path, nil
	}
	if exe, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(exe), name); isFile(path) {
			return path, nil
		}
	}
	if dir, err := os.Getwd(); err == nil {
		for ; ; dir = filepath.Dir(dir) {
			if isFile(filepath.Join(dir, "go.mod")) {
				if path := filepath.Join(dir, "bin", name); isFile(path) {
					return path, nil
				}
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf(
		"%s not found beside lockstep nor in bin/ of the source tree: run 'make bin/%s' there, or set %s to its path", name,
		name, variable)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
