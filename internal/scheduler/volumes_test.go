package scheduler

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// lateVolumes are claims by name: "" if nothing was chosen, the node that was, or bound.
type lateVolumes struct {
	claims map[string]string
	owners []string
}

const boundVolume = "bound"

func (v *lateVolumes) WaitingVolumes(p *corev1.Pod) (waiting []string) {
	for _, vol := range p.Spec.Volumes {
		if at := v.claims[vol.PersistentVolumeClaim.ClaimName]; at != "" && at != boundVolume {
			waiting = append(waiting, vol.PersistentVolumeClaim.ClaimName)
		}
	}
	return waiting
}

func (v *lateVolumes) ChooseVolumes(gang string, p *corev1.Pod, node *corev1.Node) (waiting []string) {
	for _, vol := range p.Spec.Volumes {
		name := vol.PersistentVolumeClaim.ClaimName
		if v.claims[name] == "" {
			v.claims[name] = node.Name
			v.owners = append(v.owners, gang+" on "+node.Name)
		}
		if v.claims[name] != boundVolume {
			waiting = append(waiting, name)
		}
	}
	return waiting
}

// anyNode accepts every node for pods with volumes.
type anyNode struct{}

func (anyNode) Concerns(*place.Class) bool                   { return false }
func (anyNode) Filter(*place.Class, []*place.Node, []string) {}
func (anyNode) Score(*place.Class, []*place.Node, []int64)   {}
func (anyNode) Add(*place.Class, *place.Node)                {}
func (anyNode) Remove(*place.Class, *place.Node)             {}
func (w *world) withClaim(key string, n int, claim string) *Gang {
	t := template("1").DeepCopy()
	t.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
	return w.gangOf(key, n, t)
}

// TestAGangWaitsForItsVolumes places gangs whose claims get volumes when a node is chosen.
func TestAGangWaitsForItsVolumes(t *testing.T) {
	v := &lateVolumes{claims: map[string]string{}}
	w := worldOf(t, Config{Volumes: v, Place: place.Options{Rare: anyNode{}}})
	w.node("n1", "4")
	w.Submit(w.withClaim("a", 3, "c1"))
	w.Submit(w.withClaim("b", 3, "c1"))
	w.run()
	expect(t, w.heard(), "a: WaitingForVolumes, b: WaitingForVolumes")
	if len(v.owners) != 1 || v.owners[0] != "a on n1" {
		t.Errorf("chosen: %v", v.owners)
	}

	// Nothing is kept for them meanwhile.
	w.Submit(w.gang("c", 4, "1"))
	w.run()
	expect(t, w.heard(), "c+4")
	v.claims["c1"] = boundVolume
	w.cluster.VolumesChanged()
	w.run()
	expect(t, w.heard(), "a: NotEnoughResources, b: NotEnoughResources")
	w.finish("c")
	w.run()
	expect(t, w.heard(), "a+3") // b waits for the same reason as before
}
