package podgroup

import (
	"cmp"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
)

// Owners reads the owners of pods.
type Owners interface {
	// Annotations returns the annotations of an owner: none if it is gone. The error is that of the API
	// server.
	Annotations(ctx context.Context, namespace string, owner metav1.OwnerReference) (map[string]string, error)
}

// Pods without a PodGroup are a gang if their owner says so: with the annotation
// GroupMinMemberAnnotation on a Deployment (which copies it to its ReplicaSets), StatefulSet,
// DaemonSet or batch/v1 Job. Such a gang gets a PodGroup that its owner owns. Its pods get the
// annotation that names it when they are bound, so that it costs no write.
//
//	pod ──▶ is its owner known? ──no──▶ ask once ──▶ no annotation: it is placed by itself
//	                  └─yes─────────────────────└──▶ PodGroup podgroup-<UID of the owner>
//
// Owners are asked for once; a later change of the annotation counts for later owners. Pods whose own
// annotations ask for a network topology are a gang of their owner, too, of any kind and with a minimum
// of 1 by default.
type owners struct {
	Owners
	// loop reads the owners, each until the API server has answered.
	loop  *controlloop.Loop[types.UID, struct{}]
	mu    sync.Mutex
	known map[types.UID]*ownerRecord
}

// ownersInFlight is the number of owners that are read at the same time.
const ownersInFlight = 16

// ownerRecord is what is known of an owner.
type ownerRecord struct {
	namespace string
	ref       metav1.OwnerReference
	answered  bool
	// minMember is the minimum of the gang; 0 means that the pods are no gang.
	minMember    int32
	minResources *corev1.ResourceList
	// topology is that of the first pod seen.
	topology *schedulingv1beta1.NetworkTopologySpec
}

// isGang reports whether the owner's pods are a gang.
func (r *ownerRecord) isGang() bool { return r.minMember > 0 || r.topology != nil }

// ownerGroupPrefix begins the names of PodGroups of owners; the owner's UID follows.
const ownerGroupPrefix = "podgroup-"

// mayHaveGroup reports whether an owner is of a kind whose annotation is read.
func mayHaveGroup(ref *metav1.OwnerReference) bool {
	switch ref.APIVersion + " " + ref.Kind {
	case "apps/v1 ReplicaSet", "apps/v1 StatefulSet", "apps/v1 DaemonSet", "batch/v1 Job":
		return true
	}
	return false
}

// keyOf returns the key of a pod. It returns false, and asks for the owner, if the owner is not known
// yet; the pod is then reconciled when the answer arrives.
func (c *Controller) keyOf(p *corev1.Pod) (key, bool) {
	if g, ok := schedulingv1beta1.GroupOf(p); ok {
		return key{name: g}, true
	}
	if g, ok := schedulingv1beta1.KubeGroupOf(p); ok {
		return key{kube: true, name: g}, true
	}
	alone := key{pod: true, name: types.NamespacedName{Namespace: p.Namespace, Name: p.Name}}
	ref := metav1.GetControllerOfNoCopy(p)
	topology, _ := topologyOf(p)
	annotated := c.owners.Owners != nil && ref != nil && mayHaveGroup(ref)
	if ref == nil || p.Spec.NodeName != "" || !annotated && (topology == nil || ref.Kind == workflowKind) {
		return alone, true
	}
	c.owners.mu.Lock()
	defer c.owners.mu.Unlock()
	r := c.owners.known[ref.UID]
	if r == nil {
		r = &ownerRecord{namespace: p.Namespace, ref: *ref.DeepCopy(), topology: topology, answered: !annotated}
		c.owners.known[ref.UID] = r
		if annotated {
			c.owners.loop.Wake(ref.UID)
		}
	}
	switch {
	case !r.answered:
		return key{}, false
	case !r.isGang():
		return alone, true
	}
	return r.key(), true
}

func (r *ownerRecord) key() key {
	return key{name: types.NamespacedName{Namespace: r.namespace, Name: ownerGroupPrefix + string(r.ref.UID)}}
}

// readOwner reads an owner, records its annotations, and wakes its pods.
func (c *Controller) readOwner(uid types.UID) {
	c.owners.mu.Lock()
	r := c.owners.known[uid]
	c.owners.mu.Unlock()
	if r == nil {
		return // its pods are gone
	}
	annotations, err := c.owners.Annotations(c.owners.loop.Context(), r.namespace, r.ref)
	if err != nil && !apierrors.IsForbidden(err) {
		if c.owners.loop.Context().Err() == nil {
			c.cfg.Log.Warn("the owner of pods could not be read", "owner", r.ref.Kind+" "+r.namespace+"/"+r.ref.Name, "error", err)
		}
		c.owners.loop.Retry(uid)
		return
	}
	c.owners.loop.Succeeded(uid)
	if apierrors.IsForbidden(err) {
		c.cfg.Log.Error("owners of pods cannot be read: their annotation "+schedulingv1beta1.GroupMinMemberAnnotation+" has no effect", "error", err)
	}
	pods := c.podsOfOwner(uid)
	c.owners.mu.Lock()
	wrong := r.read(annotations)
	c.owners.mu.Unlock()
	if wrong != "" && len(pods) > 0 {
		c.cfg.Writer.Event(pods[0], corev1.EventTypeWarning, "AnnotationIgnored", r.ref.Kind+" "+r.ref.Name+": "+wrong)
	}
	for _, p := range pods {
		if k, known := c.keyOf(p); known {
			c.loop.Wake(k)
		}
	}
}

// read records the annotations of an owner. It returns what is wrong with those that it ignores.
func (r *ownerRecord) read(annotations map[string]string) (wrong string) {
	r.answered = true
	least, announced := annotations[schedulingv1beta1.GroupMinMemberAnnotation], annotations[schedulingv1beta1.GroupMinResourcesAnnotation]
	if least == "" {
		return ""
	}
	n, err := strconv.ParseInt(least, 10, 32)
	if err != nil || n < 1 {
		return "metadata.annotations[" + schedulingv1beta1.GroupMinMemberAnnotation + "] is no positive number; it has no effect"
	}
	if n == 1 {
		return ""
	}
	r.minMember = int32(n)
	if announced == "" {
		return ""
	}
	var resources corev1.ResourceList
	if err := json.Unmarshal([]byte(announced), &resources); err != nil {
		return "metadata.annotations[" + schedulingv1beta1.GroupMinResourcesAnnotation + "] is no JSON object of resources; it has no effect"
	}
	r.minResources = &resources
	return ""
}

// topologyOf returns the network topology that a pod's annotations ask for, or nil, and what is wrong
// with annotations that are ignored.
func topologyOf(p *corev1.Pod) (spec *schedulingv1beta1.NetworkTopologySpec, wrong string) {
	const modeKey, tierKey = schedulingv1beta1.NetworkTopologyModeAnnotation, schedulingv1beta1.NetworkTopologyHighestTierAnnotation
	mode, tier := p.Annotations[modeKey], p.Annotations[tierKey]
	if mode == "" && tier == "" {
		return nil, ""
	}
	spec = &schedulingv1beta1.NetworkTopologySpec{Mode: cmp.Or(schedulingv1beta1.NetworkTopologyMode(mode), schedulingv1beta1.HardNetworkTopology)}
	if spec.Mode != schedulingv1beta1.HardNetworkTopology && spec.Mode != schedulingv1beta1.SoftNetworkTopology {
		return nil, "metadata.annotations[" + modeKey + "] is neither hard nor soft; the pod has no network topology"
	}
	if tier != "" {
		n, err := strconv.Atoi(tier)
		if err != nil || n < 0 {
			return nil, "metadata.annotations[" + tierKey + "] is no number of a tier; the pod has no network topology"
		}
		spec.HighestTierAllowed = &n
	}
	return spec, ""
}

// warn writes an event about annotations and fields of a new pod that are ignored.
func (c *Controller) warn(p *corev1.Pod) {
	if p.Spec.NodeName != "" || !c.foreign(p) {
		return
	}
	if group, named := schedulingv1beta1.GroupOf(p); named {
		if p.Spec.SchedulingGroup != nil {
			c.cfg.Writer.Event(p, corev1.EventTypeWarning, "SchedulingGroupIgnored", "spec.schedulingGroup has no effect: an annotation puts the pod into PodGroup "+
				group.Name+" of "+schedulingv1beta1.GroupVersion.String())
		}
		return
	}
	if _, wrong := topologyOf(p); wrong != "" {
		c.cfg.Writer.Event(p, corev1.EventTypeWarning, "AnnotationIgnored", wrong)
	}
}

// workflowKind is the kind of the owners of workflows' pods, which are placed one by one.
const workflowKind = "Workflow"

// podsOfOwner returns the pods of an owner that this package schedules and that name no PodGroup.
func (c *Controller) podsOfOwner(uid types.UID) (pods []*corev1.Pod) {
	for _, p := range c.cfg.Informers.Pods.ByIndex(informer.PodsByController, string(uid)) {
		_, named := schedulingv1beta1.GroupOf(p)
		if _, kube := schedulingv1beta1.KubeGroupOf(p); !named && !kube && c.foreign(p) {
			pods = append(pods, p)
		}
	}
	return pods
}

// ownerOf returns the owner whose PodGroup has the key, or nil.
func (c *Controller) ownerOf(k key) *ownerRecord {
	uid, ok := strings.CutPrefix(k.name.Name, ownerGroupPrefix)
	if k.pod || k.kube || !ok {
		return nil
	}
	c.owners.mu.Lock()
	defer c.owners.mu.Unlock()
	if r := c.owners.known[types.UID(uid)]; r != nil && r.isGang() && r.namespace == k.name.Namespace {
		return r
	}
	return nil
}

// forgetOwner drops what is known of a pod's owner if it has no other pods.
func (c *Controller) forgetOwner(p *corev1.Pod) {
	ref := metav1.GetControllerOfNoCopy(p)
	if ref == nil || len(c.cfg.Informers.Pods.ByIndex(informer.PodsByController, string(ref.UID))) > 0 {
		return
	}
	c.owners.mu.Lock()
	defer c.owners.mu.Unlock()
	delete(c.owners.known, ref.UID)
}

// createdAgain is how long the watch may take to show a PodGroup that was created. After that somebody
// must have deleted it, and it is created again.
const createdAgain = 5 * time.Second

// createGroup creates the PodGroup of an owner. The first of the pods says the queue and the priority.
func (c *Controller) createGroup(k key, u *groupState, r *ownerRecord, pods []*corev1.Pod) {
	if u.creating || len(pods) == 0 {
		return
	}
	if left := createdAgain - c.cfg.Clock.Since(u.created); left > 0 {
		c.loop.WakeAfter(k, left)
		return
	}
	u.creating = true
	controller := true
	pg := &schedulingv1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: k.name.Namespace, Name: k.name.Name,
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: r.ref.APIVersion, Kind: r.ref.Kind, Name: r.ref.Name, UID: r.ref.UID, Controller: &controller,
			}},
		},
		Spec: schedulingv1beta1.PodGroupSpec{
			MinMember: max(1, r.minMember), MinResources: r.minResources, NetworkTopology: r.topology, PriorityClassName: pods[0].Spec.PriorityClassName,
			Queue: pods[0].Annotations[schedulingv1beta1.QueueNameAnnotation],
		},
	}
	c.cfg.Writer.Create(apiwriter.Meta{Owner: k.String(), Reason: "podgroup-of-owner"}, pg, func(_ apiwriter.Object, err error) {
		c.mu.Lock()
		u.creating = false
		if err == nil {
			u.created = c.cfg.Clock.Now()
		}
		c.mu.Unlock()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			c.cfg.Log.Warn("a PodGroup could not be created", "podgroup", k.name, "error", err)
			c.loop.Retry(k)
		}
	})
}
