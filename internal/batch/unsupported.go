package batch

import (
	"slices"
	"strings"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// A field that is in the API and not acted on is named in the condition Supported of every job that uses it. holds says
// that pods without it would do something else than was asked for: the job does not start.
var notSupported = []struct {
	holds bool
	field string
	used  func(*api.JobSpec) bool
}{
	{false, "spec.policies", func(s *api.JobSpec) bool { return len(s.Policies) > 0 }},
	{false, "spec.tasks[].policies", anyTask(func(t *api.TaskSpec) bool { return len(t.Policies) > 0 })},
	{false, "spec.tasks[].topologyPolicy", anyTask(func(t *api.TaskSpec) bool {
		return t.TopologyPolicy != "" && t.TopologyPolicy != api.NumaNone
	})},
	{true, "spec.tasks[].dependsOn", anyTask(func(t *api.TaskSpec) bool { return t.DependsOn != nil && len(t.DependsOn.Name) > 0 })},
	{true, "spec.tasks[].partitionPolicy", anyTask(func(t *api.TaskSpec) bool { return t.PartitionPolicy != nil })},
	{true, "spec.volumes[].volumeClaim", func(s *api.JobSpec) bool {
		return slices.ContainsFunc(s.Volumes, func(v api.VolumeSpec) bool { return v.VolumeClaimName == "" })
	}},
	{true, "spec.networkTopology", func(s *api.JobSpec) bool { return hard(s.NetworkTopology) }},
	{false, "spec.networkTopology", func(s *api.JobSpec) bool { return s.NetworkTopology != nil && !hard(s.NetworkTopology) }},
	{true, "spec.plugins.ssh", plugin(api.SSHPlugin)},
	{true, "spec.plugins.tensorflow", plugin(api.TensorFlowPlugin)},
	{true, "spec.plugins.pytorch", plugin(api.PyTorchPlugin)},
	{true, "spec.plugins.mpi", plugin(api.MPIPlugin)},
	{true, "spec.plugins.ray", plugin(api.RayPlugin)},
	{true, "spec.plugins.hcclrank", plugin(api.HCCLRankPlugin)},
}

// unsupportedFields names the fields that the spec uses and that are not acted on, and those of them that keep the job
// from starting. Both are empty for most jobs.
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

func plugin(name string) func(*api.JobSpec) bool {
	return func(s *api.JobSpec) bool {
		_, ok := s.Plugins[name]
		return ok
	}
}

func hard(n *scheduling.NetworkTopologySpec) bool {
	return n != nil && (n.Mode == "" || n.Mode == scheduling.HardNetworkTopology)
}
