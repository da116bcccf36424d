package podgroup

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler"
)

func TestSubGroupsOfPods(t *testing.T) {
	pg := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{SubGroupPolicy: []schedulingv1beta1.SubGroupPolicySpec{
		{
			LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "worker"}}, MatchLabelKeys: []string{"x", "y"},
			SubGroupSize: ptr.To[int32](2),
		},
		{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"role": "free"}}},
		{SubGroupSize: ptr.To[int32](2)},
	}}}
	policies, err := policiesOf(pg)
	if err != nil {
		t.Fatal(err)
	}
	for sentence, tc := range map[string]struct {
		labels map[string]string
		want   subGroupKey
		in     bool
	}{
		"by the values of both labels":         {map[string]string{"role": "worker", "x": "1", "y": "2"}, subGroupKey{0, "1\x002"}, true},
		"without one of the labels in none":    {map[string]string{"role": "worker", "x": "1"}, subGroupKey{}, false},
		"a policy that asks for nothing":       {map[string]string{"role": "free"}, subGroupKey{1, ""}, false},
		"the others are in one of the last":    {nil, subGroupKey{2, ""}, true},
		"labels of other policies are ignored": {map[string]string{"x": "1"}, subGroupKey{2, ""}, true},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, in := policies.of(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: tc.labels}})
			if got != tc.want || in != tc.in {
				t.Errorf("%v %v, want %v %v", got, in, tc.want, tc.in)
			}
		})
	}
}

// TestAskKeepsToSubGroups checks ask with random members of sub-groups. What the placer may place of a
// request, parts whole or not at all and minParts of each set, brings the group to its minimum of
// pods and of sub-groups; and a request is made whenever enough pods exist.
func TestAskKeepsToSubGroups(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		size, least := rapid.IntRange(1, 3).Draw(r, "size"), rapid.IntRange(0, 3).Draw(r, "least")
		minMember := rapid.IntRange(0, 8).Draw(r, "minMember")
		pg := &schedulingv1beta1.PodGroup{Spec: schedulingv1beta1.PodGroupSpec{SubGroupPolicy: []schedulingv1beta1.SubGroupPolicySpec{{
			MatchLabelKeys: []string{"sub"}, SubGroupSize: ptr.To(int32(size)), MinSubGroups: ptr.To(int32(least)),
			NetworkTopology: &schedulingv1beta1.NetworkTopologySpec{},
		}}}}
		policies, err := policiesOf(pg)
		if err != nil {
			r.Fatal(err)
		}
		var pods []*corev1.Pod
		exist, held := map[string]int{}, map[string]int{} // pods by sub-group; "" is none
		for i := range rapid.IntRange(0, 12).Draw(r, "pods") {
			p := member(fmt.Sprint("p", i), "a", "", corev1.PodPending)
			if rapid.IntRange(0, 2).Draw(r, "state") == 0 {
				p.Spec.NodeName = "n"
			}
			sub := rapid.SampledFrom([]string{"", "1", "2", "3"}).Draw(r, "sub-group")
			p.Labels = map[string]string{"sub": sub}
			p.Spec.Hostname = rapid.SampledFrom([]string{"", "other template"}).Draw(r, "template")
			pods = append(pods, p)
			if exist[sub]++; p.Spec.NodeName != "" {
				held[sub]++
			}
		}
		m := countMembers(pods, func(*corev1.Pod) bool { return false })
		req := ask(minMember, nil, policies, m, newTemplates().of)

		// Pods that may be placed: those of sub-groups with enough pods, and of none.
		candidates, whole := 0, 0
		for sub, n := range exist {
			if sub != "" && n >= size {
				whole++
			}
			if sub == "" || n >= size {
				candidates += n - held[sub]
			}
		}
		enough := m.total+candidates >= minMember && whole >= least && (candidates > 0 || len(m.waiting) == 0)
		if (req.missing == "") != enough {
			r.Fatalf("enough pods: %v, but %q", enough, req.missing)
		}
		if !enough {
			return
		}
		if req.units() != candidates || req.minMember > candidates {
			r.Fatalf("asks for %d of %d of %d pods", req.minMember, req.units(), candidates)
		}
		// Place as little as is allowed, in any order of parts.
		of := map[int]int{} // part of each demand
		for k, part := range req.parts {
			for _, d := range part.Demands {
				if _, twice := of[d]; twice {
					r.Fatalf("demand %d is in two parts", d)
				}
				of[d] = k
			}
		}
		subOf := func(d int) string {
			at := slices.IndexFunc(pods, func(p *corev1.Pod) bool { return p.Name == req.demands[d].Units[0].Name })
			return pods[at].Labels["sub"]
		}
		placed, n := map[string]int{}, 0
		count := make([]int, len(req.minParts))
		order := rapid.Permutation(indices(len(req.parts))).Draw(r, "order")
		put := func(k int) {
			part := req.parts[k]
			units := 0
			for _, d := range part.Demands {
				units += len(req.demands[d].Units)
			}
			if part.Size > units || part.Size < 1 {
				r.Fatalf("a part of %d of %d pods", part.Size, units)
			}
			placed[subOf(part.Demands[0])] += part.Size
			n += part.Size
			count[part.Set]++
		}

		for _, k := range order {
			if part := req.parts[k]; count[part.Set] < req.minParts[part.Set] {
				put(k)
			}
		}
		for set, least := range req.minParts {
			if count[set] < least {
				r.Fatalf("%d parts of set %d exist, %d are needed", count[set], set, least)
			}
		}
		if n > req.minMember+len(req.parts)*size {
			r.Fatalf("the parts that are needed have %d pods, and the gang needs %d", n, req.minMember)
		}
		got := 0
		for _, sub := range []string{"1", "2", "3"} {
			if held[sub]+placed[sub] >= size {
				got++
			}
			if placed[sub] > 0 && held[sub]+placed[sub] < size {
				r.Fatalf("sub-group %s has %d of %d pods", sub, held[sub]+placed[sub], size)
			}
		}
		if got < least || m.total+req.minMember < minMember {
			r.Fatalf("%d of %d sub-groups, %d pods of %d: %+v", got, least, m.total+req.minMember, minMember, req)
		}
	})
}

func indices(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestMinMemberNeedsSubGroups checks that a request says how many parts minMember needs, so that a
// message can say which have no room.
func TestMinMemberNeedsSubGroups(t *testing.T) {
	for sentence, tc := range map[string]struct {
		parts, others, minMember, want int // parts of 3 pods
	}{
		"all":                      {3, 0, 9, 3},
		"two of three":             {3, 0, 5, 2},
		"others are enough":        {3, 4, 4, 0},
		"others are not enough":    {3, 4, 5, 1},
		"no minimum, no need":      {3, 0, 0, 0},
		"more than the parts have": {1, 0, 3, 1},
	} {
		t.Run(sentence, func(t *testing.T) {
			r := gangRequest{minMember: tc.minMember, minParts: []int{0}}
			for i := range tc.parts {
				r.demands = append(r.demands, scheduler.Demand{Units: namesOf(repeat(3))})
				r.parts = append(r.parts, scheduler.Part{Demands: []int{i}, Size: 3})
			}
			r.demands = append(r.demands, scheduler.Demand{Units: namesOf(repeat(tc.others))})
			if r.raiseMinParts(); r.minParts[0] != tc.want {
				t.Errorf("%d parts, want %d", r.minParts[0], tc.want)
			}
		})
	}
}

func repeat(n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = &corev1.Pod{}
	}
	return pods
}
