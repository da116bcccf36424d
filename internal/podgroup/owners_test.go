package podgroup

import (
	"strings"
	"testing"

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
