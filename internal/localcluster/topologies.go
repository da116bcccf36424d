package localcluster

import (
	"context"
	"fmt"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/machines"
)

// CreateNodeTopologies creates the NodeTopologies of simulated nodes, which agents create for other
// nodes. It creates nothing if the nodes have no Topology, and leaves existing objects unchanged.
func CreateNodeTopologies(ctx context.Context, cfg *rest.Config, nodes Nodes) error {
	if nodes.Topology == "" {
		return nil
	}
	t, err := topologyOf(nodes.Topology)
	if err != nil {
		return err
	}
	cfg = rest.CopyConfig(cfg)
	cfg.QPS = -1
	client, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return err
	}
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&topologyv1alpha1.NodeTopology{Spec: t.Encode()})
	if err != nil {
		return err
	}
	delete(fields, "status")
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(nodeParallelism)
	for i := range nodes.Count {
		group.Go(func() error {
			object := (&unstructured.Unstructured{Object: fields}).DeepCopy()
			object.SetGroupVersionKind(topologyv1alpha1.GroupVersion.WithKind("NodeTopology"))
			object.SetName(NodeName(i))
			object.SetLabels(map[string]string{NodeTypeLabel: NodeTypeSimulated})
			_, err := client.Resource(topologyv1alpha1.GroupVersion.WithResource("nodetopologies")).Create(ctx, object,
				metav1.CreateOptions{})
			if err != nil && !apierrors.IsAlreadyExists(err) {
				return fmt.Errorf("create the NodeTopology of %s: %w", object.GetName(), err)
			}
			return nil
		})
	}
	return group.Wait()
}

func topologyOf(machine string) (*cputopology.Topology, error) {
	m, err := machines.ByName(machine)
	if err != nil {
		return nil, err // the error lists the names
	}
	return m.Topology()
}

func memoryOf(t *cputopology.Topology) int64 {
	sum := int64(0)
	for _, n := range t.NUMA {
		sum += n.MemoryBytes
	}
	return sum
}
