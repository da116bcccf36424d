package localcluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// NodesUser is the user name of KWOK.
const NodesUser = "lockstep-nodes"

// NetworkUser is the user name of the real nodes' network, which serves DNS and deletes nodes that
// are off.
const NetworkUser = "lockstep-network"

// ManagerUser is the user name of the manager. It is the name of the manager's service account in a
// real cluster, so that the same roles apply.
const ManagerUser = "system:serviceaccount:lockstep-system:lockstep-manager"

// controllers are the controllers of kube-controller-manager that batch work, workflows and
// applications need. The others (cloud, attachment of volumes, certificates, IP allocation) have
// nothing to act on here.
var controllers = []string{
	"clusterrole-aggregation-controller",
	"cronjob-controller",
	"daemonset-controller",
	"deployment-controller",
	"disruption-controller",
	"endpointslice-controller",
	"ephemeral-volume-controller",
	"garbage-collector-controller",
	"horizontal-pod-autoscaler-controller",
	"job-controller",
	"namespace-controller",
	"node-lifecycle-controller",
	"persistentvolume-binder-controller",
	"persistentvolumeclaim-protection-controller",
	"pod-garbage-collector-controller",
	"replicaset-controller",
	"resourceclaim-controller",
	"resourcequota-controller",
	"root-ca-certificate-publisher-controller",
	"serviceaccount-controller",
	"statefulset-controller",
	"taint-eviction-controller",
	"ttl-after-finished-controller",
	"validatingadmissionpolicy-status-controller",
}

// podGroupGates and podGroupAPI switch on Kubernetes' own PodGroups; podGroupController lets go of the
// deleted ones whose pods have ended.
const (
	podGroupGates = "--feature-gates=GenericWorkload=true,GangScheduling=true,WorkloadAwarePreemption=true," +
		"TopologyAwareWorkloadScheduling=true,DRAWorkloadResourceClaims=true"
	podGroupAPI        = "--runtime-config=scheduling.k8s.io/v1alpha2=true"
	podGroupController = "podgroup-protection-controller"
)

// layout returns the paths of the files in a cluster's directory.
type layout struct{ dir string }

func (l layout) pki(name string) string       { return filepath.Join(l.dir, "pki", name) }
func (l layout) kubeconfig(who string) string { return filepath.Join(l.dir, who+".kubeconfig") }
func (l layout) log(c Component) string       { return filepath.Join(l.dir, "logs", string(c)+".log") }
func (l layout) etcdData() string             { return filepath.Join(l.dir, "etcd") }
func (l layout) auditLog() string             { return filepath.Join(l.dir, "audit.log") }
func (l layout) auditPolicy() string          { return filepath.Join(l.dir, "audit-policy.yaml") }
func (l layout) directories() []string {
	return []string{l.dir, l.pki(""), filepath.Join(l.dir, "logs")}
}
func loopback(scheme string, port int) string { return fmt.Sprintf("%s://127.0.0.1:%d", scheme, port) }
func (l layout) tokens() string               { return l.pki("tokens.csv") }

// etcdArgs returns the flags for a single member, set up like kubeadm's.
func (c *Cluster) etcdArgs() []string {
	client, peer := loopback("https", c.ports[Etcd].port), loopback("http", c.peerPort.port)
	args := []string{
		"--name=" + "local",
		"--data-dir=" + c.files.etcdData(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		// A single member has no peers, but etcd requires the address.
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=local=" + peer,
		"--cert-file=" + c.files.pki("serving.crt"),
		"--key-file=" + c.files.pki("serving.key"),
		"--trusted-ca-file=" + c.files.pki("ca.crt"),
		"--client-cert-auth",
		// 8 GiB hold a day of benchmarks; at the default of 2 GiB etcd would refuse writes before.
		fmt.Sprintf("--quota-backend-bytes=%d", int64(8)<<30),
		"--log-level=warn",
	}
	if c.config.NotDurable {
		args = append(args, "--unsafe-no-fsync")
	}
	return args
}

func (c *Cluster) apiServerArgs() []string {
	args := []string{
		"--etcd-servers=" + loopback("https", c.ports[Etcd].port),
		"--etcd-cafile=" + c.files.pki("ca.crt"),
		"--etcd-certfile=" + c.files.pki("etcd-client.crt"),
		"--etcd-keyfile=" + c.files.pki("etcd-client.key"),
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports[APIServer].port),
		"--tls-cert-file=" + c.files.pki("serving.crt"),
		"--tls-private-key-file=" + c.files.pki("serving.key"),
		"--client-ca-file=" + c.files.pki("ca.crt"),
		"--token-auth-file=" + c.files.tokens(),
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.files.pki("service-account.pub"),
		"--service-account-signing-key-file=" + c.files.pki("service-account.key"),
		"--service-cluster-ip-range=10.0.0.0/16",
		"--allow-privileged=true",
		// No pod connects to the service "kubernetes", and its endpoints must not be loopback
		// addresses.
		"--endpoint-reconciler-type=none",
	}
	// Simulated nodes are created Ready. The plugin would taint each node at creation and a
	// controller would untaint it: one useless write per node. The node lifecycle controller still
	// taints a node that fails.
	disabled := []string{"TaintNodesByCondition"}
	if c.config.WithoutControllerManager {
		// This plugin requires a service account for every pod, which only the controller manager
		// creates.
		disabled = append(disabled, "ServiceAccount")
	}
	args = append(args, "--disable-admission-plugins="+strings.Join(disabled, ","))
	if c.config.PodGroups {
		args = append(args, podGroupGates, podGroupAPI)
	}
	if c.config.RealNodes > 0 {
		args = append(args, c.kubeletClientArgs()...)
	}
	return append(args, auditArgs(c.files)...)
}

// controllerManagerArgs returns flags like kubeadm's, with a service account for each controller,
// but with higher limits: the defaults of 20 requests per second and five Deployments at a time
// would bound measurements before the API server does.
func (c *Cluster) controllerManagerArgs() []string {
	grace := nodeMonitorGracePeriod
	if c.config.RealNodes > 0 {
		grace = realNodeMonitorGracePeriod
	}
	kubeconfig := c.files.kubeconfig("controller-manager")
	running := controllers
	var gates []string
	if c.config.PodGroups {
		running, gates = append(slices.Clone(controllers), podGroupController), []string{podGroupGates}
	}
	return append([]string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports[ControllerManager].port),
		"--tls-cert-file=" + c.files.pki("serving.crt"),
		"--tls-private-key-file=" + c.files.pki("serving.key"),
		"--controllers=" + strings.Join(running, ","),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + c.files.pki("service-account.key"),
		"--root-ca-file=" + c.files.pki("ca.crt"),
		"--leader-elect=false",
		"--kube-api-qps=-1",
		"--concurrent-deployment-syncs=32",
		"--concurrent-replicaset-syncs=32",
		"--node-monitor-grace-period=" + grace.String(),
	}, gates...)
}

func (c *Cluster) schedulerArgs() []string {
	kubeconfig := c.files.kubeconfig("scheduler")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig,
		"--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", c.ports[Scheduler].port),
		"--tls-cert-file=" + c.files.pki("serving.crt"),
		"--tls-private-key-file=" + c.files.pki("serving.key"),
		"--leader-elect=false",
		"--kube-api-qps=-1",
	}
}

func (c *Cluster) kwokArgs() []string {
	args := []string{
		"--kubeconfig=" + c.files.kubeconfig("nodes"),
		fmt.Sprintf("--health-port=%d", c.ports[Kwok].port),
	}
	if c.config.RealNodes > 0 {
		args = append(args, fmt.Sprintf("--lease-seconds=%d", simulatedLeaseSeconds))
	}
	return args
}

// command returns the command that runs a component.
func (c *Cluster) command(name Component) command {
	if p := c.config.program(name); p != nil {
		return c.programCommand(p)
	}
	cmd := command{path: c.config.KubeBinary, args: []string{string(name)}, dir: c.config.Dir, log: c.files.log(name)}
	switch name {
	case Etcd:
		cmd.args = append(cmd.args, c.etcdArgs()...)
	case APIServer:
		cmd.args = append(cmd.args, c.apiServerArgs()...)
		if n := c.config.ServerGOGC; n > 0 {
			cmd.env = append(os.Environ(), fmt.Sprint("GOGC=", n))
		}
	case ControllerManager:
		cmd.args = append(cmd.args, c.controllerManagerArgs()...)
	case Scheduler:
		cmd.args = append(cmd.args, c.schedulerArgs()...)
	case Kwok:
		cmd.args = append(cmd.args, c.kwokArgs()...)
	case RealNodes:
		cmd.args = append(cmd.args, c.realNodesArgs()...)
	case Manager:
		cmd.path = c.config.ManagerCommand[0]
		address := c.ManagerAddress()
		cmd.args = append(slices.Clone(c.config.ManagerCommand[1:]), "--kubeconfig="+c.files.kubeconfig("manager"),
			"--metrics-bind-address="+address, "--health-probe-bind-address="+address)
	}
	cmd.args = append(cmd.args, c.config.ExtraArgs[name]...)
	return cmd
}

// components returns the configured components in the order of starting.
func (c *Config) components() []Component {
	list := []Component{Etcd, APIServer}
	if !c.WithoutControllerManager {
		list = append(list, ControllerManager)
	}
	if c.WithScheduler {
		list = append(list, Scheduler)
	}
	if !c.WithoutKwok {
		list = append(list, Kwok)
	}
	if c.RealNodes > 0 {
		list = append(list, RealNodes)
	}
	if len(c.ManagerCommand) > 0 {
		list = append(list, Manager)
	}
	for i := range c.Programs {
		list = append(list, c.Programs[i].Name)
	}
	return list
}
