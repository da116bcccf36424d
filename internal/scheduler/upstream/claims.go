package upstream

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-helpers/storage/ephemeral"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/apiwriter"
)

const (
	// choiceExpires is when a choice is made again, if the claim is not bound and the informers do not
	// show the choice.
	choiceExpires = 30 * time.Second
	// noProvisioner is the provisioner of classes whose volumes are made by administrators.
	noProvisioner = "kubernetes.io/no-provisioner"
	bindReason    = "volume"
)

// choices are the volumes and nodes chosen for claims that the informers may not show yet. Choose
// adds to them on the scheduler's goroutine, and the writer's answers come from others.
type choices struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	made  map[types.UID]choice // by claim
}

type choice struct {
	volume  string // empty if one is to be provisioned
	expires time.Time
	refused string // the API server's answer
}

func (c *choices) get(claim types.UID) (choice, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	found, ok := c.made[claim]
	if ok && c.clock.Now().After(found.expires) {
		delete(c.made, claim)
		return choice{}, false
	}
	return found, ok
}

// has reports whether something was chosen for a claim, and has not expired.
func (c *choices) has(claim types.UID) bool {
	_, ok := c.get(claim)
	return ok
}

func (c *choices) set(claim types.UID, made choice) {
	c.mu.Lock()
	defer c.mu.Unlock()
	made.expires = c.clock.Now().Add(choiceExpires)
	c.made[claim] = made
}

func (c *choices) drop(claim types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, claim)
}

// taken returns the volumes chosen for claims, without those that have expired.
func (c *choices) taken() map[string]*corev1.PersistentVolume {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := map[string]*corev1.PersistentVolume{}
	for claim, made := range c.made {
		if c.clock.Now().After(made.expires) {
			delete(c.made, claim)
		} else if made.volume != "" {
			out[made.volume] = nil
		}
	}
	return out
}

// WaitingVolumes implements scheduler.Volumes.
func (f *Filter) WaitingVolumes(p *corev1.Pod) []string {
	var waiting []string
	for _, claim := range f.lateClaims(p) {
		if refused, chosen := f.chosen(claim); chosen {
			waiting = append(waiting, describeClaim(claim.Name, refused))
		}
	}
	return append(waiting, f.waitingDevices(p)...)
}

// chosen reports whether something has been chosen for a claim, and returns the API server's answer if
// it refused that.
func (f *Filter) chosen(claim *corev1.PersistentVolumeClaim) (refused string, chosen bool) {
	made, found := f.choices.get(claim.UID)
	_, selected := claim.Annotations[volume.AnnSelectedNode]
	return made.refused, found || selected
}

// ChooseVolumes implements scheduler.Volumes.
func (f *Filter) ChooseVolumes(gang string, pods []*corev1.Pod, nodes []*corev1.Node) []string {
	var waiting []string
	for i, p := range pods {
		for _, claim := range f.lateClaims(p) {
			problem, chosen := f.chosen(claim) // for another pod of the gang
			if !chosen {
				problem = f.chooseVolume(gang, claim, nodes[i])
			}
			waiting = append(waiting, describeClaim(claim.Name, problem))
		}
	}
	if f.devices.served {
		waiting = append(waiting, f.chooseDevices(gang, pods)...)
	}
	return waiting
}

func describeClaim(name, problem string) string {
	if problem != "" {
		return name + " (" + problem + ")"
	}
	return name
}

// lateClaims returns the claims of a pod's volumes that are bound once a node is chosen for their
// first pod (WaitForFirstConsumer), and have no volume yet.
func (f *Filter) lateClaims(p *corev1.Pod) []*corev1.PersistentVolumeClaim {
	var out []*corev1.PersistentVolumeClaim
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		var name string
		switch {
		case v.PersistentVolumeClaim != nil:
			name = v.PersistentVolumeClaim.ClaimName
		case v.Ephemeral != nil:
			name = ephemeral.VolumeClaimName(p, v)
		default:
			continue
		}
		claim, err := f.claims.PersistentVolumeClaims(p.Namespace).Get(name)
		if err != nil || claim.Spec.VolumeName != "" || slices.Contains(out, claim) {
			continue // the volume plugins report what is wrong, if anything
		}
		if v.Ephemeral != nil && ephemeral.VolumeIsForPod(f.individual(p), claim) != nil {
			continue // likewise
		}
		if late, err := volume.IsDelayBindingMode(claim, f.classes); err == nil && late {
			out = append(out, claim)
		}
	}
	return out
}

// chooseVolume has a volume that fits bound to a claim or, if there is none, one provisioned that the
// node can use. It returns a problem, or "".
func (f *Filter) chooseVolume(gang string, claim *corev1.PersistentVolumeClaim, node *corev1.Node) string {
	class, err := f.classes.Get(volume.GetPersistentVolumeClaimClass(claim))
	if err != nil {
		return err.Error()
	}
	volumes, err := f.volumesOf(class)
	if err != nil {
		return err.Error()
	}
	found, err := volume.FindMatchingVolume(claim, volumes, node, f.choices.taken(), true, true)
	switch {
	case err != nil:
		return err.Error()
	case found == nil && class.Provisioner == noProvisioner:
		return "no free volume can be used on node " + node.Name
	case found == nil:
		f.patchChosen(gang, claim, choice{}, claim, map[string]any{
			"metadata": map[string]any{"annotations": map[string]any{volume.AnnSelectedNode: node.Name}},
		})
		return ""
	}
	bound, changed, err := volume.GetBindVolumeToClaim(found, claim)
	if err != nil {
		return err.Error()
	}
	if changed {
		f.patchChosen(gang, claim, choice{volume: found.Name}, found, map[string]any{
			"metadata": map[string]any{"annotations": bound.Annotations}, "spec": map[string]any{"claimRef": bound.Spec.ClaimRef},
		})
	}
	return ""
}

// volumesOf returns the volumes of a class.
func (f *Filter) volumesOf(class *storagev1.StorageClass) ([]*corev1.PersistentVolume, error) {
	all, err := f.volumes.List(labels.Everything())
	return slices.DeleteFunc(all, func(v *corev1.PersistentVolume) bool {
		return volume.GetPersistentVolumeClass(v) != class.Name
	}), err
}

// patchChosen writes a choice for a claim into an object, which is the claim or a volume.
func (f *Filter) patchChosen(gang string, claim *corev1.PersistentVolumeClaim, made choice, object apiwriter.Object, patch any) {
	data, err := json.Marshal(patch)
	if err != nil {
		f.log.Error("the choice of a volume cannot be encoded", "claim", claim.Name, "error", err)
		return
	}
	f.choices.set(claim.UID, made)
	meta := metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
	}
	var id apiwriter.Object = &corev1.PersistentVolume{ObjectMeta: meta}
	if made.volume == "" {
		id = &corev1.PersistentVolumeClaim{ObjectMeta: meta}
	}
	f.writer.PatchVersion(apiwriter.Meta{Owner: gang, Reason: bindReason}, id, false, data, func(_ apiwriter.Object, err error) {
		switch {
		case err == nil:
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			f.choices.drop(claim.UID) // decided again when the informers have caught up
			f.cluster.VolumesChanged()
		default:
			made.refused = fmt.Sprintf("the API server refused to have it bound: %v", err)
			f.choices.set(claim.UID, made)
			f.cluster.VolumesChanged()
		}
	})
}

// watchVolumes reports changes of claims, volumes and storage classes to the cluster model, so that
// gangs that wait for them are tried again.
func (f *Filter) watchVolumes() error {
	changed := cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { f.cluster.VolumesChanged() },
		UpdateFunc: func(any, any) { f.cluster.VolumesChanged() },
		DeleteFunc: func(any) { f.cluster.VolumesChanged() },
	}
	for _, i := range []cache.SharedIndexInformer{
		f.factory.Core().V1().PersistentVolumeClaims().Informer(), f.factory.Core().V1().PersistentVolumes().Informer(),
		f.factory.Storage().V1().StorageClasses().Informer(), f.factory.Storage().V1().CSINodes().Informer(),
	} {
		if _, err := i.AddEventHandler(changed); err != nil {
			return fmt.Errorf("the kube-scheduler's plugins: %w", err)
		}
	}
	return nil
}
