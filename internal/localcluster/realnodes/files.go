package realnodes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"
)

// Paths of a node's own files in its mount namespace. The directory of the node on the host is
// mounted on InNode; its parts are also mounted where the programs expect them.
const (
	InNode           = "/run/lockstep"
	ContainerdSocket = "/run/containerd/containerd.sock"
)

// Credentials are the credentials of nodes. CA is the cluster's authority; Proxy and Network are
// tokens.
type Credentials struct {
	CA             []byte
	Proxy, Network string
	// IssueNode writes a certificate and its key for a node, valid for client and server use, to
	// PATH.crt and PATH.key.
	IssueNode func(n Node, path string) error
	// IssueAgent does the same as IssueNode for the node's agent, for client use only.
	IssueAgent func(n Node, path string) error
}

// Names of a node's files in its directory.
const (
	fileCA             = "ca.crt"
	fileCert           = "node.crt"
	fileKey            = "node.key"
	fileKubeconfig     = "kubelet.kubeconfig"
	fileKubelet        = "kubelet.yaml"
	fileProxy          = "kube-proxy.yaml"
	fileProxyConfig    = "kube-proxy.kubeconfig"
	fileAgentCert      = "agent.crt"
	fileAgentKey       = "agent.key"
	fileAgentConfig    = "agent.kubeconfig"
	fileContainerd     = "containerd.toml"
	fileCNI            = "cni/10-lockstep.conflist"
	fileResolv         = "resolv.conf"
	filePauseImage     = "pause.tar"
	heartbeat          = 5 * time.Second
	leaseSeconds       = 20
	podsPerNode        = 110
	containerdTemplate = `# Of node %[1]s, and none of the system's containerd.
version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
# The first makes a directory outside its root.
disabled_plugins = ["io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.aufs"]

[grpc]
  address = "` + ContainerdSocket + `"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "` + PauseImage + `"
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  restrict_oom_score_adj = %[2]t
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = %[3]q
    conf_dir = "` + InNode + `/cni"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = %[4]q
    default_runtime_name = "runc"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false
`
)

// Prepare writes the files of all nodes.
func (s Spec) Prepare(c Credentials) error {
	if err := os.MkdirAll(s.Dir, 0o700); err != nil {
		return err
	}
	if err := s.Write(); err != nil {
		return err
	}
	if err := s.writeKubeconfig(s.Kubeconfig(), c.CA, clientcmdapi.AuthInfo{Token: c.Network}); err != nil {
		return err
	}
	for _, n := range s.Nodes() {
		if err := s.prepareNode(n, c); err != nil {
			return fmt.Errorf("node %s: %w", n.Name(), err)
		}
	}
	return nil
}

func (s Spec) prepareNode(n Node, c Credentials) error {
	for _, dir := range []string{"cni", "ipam", "logs", "run", "containerd", "kubelet", "pod-logs"} {
		if err := os.MkdirAll(n.Path(dir), 0o700); err != nil {
			return err
		}
	}
	if err := c.IssueNode(n, strings.TrimSuffix(n.Path(fileCert), ".crt")); err != nil {
		return err
	}
	if err := s.writeKubeconfig(n.Path(fileKubeconfig), c.CA, clientcmdapi.AuthInfo{
		ClientCertificate: InNode + "/" + fileCert, ClientKey: InNode + "/" + fileKey,
	}); err != nil {
		return err
	}
	if err := s.writeKubeconfig(n.Path(fileProxyConfig), c.CA, clientcmdapi.AuthInfo{Token: c.Proxy}); err != nil {
		return err
	}
	if len(s.Agent) > 0 {
		if err := c.IssueAgent(n, strings.TrimSuffix(n.Path(fileAgentCert), ".crt")); err != nil {
			return err
		}
		if err := s.writeKubeconfig(n.Path(fileAgentConfig), c.CA, clientcmdapi.AuthInfo{
			ClientCertificate: InNode + "/" + fileAgentCert, ClientKey: InNode + "/" + fileAgentKey,
		}); err != nil {
			return err
		}
	}
	for name, content := range map[string]any{fileKubelet: s.kubeletConfig(n), fileProxy: s.proxyConfig(n),
		fileCNI: s.cniConfig(n)} {
		data, err := yaml.Marshal(content)
		if strings.HasSuffix(name, ".conflist") && err == nil {
			data, err = yaml.YAMLToJSON(data)
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(n.Path(name), data, 0o600); err != nil {
			return err
		}
	}
	for name, content := range map[string]string{
		fileCA: string(c.CA),
		fileContainerd: fmt.Sprintf(containerdTemplate, n.Name(), s.Host.KeepOOMScores, s.Host.CNIPlugins,
			s.Host.Snapshotter),
		fileResolv: "nameserver " + Gateway + "\n",
	} {
		// Pods read resolv.conf as any user.
		if err := os.WriteFile(n.Path(name), []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// writeKubeconfig writes a kubeconfig for a client in the pod network, where the API server has a
// different address than on the host.
func (s Spec) writeKubeconfig(path string, ca []byte, user clientcmdapi.AuthInfo) error {
	const name = "lockstep"
	kc := clientcmdapi.NewConfig()
	kc.Clusters[name] = &clientcmdapi.Cluster{
		Server: fmt.Sprintf("https://%s:%d", Gateway, APIPort), TLSServerName: "kubernetes", CertificateAuthorityData: ca,
	}
	kc.AuthInfos[name] = &user
	kc.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	kc.CurrentContext = name
	data, err := clientcmd.Write(*kc)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}

// object is the content of a configuration file.
type object = map[string]any

// kubeletConfig returns the kubelet's configuration as plain YAML values, because its Go types are
// in k8s.io/kubelet, which nothing else here needs.
func (s Spec) kubeletConfig(n Node) object {
	config := object{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"address": n.IP().String(), "port": KubeletPort,
		"healthzBindAddress": n.IP().String(), "healthzPort": KubeletHealthPort,
		"authentication": object{
			"anonymous": object{"enabled": false}, "webhook": object{"enabled": true},
			"x509": object{"clientCAFile": InNode + "/" + fileCA},
		},
		"authorization":            object{"mode": "Webhook"},
		"tlsCertFile":              InNode + "/" + fileCert,
		"tlsPrivateKeyFile":        InNode + "/" + fileKey,
		"containerRuntimeEndpoint": "unix://" + ContainerdSocket,
		// systemd's driver would pass systemd process IDs of the node's PID namespace. cgroupfs
		// works next to systemd: these cgroups are a separate tree, which systemd does not touch.
		"cgroupDriver": "cgroupfs", "cgroupRoot": n.Cgroup(), "failCgroupV1": false,
		"clusterDNS": []string{Gateway}, "clusterDomain": ClusterDomain, "resolvConf": InNode + "/" + fileResolv,
		// kube-proxy creates the chains that it needs; the kubelet's own chains would require
		// iptables.
		"makeIPTablesUtilChains": false,
		"failSwapOn":             false,
		"maxPods":                podsPerNode,
		// A dead node is noticed when its lease expires; see the controller manager's grace period.
		"nodeStatusUpdateFrequency": heartbeat.String(), "nodeLeaseDurationSeconds": leaseSeconds,
		"syncFrequency": "10s",
		// The kubelet must not delete images: they were imported and cannot be pulled again.
		"imageGCHighThresholdPercent": 100,
		// The thresholds are low, because other programs use the machine's disk and memory too.
		"evictionHard": object{"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%",
			"nodefs.inodesFree": "1%", "imagefs.inodesFree": "1%"},
	}
	if s.Host.KeepOOMScores {
		config["oomScoreAdj"] = 0
	}
	if s.Count > 1 {
		// Each node gets its share of the machine.
		config["systemReserved"] = object{
			"cpu":    fmt.Sprintf("%dm", s.Host.CPUs*1000*(s.Count-1)/s.Count),
			"memory": fmt.Sprint(s.Host.MemoryBytes / int64(s.Count) * int64(s.Count-1)),
		}
	}
	return config
}

func (s Spec) proxyConfig(n Node) object {
	config := object{
		"apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
		"mode": s.Host.ServiceProxy, "hostnameOverride": n.Name(), "bindAddress": n.IP().String(),
		"clusterCIDR": ClusterCIDR, "detectLocalMode": "ClusterCIDR",
		"clientConnection":   object{"kubeconfig": InNode + "/" + fileProxyConfig},
		"healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
		// kube-proxy must not change the size of the connection table, which is the machine's.
		"conntrack": object{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
	if s.Host.KeepOOMScores {
		config["oomScoreAdj"] = 0
	}
	return config
}

// cniConfig returns the CNI configuration. It connects each pod by a veth pair and a route, so that
// all packets of a pod pass the node's own routing and kube-proxy's rules, without a bridge, which
// would need br_netfilter.
func (s Spec) cniConfig(n Node) object {
	plugins := []object{{
		"type": "ptp",
		"ipam": object{
			"type": "host-local", "dataDir": InNode + "/ipam",
			"ranges": [][]object{{{"subnet": n.PodCIDR()}}}, "routes": []object{{"dst": "0.0.0.0/0"}},
		},
	}}
	if s.Host.PortMap {
		plugins = append(plugins, object{"type": "portmap", "capabilities": object{"portMappings": true}})
	}
	return object{"cniVersion": "0.4.0", "name": "lockstep", "plugins": plugins}
}

// EgressConfig returns the API server's configuration that routes its connections to nodes and pods
// into the pod network.
func (s Spec) EgressConfig() ([]byte, error) {
	return yaml.Marshal(object{
		"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration",
		"egressSelections": []object{{
			"name": "cluster",
			"connection": object{
				"proxyProtocol": "HTTPConnect", "transport": object{"uds": object{"udsName": s.EgressSocket()}},
			},
		}},
	})
}

// LogPaths returns the log files of the nodes' programs.
func (s Spec) LogPaths() ([]string, error) {
	return filepath.Glob(filepath.Join(s.Dir, "*", "logs", "*.log"))
}
