package upstream

import (
	"fmt"
	"slices"

	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// nodes are the node infos that the framework reads. It implements fwk.SharedLister.
type nodes struct {
	cluster    *cluster.Cluster
	byName     map[string]*framework.NodeInfo
	generation map[string]int64
	order      []fwk.NodeInfo
	affine     []fwk.NodeInfo // nodes with pods that have an affinity or anti-affinity
	away       []fwk.NodeInfo // nodes with pods that have a required anti-affinity
	attracts   bool           // a pod on a node has a required affinity, or any preference, among pods
	listed     bool           // affine, away and attracts are up to date
}

func newNodes(c *cluster.Cluster) *nodes {
	return &nodes{cluster: c, byName: map[string]*framework.NodeInfo{}, generation: map[string]int64{}}
}

// refresh rebuilds the node infos of changed nodes. It relies on the model containing every pod
// placed since the last refresh, so that nodes changed by placement have a new generation.
func (n *nodes) refresh(s *place.Snapshot) {
	for name := range n.byName {
		if _, ok := s.Index(name); !ok {
			delete(n.byName, name)
			delete(n.generation, name)
		}
	}
	n.order = n.order[:0]
	for _, node := range s.All() {
		info := n.byName[node.Name]
		if info == nil || n.generation[node.Name] != node.Generation {
			info = framework.NewNodeInfo(n.cluster.PodsOn(node.Name)...)
			info.SetNode(node.Object)
			n.byName[node.Name] = info
			n.generation[node.Name] = node.Generation
		}
		n.order = append(n.order, info)
	}
	n.listed = false
}

// changed marks the lists of nodes as stale, after pods were added or removed.
func (n *nodes) changed() { n.listed = false }

func (n *nodes) list() {
	if n.listed {
		return
	}
	n.affine, n.away, n.attracts = n.affine[:0], n.away[:0], false
	for _, info := range n.order {
		if pods := info.GetPodsWithAffinity(); len(pods) > 0 {
			n.affine = append(n.affine, info)
			n.attracts = n.attracts || slices.ContainsFunc(pods, attracts)
		}
		if len(info.GetPodsWithRequiredAntiAffinity()) > 0 {
			n.away = append(n.away, info)
		}
	}
	n.listed = true
}

// attracts reports whether a pod makes its node, or its topology, better or worse for other pods: the
// kube-scheduler also scores required affinities of pods that are placed.
func attracts(p fwk.PodInfo) bool {
	return len(p.GetRequiredAffinityTerms()) > 0 || len(p.GetPreferredAffinityTerms()) > 0 || len(p.GetPreferredAntiAffinityTerms()) > 0
}

// attract reports whether any pod attracts.
func (n *nodes) attract() bool {
	n.list()
	return n.attracts
}

func (n *nodes) keepAway() []fwk.NodeInfo {
	n.list()
	return n.away
}

// NodeInfos implements fwk.SharedLister.
func (n *nodes) NodeInfos() fwk.NodeInfoLister { return nodeLister{n} }

// StorageInfos implements fwk.SharedLister.
func (n *nodes) StorageInfos() fwk.StorageInfoLister { return n }

// PodGroupStates implements fwk.SharedLister. Kubernetes' own pod groups are not used.
func (n *nodes) PodGroupStates() fwk.PodGroupStateLister { return noGroups{} }

// IsPVCUsedByPods implements fwk.StorageInfoLister.
func (n *nodes) IsPVCUsedByPods(key string) bool {
	for _, info := range n.order {
		if info.GetPVCRefCounts()[key] > 0 {
			return true
		}
	}
	return false
}

type nodeLister struct{ n *nodes }

// List implements fwk.NodeInfoLister, as do the other methods.
func (l nodeLister) List() ([]fwk.NodeInfo, error) { return l.n.order, nil }

func (l nodeLister) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) {
	l.n.list()
	return l.n.affine, nil
}

func (l nodeLister) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return l.n.keepAway(), nil
}

func (l nodeLister) Get(name string) (fwk.NodeInfo, error) {
	if info := l.n.byName[name]; info != nil {
		return info, nil
	}
	return nil, fmt.Errorf("node %q is not known", name)
}

type noGroups struct{}

func (noGroups) Get(namespace, name string) (fwk.PodGroupState, error) {
	return nil, fmt.Errorf("pod group %s/%s: Kubernetes' own pod groups are not used", namespace, name)
}
