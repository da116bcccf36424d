package batch

import (
	"slices"
	"strings"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// notSupported lists the fields that the API has and this controller ignores. The condition
// Supported of every job that uses such a field names it. holds means that pods without the field
// would do something else than requested, so the job is not started.
var notSupported = []struct {
	holds bool
	field string
	used  func(*api.JobSpec) bool
}{
	{false, "spec.tasks[].topologyPolicy", anyTask(func(t *api.TaskSpec) bool {
		return t.TopologyPolicy != "" && t.TopologyPolicy != api.NumaNone
	})},
	// If all partitions are required, they are simply the task's pods, with a label.
	{true, "spec.tasks[].partitionPolicy.minPartitions", anyTask(func(t *api.TaskSpec) bool {
		p := t.PartitionPolicy
		return p != nil && p.MinPartitions > 0 && p.MinPartitions < p.TotalPartitions
	})},
	{true, "spec.tasks[].partitionPolicy.networkTopology", anyTask(func(t *api.TaskSpec) bool {
		return t.PartitionPolicy != nil && hard(t.PartitionPolicy.NetworkTopology)
	})},
	{false, "spec.tasks[].partitionPolicy.networkTopology", anyTask(func(t *api.TaskSpec) bool {
		p := t.PartitionPolicy
		return p != nil && p.NetworkTopology != nil && !hard(p.NetworkTopology)
	})},
	// Policies apply only to jobs that are not suspended.
	{false, "spec.policies[].action ResumeJob", func(s *api.JobSpec) bool { return resumes(s.Policies) }},
	{false, "spec.tasks[].policies[].action ResumeJob", anyTask(func(t *api.TaskSpec) bool { return resumes(t.Policies) })},
	{true, "spec.networkTopology", func(s *api.JobSpec) bool { return hard(s.NetworkTopology) }},
	{false, "spec.networkTopology", func(s *api.JobSpec) bool { return s.NetworkTopology != nil && !hard(s.NetworkTopology) }},
}

// unsupportedFields returns the ignored fields that the spec uses (all), and the ones among them
// that prevent the job from starting (holding). Both are empty for most jobs.
func unsupportedFields(s *api.JobSpec) (all, holding string) {
	var names, holders []string
	for _, f := range notSupported {
		if !f.used(s) {
			continue
		}
		names = append(names, f.field)
		if f.holds {
			holders = append(holders, f.field)
		}
	}
	if len(names) == 0 {
		return "", ""
	}
	return "not acted on: " + strings.Join(names, ", "), strings.Join(holders, ", ")
}

func anyTask(used func(*api.TaskSpec) bool) func(*api.JobSpec) bool {
	return func(s *api.JobSpec) bool {
		for i := range s.Tasks {
			if used(&s.Tasks[i]) {
				return true
			}
		}
		return false
	}
}

func resumes(list []api.LifecyclePolicy) bool {
	return slices.ContainsFunc(list, func(p api.LifecyclePolicy) bool { return p.Action == bus.ResumeJobAction })
}

func hard(n *scheduling.NetworkTopologySpec) bool {
	return n != nil && (n.Mode == "" || n.Mode == scheduling.HardNetworkTopology)
}
