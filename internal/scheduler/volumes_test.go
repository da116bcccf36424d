package scheduler

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"lockstep.dev/lockstep/internal/scheduler/place"
)

// lateVolumes are claims by name: "" if nothing was chosen, the node that was, or bound.
type lateVolumes struct {
	claims   map[string]string
	owners   []string
	released []string
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

func (v *lateVolumes) ChooseVolumes(gang string, pods []*corev1.Pod, nodes []*corev1.Node) (waiting []string) {
	for i, p := range pods {
		for _, vol := range p.Spec.Volumes {
			name := vol.PersistentVolumeClaim.ClaimName
			if v.claims[name] == "" {
				v.claims[name] = nodes[i].Name
				v.owners = append(v.owners, gang+" on "+nodes[i].Name)
			}
			if v.claims[name] != boundVolume {
				waiting = append(waiting, name)
			}
		}
	}
	return waiting
}

func (v *lateVolumes) ReleaseDevices(gang string, _ []*corev1.Pod) {
	v.released = append(v.released, gang)
}

// anyNode accepts every node for pods with volumes.
type anyNode struct{}

func (anyNode) Scores(*place.Class) bool                     { return true }
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

	// Capacity is kept for the gang that chose, and only for that.
	w.Submit(w.gang("c", 4, "1"))
	w.Submit(w.gang("d", 1, "1"))
	w.run()
	expect(t, w.heard(), "c: NotEnoughResources, d+1")
	v.claims["c1"] = boundVolume
	w.cluster.VolumesChanged()
	w.run()
	expect(t, w.heard(), "a+3, b: NotEnoughResources")
	w.finish("a")
	w.run()
	expect(t, w.heard(), "b+3")
}

// TestCapacityIsNotKeptForEverForVolumes lets a claim get no volume for longer than the patience.
func TestCapacityIsNotKeptForEverForVolumes(t *testing.T) {
	v := &lateVolumes{claims: map[string]string{}}
	w := worldOf(t, Config{Volumes: v, Place: place.Options{Rare: anyNode{}}})
	w.node("n1", "4")
	w.Submit(w.withClaim("a", 3, "c1"))
	w.Submit(w.gang("b", 4, "1"))
	w.run()
	expect(t, w.heard(), "a: WaitingForVolumes, b: NotEnoughResources")
	w.clock.Step(volumesPatience - time.Second)
	w.run()
	expect(t, w.heard(), "")
	w.clock.Step(time.Minute)
	w.run()
	expect(t, w.heard(), "b+4")
	v.claims["c1"], v.released = boundVolume, nil
	w.cluster.VolumesChanged()
	w.run()
	expect(t, w.heard(), "a: NotEnoughResources")
	if len(v.released) == 0 || v.released[0] != "a" {
		t.Errorf("devices of %v are released", v.released)
	}
}

// TestPodsWithClaimsOfTheirOwn submits gangs whose pods are placed as individuals, and checks that
// their owner gets what it asked for.
func TestPodsWithClaimsOfTheirOwn(t *testing.T) {
	own := func(cpu string) *corev1.Pod {
		p := template(cpu).DeepCopy()
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		return p
	}
	for name, c := range map[string]struct {
		cpus string // of the node
		gang func(w *world) *Gang
		want string
	}{
		"all of a gang": {"3", func(w *world) *Gang { return w.gangOf("a", 3, own("1")) }, "a+3: 0/0 0/1 0/2"},
		"too many":      {"2", func(w *world) *Gang { return w.gangOf("a", 3, own("1")) }, "a: NotEnoughResources:"},
		"a minimum of two of three": {"2", func(w *world) *Gang {
			g := w.gangOf("a", 3, own("1"))
			g.MinMember, g.Demands[0].Min, g.Surplus = 0, 2, 1
			return g
		}, "a+2, a: NotEnoughResources: 0/0 0/1"},
		"beside pods without claims": {"4", func(w *world) *Gang {
			g := w.gangOf("a", 2, own("1"))
			g.Demands = append(g.Demands, w.gangOf("b", 2, template("1")).Demands...)
			g.MinMember = 4
			return g
		}, "a+4: 0/0 0/1 1/0 1/1"},
		"a minimum for each demand": {"3", func(w *world) *Gang {
			g := w.gangOf("a", 2, own("1"))
			g.Demands = append(g.Demands, w.gangOf("b", 2, own("1")).Demands...)
			g.Demands[0].Min, g.Demands[1].Min, g.MinMember, g.Surplus = 1, 2, 3, 1
			return g
		}, "a+3, a: NotEnoughResources: 0/0 1/0 1/1"},
	} {
		t.Run(name, func(t *testing.T) {
			w := worldOf(t, Config{Place: place.Options{Rare: anyNode{}}})
			w.node("n1", c.cpus)
			g := c.gang(w)
			w.Submit(g)
			w.run()
			got := w.heard() + ":"
			var units []string
			for _, a := range w.on["a"] {
				units = append(units, fmt.Sprintf(" %d/%d", a.Demand, a.Unit))
			}
			slices.Sort(units)
			expect(t, got+strings.Join(units, ""), c.want)
			if w.started["a"] != nil && w.started["a"] != g {
				t.Error("the owner gets another gang than it submitted")
			}
		})
	}
}
