package evict

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	hypernodev1alpha1 "lockstep.dev/lockstep/api/topology.volcano.sh/v1alpha1"
	"lockstep.dev/lockstep/internal/scheduler/network"
	"lockstep.dev/lockstep/internal/scheduler/place"
)

// racks makes the network of a world: the nodes of each rack, of tier 1, in a row of tier 2.
func (w *world) racks(racks ...[]int) {
	m := network.New(nil)
	row := &hypernodev1alpha1.HyperNode{ObjectMeta: metav1.ObjectMeta{Name: "row"}, Spec: hypernodev1alpha1.HyperNodeSpec{Tier: 2}}
	member := func(h *hypernodev1alpha1.HyperNode, t hypernodev1alpha1.MemberType, name string) {
		h.Spec.Members = append(h.Spec.Members, hypernodev1alpha1.Member{Type: t,
			Selector: hypernodev1alpha1.MemberSelector{ExactMatch: &hypernodev1alpha1.ExactMatch{Name: name}}})
	}
	for i, nodes := range racks {
		rack := &hypernodev1alpha1.HyperNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("rack-", i)}, Spec: hypernodev1alpha1.HyperNodeSpec{Tier: 1}}
		for _, n := range nodes {
			member(rack, hypernodev1alpha1.MemberNode, w.nodes[n].Name)
		}
		m.SetHyperNode(rack)
		member(row, hypernodev1alpha1.MemberHyperNode, rack.Name)
	}
	m.SetHyperNode(row)
	for _, n := range w.nodes {
		m.SetNode(n.Name, n.Labels)
	}
	w.network = m.Tree()
}

// drawNear draws, half of the time, a network of up to three racks, and a claim that must be in one.
func drawNear(t *rapid.T, w *world, c *testClaim) {
	if rapid.Bool().Draw(t, "anywhere") {
		return
	}
	racks := make([][]int, rapid.IntRange(1, 3).Draw(t, "racks"))
	for i := range w.nodes {
		if at := rapid.IntRange(0, 3).Draw(t, "rack"); at < len(racks) {
			racks[at] = append(racks[at], i)
		}
	}
	w.racks(racks...)
	c.Near = &place.Near{Hard: !oneIn(t, 4, "soft"), HighestTier: rapid.IntRange(0, 3).Draw(t, "highest tier")}
	if oneIn(t, 4, "other pods") {
		c.Near.On = []string{w.nodes[rapid.IntRange(0, len(w.nodes)-1).Draw(t, "on")].Name}
	}
}

func TestVictimsAreInOneDomain(t *testing.T) {
	for name, x := range map[string]struct {
		build   func(c *cluster)
		pods    int
		near    place.Near
		want    []string
		refusal string
	}{
		"the rack with the cheaper victims": {func(c *cluster) {
			c.gang("a-1", "q", 0, cpu2, 0)
			c.gang("a-2", "q", 5, cpu2, 1)
			c.gang("b-1", "q", 0, cpu2, 2)
			c.gang("b-2", "q", 4, cpu2, 3)
		}, 4, place.Near{Hard: true, HighestTier: 1}, []string{"b-1", "b-2"}, ""},
		"not the cheapest victims of the cluster": {func(c *cluster) {
			c.gang("a-1", "q", 0, cpu2, 0)
			c.gang("a-2", "q", 20, cpu2, 1)
			c.gang("b-1", "q", 0, cpu2, 2)
			c.gang("b-2", "q", 9, cpu2, 3)
		}, 4, place.Near{Hard: true, HighestTier: 1}, []string{"b-1", "b-2"}, ""},
		"soft takes the cheapest victims": {func(c *cluster) {
			c.gang("a-1", "q", 0, cpu2, 0)
			c.gang("a-2", "q", 20, cpu2, 1)
			c.gang("b-1", "q", 0, cpu2, 2)
			c.gang("b-2", "q", 9, cpu2, 3)
		}, 4, place.Near{}, []string{"a-1", "b-1"}, ""},
		"no rack could be emptied": {func(c *cluster) {
			c.gang("a-1", "q", 0, cpu2, 0)
			c.gang("a-2", "q", 20, cpu2, 1)
			c.gang("b-1", "q", 0, cpu2, 2)
			c.gang("b-2", "q", 20, cpu2, 3)
		}, 4, place.Near{Hard: true, HighestTier: 1}, nil, NotEnough},
		"the row could": {func(c *cluster) {
			c.gang("a-1", "q", 0, cpu2, 0)
			c.gang("a-2", "q", 20, cpu2, 1)
			c.gang("b-1", "q", 0, cpu2, 2)
			c.gang("b-2", "q", 20, cpu2, 3)
		}, 4, place.Near{Hard: true, HighestTier: 2}, []string{"a-1", "b-1"}, ""},
		"no rack is large enough": {func(c *cluster) {
			c.gang("a", "q", 0, cpu2, 0)
		}, 5, place.Near{Hard: true, HighestTier: 1}, nil, NotEnough},
		"where its other pods are": {func(c *cluster) {
			c.gang("a-1", "q", 5, cpu2, 0)
			c.gang("a-2", "q", 6, cpu2, 1)
			c.gang("b-1", "q", 0, cpu2, 2)
			c.gang("b-2", "q", 0, cpu2, 3)
		}, 2, place.Near{Hard: true, HighestTier: 1, On: []string{"node-1"}}, []string{"a-1"}, ""},
		"a rack has room": {func(c *cluster) {
			c.gang("a", "q", 0, cpu2, 0)
		}, 4, place.Near{Hard: true, HighestTier: 1}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(4, "cpu", "2")
			c.racks([]int{0, 1}, []int{2, 3})
			x.build(c)
			claim := claimOf("q", 10, x.pods, cpu1)
			claim.Near = &x.near
			p := c.find(claim)
			code := ""
			if p.Refusal != nil {
				code = p.Refusal.Code
			}
			if diff := cmp.Diff(x.want, victimsOf(p)); diff != "" || code != x.refusal {
				t.Errorf("refusal %q, victims (-want +got): %s\n%s", code, diff, p.Explain())
			}
			if p.Refusal == nil && x.near.Hard && x.near.HighestTier == 1 {
				nodes := slices.Concat(p.Nodes...)
				if slices.Sort(nodes); (nodes[0] < "node-2") != (nodes[len(nodes)-1] < "node-2") {
					t.Errorf("the claimant's nodes are %v", nodes)
				}
			}
		})
	}
}
