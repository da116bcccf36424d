package realnodes

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
)

// NodesMax bounds the real nodes of one cluster: its processes hold some 400 MiB at rest, pages that
// they share counted for each.
const NodesMax = 16

// The pod network's addresses. They exist in namespaces of the cluster's own only, so that they are the same for all
// clusters and never collide with the machine's network.
const (
	// ClusterCIDR holds the nodes and their pods.
	ClusterCIDR = "10.244.0.0/16"
	// Gateway routes between nodes and serves the API and DNS to them.
	Gateway     = "10.244.0.1"
	NetworkBits = 24
	// APIPort is where nodes and pods reach the API server on Gateway.
	APIPort = 6443
	// KubeletPort and KubeletHealthPort are the same on each node.
	KubeletPort       = 10250
	KubeletHealthPort = 10248
	// ServiceIP is the API server's own service: the first address of the service range.
	ServiceIP     = "10.0.0.1"
	ClusterDomain = "cluster.local"
)

// PauseImage is the image of the containers that hold the pods' namespaces.
const PauseImage = "lockstep.dev/pause:1"

// Spec says what real nodes to run, and how.
type Spec struct {
	// Cluster is the cluster's name. Dir holds everything of its real nodes.
	Cluster string `json:"cluster"`
	Dir     string `json:"dir"`
	Count   int    `json:"count"`
	// APIServerPort and HealthPort are on the host's loopback.
	APIServerPort int `json:"apiServerPort"`
	HealthPort    int `json:"healthPort"`
	// Restart starts containerd, kubelets and kube-proxies again that end. Without it a node ends as a whole when one of
	// the first two does: it is powered off, and its Node object is deleted, as a cloud does.
	Restart bool `json:"restart"`
	// Agent starts Lockstep's agent on each node, up to its own flags; empty: none. The first element is a path on the host.
	Agent []string `json:"agent,omitempty"`
	Host  Host     `json:"host"`
	// Cgroup is the parent of all nodes' cgroups, from the root of each hierarchy.
	Cgroup string `json:"cgroup"`
}

// Host is what the machine offers, found by Check.
type Host struct {
	// CNIPlugins is the directory of the CNI plugins. PortMap says whether it and the machine allow host ports.
	CNIPlugins string `json:"cniPlugins"`
	PortMap    bool   `json:"portMap"`
	// Snapshotter is containerd's: overlayfs, or native where that does not work.
	Snapshotter string `json:"snapshotter"`
	// ServiceProxy is kube-proxy's mode; empty: services other than headless ones are not routed, because of
	// NoServiceProxy.
	ServiceProxy   string `json:"serviceProxy,omitempty"`
	NoServiceProxy string `json:"noServiceProxy,omitempty"`
	// CgroupV2 tells the unified hierarchy from v1's.
	CgroupV2 bool `json:"cgroupV2"`
	// KeepOOMScores: the process may not lower OOM scores (it lacks CAP_SYS_RESOURCE).
	KeepOOMScores bool `json:"keepOOMScores"`
	// CPUs and MemoryBytes are the machine's.
	CPUs        int   `json:"cpus"`
	MemoryBytes int64 `json:"memoryBytes"`
}

// NewSpec is the spec of count nodes of the named cluster, whose files are in dir.
func NewSpec(cluster, dir string, count int, host Host) Spec {
	return Spec{Cluster: cluster, Dir: dir, Count: count, Host: host, Cgroup: CgroupOf(cluster, dir)}
}

// CgroupOf names the parent cgroup of the real nodes in dir.
func CgroupOf(cluster, dir string) string {
	return fmt.Sprintf("/lockstep-%s-%x", cluster, sha256.Sum256([]byte(dir)))[:len("/lockstep--")+len(cluster)+8]
}

// Node is one real node. Its number is counted from 1.
type Node struct {
	Number int
	dir    string
	cgroup string
}

// Nodes lists the nodes of a spec.
func (s Spec) Nodes() []Node {
	nodes := make([]Node, s.Count)
	for i := range nodes {
		nodes[i] = s.Node(i + 1)
	}
	return nodes
}

// Node is the node with a number.
func (s Spec) Node(number int) Node {
	n := Node{Number: number}
	n.dir = filepath.Join(s.Dir, n.Name())
	n.cgroup = s.Cgroup + "/" + n.Name()
	return n
}

// Name is the node's name, in the API and as its host name.
func (n Node) Name() string { return fmt.Sprintf("real-%d", n.Number) }

// IP is the node's address in the pod network.
func (n Node) IP() net.IP { return net.IPv4(10, 244, 0, byte(10+n.Number)) }

// PodCIDR is where the node's pods have their addresses.
func (n Node) PodCIDR() string { return fmt.Sprintf("10.244.%d.0/24", n.Number) }

// Cgroup is the parent of the node's pods' cgroups.
func (n Node) Cgroup() string { return n.cgroup }

// Path names a file of the node, as the host sees it.
func (n Node) Path(elem ...string) string { return filepath.Join(append([]string{n.dir}, elem...)...) }

// Files of all nodes together.
func (s Spec) specFile() string { return filepath.Join(s.Dir, "spec.json") }

// APISocket leads to the API server. EgressSocket is an HTTP CONNECT proxy into the pod network.
func (s Spec) APISocket() string    { return filepath.Join(s.Dir, "api.sock") }
func (s Spec) EgressSocket() string { return filepath.Join(s.Dir, "egress.sock") }

// Kubeconfig is that of the network's own identity: it serves names and takes dead nodes off.
func (s Spec) Kubeconfig() string { return filepath.Join(s.Dir, "kubeconfig") }

// socketPathMax is what the kernel takes for the path of a socket, less its final zero.
const socketPathMax = 107

// Write records the spec for the processes that run it.
func (s Spec) Write() error {
	if n := len(s.EgressSocket()); n > socketPathMax {
		return fmt.Errorf("the path %s has %d bytes, and a socket's may have %d: use a shorter directory or name", s.EgressSocket(), n, socketPathMax)
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
