package submit

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// Topologies is a client for the repack requests of NodeTopologies.
type Topologies struct{ client rest.Interface }

const nodeTopologies = "nodetopologies"

// NewTopologies returns a client for a cluster.
func NewTopologies(cfg *rest.Config) (*Topologies, error) {
	client, err := kubeclient.ForGroupVersion(cfg, nil, topologyv1alpha1.GroupVersion, scheme.Scheme)
	if err != nil {
		return nil, err
	}
	return &Topologies{client}, nil
}

// Repack requests a repack of a node's pods. It replaces an earlier request.
func (t *Topologies) Repack(ctx context.Context, node string, ask topologyv1alpha1.RepackRequest) error {
	// All fields are listed, because a merge patch would keep the present values of absent fields.
	data, err := json.Marshal(map[string]any{"repack": map[string]any{
		"id": ask.ID, "movesMax": ask.MovesMax, "costMaxPercent": ask.CostMaxPercent, "stayInNUMA": ask.StayInNUMA,
	}})
	if err != nil {
		return err
	}
	return t.client.Patch(types.MergePatchType).Resource(nodeTopologies).Name(node).Body(data).Do(ctx).Error()
}

// Repacked waits until the repack with an ID has ended, and returns its status. It returns an error
// if ctx is done, the node is deleted, or another repack is requested meanwhile.
func (t *Topologies) Repacked(ctx context.Context, node, id string) (*topologyv1alpha1.RepackStatus, error) {
	var out *topologyv1alpha1.RepackStatus
	gone := fmt.Errorf("NodeTopology %s was deleted", node)
	err := Until(ctx, t.client, nodeTopologies, metav1.NamespaceAll, node, gone,
		func(o *topologyv1alpha1.NodeTopology) (bool, error) {
			switch {
			case o.Status.Repack != nil && o.Status.Repack.ID == id && o.Status.Repack.Finished != nil:
				out = o.Status.Repack
				return true, nil
			case o.Repack == nil || o.Repack.ID != id:
				return false, fmt.Errorf("another repack was asked for")
			}
			return false, nil
		})
	return out, err
}
