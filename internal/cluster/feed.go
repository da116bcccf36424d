package cluster

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
)

// Feed registers the model as a reader of the informers. Call it before other handlers are
// registered and before Start.
func (c *Cluster) Feed(i *informer.Set) {
	i.Nodes.Follow(c.UpsertNode, func(n *corev1.Node) { c.DeleteNode(n.Name) })
	i.Pods.Follow(c.UpsertPod, c.DeletePod)
	i.Namespaces.Follow(func(n *corev1.Namespace) { c.SetUser(n.Name, n.Labels[schedulingv1beta1.UserLabel]) },
		func(n *corev1.Namespace) { c.SetUser(n.Name, "") })
	i.Queues.Follow(c.UpsertQueue, func(q *schedulingv1beta1.Queue) { c.DeleteQueue(q.Name) })
	i.PodGroups.Follow(func(g *schedulingv1beta1.PodGroup) { c.UpsertPodGroup(informer.KeyOf(g), g.QueueName()) },
		func(g *schedulingv1beta1.PodGroup) { c.DeletePodGroup(informer.KeyOf(g)) })
	i.PriorityClasses.Follow(c.UpsertPriorityClass, func(p *schedulingv1.PriorityClass) { c.DeletePriorityClass(p.Name) })
	i.HyperNodes.Follow(c.UpsertHyperNode, func(h *hypernodev1alpha1.HyperNode) { c.DeleteHyperNode(h.Name) })
	i.NodeTopologies.Follow(c.UpsertNodeTopology, func(t *topologyv1alpha1.NodeTopology) { c.DeleteNodeTopology(t.Name) })
}

// RunExpiry calls Expire every expiryEvery until ctx is done.
func (c *Cluster) RunExpiry(ctx context.Context, i *informer.Set) {
	tick := time.NewTicker(expiryEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			// The version is read before the cache: an object written up to that version is in the
			// cache by then, or deleted.
			c.Expire(i.Pods.SeenVersion(), func(name types.NamespacedName) bool {
				_, ok := i.Pods.Get(name.Namespace, name.Name)
				return ok
			})
		}
	}
}

// expiryEvery is the interval of Expire. For about this long, resources may stay reserved for a pod
// that was created and deleted between two lists, which happens only when the watch was
// interrupted.
const expiryEvery = 30 * time.Second
