package podgroup

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

func TestAnnotationsOfOwners(t *testing.T) {
	for _, tc := range []struct {
		least, announced, wrong string
		min                     int32
		cpu                     string
	}{
		{},
		{least: "1"},
		{least: "3", min: 3},
		{least: "3", announced: `{"cpu": "6"}`, min: 3, cpu: "6"},
		{announced: `{"cpu": "6"}`},
		{least: "many", wrong: schedulingv1beta1.GroupMinMemberAnnotation},
		{least: "-1", wrong: schedulingv1beta1.GroupMinMemberAnnotation},
		{least: "99999999999", wrong: schedulingv1beta1.GroupMinMemberAnnotation},
		{least: "2", announced: "6 CPUs", wrong: schedulingv1beta1.GroupMinResourcesAnnotation, min: 2},
	} {
		r := &ownerRecord{}
		wrong := r.read(map[string]string{
			schedulingv1beta1.GroupMinMemberAnnotation: tc.least, schedulingv1beta1.GroupMinResourcesAnnotation: tc.announced,
		})
		cpu := ""
		if r.minResources != nil {
			cpu = r.minResources.Cpu().String()
		}
		if !r.answered || r.minMember != tc.min || cpu != tc.cpu || (tc.wrong == "") != (wrong == "") || !strings.Contains(wrong, tc.wrong) {
			t.Errorf("%+v: %d, %s, %q", tc, r.minMember, cpu, wrong)
		}
	}
}

func TestTopologyOfPods(t *testing.T) {
	tier := 2
	for sentence, tc := range map[string]struct {
		mode, tier string
		want       *schedulingv1beta1.NetworkTopologySpec
		wrong      string
	}{
		"none":                  {},
		"a mode":                {mode: "soft", want: &schedulingv1beta1.NetworkTopologySpec{Mode: "soft"}},
		"a tier, which is hard": {tier: "2", want: &schedulingv1beta1.NetworkTopologySpec{Mode: "hard", HighestTierAllowed: &tier}},
		"both":                  {mode: "hard", tier: "2", want: &schedulingv1beta1.NetworkTopologySpec{Mode: "hard", HighestTierAllowed: &tier}},
		"an unknown mode":       {mode: "firm", wrong: schedulingv1beta1.NetworkTopologyModeAnnotation},
		"a name of a tier":      {tier: "rack", wrong: schedulingv1beta1.NetworkTopologyHighestTierAnnotation},
		"a negative tier":       {tier: "-1", wrong: schedulingv1beta1.NetworkTopologyHighestTierAnnotation},
	} {
		t.Run(sentence, func(t *testing.T) {
			got, wrong := topologyOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
				schedulingv1beta1.NetworkTopologyModeAnnotation: tc.mode, schedulingv1beta1.NetworkTopologyHighestTierAnnotation: tc.tier,
			}}})
			if diff := cmp.Diff(tc.want, got); diff != "" || (tc.wrong == "") != (wrong == "") || !strings.Contains(wrong, tc.wrong) {
				t.Error(diff, wrong)
			}
		})
	}
}
