package agent

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// view holds the API objects of one node: its pods, and its NodeTopology.
type view struct {
	// changed receives a value after a change; several changes may be combined in one value.
	changed chan struct{}

	node        string
	guard       *panics.Guard
	core        rest.Interface
	podInformer cache.SharedIndexInformer
	topologies  cache.SharedIndexInformer
	running     sync.WaitGroup
	nodeUID     types.UID

	lock       sync.Mutex
	dirty      bool
	deletedAt  uint64 // version of the last deleted NodeTopology
	generation int64
	list       []desired.Pod
	names      map[string]string
}

func newView(cfg Config, guard *panics.Guard) (*view, error) {
	v := &view{changed: make(chan struct{}, 1), node: cfg.Node, guard: guard, dirty: true}
	var err error
	if v.core, err = kubeclient.ForGroupVersion(cfg.REST, nil, corev1.SchemeGroupVersion, scheme.Scheme); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	own, err := kubeclient.LeanCustom(cfg.REST, nil, topologyv1alpha1.GroupVersion, scheme.Scheme, nil)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	v.podInformer = v.informer(v.core, "pods", "spec.nodeName", &corev1.Pod{})
	v.topologies = v.informer(own, "nodetopologies", "metadata.name", &topologyv1alpha1.NodeTopology{})
	return v, nil
}

// informer watches the objects in which a field equals the node's name.
func (v *view) informer(client rest.Interface, resource, field string,
	example runtime.Object) cache.SharedIndexInformer {
	lw := cache.NewListWatchFromClient(client, resource, metav1.NamespaceAll, fields.OneTermEqualSelector(field, v.node))
	informer := cache.NewSharedIndexInformer(lw, example, 0, nil)
	err := informer.SetTransform(v.trim)
	if err == nil {
		_, err = informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { v.note() }, UpdateFunc: func(any, any) { v.note() }, DeleteFunc: v.noteDeleted,
		})
	}
	if err != nil {
		panic(err) // only a running informer returns an error
	}
	return informer
}

// trim calls trimmed. After a panic on a pod only the pod's names are kept, so that it has no CPUs
// of its own.
func (v *view) trim(o any) (kept any, err error) {
	m, ok := o.(metav1.Object)
	if !ok { // an object deleted while there was no watch
		return trimmed(o)
	}
	key := types.NamespacedName{Namespace: m.GetNamespace(), Name: m.GetName()}
	if v.guard.Try("watch", key, func() {
		failpoint.Hit("watch", key)
		kept, err = trimmed(o)
	}) == nil {
		return kept, err
	}
	bare := metav1.ObjectMeta{Namespace: m.GetNamespace(), Name: m.GetName(), UID: m.GetUID(),
		ResourceVersion: m.GetResourceVersion()}
	if _, ok := o.(*corev1.Pod); ok {
		return &corev1.Pod{ObjectMeta: bare}, nil
	}
	return &topologyv1alpha1.NodeTopology{ObjectMeta: bare}, nil
}

// trimmed keeps the parts of a pod that are used. A NodeTopology that cannot be decoded counts as
// empty: the agent writes it anew.
func trimmed(o any) (any, error) {
	if t, ok := o.(*topologyv1alpha1.NodeTopology); ok {
		malformed.Unmark(t)
	}
	pod, ok := o.(*corev1.Pod)
	if !ok {
		return o, nil
	}
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
		CreationTimestamp: pod.CreationTimestamp,
	}}
	if result, found := pod.Annotations[request.LockstepResult]; found {
		kept.Annotations = map[string]string{request.LockstepResult: result}
	}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container{Name: c.Name})
	}
	for _, c := range pod.Spec.EphemeralContainers {
		kept.Spec.Containers = append(kept.Spec.Containers, corev1.Container{Name: c.Name})
	}
	kept.Status.Phase = pod.Status.Phase
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses,
		pod.Status.EphemeralContainerStatuses) {
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses,
			corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID})
	}
	return kept, nil
}

func (v *view) note() {
	v.lock.Lock()
	v.dirty = true
	v.lock.Unlock()
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

func (v *view) noteDeleted(o any) {
	if unseen, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = unseen.Obj
	}
	if t, ok := o.(*topologyv1alpha1.NodeTopology); ok {
		v.lock.Lock()
		v.deletedAt = version(t)
		v.lock.Unlock()
	}
	v.note()
}

// deleted reports whether a written NodeTopology has been seen to be deleted since.
func (v *view) deleted(t *topologyv1alpha1.NodeTopology) bool {
	v.lock.Lock()
	defer v.lock.Unlock()
	return version(t) <= v.deletedAt
}

// start starts the watches, which run until ctx is done, and returns when the caches have synced.
func (v *view) start(ctx context.Context) error {
	for _, informer := range []cache.SharedIndexInformer{v.podInformer, v.topologies} {
		v.running.Go(func() { informer.RunWithContext(ctx) })
	}
	if !cache.WaitForCacheSync(ctx.Done(), v.podInformer.HasSynced, v.topologies.HasSynced) {
		return fmt.Errorf("reading the pods of node %s: %w", v.node, context.Cause(ctx))
	}
	node := &corev1.Node{}
	// The UID is needed for the owner reference of the NodeTopology. A node that does not exist yet
	// owns none.
	if err := v.core.Get().Resource("nodes").Name(v.node).Do(ctx).Into(node); err == nil {
		v.nodeUID = node.UID
	}
	return nil
}

// wait returns when the watches have ended.
func (v *view) wait() { v.running.Wait() }

// pods returns the pods that may have processes, the names of their containers by ID, and a
// generation that changes when the pods do. The results must not be modified.
func (v *view) pods() ([]desired.Pod, map[string]string, int64) {
	v.lock.Lock()
	dirty := v.dirty
	v.dirty = false
	v.lock.Unlock()
	if !dirty {
		return v.list, v.names, v.generation
	}
	var list []desired.Pod
	names := map[string]string{}
	for _, o := range v.podInformer.GetStore().List() {
		pod := o.(*corev1.Pod)
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		p := desired.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Created: pod.CreationTimestamp.Time,
			Result: pod.Annotations[request.LockstepResult]}
		for _, c := range pod.Spec.Containers {
			p.Containers = append(p.Containers, c.Name)
		}
		list = append(list, p)
		for _, s := range pod.Status.ContainerStatuses {
			if _, id, found := strings.Cut(s.ContainerID, "://"); found {
				names[id] = s.Name
			}
		}
	}
	slices.SortFunc(list, func(a, b desired.Pod) int { return strings.Compare(a.UID, b.UID) })
	if !reflect.DeepEqual(list, v.list) {
		v.list = list
		v.generation++
	}
	if !maps.Equal(names, v.names) {
		v.names = names
	}
	return v.list, v.names, v.generation
}

// pod returns a pod of the node by "namespace/name", or nil.
func (v *view) pod(key string) *corev1.Pod {
	o, found, err := v.podInformer.GetStore().GetByKey(key)
	if err != nil || !found {
		return nil
	}
	return o.(*corev1.Pod)
}

// topology returns the node's NodeTopology, or nil.
func (v *view) topology() *topologyv1alpha1.NodeTopology {
	o, found, err := v.topologies.GetStore().GetByKey(v.node)
	if err != nil || !found {
		return nil
	}
	return o.(*topologyv1alpha1.NodeTopology)
}
