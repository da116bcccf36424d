package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
)

// The indexes of Informers.Pods.
const (
	// PodsByController files pods under the UID of their controlling owner.
	PodsByController = "controller"
	// PodsByGroup files pods under "namespace/name" of the PodGroup their annotation names.
	PodsByGroup = "group"
	// PodsByNode files pods under the name of their node.
	PodsByNode = "node"
)

// Informers watches every type that the scheduler and the batch controllers read. Each cache streams its first list and
// keeps only what is used (see trim.go), so objects from it must never be written back as they are.
type Informers struct {
	Pods            *Kind[*corev1.Pod]
	Nodes           *Kind[*corev1.Node]
	Jobs            *Kind[*batchv1alpha1.Job]
	PodGroups       *Kind[*schedulingv1beta1.PodGroup]
	Queues          *Kind[*schedulingv1beta1.Queue]
	Commands        *Kind[*busv1alpha1.Command]
	PriorityClasses *Kind[*schedulingv1.PriorityClass]
	LimitRanges     *Kind[*corev1.LimitRange]

	running sync.WaitGroup
}

// NewInformers prepares the watches of the cluster at cfg. Nothing is read before Start.
func NewInformers(cfg *rest.Config) (*Informers, error) {
	var failed error
	client := func(gv schema.GroupVersion) rest.Interface {
		c, err := kubeclient.ForGroupVersion(cfg, nil, gv, scheme.Scheme)
		if err != nil && failed == nil {
			failed = fmt.Errorf("watching %s: %w", gv, err)
		}
		return c
	}
	core := client(corev1.SchemeGroupVersion)
	sched := client(schedulingv1.SchemeGroupVersion)
	batch := client(batchv1alpha1.GroupVersion)
	groups := client(schedulingv1beta1.GroupVersion)
	bus := client(busv1alpha1.GroupVersion)
	if failed != nil {
		return nil, failed
	}
	t := newTrimmer()
	podIndexes := cache.Indexers{
		PodsByController: indexPodByController, PodsByGroup: indexPodByGroup, PodsByNode: indexPodByNode,
	}
	return &Informers{
		Pods:            newKind(core, "pods", &corev1.Pod{}, t.pod, podIndexes),
		Nodes:           newKind(core, "nodes", &corev1.Node{}, trimNode, nil),
		Jobs:            newKind[*batchv1alpha1.Job](batch, "jobs", &batchv1alpha1.Job{}, nil, nil),
		PodGroups:       newKind[*schedulingv1beta1.PodGroup](groups, "podgroups", &schedulingv1beta1.PodGroup{}, nil, nil),
		Queues:          newKind[*schedulingv1beta1.Queue](groups, "queues", &schedulingv1beta1.Queue{}, nil, nil),
		Commands:        newKind[*busv1alpha1.Command](bus, "commands", &busv1alpha1.Command{}, nil, nil),
		PriorityClasses: newKind[*schedulingv1.PriorityClass](sched, "priorityclasses", &schedulingv1.PriorityClass{}, nil, nil),
		LimitRanges:     newKind[*corev1.LimitRange](core, "limitranges", &corev1.LimitRange{}, nil, nil),
	}, nil
}

// kinds are all the watches, whatever their type.
func (i *Informers) kinds() []interface {
	run(context.Context)
	synced() bool
} {
	return []interface {
		run(context.Context)
		synced() bool
	}{i.Nodes, i.PriorityClasses, i.Queues, i.LimitRanges, i.PodGroups, i.Pods, i.Jobs, i.Commands}
}

// Start begins watching until ctx is done. Handlers should be registered before.
func (i *Informers) Start(ctx context.Context) {
	for _, k := range i.kinds() {
		i.running.Go(func() { k.run(ctx) })
	}
}

// WaitForSync returns when every object that existed at the start has been handed to every handler, or with an error
// when ctx is done before.
func (i *Informers) WaitForSync(ctx context.Context) error {
	for _, k := range i.kinds() {
		for !k.synced() {
			select {
			case <-ctx.Done():
				return fmt.Errorf("waiting for the first lists: %w", context.Cause(ctx))
			case <-time.After(syncPoll):
			}
		}
	}
	return nil
}

// Wait returns when the watches have ended after the context given to Start.
func (i *Informers) Wait() { i.running.Wait() }

// syncPoll is how often WaitForSync looks: the libraries beneath offer no notification for handlers.
const syncPoll = 5 * time.Millisecond

func indexPodByController(o any) ([]string, error) {
	if c := metav1.GetControllerOf(o.(*corev1.Pod)); c != nil {
		return []string{string(c.UID)}, nil
	}
	return nil, nil
}

func indexPodByGroup(o any) ([]string, error) {
	if g, ok := GroupOf(o.(*corev1.Pod)); ok {
		return []string{g.String()}, nil
	}
	return nil, nil
}

func indexPodByNode(o any) ([]string, error) {
	if n := o.(*corev1.Pod).Spec.NodeName; n != "" {
		return []string{n}, nil
	}
	return nil, nil
}

// GroupOf is the PodGroup that the pod's annotation names, or false.
func GroupOf(pod *corev1.Pod) (types.NamespacedName, bool) {
	for _, key := range []string{schedulingv1beta1.GroupNameAnnotation, schedulingv1beta1.VolcanoGroupNameAnnotation} {
		if name := pod.Annotations[key]; name != "" {
			return types.NamespacedName{Namespace: pod.Namespace, Name: name}, true
		}
	}
	return types.NamespacedName{}, false
}

// QueueOf is the queue that the pod's own annotations name, or empty.
func QueueOf(pod *corev1.Pod) string {
	if q := pod.Annotations[schedulingv1beta1.QueueNameAnnotation]; q != "" {
		return q
	}
	return pod.Annotations[batchv1alpha1.QueueNameKey]
}
