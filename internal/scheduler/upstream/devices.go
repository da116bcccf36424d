package upstream

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	plfeature "k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"k8s.io/kubernetes/pkg/scheduler/util/assumecache"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/apiwriter"
)

const (
	// devicesOfNode bounds the search for devices for one pod on one node, and devicesOfPod on all
	// nodes. Users write the selectors that are evaluated.
	devicesOfNode = 200 * time.Millisecond
	devicesOfPod  = 500 * time.Millisecond
	// devicesOfCycle bounds the searches between two refreshes.
	devicesOfCycle = 3 * time.Second
	// devicesRest is how many times as long as a search that took too long no devices are looked for
	// in its namespace: others' pods wait for these searches, too.
	devicesRest = 20
	// enoughNodes is the number of nodes with devices for a pod after which no more are looked at.
	enoughNodes = 50
	// claimsByPod is the index of the claims that were made from a pod's claim templates, by the pod's
	// UID.
	claimsByPod   = "pod"
	devicesReason = "devices"
)

// devices is what dynamic resource allocation needs: resource claims, slices of devices, and device
// classes. It implements fwk.SharedDRAManager.
type devices struct {
	fwk.SharedDRAManager
	client  kubernetes.Interface
	factory informers.SharedInformerFactory
	claims  *claims
	byPod   cache.Indexer
	served  bool // the API server has resource.k8s.io/v1; set before the first cycle
	clock   clock.PassiveClock
	spent   time.Duration // on searches since the last refresh
	// rest has, by namespace, until when no devices are looked for.
	rest map[string]time.Time
}

// ResourceClaims implements fwk.SharedDRAManager.
func (d *devices) ResourceClaims() fwk.ResourceClaimTracker { return d.claims }

// claims are the resource claims as the API server has them, with the allocations that were found in
// this cycle or are being written. It implements fwk.ResourceClaimTracker. To the plugin such a claim
// is allocated, so several pods of a gang may share it.
type claims struct {
	fwk.ResourceClaimTracker // counts the devices of planned claims as taken
	mu                       sync.Mutex
	planned                  map[types.UID]*resourcev1.ResourceClaim
	fresh                    []types.UID // planned since takeFresh
}

// Get implements fwk.ResourceClaimTracker.
func (c *claims) Get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	claim, err := c.ResourceClaimTracker.Get(namespace, name)
	if err != nil || claim.Status.Allocation != nil {
		return claim, err
	}
	if planned := c.plan(claim.UID); planned != nil {
		return planned, nil
	}
	return claim, nil
}

// stored returns a claim as the API server has it.
func (c *claims) stored(namespace, name string) (*resourcev1.ResourceClaim, error) {
	return c.ResourceClaimTracker.Get(namespace, name)
}

// GetPendingAllocation implements fwk.ResourceClaimTracker. Get shows such allocations.
func (c *claims) GetPendingAllocation(types.UID) *resourcev1.AllocationResult { return nil }

// SignalClaimPendingAllocation implements fwk.ResourceClaimTracker. The plugin calls it with the
// allocation that it found for the chosen node.
func (c *claims) SignalClaimPendingAllocation(uid types.UID, claim *resourcev1.ResourceClaim) error {
	c.mu.Lock()
	c.planned[uid] = claim
	c.fresh = append(c.fresh, uid)
	c.mu.Unlock()
	return c.ResourceClaimTracker.SignalClaimPendingAllocation(uid, claim)
}

// takeFresh returns the claims that were planned since the last call.
func (c *claims) takeFresh() []types.UID {
	c.mu.Lock()
	defer c.mu.Unlock()
	fresh := c.fresh
	c.fresh = nil
	return fresh
}

func (c *claims) plan(uid types.UID) *resourcev1.ResourceClaim {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.planned[uid]
}

// drop frees the devices of a planned claim, unless the API server has the allocation.
func (c *claims) drop(uid types.UID) {
	c.mu.Lock()
	_, found := c.planned[uid]
	delete(c.planned, uid)
	c.mu.Unlock()
	if found {
		c.MaybeRemoveClaimPendingAllocation(uid, true)
	}
}

// dropUnless drops the planned claims for which keep returns false.
func (c *claims) dropUnless(keep func(types.UID) bool) {
	c.mu.Lock()
	var all []types.UID
	for uid := range c.planned {
		all = append(all, uid)
	}
	c.mu.Unlock()
	for _, uid := range all {
		if !keep(uid) {
			c.drop(uid)
		}
	}
}

// newDevices returns devices whose informers have not been started.
func (f *Filter) newDevices(client kubernetes.Interface, fts plfeature.Features) (*devices, error) {
	d := &devices{client: client, clock: f.choices.clock, factory: informers.NewSharedInformerFactory(client, 0)}
	api := d.factory.Resource().V1()
	informer := api.ResourceClaims().Informer()
	if err := informer.AddIndexers(cache.Indexers{claimsByPod: podOfClaim}); err != nil {
		return nil, fmt.Errorf("the index of resource claims: %w", err)
	}
	d.byPod = informer.GetIndexer()
	slices, err := tracker.StartTracker(f.ctx, tracker.Options{
		EnableConsumableCapacity: fts.EnableDRAConsumableCapacity, SliceInformer: api.ResourceSlices(), KubeClient: client,
	})
	if err != nil {
		return nil, fmt.Errorf("the tracker of resource slices: %w", err)
	}
	store := assumecache.NewAssumeCache(klog.Logger{}, informer, "ResourceClaim", "", nil)
	manager := dynamicresources.NewDRAManager(f.ctx, store, slices, d.factory)
	d.SharedDRAManager = manager
	d.claims = &claims{ResourceClaimTracker: manager.ResourceClaims(), planned: map[types.UID]*resourcev1.ResourceClaim{}}

	// The store calls this after the set of allocated devices is up to date.
	store.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    f.claimChanged,
		UpdateFunc: func(_, o any) { f.claimChanged(o) },
		DeleteFunc: f.claimChanged,
	})
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.cluster.VolumesChanged() },
		UpdateFunc: func(any, any) { f.cluster.VolumesChanged() },
		DeleteFunc: func(any) { f.cluster.VolumesChanged() },
	}
	for _, i := range []cache.SharedIndexInformer{api.ResourceSlices().Informer(), api.DeviceClasses().Informer()} {
		if _, err := i.AddEventHandler(changed); err != nil {
			return nil, fmt.Errorf("the kube-scheduler's plugins: %w", err)
		}
	}
	return d, nil
}

// podOfClaim indexes the claims that kube-controller-manager made from a pod's claim templates.
func podOfClaim(o any) ([]string, error) {
	claim, ok := o.(*resourcev1.ResourceClaim)
	if !ok || claim.Annotations[resourcev1.PodResourceClaimAnnotation] == "" {
		return nil, nil
	}
	if owner := metav1.GetControllerOf(claim); owner != nil && owner.Kind == "Pod" {
		return []string{string(owner.UID)}, nil
	}
	return nil, nil
}

// start starts the informers if the API server has the API, and waits until they have synced.
func (d *devices) start(ctx context.Context) error {
	err := wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		_, err := d.client.Discovery().ServerResourcesForGroupVersion(resourcev1.SchemeGroupVersion.String())
		d.served = err == nil
		return err == nil || apierrors.IsNotFound(err), nil
	})
	if err != nil {
		return fmt.Errorf("whether the API server has %v: %w", resourcev1.SchemeGroupVersion, err)
	}
	if !d.served {
		return nil
	}
	d.factory.Start(ctx.Done())
	for kind, ok := range d.factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return fmt.Errorf("the kube-scheduler's plugins: reading %v: %w", kind, context.Cause(ctx))
		}
	}
	return nil
}

// search is the search for devices for one pod on all nodes. It is over at once for other pods' sake
// if it takes too long, and once enough nodes are found.
type search struct {
	devices   *devices
	namespace string
	start     time.Time
	found     int
	why       string
	slow      bool // it took too long
}

// search begins the search for a pod's devices. It never ends early if the pod needs none.
func (d *devices) search(p *corev1.Pod) *search {
	if len(p.Spec.ResourceClaims) == 0 {
		return &search{}
	}
	s := &search{devices: d, namespace: p.Namespace, start: d.clock.Now()}
	if until := d.rest[p.Namespace]; s.start.Before(until) {
		s.why = "looking for devices of pods of this namespace took too long, and is put off"
	} else {
		delete(d.rest, p.Namespace)
	}
	return s
}

// over reports whether no more nodes are to be looked at.
func (s *search) over() bool {
	if s.devices == nil {
		return false
	}
	switch {
	case s.slow || s.why != "":
		return true
	case s.found >= enoughNodes:
		s.why = "enough other nodes have devices"
		return true
	}
	took := s.devices.clock.Since(s.start)
	if s.slow = took >= devicesOfPod || s.devices.spent+took >= devicesOfCycle; s.slow {
		s.why = "looking for devices took too long"
	}
	return s.slow
}

func (s *search) end() {
	if s.devices == nil {
		return
	}
	d := s.devices
	took := d.clock.Since(s.start)
	d.spent += took
	if s.slow && s.found == 0 {
		if d.rest == nil {
			d.rest = map[string]time.Time{}
		}
		d.rest[s.namespace] = d.clock.Now().Add(devicesRest * took)
	}
}

// claimChanged notes that a claim is new, changed or deleted.
func (f *Filter) claimChanged(o any) {
	if gone, ok := o.(cache.DeletedFinalStateUnknown); ok {
		o = gone.Obj
	}
	if claim, ok := o.(*resourcev1.ResourceClaim); ok && (claim.Status.Allocation != nil || claim.DeletionTimestamp != nil) {
		f.devices.claims.drop(claim.UID)
	}
	f.cluster.VolumesChanged()
}

// withClaims gives a pod, in place, the names of the claims that were made from its templates, and
// returns why it has none yet, or "".
func (f *Filter) withClaims(p *corev1.Pod) (missing string) {
	if len(p.Spec.ResourceClaims) == 0 {
		return ""
	}
	if !f.devices.served {
		return fmt.Sprintf("the API server does not have %v, which resource claims need", resourcev1.SchemeGroupVersion)
	}
	p.Status.ResourceClaimStatuses = nil
	made, err := f.devices.byPod.ByIndex(claimsByPod, string(p.UID))
	if err != nil || p.UID == "" {
		made = nil
	}
	for i := range p.Spec.ResourceClaims {
		c := &p.Spec.ResourceClaims[i]
		if c.ResourceClaimTemplateName == nil {
			continue
		}
		at := slices.IndexFunc(made, func(o any) bool {
			claim, ok := o.(*resourcev1.ResourceClaim)
			return ok && claim.Annotations[resourcev1.PodResourceClaimAnnotation] == c.Name && claim.DeletionTimestamp == nil
		})
		if at < 0 {
			missing = fmt.Sprintf("waiting for kube-controller-manager to create claim %q of template %q", c.Name, *c.ResourceClaimTemplateName)
			continue
		}
		p.Status.ResourceClaimStatuses = append(p.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{
			Name: c.Name, ResourceClaimName: &made[at].(*resourcev1.ResourceClaim).Name,
		})
	}
	return missing
}

// claimsOf returns the claims of a pod that exist, as the API server has them. complete means that
// there are no others.
func (f *Filter) claimsOf(p *corev1.Pod) (out []*resourcev1.ResourceClaim, complete bool) {
	complete = f.withClaims(p) == ""
	for i := range p.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(p, &p.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue
		}
		claim, err := f.devices.claims.stored(p.Namespace, *name)
		if err != nil {
			complete = false
		} else if !slices.Contains(out, claim) {
			out = append(out, claim)
		}
	}
	return out, complete
}

func reservedFor(p *corev1.Pod, claim *resourcev1.ResourceClaim) bool {
	return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourcev1.ResourceClaimConsumerReference) bool {
		return r.UID == p.UID
	})
}

// waitingDevices returns the claims of a pod that are being allocated or reserved for it.
func (f *Filter) waitingDevices(t *corev1.Pod) (waiting []string) {
	if len(t.Spec.ResourceClaims) == 0 || !f.devices.served {
		return nil
	}
	p := f.individual(t)
	claims, _ := f.claimsOf(p)
	for _, claim := range claims {
		if made, chosen := f.choices.get(claim.UID); chosen && !reservedFor(p, claim) {
			waiting = append(waiting, describeClaim(claim.Name, made.refused))
		}
	}
	return waiting
}

// claimWrite is a change of a claim's status.
type claimWrite struct {
	claim      *resourcev1.ResourceClaim
	allocation *resourcev1.AllocationResult // nil if the claim is allocated
	pods       []*corev1.Pod
}

// chooseDevices has the claims of placed pods allocated as planned, and reserved for the pods. It
// returns the claims that are not reserved yet.
func (f *Filter) chooseDevices(gang string, pods []*corev1.Pod) (waiting []string) {
	byClaim := map[types.UID]*claimWrite{}
	var writes []*claimWrite
	for _, t := range pods {
		if len(t.Spec.ResourceClaims) == 0 {
			continue
		}
		p := f.individual(t)
		found, complete := f.claimsOf(p)
		if !complete {
			waiting = append(waiting, "claims of "+p.Name) // one was deleted since the pod was placed
		}
		for _, claim := range found {
			if reservedFor(p, claim) {
				continue
			}
			made, chosen := f.choices.get(claim.UID)
			waiting = append(waiting, describeClaim(claim.Name, made.refused))
			if chosen {
				continue
			}
			w := byClaim[claim.UID]
			if w == nil {
				w = &claimWrite{claim: claim}
				if planned := f.devices.claims.plan(claim.UID); claim.Status.Allocation == nil && planned != nil {
					w.allocation = planned.Status.Allocation
				}
				byClaim[claim.UID], writes = w, append(writes, w)
			}
			w.pods = append(w.pods, p)
		}
	}
	for _, w := range writes {
		if w.allocation != nil || w.claim.Status.Allocation != nil {
			f.reserve(gang, w)
		}
	}
	return waiting
}

// reserve writes the allocation and the reservations of a claim. The finalizer, by which
// kube-controller-manager finds claims to deallocate, is written first.
func (f *Filter) reserve(gang string, w *claimWrite) {
	reserved := slices.Clone(w.claim.Status.ReservedFor)
	for _, p := range w.pods {
		reserved = append(reserved, resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID})
	}
	status := map[string]any{"reservedFor": reserved}
	if w.allocation != nil {
		status["allocation"] = w.allocation
	}
	f.choices.set(w.claim.UID, choice{})
	if w.allocation == nil || slices.Contains(w.claim.Finalizers, resourcev1.Finalizer) {
		f.patchClaim(gang, w.claim, true, map[string]any{"status": status}, nil)
		return
	}
	finalizers := append(slices.Clone(w.claim.Finalizers), resourcev1.Finalizer)
	f.patchClaim(gang, w.claim, false, map[string]any{"metadata": map[string]any{"finalizers": finalizers}}, func(o apiwriter.Object) {
		claim := *w.claim
		claim.ResourceVersion = o.GetResourceVersion()
		f.patchClaim(gang, &claim, true, map[string]any{"status": status}, nil)
	})
}

// patchClaim patches a claim, or its status, if it still has its version; then calls next, if it is
// not nil.
func (f *Filter) patchClaim(gang string, claim *resourcev1.ResourceClaim, status bool, patch any, next func(apiwriter.Object)) {
	data, err := json.Marshal(patch)
	if err != nil {
		f.log.Error("the allocation of devices cannot be encoded", "claim", claim.Name, "error", err)
		return
	}
	id := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID, ResourceVersion: claim.ResourceVersion,
	}}
	m := apiwriter.Meta{Owner: gang, Reason: devicesReason, StatusOnly: status}
	f.writer.PatchVersion(m, id, true, data, func(o apiwriter.Object, err error) {
		switch {
		case err == nil && next != nil:
			next(o)
			return
		case err == nil:
			return // the informer shows it
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			f.choices.drop(claim.UID) // decided again when the informers have caught up
		default:
			f.choices.set(claim.UID, choice{refused: fmt.Sprintf("the API server refused to have it allocated: %v", err)})
		}
		f.devices.claims.drop(claim.UID)
		f.cluster.VolumesChanged()
	})
}

// ReleaseDevices implements scheduler.Volumes.
func (f *Filter) ReleaseDevices(gang string, pods []*corev1.Pod) {
	byClaim := map[types.UID]*claimWrite{}
	var writes []*claimWrite
	for _, t := range pods {
		if len(t.Spec.ResourceClaims) == 0 || !f.devices.served {
			continue
		}
		if _, node := f.cluster.Pod(types.NamespacedName{Namespace: t.Namespace, Name: t.Name}); node != "" {
			continue // the gang has been placed, and its owner has not seen that yet
		}
		p := f.individual(t)
		claims, _ := f.claimsOf(p)
		for _, claim := range claims {
			if claim.Status.Allocation == nil || !reservedFor(p, claim) {
				continue
			}
			w := byClaim[claim.UID]
			if w == nil {
				w = &claimWrite{claim: claim}
				byClaim[claim.UID], writes = w, append(writes, w)
			}
			w.pods = append(w.pods, p)
		}
	}
	for _, w := range writes {
		left := slices.DeleteFunc(slices.Clone(w.claim.Status.ReservedFor), func(r resourcev1.ResourceClaimConsumerReference) bool {
			return slices.ContainsFunc(w.pods, func(p *corev1.Pod) bool { return p.UID == r.UID })
		})
		status := map[string]any{"reservedFor": left}
		if len(left) == 0 {
			status = map[string]any{"reservedFor": nil, "allocation": nil, "devices": nil}
		}
		f.choices.drop(w.claim.UID)
		f.patchClaim(gang, w.claim, true, map[string]any{"status": status}, nil)
	}
}

// hold has the plugins count what they found for a pod on its node as taken. It returns the claims
// whose allocation was planned.
func (f *Filter) hold(st *state, node string) []types.UID {
	reserve := []fwk.ReservePlugin{f.volumePlugin}
	if len(st.pod.Spec.ResourceClaims) > 0 {
		reserve = append(reserve, f.devicePlugin)
	}
	for _, plugin := range reserve {
		if s := plugin.Reserve(f.ctx, st.cycle, st.pod, node); !s.IsSuccess() {
			f.log.Error("volumes or devices of a placed pod cannot be counted as taken", "pod", st.pod.Name, "error", s.AsError())
		}
	}
	return f.devices.claims.takeFresh()
}

// free reverts hold. What is being written stays taken. The device plugin's Unreserve is not called,
// because it writes.
func (f *Filter) free(a *added) {
	if a.state == nil {
		return
	}
	f.volumePlugin.Unreserve(f.ctx, a.state.cycle, a.state.pod, a.node)
	for _, uid := range a.planned {
		if !f.choices.has(uid) {
			f.devices.claims.drop(uid)
		}
	}
}
