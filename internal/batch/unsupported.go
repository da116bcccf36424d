package batch

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	bus "lockstep.dev/lockstep/api/bus/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/batch/pods"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/unsupported"
)

// notSupported lists the fields that the API has and this controller ignores. A job with a field
// that holds it is not started, because its pods would do something else than requested.
var notSupported = slices.Concat([]unsupported.Field[*api.JobSpec]{
	{Path: "spec.tasks[].topologyPolicy (of pods that are not of the QoS class Guaranteed)",
		Used: anyTask(func(t *api.TaskSpec) bool {
			return t.TopologyPolicy != "" && t.TopologyPolicy != api.NumaNone && !request.Guaranteed(&corev1.Pod{Spec: t.Template.Spec})
		})},
	{
		Path: "spec.tasks[].template.metadata.annotations[" + scheduling.ExpectedDurationAnnotation + "] (it is no positive duration)",
		Used: anyTask(func(t *api.TaskSpec) bool { _, ok := scheduling.ExpectedDuration(&t.Template); return !ok }),
	},
	{
		Path: "spec.tasks[].template.spec.schedulingGroup (the pods of a Job are a gang of their own)",
		Used: anyTask(func(t *api.TaskSpec) bool { return t.Template.Spec.SchedulingGroup != nil }),
	},
	// Policies apply only to jobs that are not suspended.
	{Path: "spec.policies[].action ResumeJob", Used: func(s *api.JobSpec) bool { return resumes(s.Policies) }},
	{Path: "spec.tasks[].policies[].action ResumeJob", Used: anyTask(func(t *api.TaskSpec) bool { return resumes(t.Policies) })},
}, deviceFields())

// jobNotSupported lists the same fields, and the annotations of jobs that have no effect.
var jobNotSupported = slices.Concat(
	unsupported.Part(func(j *api.Job) *api.JobSpec { return &j.Spec }, notSupported),
	[]unsupported.Field[*api.Job]{{
		Path: "metadata.annotations[" + scheduling.SLAWaitingTimeAnnotation + "] (it is no positive duration)",
		Used: func(j *api.Job) bool { _, ok := scheduling.WaitingTime(j); return !ok },
	}, {
		Path: "metadata.annotations[" + scheduling.JDBMinAvailableAnnotation + "] and [" + scheduling.JDBMaxUnavailableAnnotation +
			"] (want one of them, a positive number or a percentage from 1% to 99%)",
		Used: func(j *api.Job) bool { _, ok := scheduling.BudgetOf(j); return !ok },
	}, {
		Path: "metadata.annotations[" + scheduling.RevocableZoneAnnotation + "] (want * or names of zones)",
		Used: func(j *api.Job) bool { _, ok := scheduling.ZonesOf(j.Annotations); return !ok },
	}, {
		Path: "metadata.annotations[" + scheduling.TaskAffinityAnnotation + "] (want names of tasks, as in a,b;c)",
		Used: func(j *api.Job) bool { _, ok := pods.TaskGroups(j, scheduling.TaskAffinityAnnotation); return !ok },
	}, {
		Path: "metadata.annotations[" + scheduling.TaskAntiAffinityAnnotation + "] (want names of tasks, as in a,b;c)",
		Used: func(j *api.Job) bool { _, ok := pods.TaskGroups(j, scheduling.TaskAntiAffinityAnnotation); return !ok },
	}, {
		Path: "metadata.annotations[" + scheduling.TaskOrderAnnotation + "] (want names of tasks, as in a,b)",
		Used: func(j *api.Job) bool { _, ok := pods.TaskRanks(j); return !ok },
	}},
)

// queueNotSupported is notSupported for queues.
var queueNotSupported = slices.Concat([]unsupported.Field[*scheduling.Queue]{
	{Path: "spec.extendClusters", Used: func(q *scheduling.Queue) bool { return len(q.Spec.ExtendClusters) > 0 }},
	{Path: "metadata.annotations[" + scheduling.FairShareByAnnotation + "] (want " + scheduling.ByNamespace + " or " + scheduling.ByUser + ")",
		Used: func(q *scheduling.Queue) bool { _, ok := scheduling.FairShareBy(q); return !ok }},
	{Path: "spec.capability[" + string(scheduling.JobsResource) + "] (want a whole number)",
		Used: func(q *scheduling.Queue) bool { _, _, ok := scheduling.JobsMax(q); return !ok }},
	{Path: "spec.capability (of numbers of objects, only " + string(scheduling.JobsResource) + ")",
		Used: func(q *scheduling.Queue) bool { return scheduling.CountsOthers(q.Spec.Capability) }},
	{Path: "spec.deserved (of numbers of objects)",
		Used: func(q *scheduling.Queue) bool { return scheduling.Counts(q.Spec.Deserved) }},
	{Path: "spec.guarantee (of numbers of objects)",
		Used: func(q *scheduling.Queue) bool { return scheduling.Counts(q.Spec.Guarantee.Resource) }},
}, queueDeviceFields)

// UnsupportedIn returns the fields of a Job that have no effect.
func UnsupportedIn(job *api.Job) []unsupported.Field[*api.Job] {
	return unsupported.Used(job, jobNotSupported)
}

// UnsupportedInQueue returns the fields of a Queue that have no effect.
func UnsupportedInQueue(q *scheduling.Queue) []unsupported.Field[*scheduling.Queue] {
	return unsupported.Used(q, queueNotSupported)
}

func anyTask(used func(*api.TaskSpec) bool) func(*api.JobSpec) bool {
	return func(s *api.JobSpec) bool {
		return slices.ContainsFunc(s.Tasks, func(t api.TaskSpec) bool { return used(&t) })
	}
}

func resumes(list []api.LifecyclePolicy) bool {
	return slices.ContainsFunc(list, func(p api.LifecyclePolicy) bool { return p.Action == bus.ResumeJobAction })
}
