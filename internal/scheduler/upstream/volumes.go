package upstream

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core"
	corev1informers "k8s.io/client-go/informers/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/internal/informer"
)

// individual returns the pod of a template that stands for one pod, as the model has it.
func (f *Filter) individual(t *corev1.Pod) *corev1.Pod {
	p := *t
	p.UID = ""
	if o, _ := f.cluster.Pod(types.NamespacedName{Namespace: t.Namespace, Name: t.Name}); o != nil {
		p.UID = o.UID
	}
	return &p
}

// shared is an informer factory that takes pods and nodes from existing caches.
type shared struct {
	informers.SharedInformerFactory
	have *informer.Set
}

func (s shared) Core() coreinformers.Interface {
	return sharedCore{s.SharedInformerFactory.Core(), s.have}
}

type sharedCore struct {
	coreinformers.Interface
	have *informer.Set
}

func (s sharedCore) V1() corev1informers.Interface { return sharedCoreV1{s.Interface.V1(), s.have} }

type sharedCoreV1 struct {
	corev1informers.Interface
	have *informer.Set
}

func (s sharedCoreV1) Pods() corev1informers.PodInformer   { return cachedPods{s.have.Pods.Store()} }
func (s sharedCoreV1) Nodes() corev1informers.NodeInformer { return cachedNodes{s.have.Nodes.Store()} }

// cachedPods and cachedNodes are informers that only provide a lister.
type (
	cachedPods  struct{ cache.Indexer }
	cachedNodes struct{ cache.Indexer }
)

func (l cachedPods) Lister() corev1listers.PodLister   { return corev1listers.NewPodLister(l.Indexer) }
func (l cachedNodes) Lister() corev1listers.NodeLister { return corev1listers.NewNodeLister(l.Indexer) }

func (cachedPods) Informer() cache.SharedIndexInformer  { panic("upstream: pods have no informer") }
func (cachedNodes) Informer() cache.SharedIndexInformer { panic("upstream: nodes have no informer") }
