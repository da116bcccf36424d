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
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"lockstep.dev/lockstep/internal/controlloop"
)

// kubelets does what the kubelets of simulated nodes do with pods. It is level-triggered: a pod is
// processed whenever the pod or its node changes, and when its containers exit; the action depends
// on the pod's current state.
//
// KWOK's own pod controller renders a pod's status as text from the pod as text, and has the API
// server merge a patch. Here the status is computed from the typed pod and replaces the old one in
// protobuf: the same single write per arrow of the picture in doc.go, for less than half of the CPU
// time on both sides. A benchmark on a small machine needs that, because nodes, which in production
// are machines of their own, take CPU time from the system under test.
type kubelets struct {
	client kubernetes.Interface
	clock  clock.WithTicker
	pods   cache.SharedIndexInformer
	nodes  cache.SharedIndexInformer
	loop   *controlloop.Loop[types.NamespacedName, struct{}]

	lock sync.Mutex
	// started has the times at which pods' containers last started, by the simulation's own clock,
	// because times in the API are in whole seconds.
	started map[types.UID]time.Time
}

// byNode is the index of pods by node.
const byNode = "node"

// retryMin and retryMax bound the delay before a failed write is repeated.
const (
	retryMin = 50 * time.Millisecond
	retryMax = 2 * time.Second
)

// newKubelets returns kubelets that write the given number of pods concurrently.
func newKubelets(client kubernetes.Interface, nodeSelector string, workers int, c clock.WithTicker) (*kubelets, error) {
	k := &kubelets{
		client:  client,
		clock:   c,
		started: map[types.UID]time.Time{},
	}
	k.loop = controlloop.New[types.NamespacedName, struct{}](controlloop.Config[types.NamespacedName]{
		Name: "kubelets", Workers: workers, Turn: k.turn, Clock: c, RetryMin: retryMin, RetryMax: retryMax,
	})
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

// dropManagedFields removes a pod's managed fields, which nothing here reads.
func dropManagedFields(o any) (any, error) {
	if pod, ok := o.(*corev1.Pod); ok {
		pod.ManagedFields = nil
	}
	return o, nil
}

// onlyName reduces a node to its name, UID and resource version.
func onlyName(o any) (any, error) {
	if node, ok := o.(*corev1.Node); ok {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}, nil
	}
	return o, nil
}

// run simulates until ctx is done.
func (k *kubelets) run(ctx context.Context) error {
	var group sync.WaitGroup
	defer group.Wait()
	group.Go(func() { k.nodes.RunWithContext(ctx) })
	group.Go(func() { k.pods.RunWithContext(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), k.nodes.HasSynced, k.pods.HasSynced) {
		return ctx.Err()
	}
	k.loop.Run(ctx)
	return nil
}

// turn makes the pod's next step, and retries it later if it fails.
func (k *kubelets) turn(key types.NamespacedName) {
	ctx := k.loop.Context()
	if err := k.play(ctx, key); err != nil && ctx.Err() == nil {
		slog.Debug("pod is not played, trying again", "pod", key, "err", err)
		k.loop.Retry(key)
		return
	}
	k.loop.Succeeded(key)
}

// simulated returns the number of simulated nodes.
func (k *kubelets) simulated() int { return len(k.nodes.GetStore().ListKeys()) }

func (k *kubelets) enqueue(pod *corev1.Pod) {
	k.loop.Wake(types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name})
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

// play makes the pod's next step if it is due, and otherwise wakes the key when it is.
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
			k.loop.WakeAfter(key, wait)
			return nil
		}
		err := k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: ptr.To[int64](0), Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
		// The pod is deleted already, or another pod has its name.
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	case stepRun:
		return k.write(ctx, pod, podRunning(pod, metav1.NewTime(now)), now)
	case stepFinish:
		if wait := at.Sub(now); wait > 0 {
			k.loop.WakeAfter(key, wait)
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

// write replaces a pod's status. A conflict means that a newer version of the pod is about to
// arrive and will be processed.
func (k *kubelets) write(ctx context.Context, pod *corev1.Pod, status *corev1.PodStatus, now time.Time) error {
	next := *pod // values shared with the cache are not changed below
	next.Status = *merge(&pod.Status, status)
	k.lock.Lock()
	before, known := k.started[pod.UID]
	if _, ends := pod.Annotations[AnnotationDuration]; ends && status.Phase == corev1.PodRunning {
		// Set before the write, because the write's event may arrive before its answer.
		k.started[pod.UID] = now
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

// brokenOffAfter is the age at which a deletion without a grace period counts as interrupted.
const brokenOffAfter = 2 * time.Second

// step is the next action of a kubelet for a pod.
type step int

const (
	stepNone   step = iota
	stepRun         // start its containers
	stepFinish      // end its containers at a given time
	stepDelete      // remove the pod: it was deleted and its containers are gone
)

// nextStep returns the next action for a pod and its time, according to the picture in doc.go.
// started is when its containers started, or zero if that was before the simulation began.
func nextStep(pod *corev1.Pod, started, now time.Time) (step, time.Time) {
	if pod.DeletionTimestamp != nil {
		// With a grace period of 0 the deletion does not wait for the node, unless the deletion
		// request was interrupted half way: then a kubelet removes the rest.
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
			return stepFinish, now // outcome reports the error
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

// merge applies a new status to an old one as a kubelet does: conditions of other writers, and
// fields that the new status does not set, are kept.
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

// podIP returns the simulated address of a pod: one of four million, derived from its UID. No
// program listens there.
func podIP(pod *corev1.Pod) string {
	if pod.Spec.HostNetwork {
		return hostIP
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(pod.UID))
	n := h.Sum32()
	return netip.AddrFrom4([4]byte{10, 64 | byte(n>>16)&63, byte(n >> 8), byte(n)}).String()
}
