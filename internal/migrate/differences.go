package migrate

import (
	"k8s.io/apimachinery/pkg/runtime"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	flowv1alpha1 "lockstep.dev/lockstep/api/flow/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/config"
)

// differences lists the parts of an object that work in another way than with the controllers that
// it was written for. docs/api.md has all differences; here are those that a manifest shows.
func (r *Result) differences(object runtime.Object) {
	differs := func(used bool, field, text string) {
		if used {
			r.add(field, config.Differs, text)
		}
	}
	switch o := object.(type) {
	case *batchv1alpha1.Job:
		r.jobDifferences("spec.", &o.Spec)
	case *batchv1alpha1.CronJob:
		differs(o.Spec.TimeZone == nil, "spec.timeZone", "without it the schedule is in UTC, not in the time zone of the controller")
		r.jobDifferences("spec.jobTemplate.spec.", &o.Spec.JobTemplate.Spec)
	case *flowv1alpha1.JobTemplate:
		r.jobDifferences("spec.", &o.Spec)
	case *flowv1alpha1.JobFlow:
		for _, f := range o.Spec.Flows {
			differs(f.DependsOn != nil && f.DependsOn.Probe != nil, "spec.flows[].dependsOn.probe", "the probes are made; Volcano ignores them")
			differs(f.Patch != nil, "spec.flows[].patch", "the patch is applied; Volcano ignores it")
		}
	case *schedulingv1beta1.PodGroup:
		differs(anyTier(o.Spec.NetworkTopology), "spec.networkTopology", anyTierText)
	case *schedulingv1beta1.Queue:
		differs(len(o.Spec.Guarantee.Resource) > 0, "spec.guarantee",
			"it is lent to other queues until pods of this one need it, and then taken back")
	}
}

const anyTierText = "hard without a tier means one domain of any tier; with Volcano it has no effect"

// anyTier reports whether a networkTopology is hard and names no tier.
func anyTier(n *schedulingv1beta1.NetworkTopologySpec) bool {
	return n != nil && n.Mode != schedulingv1beta1.SoftNetworkTopology && n.HighestTierAllowed == nil && n.HighestTierName == ""
}

// jobDifferences lists the parts of a Job's spec that work in another way.
func (r *Result) jobDifferences(prefix string, s *batchv1alpha1.JobSpec) {
	if s.MaxRetry != nil && *s.MaxRetry == 0 {
		r.add(prefix+"maxRetry", config.Differs, "0 means no retries; Volcano makes it 3")
	}
	if anyTier(s.NetworkTopology) {
		r.add(prefix+"networkTopology", config.Differs, anyTierText)
	}
	for i := range s.Tasks {
		if s.Tasks[i].DependsOn != nil {
			r.add(prefix+"tasks[].dependsOn", config.Differs,
				"tasks that wait are placed later and are no part of the gang meanwhile; Volcano waits for ever if minAvailable counts them")
			return
		}
	}
}
