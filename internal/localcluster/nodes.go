package localcluster

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"lockstep.dev/lockstep/internal/localcluster/realnodes"
)

const (
	// NodeTypeLabel with value NodeTypeSimulated marks the nodes that KWOK simulates, and no
	// others. It is also the key of their taint in clusters with real nodes.
	NodeTypeLabel     = realnodes.NodeTypeLabel
	NodeTypeSimulated = "simulated"
)

// nodeMonitorGracePeriod is how long a node may be silent before it counts as failed. A kubelet
// renews a lease every 10 s, which for 1,000 nodes is 100 writes/s at rest, a tenth of what the API
// server can do at all. Simulated nodes have no lease; they report their status every 5 minutes, as
// kubelets do too: 3.3 writes/s for 1,000 nodes. Three reports may be lost.
const nodeMonitorGracePeriod = 16 * time.Minute

// In a cluster with real nodes, whose failure must be noticed sooner, simulated nodes renew leases
// too: 33 writes/s for 1,000 nodes.
const (
	realNodeMonitorGracePeriod = 40 * time.Second
	simulatedLeaseSeconds      = 120 // renewed after a quarter
)

// nodeParallelism is the number of nodes created concurrently. More would not raise the API
// server's throughput.
const nodeParallelism = 16

// CreateNodes creates simulated nodes node-0000, node-0001, ... that are Ready at once: like a
// kubelet, it registers each node together with its status. Existing nodes are left unchanged.
func CreateNodes(ctx context.Context, client kubernetes.Interface, nodes Nodes) error {
	if err := nodes.Complete(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(nodeParallelism)
	for i := range nodes.Count {
		group.Go(func() error {
			node := simulatedNode(nodes, i, metav1.Now())
			_, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create node %s: %w", node.Name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

// NodeName returns the name of the i-th simulated node.
func NodeName(i int) string { return fmt.Sprintf("node-%04d", i) }

func simulatedNode(n Nodes, i int, now metav1.Time) *corev1.Node {
	name := NodeName(i)
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              resource.MustParse(n.CPU),
		corev1.ResourceMemory:           resource.MustParse(n.Memory),
		corev1.ResourcePods:             resource.MustParse(strconv.Itoa(n.Pods)),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
	labels := map[string]string{
		NodeTypeLabel:          NodeTypeSimulated,
		corev1.LabelHostname:   name,
		corev1.LabelArchStable: "amd64",
		corev1.LabelOSStable:   "linux",
	}
	for k, v := range n.Labels {
		labels[k] = v
	}
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, LastHeartbeatTime: now,
			LastTransitionTime: now}
	}
	var taints []corev1.Taint
	if n.Tainted {
		taints = []corev1.Taint{{Key: NodeTypeLabel, Value: NodeTypeSimulated, Effect: corev1.TaintEffectNoSchedule}}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{
			Phase:       corev1.NodeRunning,
			Capacity:    capacity,
			Allocatable: capacity,
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "Simulated"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "Simulated"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "Simulated"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "Simulated"),
			},
			NodeInfo: corev1.NodeSystemInfo{
				Architecture: "amd64", OperatingSystem: "linux", OSImage: "simulated", KernelVersion: "simulated",
				KubeletVersion: "simulated", ContainerRuntimeVersion: "simulated://0",
			},
		},
	}
}
