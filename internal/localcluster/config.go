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

// Component names a process of a local cluster.
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
	// RealNodes runs the nodes that have containers; see package realnodes.
	RealNodes Component = "real-nodes"
)

// Config says what a local cluster is made of. The zero value, with Dir and KubeBinary set, is etcd, kube-apiserver,
// kube-controller-manager and KWOK without nodes, etcd durable.
type Config struct {
	// Name is for people: contexts and messages. Default "default".
	Name string
	// Dir holds everything the cluster writes: credentials, data, logs. It is made if it does not exist, with mode 0700.
	Dir string
	// KubeBinary is the path of lockstep-kube; see FindKube.
	KubeBinary string
	// ManagerCommand starts the manager, up to its own flags: {"/path/lockstep", "manager"}; --kubeconfig is appended.
	// Empty: no manager.
	ManagerCommand []string

	WithoutControllerManager bool
	WithoutKwok              bool
	// WithScheduler adds the stock kube-scheduler.
	WithScheduler bool
	// NotDurable runs etcd without fsync: faster than any cluster that keeps its promises. For tests.
	NotDurable bool
	// Install, if set, puts Lockstep's own API (CRDs, policies, RBAC) into the cluster as soon as it answers.
	Install func(context.Context, *rest.Config) error
	// Await, if set, returns when what Install has put there is in force. Start waits for it beside everything else.
	Await func(context.Context, *rest.Config) error

	// Nodes are the simulated nodes that Start creates.
	Nodes Nodes
	// RealNodes is the number of nodes that run containers. Simulated nodes beside them have a taint that keeps away what
	// does not tolerate it. They need root, and what realnodes.Check looks for.
	RealNodes int
	// AgentCommand starts Lockstep's agent on each real node, up to its own flags: {"/path/lockstep", "agent"}. Empty: none.
	AgentCommand []string

	// ExtraArgs are appended to a component's flags; the last of equal flags wins.
	ExtraArgs map[Component][]string
	// Restart starts a component again that ends without being asked to. Otherwise its end is only reported.
	Restart bool
	// StartTimeout bounds Start. Default 2 minutes: a cold page cache on a busy machine.
	StartTimeout time.Duration
	// StopGrace is how long a component gets between SIGTERM and SIGKILL. Default 10 s.
	StopGrace time.Duration
	// OnEvent is told what happens, in order, from one goroutine at a time. It must not block.
	OnEvent func(Event)
	// Log gets the same for machines. Default: discarded.
	Log *slog.Logger
}

// Nodes describes simulated nodes, all alike.
type Nodes struct {
	Count int `json:"count"`
	// CPU and Memory are quantities of each node: default "32" and "256Gi". Pods is how many it takes: default 110.
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	Pods   int    `json:"pods"`
	// Labels are added to each node.
	Labels map[string]string `json:"labels,omitempty"`
	// Topology is a machine of internal/cputopology/machines: each node has its processors, CPUs and memory, and a
	// NodeTopology that says so, as its agent would report. It needs Config.Install. Empty: nobody knows their processors.
	Topology string `json:"topology,omitempty"`
	// Tainted nodes take only pods that tolerate NodeTypeLabel=NodeTypeSimulated:NoSchedule.
	Tainted bool `json:"tainted,omitempty"`
}

// Event is one thing that happened to a cluster.
type Event struct {
	Time      time.Time
	Component Component // empty: the cluster
	Kind      EventKind
	Message   string
	// LogTail is the end of the component's log, for EventDied.
	LogTail string
}

// EventKind tells events apart.
type EventKind string

// The kinds of events.
const (
	EventStarting EventKind = "Starting"
	EventReady    EventKind = "Ready"
	// EventDied: a component ended without being asked to.
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
		return fmt.Errorf("localcluster: real nodes need kube-controller-manager: pods' service accounts and certificates come from it")
	}
	if c.RealNodes > 0 {
		c.Nodes.Tainted = true
	}
	if c.Nodes.Topology != "" && c.Install == nil {
		return fmt.Errorf("localcluster: nodes with a topology need Lockstep's API to be installed")
	}
	return c.Nodes.Complete()
}

// Complete gives what is not set its default and refuses what cannot be.
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

// findProgram returns the path of a program of Lockstep's: what the environment variable says, else beside the running
// executable, else in bin/ of an enclosing source tree (for tests and go run).
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
	return "", fmt.Errorf("%s not found beside lockstep nor in bin/ of the source tree: run 'make bin/%s' there, or set %s to its path", name, name, variable)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}
