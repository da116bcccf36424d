package place

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// TestResourceScores checks scores of nodes for a pod of 1 cpu and 2Gi, calculated with the
// kube-scheduler's formulas.
func TestResourceScores(t *testing.T) {
	type node struct {
		allocatable, used []string
	}
	on := func(allocatable []string, used ...string) node { return node{allocatable, used} }
	small, large := []string{"cpu", "4", "memory", "8Gi"}, []string{"cpu", "10", "memory", "8Gi", "example.com/gpu", "4"}
	only := func(o Options, w Weights) Options { o.Weights = w; return o }
	resources, balanced := Weights{Resources: 1}, Weights{Balanced: 1}
	gpu := []ResourceWeight{{Name: "cpu", Weight: 1}, {Name: "example.com/gpu", Weight: 3}}

	mixed := []ResourceWeight{{Name: "cpu", Weight: 1}, {Name: "example.com/gpu", Weight: 3, Opposite: true}}

	for name, tc := range map[string]struct {
		o    Options
		pod  []string
		node node
		want int64
	}{
		// (4-1)/4 = 75, (8-2)/8 = 75
		"least allocated, empty node": {only(Options{}, resources), nil, on(small), 75},
		// (10-1)/10 = 90, 75 -> 82.5
		"least allocated rounds down": {only(Options{}, resources), nil, on(large), 82},
		// (4-3)/4 = 25, (8-6)/8 = 25
		"least allocated counts what is used": {only(Options{}, resources), nil, on(small, "cpu", "2", "memory", "4Gi"), 25},
		"most allocated, empty node":          {only(Options{Strategy: MostAllocated}, resources), nil, on(small), 25},
		// 10, 25 -> 17.5
		"most allocated rounds down": {only(Options{Strategy: MostAllocated}, resources), nil, on(large), 17},
		// a pod without requests counts as 100m and 200Mi: (4000-100)/4000 = 97, (8192-200)/8192 =
		// 97
		"a pod without requests is not free": {only(Options{}, resources), []string{}, on(small), 97},
		// cpu 90, gpu not asked for
		"an extended resource counts only for pods that ask for it": {only(Options{Resources: gpu}, resources), nil, on(large), 90},
		// cpu (10-1)/10 = 90, gpu (4-1)/4 = 75: (90 + 3*75)/4
		"resource weights": {only(Options{Resources: gpu}, resources), []string{"cpu", "1", "example.com/gpu", "1"}, on(large), 78},
		// cpu 90, gpu 1/4 = 25: (90 + 3*25)/4
		"a resource with the other strategy":             {only(Options{Resources: mixed}, resources), []string{"cpu", "1", "example.com/gpu", "1"}, on(large), 41},
		"a resource the node has none of does not count": {only(Options{Resources: gpu}, resources), nil, on(small), 75},
		// 25 % and 25 % after as 0 and 0 before: no change is 75
		"balanced before and after": {only(Options{}, balanced), nil, on(small), 75},
		// after 10 % and 25 %: std 7.5 -> 92; before 100; 50 + (50+92-100)/2
		"less balanced with the pod": {only(Options{}, balanced), nil, on(large), 71},
		// before 50 % and 0 %: std 25 -> 75; after 75 % and 25 %: 75
		"as unbalanced as before": {only(Options{}, balanced), nil, on(small, "cpu", "2"), 75},
		// before 25 % and 0: 87; after 50 and 50...: pod asks 1 cpu and 2Gi more
		"more balanced with the pod":                      {only(Options{}, balanced), []string{"cpu", "1", "memory", "4Gi"}, on(small, "cpu", "1"), 50 + (50+100-87)/2},
		"a pod without requests leaves the balance alone": {only(Options{}, balanced), []string{}, on(small), 0},
		"default weights add up":                          {Options{}, nil, on(small), 75 + 75 + 3*100},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			if tc.pod == nil {
				tc.pod = []string{"cpu", "1", "memory", "2Gi"}
			}
			c.node("n", tc.node.allocatable...)
			n := *c.Node(0)
			used := c.Dims().Vector(list(tc.node.used...))
			n.Used, n.UsedNonZero = used, used
			c.Set(n)
			x := NewPlacer(c.Snapshot, tc.o).indexes.get(c.class(pod(tc.pod...)), tc.o.Strategy)
			if got := int64(x.heap[0].key >> tieBits); got != tc.want {
				t.Errorf("score %d, want %d", got, tc.want)
			}
		})
	}
}

// TestObjectScores checks the scores by labels and taints, per node, for one pod.
func TestObjectScores(t *testing.T) {
	prefer := func(weight int32, key string) corev1.PreferredSchedulingTerm {
		return corev1.PreferredSchedulingTerm{Weight: weight, Preference: corev1.NodeSelectorTerm{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: key, Operator: corev1.NodeSelectorOpExists}}}}
	}
	avoid := func(keys ...string) (taints []corev1.Taint) {
		for _, key := range keys {
			taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectPreferNoSchedule})
		}
		return taints
	}
	for name, tc := range map[string]struct {
		weights     Weights
		labels      [3]string
		taints      [3][]corev1.Taint
		tolerations []corev1.Toleration
		prefer      []corev1.PreferredSchedulingTerm
		want        map[string]int64
	}{
		"preferences add up, relative to the best node": {
			weights: Weights{NodeAffinity: 2}, labels: [3]string{"a", "b", ""},
			prefer: []corev1.PreferredSchedulingTerm{prefer(30, "a"), prefer(40, "b")},
			want:   map[string]int64{"n0": 2 * 75, "n1": 2 * 100, "n2": 0},
		},
		"no node matches a preference": {
			weights: Weights{NodeAffinity: 2}, prefer: []corev1.PreferredSchedulingTerm{prefer(30, "a")},
			want: map[string]int64{"n0": 0, "n1": 0, "n2": 0},
		},
		"fewer untolerated taints are better": {
			weights: Weights{Taints: 3}, taints: [3][]corev1.Taint{avoid("a", "b", "c"), avoid("a"), nil},
			want: map[string]int64{"n0": 0, "n1": 3 * 67, "n2": 300},
		},
		"tolerated taints do not count": {
			weights: Weights{Taints: 3}, taints: [3][]corev1.Taint{avoid("a", "b"), avoid("a"), nil},
			tolerations: []corev1.Toleration{{Key: "a", Operator: corev1.TolerationOpExists}},
			want:        map[string]int64{"n0": 0, "n1": 300, "n2": 300},
		},
		"nodes that a filter refuses do not set the scale": {
			weights: Weights{NodeAffinity: 1}, labels: [3]string{"a", "b", ""},
			taints: [3][]corev1.Taint{nil, {{Key: "x", Effect: corev1.TaintEffectNoSchedule}}, nil},
			prefer: []corev1.PreferredSchedulingTerm{prefer(30, "a"), prefer(40, "b")},
			want:   map[string]int64{"n0": 100, "n2": 0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			for i, name := range []string{"n0", "n1", "n2"} {
				o := &corev1.Node{}
				o.Spec.Taints = tc.taints[i]
				if tc.labels[i] != "" {
					o.Labels = map[string]string{tc.labels[i]: ""}
				}
				c.object(o, name)
			}
			p := pod()
			p.Spec.Tolerations = tc.tolerations
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: tc.prefer}}
			x := NewPlacer(c.Snapshot, Options{Weights: tc.weights}).indexes.get(c.class(p), LeastAllocated)
			got := map[string]int64{}
			for _, e := range x.heap {
				got[c.Node(e.node).Name] = int64(e.key >> tieBits)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error("scores (-want +got):", diff)
			}
		})
	}
}

func TestStrategies(t *testing.T) {
	spread := newCluster().uniform(4, "cpu", "8", "memory", "8Gi")
	d := Place(spread.Snapshot, spread.gang(8, pod("cpu", "1", "memory", "1Gi")), Options{})
	for i, n := range spread.All() {
		if n.Used[Pods] != 2 {
			t.Errorf("least allocated: %d pods on node %d, %v", n.Used[Pods], i, d)
		}
	}
	pack := newCluster().uniform(4, "cpu", "8", "memory", "8Gi")
	d = Place(pack.Snapshot, pack.gang(8, pod("cpu", "1", "memory", "1Gi")), Options{Strategy: MostAllocated})
	for _, node := range d.Placed[0] {
		if node != d.Placed[0][0] {
			t.Errorf("most allocated: more than one node used: %v", d.Placed)
		}
	}
}
