package realnodes

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// NodesMax bounds the real nodes of one cluster: the processes of a node use about 400 MiB at rest,
// with shared pages counted for each.
const NodesMax = 16

// Addresses of the pod network. They exist only in the cluster's own namespaces, so they can be the
// same for all clusters and never collide with the machine's network.
const (
	// ClusterCIDR contains the addresses of nodes and pods.
	ClusterCIDR = "10.244.0.0/16"
	// Gateway routes between nodes and serves the API and DNS to them.
	Gateway     = "10.244.0.1"
	NetworkBits = 24
	// APIPort is the port of the API server on Gateway.
	APIPort = 6443
	// KubeletPort and KubeletHealthPort are the same on each node.
	KubeletPort       = 10250
	KubeletHealthPort = 10248
	// ServiceIP is the cluster IP of the API server's service: the first address of the service
	// range.
	ServiceIP     = "10.0.0.1"
	ClusterDomain = "cluster.local"
)

// PauseImage is the image of the containers that hold the pods' namespaces.
const PauseImage = "lockstep.dev/pause:1"

// Spec describes the real nodes of a cluster.
type Spec struct {
	// Cluster is the cluster's name. Dir is the directory of its real nodes.
	Cluster string `json:"cluster"`
	Dir     string `json:"dir"`
	Count   int    `json:"count"`
	// APIServerPort and HealthPort are ports on the host's loopback address.
	APIServerPort int `json:"apiServerPort"`
	HealthPort    int `json:"healthPort"`
	// Restart restarts containerd and kubelets that end. Without it a whole node ends when its
	// containerd or kubelet ends, and its Node object is deleted, as a cloud provider does. Agents
	// and kube-proxies are always restarted.
	Restart bool `json:"restart"`
	// Agent starts Lockstep's agent on each node; flags are appended. Empty means no agent. The
	// first element is a path on the host.
	Agent []string `json:"agent,omitempty"`
	Host  Host     `json:"host"`
	// Cgroup is the parent of all nodes' cgroups, relative to the root of each hierarchy.
	Cgroup string `json:"cgroup"`
}

// Host describes the machine, as found by Check.
type Host struct {
	// CNIPlugins is the directory of the CNI plugins. PortMap is true if they and the machine
	// support host ports.
	CNIPlugins string `json:"cniPlugins"`
	PortMap    bool   `json:"portMap"`
	// Snapshotter is containerd's snapshotter: overlayfs, or native where overlayfs does not work.
	Snapshotter string `json:"snapshotter"`
	// ServiceProxy is kube-proxy's mode. If it is empty only headless services are routed;
	// NoServiceProxy is the reason.
	ServiceProxy   string `json:"serviceProxy,omitempty"`
	NoServiceProxy string `json:"noServiceProxy,omitempty"`
	// CgroupV2 is true for the unified hierarchy, false for v1.
	CgroupV2 bool `json:"cgroupV2"`
	// KeepOOMScores is true if the process must not lower OOM scores, because it lacks
	// CAP_SYS_RESOURCE.
	KeepOOMScores bool `json:"keepOOMScores"`
	// CPUs and MemoryBytes are the size of the machine.
	CPUs        int   `json:"cpus"`
	MemoryBytes int64 `json:"memoryBytes"`
}

// NewSpec returns the spec of count nodes of the named cluster, whose files are in dir.
func NewSpec(cluster, dir string, count int, host Host) Spec {
	return Spec{Cluster: cluster, Dir: dir, Count: count, Host: host, Cgroup: CgroupOf(cluster, dir)}
}

// CgroupOf returns the parent cgroup of the real nodes in dir.
func CgroupOf(cluster, dir string) string {
	return fmt.Sprintf("/lockstep-%s-%x", cluster, sha256.Sum256([]byte(dir)))[:len("/lockstep--")+len(cluster)+8]
}

// Node is one real node. Number begins at 1.
type Node struct {
	Number int
	dir    string
	cgroup string
}

// Nodes returns the nodes of a spec.
func (s Spec) Nodes() []Node {
	nodes := make([]Node, s.Count)
	for i := range nodes {
		nodes[i] = s.Node(i + 1)
	}
	return nodes
}

// Node returns the node with the given number.
func (s Spec) Node(number int) Node {
	n := Node{Number: number}
	n.dir = filepath.Join(s.Dir, n.Name())
	n.cgroup = s.Cgroup + "/" + n.Name()
	return n
}

// Name returns the node's name, in the API and as its host name.
func (n Node) Name() string { return fmt.Sprintf("real-%d", n.Number) }

// IP returns the node's address in the pod network.
func (n Node) IP() net.IP { return net.IPv4(10, 244, 0, byte(10+n.Number)) }

// PodCIDR returns the address range of the node's pods.
func (n Node) PodCIDR() string { return fmt.Sprintf("10.244.%d.0/24", n.Number) }

// Cgroup returns the node's cgroup, the parent of the cgroups of its pods.
func (n Node) Cgroup() string { return n.cgroup }

// Path returns the path of one of the node's files on the host.
func (n Node) Path(elem ...string) string { return filepath.Join(append([]string{n.dir}, elem...)...) }

// specFile returns the path of the file with the spec.
func (s Spec) specFile() string { return filepath.Join(s.Dir, "spec.json") }

// APISocket returns the path of the socket of the relay to the API server, and EgressSocket returns
// the path of the socket of an HTTP CONNECT proxy into the pod network.
func (s Spec) APISocket() string    { return filepath.Join(s.Dir, "api.sock") }
func (s Spec) EgressSocket() string { return filepath.Join(s.Dir, "egress.sock") }

// Kubeconfig returns the path of the kubeconfig of the network, which serves DNS and deletes dead
// nodes.
func (s Spec) Kubeconfig() string { return filepath.Join(s.Dir, "kubeconfig") }

// socketPathMax is the maximum length of a socket's path in bytes, without its final zero.
const socketPathMax = 107

// Write writes the spec to a file for the processes that run it.
func (s Spec) Write() error {
	if n := len(s.EgressSocket()); n > socketPathMax {
		return fmt.Errorf("the path %s has %d bytes, and a socket's may have %d: use a shorter directory or name",
			s.EgressSocket(), n, socketPathMax)
	}
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(s.specFile(), data, 0o600)
}

// Read returns the spec that was written to dir.
func Read(dir string) (Spec, error) {
	var s Spec
	data, err := os.ReadFile(Spec{Dir: dir}.specFile())
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s: %w", s.specFile(), err)
	}
	return s, nil
}
