package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	resource "k8s.io/component-helpers/resource"

	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/cputopology/agent/desired"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/failpoint"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
)

// view holds the API objects of one node: its pods, and its NodeTopology.
type view struct {
	// changed receives a value after a change; several changes may be combined in one value.
	changed chan struct{}

	node       string
	quotas     bool // the kubelet makes CFS quotas
	guard      *panics.Guard
	core       rest.Interface
	podsHere   *informer.Informer[*corev1.Pod]
	topologies *informer.Informer[*topologyv1alpha1.NodeTopology]
	nodes      *informer.Informer[*corev1.Node] // the node itself, for its annotations
	running    sync.WaitGroup
	nodeUID    types.UID

	lock       sync.Mutex
	dirty      bool
	deletedAt  string // resource version of the last deleted NodeTopology
	generation int64
	list       []desired.Pod
	names      map[string]string
}

func newView(cfg Config, guard *panics.Guard) (*view, error) {
	v := &view{changed: make(chan struct{}, 1), node: cfg.Node, quotas: *cfg.CFSQuotas, guard: guard, dirty: true}
	var err error
	if v.core, err = kubeclient.ForGroupVersion(cfg.REST, nil, corev1.SchemeGroupVersion, scheme.Scheme); err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	own, err := kubeclient.LeanCustom(cfg.REST, nil, topologyv1alpha1.GroupVersion, scheme.Scheme, nil)
	if err != nil {
		return nil, fmt.Errorf("agent: %w", err)
	}
	v.podsHere = informer.New(v.core, "pods", informer.Options[*corev1.Pod]{
		Fields: fields.OneTermEqualSelector("spec.nodeName", v.node).String(), Trim: v.trim, Patient: true,
	})
	v.topologies = informer.New(own, "nodetopologies", informer.Options[*topologyv1alpha1.NodeTopology]{
		Fields: fields.OneTermEqualSelector("metadata.name", v.node).String(), Patient: true,
	})
	v.nodes = informer.New(v.core, "nodes", informer.Options[*corev1.Node]{
		Fields: fields.OneTermEqualSelector("metadata.name", v.node).String(), Trim: trimNode, Patient: true,
	})
	nodeChanged := func(*corev1.Node) { v.wake() }
	v.nodes.Follow(nodeChanged, nodeChanged)
	podChanged := func(*corev1.Pod) { v.note() }
	v.podsHere.Follow(podChanged, podChanged)
	changed := func(*topologyv1alpha1.NodeTopology) { v.note() }
	v.topologies.Handle(informer.Handler[*topologyv1alpha1.NodeTopology]{
		Added: changed, Updated: func(_, t *topologyv1alpha1.NodeTopology) { changed(t) }, Deleted: v.noteDeleted,
		Malformed: func(t *topologyv1alpha1.NodeTopology, _ *malformed.Error) { changed(t) },
	})
	return v, nil
}

// trim keeps the parts of a pod that are used. After a panic only the pod's names are kept, so that
// it has no CPUs of its own.
func (v *view) trim(pod *corev1.Pod) {
	key := informer.KeyOf(pod)
	kept := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion,
	}}
	bare := *kept
	if v.guard.Try("watch", key, func() {
		failpoint.Hit("watch", key)
		keep(kept, pod)
	}) != nil {
		kept = &bare
	}
	*pod = *kept
}

// keep copies the parts of a pod that are used.
func keep(kept, pod *corev1.Pod) {
	kept.CreationTimestamp = pod.CreationTimestamp
	if result, found := pod.Annotations[request.LockstepResult]; found {
		kept.Annotations = map[string]string{request.LockstepResult: result}
	}
	part := func(c corev1.Container) corev1.Container {
		out := corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy}
		if cpu, found := c.Resources.Limits[corev1.ResourceCPU]; found {
			out.Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: cpu}
		}
		return out
	}
	for _, c := range pod.Spec.InitContainers {
		kept.Spec.InitContainers = append(kept.Spec.InitContainers, part(c))
	}
	for _, c := range pod.Spec.Containers {
		kept.Spec.Containers = append(kept.Spec.Containers, part(c))
	}
	kept.Spec.Resources, kept.Spec.Overhead = pod.Spec.Resources, pod.Spec.Overhead
	for _, c := range pod.Spec.EphemeralContainers {
		kept.Spec.EphemeralContainers = append(kept.Spec.EphemeralContainers,
			corev1.EphemeralContainer{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name}})
	}
	kept.Status.Phase = pod.Status.Phase
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses) {
		kept.Status.ContainerStatuses = append(kept.Status.ContainerStatuses, corev1.ContainerStatus{Name: s.Name, ContainerID: s.ContainerID})
	}
}

// trimNode keeps the annotations of the node.
func trimNode(n *corev1.Node) {
	*n = corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion, Annotations: n.Annotations}}
}

// annotation returns an annotation of the node, or "".
func (v *view) annotation(key string) string {
	if n, found := v.nodes.Get("", v.node); found {
		return n.Annotations[key]
	}
	return ""
}

func (v *view) note() {
	v.lock.Lock()
	v.dirty = true
	v.lock.Unlock()
	v.wake()
}

func (v *view) wake() {
	select {
	case v.changed <- struct{}{}:
	default:
	}
}

func (v *view) noteDeleted(t *topologyv1alpha1.NodeTopology) {
	v.lock.Lock()
	v.deletedAt = t.ResourceVersion
	v.lock.Unlock()
	v.note()
}

// deleted reports whether a written NodeTopology has been seen to be deleted since.
func (v *view) deleted(t *topologyv1alpha1.NodeTopology) bool {
	v.lock.Lock()
	defer v.lock.Unlock()
	return !informer.Older(v.deletedAt, t.ResourceVersion)
}

// start starts the watches, which run until ctx is done, and returns when the caches have synced.
func (v *view) start(ctx context.Context) error {
	v.running.Go(func() { v.podsHere.Run(ctx) })
	v.running.Go(func() { v.topologies.Run(ctx) })
	v.running.Go(func() { v.nodes.Run(ctx) })
	if err := errors.Join(v.podsHere.WaitForSync(ctx), v.topologies.WaitForSync(ctx), v.nodes.WaitForSync(ctx)); err != nil {
		return fmt.Errorf("reading the pods of node %s: %w", v.node, err)
	}
	// The UID is needed for the owner reference of the NodeTopology. A node that does not exist yet
	// owns none.
	if node, found := v.nodes.Get("", v.node); found {
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
	for _, pod := range v.podsHere.List() {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		p := desired.Pod{UID: string(pod.UID), Namespace: pod.Namespace, Name: pod.Name, Created: pod.CreationTimestamp.Time,
			Result: pod.Annotations[request.LockstepResult]}
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			p.Containers = append(p.Containers, c.Name)
		}
		for _, c := range pod.Spec.EphemeralContainers {
			p.Containers = append(p.Containers, c.Name)
		}
		if p.Result != "" && v.quotas {
			p.Limits = limitsOf(pod)
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

// limitsOf returns the limits from which a kubelet makes CFS quotas, in thousandths of a CPU: the
// containers' own, and for the pod their sum if all containers have limits.
func limitsOf(pod *corev1.Pod) map[string]int64 {
	limits := map[string]int64{}
	all := true
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		cpu := c.Resources.Limits.Cpu().MilliValue()
		if all = all && cpu > 0; cpu > 0 {
			limits[c.Name] = cpu
		}
	}
	if all || resource.IsPodLevelResourcesSet(pod) {
		total := resource.PodLimits(pod, resource.PodResourcesOptions{})
		if cpu := total.Cpu().MilliValue(); cpu > 0 {
			limits[desired.WholePod] = cpu
		}
	}
	return limits
}

// pod returns a pod of the node by "namespace/name", or nil.
func (v *view) pod(key string) *corev1.Pod {
	namespace, name, _ := strings.Cut(key, "/")
	pod, _ := v.podsHere.Get(namespace, name)
	return pod
}

// topology returns the node's NodeTopology, or nil. A NodeTopology that cannot be decoded counts as
// empty, so the agent writes it anew.
func (v *view) topology() *topologyv1alpha1.NodeTopology {
	if t, found := v.topologies.Get("", v.node); found {
		return t
	}
	t, apart := v.topologies.Apart("", v.node)
	if !apart {
		return nil
	}
	t = t.DeepCopy()
	malformed.Unmark(t)
	return t
}
