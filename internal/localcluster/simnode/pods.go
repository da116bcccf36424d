package simnode

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// kubelets plays what the kubelets of simulated nodes do with pods. It is level-triggered: a pod is looked at whenever
// it or its node changes, and at the moment at which its containers exit; what is done depends on how it is then.
//
// KWOK's own pod controller renders a pod's status as text from the pod as text, and has the API server merge a patch.
// Here the status is computed from the typed pod and replaces the old one in protobuf: the same one write for each arrow
// of the picture in doc.go, for less than half of the CPU time of both sides. A benchmark on a small machine, where
// nodes that in production are machines of their own take from what is measured, needs that.
type kubelets struct {
	client kubernetes.Interface
	clock  clock.WithTicker
	pods   cache.SharedIndexInformer
	nodes  cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[types.NamespacedName]

	lock sync.Mutex
	// started is when pods' containers last started, by the simulation's own clock: what the API has is in whole seconds.
	started map[types.UID]time.Time
}

// byNode is the index of pods by node.
const byNode = "node"

// retryMin and retryMax bound the pause before a write that failed is tried again.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

func newKubelets(client kubernetes.Interface, nodeSelector string, c clock.WithTicker) (*kubelets, error) {
	k := &kubelets{
		client:  client,
		clock:   c,
		started: map[types.UID]time.Time{},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](retryMin, retryMax),
			workqueue.TypedRateLimitingQueueConfig[types.NamespacedName]{Clock: c}),
	}
	bound := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(dropManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
		}))
	k.pods = bound.Core().V1().Pods().Informer()
	simulated := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(onlyName),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = nodeSelector }))
	k.nodes = simulated.Core().V1().Nodes().Informer()

	if err := k.pods.AddIndexers(cache.Indexers{byNode: func(o any) ([]string, error) {
		return []string{o.(*corev1.Pod).Spec.NodeName}, nil
	}}); err != nil {
		return nil, err
	}
	if _, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { k.enqueue(o.(*corev1.Pod)) },
		UpdateFunc: func(_, o any) { k.enqueue(o.(*corev1.Pod)) },
		DeleteFunc: k.forget,
	}); err != nil {
		return nil, err
	}
	_, err := k.nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(o any) {
		pods, _ := k.pods.GetIndexer().ByIndex(byNode, o.(*corev1.Node).Name)
		for _, pod := range pods {
			k.enqueue(pod.(*corev1.Pod))
		}
	}})
	return k, err
}

// dropManagedFields forgets what nobody here reads.
func dropManagedFields(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}

// onlyName keeps of a node what is needed to know that it is simulated.
func onlyName(o any) (any, error) {
	if node, ok := o.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}, nil
	}
	return o, nil
}

// run plays until ctx ends, with workers pods written at once.
func (k *kubelets) run(ctx context.Context, workers int) error {
	var group sync.WaitGroup
	defer group.Wait()
	defer k.queue.ShutDown()
	group.Go(func() { k.nodes.RunWithContext(ctx) })
	group.Go(func() { k.pods.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), k.nodes.HasSynced, k.pods.HasSynced) {
		return ctx.Err()
	}
	for range workers {
		group.Go(func() {
			for {
				key, shutdown := k.queue.Get()
				if shutdown {
					return
				}
				if err := k.play(ctx, key); err != nil && ctx.Err() == nil {
					slog.Debug("pod is not played, trying again", "pod", key, "err", err)
					k.queue.AddRateLimited(key)
				} else {
					k.queue.Forget(key)
				}
				k.queue.Done(key)
			}
		})
	}
	<-ctx.Done()
	return nil
}

// simulated is how many nodes are played.
func (k *kubelets) simulated() int { return len(k.nodes.GetStore().ListKeys()) }

func (k *kubelets) enqueue(pod *corev1.Pod) {
	k.queue.Add(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
}

func (k *kubelets) forget(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if pod, ok := o.(*corev1.Pod); ok {
		k.lock.Lock()
		delete(k.started, pod.UID)
		k.lock.Unlock()
	}
}

// play does what a pod's kubelet would do now.
func (k *kubelets) play(ctx context.Context, key types.NamespacedName) error {
	object, found, err := k.pods.GetStore().GetByKey(key.String())
	if err != nil || !found {
		return err
	}
	pod := object.(*corev1.Pod)
	if _, simulated, _ := k.nodes.GetStore().GetByKey(pod.Spec.NodeName); !simulated {
		return nil
	}
	now := k.clock.Now()
	switch next, at := nextStep(pod, k.startedAt(pod), now); next {
	case stepDelete:
		if wait := at.Sub(now); wait > 0 {
			k.queue.AddAfter(key, wait)
			return nil
		}
		err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		// Another pod with this name, or none: this one is gone.
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	case stepRun:
		return k.write(ctx, pod, podRunning(pod, metav1.NewTime(now)), now)
	case stepFinish:
		if wait := at.Sub(now); wait > 0 {
			k.queue.AddAfter(key, wait)
			return nil
		}
		return k.write(ctx, pod, podFinished(pod, metav1.NewTime(now)), now)
	}
	return nil
}

func (k *kubelets) startedAt(pod *corev1.Pod) time.Time {
	k.lock.Lock()
	defer k.lock.Unlock()
	return k.started[pod.UID]
}

// write replaces a pod's status. A conflict means that a newer pod is on its way here, which will be played.
func (k *kubelets) write(ctx context.Context, pod *corev1.Pod, status *corev1.PodStatus, now time.Time) error {
	next := *pod // what is shared with the cache is not changed below
	next.Status = *merge(&pod.Status, status)
	k.lock.Lock()
	before, known := k.started[pod.UID]
	if _, ends := pod.Annotations[AnnotationDuration]; ends && status.Phase == corev1.PodRunning {
		k.started[pod.UID] = now // before the write: its event may be here before its answer
	} else {
		delete(k.started, pod.UID)
	}
	k.lock.Unlock()
	_, err := k.client.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, &next, metav1.UpdateOptions{})
	if err == nil {
		return nil
	}
	k.lock.Lock()
	if known {
		k.started[pod.UID] = before
	} else {
		delete(k.started, pod.UID)
	}
	k.lock.Unlock()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(fmt.Errorf("status of pod %s/%s", pod.Namespace, pod.Name), err)
}

// brokenOffAfter is how old a deletion without a grace period is that nobody carries out any more.
const brokenOffAfter = 2 * time.Second

// step is what a kubelet does next with a pod.
type step int

const (
	stepNone   step = iota
	stepRun         // start its containers
	stepFinish      // end them, at a time
	stepDelete      // it has been deleted and its containers are gone
)

// nextStep decides what is to be done with a pod, and when: doc.go's picture. started is when its containers started,
// or zero if that was before the simulation did.
func nextStep(pod *corev1.Pod, started, now time.Time) (step, time.Time) {
	if pod.DeletionTimestamp != nil {
		// With a grace period of 0 the deletion does not wait for the node, unless the request for it was broken off half way:
		// then a kubelet removes what is left.
		switch {
		case ptr.Deref(pod.DeletionGracePeriodSeconds, 0) > 0:
			return stepDelete, now
		case len(pod.Finalizers) == 0:
			return stepDelete, pod.DeletionTimestamp.Add(brokenOffAfter)
		}
		return stepNone, now
	}
	switch pod.Status.Phase {
	case corev1.PodPending, "":
		return stepRun, now
	case corev1.PodRunning:
		text, ok := pod.Annotations[AnnotationDuration]
		if !ok {
			return stepNone, now
		}
		duration, err := time.ParseDuration(text)
		if err != nil {
			return stepFinish, now // its outcome says what is wrong
		}
		if started.IsZero() {
			started = now
			for _, c := range pod.Status.ContainerStatuses {
				if c.State.Running != nil {
					started = c.State.Running.StartedAt.Time
				}
			}
		}
		return stepFinish, started.Add(duration)
	}
	return stepNone, now
}

// merge lays a new status over an old one as a kubelet does: conditions of other writers, and what the new one says
// nothing about, stay.
func merge(old, status *corev1.PodStatus) *corev1.PodStatus {
	out := *old
	out.Phase = status.Phase
	if status.StartTime != nil {
		out.StartTime = status.StartTime
	}
	if status.HostIP != "" {
		out.HostIP, out.HostIPs = status.HostIP, status.HostIPs
	}
	if status.PodIP != "" {
		out.PodIP, out.PodIPs = status.PodIP, status.PodIPs
	}
	if status.InitContainerStatuses != nil {
		out.InitContainerStatuses = status.InitContainerStatuses
	}
	out.ContainerStatuses = status.ContainerStatuses
	out.Conditions = make([]corev1.PodCondition, 0, len(old.Conditions)+len(status.Conditions))
	for _, c := range old.Conditions {
		if condition(status, c.Type) == nil {
			out.Conditions = append(out.Conditions, c)
		}
	}
	for _, c := range status.Conditions {
		if was := condition(old, c.Type); was != nil && was.Status == c.Status {
			c.LastTransitionTime = was.LastTransitionTime
		}
		out.Conditions = append(out.Conditions, c)
	}
	return &out
}

func condition(status *corev1.PodStatus, kind corev1.PodConditionType) *corev1.PodCondition {
	for i := range status.Conditions {
		if status.Conditions[i].Type == kind {
			return &status.Conditions[i]
		}
	}
	return nil
}

// podIP is the address that a pod seems to have: one of four million, taken from its UID. Nothing answers there.
func podIP(pod *corev1.Pod) string {
	if pod.Spec.HostNetwork {
		return hostIP
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.UID))
	n := h.Sum32()
	return netip.AddrFrom4([4]byte{10, 64 | byte(n>>16)&63, byte(n >> 8), byte(n)}).String()
}
