package localcluster

import (
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

func (l layout) realNodes() string    { return filepath.Join(l.dir, "real") }
func (l layout) egressConfig() string { return filepath.Join(l.dir, "egress.yaml") }

// RealNodesDir returns the directory of the real nodes of the cluster in dir.
func RealNodesDir(dir string) string { return layout{dir}.realNodes() }

// firstProcess is the first process of the PID namespace in which all nodes run.
type firstProcess struct {
	PID        int        `json:"pid"`
	StartTicks StartTicks `json:"startTicks"`
}

func firstProcessFile(dir string) string { return filepath.Join(dir, "first-process.json") }

// RecordRealNodes records pid as the first process of the PID namespace in which the real nodes in
// dir run.
func RecordRealNodes(dir string, pid int) error {
	data, err := json.Marshal(firstProcess{pid, StartOf(pid)})
	if err != nil {
		return err
	}
	return os.WriteFile(firstProcessFile(dir), data, 0o600)
}

const (
	// namespaceEnd bounds the time that the kernel takes to end all processes of a PID namespace
	// whose first process was killed.
	namespaceEnd     = 20 * time.Second
	namespaceEndPoll = 10 * time.Millisecond
)

// RemoveRealNodes removes the cgroups that the real nodes of the named cluster leave; dir is their
// directory. Their component must have ended. RemoveRealNodes waits for processes that the kernel
// is still ending.
func RemoveRealNodes(name, dir string) error {
	data, err := os.ReadFile(firstProcessFile(dir))
	if errors.Is(err, fs.ErrNotExist) {
		return realnodes.RemoveCgroups(name, dir)
	}
	if err != nil {
		return err
	}
	var first firstProcess
	if err := json.Unmarshal(data, &first); err != nil {
		return fmt.Errorf("%s: %w", firstProcessFile(dir), err)
	}
	// The first process ends last: the kernel makes it wait for all others of its namespace.
	for deadline := time.Now().Add(namespaceEnd); Alive(first.PID, first.StartTicks); time.Sleep(namespaceEndPoll) {
		if time.Now().After(deadline) {
			return fmt.Errorf("real nodes: process %d does not end", first.PID)
		}
	}
	return realnodes.RemoveCgroups(name, dir)
}

// prepareRealNodes checks the machine and writes the nodes' files.
func (c *Cluster) prepareRealNodes(ca *authority) error {
	host, err := realnodes.Check()
	if err != nil {
		return err
	}
	if host.NoServiceProxy != "" {
		c.event(Event{Component: RealNodes, Kind: EventProgress,
			Message: "services with a cluster IP are not routed, headless ones are: " + host.NoServiceProxy})
	}
	spec := realnodes.NewSpec(c.config.Name, c.files.realNodes(), c.config.RealNodes, host)
	spec.Agent = c.config.AgentCommand
	spec.APIServerPort, spec.HealthPort, spec.Restart = c.ports[APIServer].port, c.ports[RealNodes].port, c.config.Restart
	c.real = &spec
	kubelet := pkix.Name{CommonName: "kube-apiserver-kubelet-client", Organization: []string{"system:masters"}}
	if err := ca.issue(c.files.pki("kubelet-client"), kubelet, nil, x509.ExtKeyUsageClientAuth); err != nil {
		return err
	}
	egress, err := spec.EgressConfig()
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.files.egressConfig(), egress, 0o600); err != nil {
		return err
	}
	return spec.Prepare(realnodes.Credentials{
		CA: c.caPEM, Proxy: c.identities["proxy"].token, Network: c.identities["network"].token,
		IssueNode: func(n realnodes.Node, path string) error {
			subject := pkix.Name{CommonName: "system:node:" + n.Name(), Organization: []string{"system:nodes"}}
			return ca.issue(path, subject, []net.IP{n.IP()}, x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth)
		},
		IssueAgent: func(n realnodes.Node, path string) error {
			subject := pkix.Name{CommonName: "lockstep-agent:" + n.Name(), Organization: []string{"lockstep:agents"}}
			return ca.issue(path, subject, nil, x509.ExtKeyUsageClientAuth)
		},
	})
}

// kubeletClientArgs returns the API server's flags for real nodes: its route to kubelets, and the
// restriction of kubelets' rights.
func (c *Cluster) kubeletClientArgs() []string {
	return []string{
		"--enable-admission-plugins=NodeRestriction",
		"--egress-selector-config-file=" + c.files.egressConfig(),
		"--kubelet-client-certificate=" + c.files.pki("kubelet-client.crt"),
		"--kubelet-client-key=" + c.files.pki("kubelet-client.key"),
		"--kubelet-certificate-authority=" + c.files.pki("ca.crt"),
		"--kubelet-preferred-address-types=InternalIP",
	}
}

func (c *Cluster) realNodesArgs() []string { return []string{"--dir=" + c.files.realNodes()} }

// nodePoll is the interval at which the readiness of nodes is checked.
const nodePoll = 100 * time.Millisecond

// joinRealNodes publishes the API server's address for pods and waits until all real nodes are
// ready.
func (c *Cluster) joinRealNodes(ctx context.Context, client kubernetes.Interface) error {
	if err := publishAPIServer(ctx, client); err != nil {
		return fmt.Errorf("endpoint of the service kubernetes: %w", err)
	}
	waiting := ""
	err := wait.PollUntilContextCancel(ctx, nodePoll, true, func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Nodes().List(ctx,
			metav1.ListOptions{LabelSelector: NodeTypeLabel + "=" + realnodes.NodeTypeReal})
		if err != nil {
			waiting = err.Error()
			return false, nil
		}
		missing := map[string]string{}
		for _, n := range c.real.Nodes() {
			missing[n.Name()] = "not registered"
		}
		for i := range list.Items {
			if why := notReady(&list.Items[i]); why != "" {
				missing[list.Items[i].Name] = why
			} else {
				delete(missing, list.Items[i].Name)
			}
		}
		waiting = fmt.Sprint(missing)
		return len(missing) == 0, nil
	})
	if err != nil {
		return fmt.Errorf("real nodes are not ready: %s: %w%s", waiting, err, c.realLogs())
	}
	for _, n := range c.real.Nodes() {
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"podCIDR": n.PodCIDR(),
			"podCIDRs": []string{n.PodCIDR()}}})
		if err != nil {
			return err
		}
		if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name(), types.StrategicMergePatchType, patch,
			metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("pod CIDR of %s: %w", n.Name(), err)
		}
	}
	return nil
}

// notReady returns why a node does not accept pods yet, or "". A Ready node that is still tainted
// does not accept pods either.
func notReady(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeNotReady {
			return "tainted " + t.Key
		}
	}
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady && cond.Status != corev1.ConditionTrue {
			return cond.Message
		}
	}
	if len(n.Status.Conditions) == 0 {
		return "no status"
	}
	return ""
}

// realLogs returns the ends of the nodes' logs.
func (c *Cluster) realLogs() string {
	paths, err := c.real.LogPaths()
	if err != nil {
		return ""
	}
	var b strings.Builder
	for _, p := range paths {
		fmt.Fprintf(&b, "\n%s ends:\n%s", p, tail(p, tailLines/2))
	}
	return b.String()
}

// publishAPIServer creates the endpoint of the service "kubernetes". The API server cannot do that,
// because pods reach it at a different address.
func publishAPIServer(ctx context.Context, client kubernetes.Interface) error {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceDefault, Name: "kubernetes",
			Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{realnodes.Gateway}}},
		Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](realnodes.APIPort),
			Protocol: ptr.To(corev1.ProtocolTCP)}},
	}
	_, err := client.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}
