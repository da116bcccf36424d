package jobgroup

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/component-helpers/resource"

	api "lockstep.dev/lockstep/api/batch/v1alpha1"
	"lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// Name returns the name of a Job's PodGroup.
func Name(job *api.Job) string { return fmt.Sprintf("%s-%s", job.Name, job.UID) }

// group returns the PodGroup of a Job in a queue, without status.
func group(job *api.Job, queue string) *v1beta1.PodGroup {
	pg := &v1beta1.PodGroup{
		ObjectMeta: metav1.ObjectMeta{
			Name: Name(job), Namespace: job.Namespace,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(job, api.GroupVersion.WithKind("Job"))},
		},
		Spec: v1beta1.PodGroupSpec{
			MinMember: job.MinAvailable(), MinTaskMember: map[string]int32{}, Queue: queue,
			PriorityClassName: job.Spec.PriorityClassName, NetworkTopology: job.Spec.NetworkTopology.DeepCopy(),
		},
	}
	for i := range job.Spec.Tasks {
		pg.Spec.MinTaskMember[job.TaskName(i)] = job.Spec.Tasks[i].Min()
	}
	if resources := minResources(job); len(resources) > 0 {
		pg.Spec.MinResources = &resources
	}
	return pg
}

// minResources returns what the first minAvailable pods of a Job request.
func minResources(job *api.Job) corev1.ResourceList {
	sum, left := corev1.ResourceList{}, job.MinAvailable()
	for i := range job.Spec.Tasks {
		task := &job.Spec.Tasks[i]
		n := min(task.Replicas, left)
		left -= n
		if n <= 0 {
			continue
		}
		for name, amount := range resourcehelper.PodRequests(&corev1.Pod{Spec: task.Template.Spec}, resourcehelper.PodResourcesOptions{}) {
			total := amount.DeepCopy()
			total.Mul(int64(n))
			total.Add(sum[name])
			sum[name] = total
		}
	}
	return sum
}

// sameSpec reports whether a PodGroup has the fields of the spec that its Job wants.
func sameSpec(have, want *v1beta1.PodGroupSpec) bool {
	return have.MinMember == want.MinMember && have.Queue == want.Queue && have.PriorityClassName == want.PriorityClassName &&
		equality.Semantic.DeepEqual(have.MinTaskMember, want.MinTaskMember) && equality.Semantic.DeepEqual(have.MinResources, want.MinResources)
}

// phase returns the phase of a Job's PodGroup. It is Inqueue while the queue takes the job and there is no
// room for it on the nodes. Nobody waits for that phase: the pods of Jobs are created with their nodes.
func phase(s *api.JobStatus) v1beta1.PodGroupPhase {
	switch s.State.Phase {
	case api.Running, api.Completing:
		return v1beta1.PodGroupRunning
	case api.Completed, api.Failed, api.Terminated:
		return v1beta1.PodGroupCompleted
	}
	if waits := s.Condition(api.JobScheduled); isFalse(waits) && !slices.Contains(beforeNodes, waits.Reason) {
		return v1beta1.PodGroupInqueue
	}
	return v1beta1.PodGroupPending
}

// beforeNodes are the reasons for which a job waits before nodes are looked for.
var beforeNodes = []string{
	share.QueueNotFound, share.QueueNotLeaf, share.QueueClosed, share.QueueOverCapability, share.QueueOverJobs, share.BehindFirst,
	api.ReasonGated, api.ReasonNoReplicas,
}

func isFalse(c *api.JobCondition) bool {
	return c != nil && c.Status == api.JobPhase(corev1.ConditionFalse)
}

// status returns the status of a Job's PodGroup that has the status now.
func status(s *api.JobStatus, now v1beta1.PodGroupStatus, at metav1.Time) v1beta1.PodGroupStatus {
	next := v1beta1.PodGroupStatus{Phase: phase(s), Running: s.Running, Succeeded: s.Succeeded, Failed: s.Failed}
	c := v1beta1.PodGroupCondition{LastTransitionTime: at}
	switch waits := s.Condition(api.JobScheduled); {
	case next.Phase == v1beta1.PodGroupRunning:
		c.Type, c.Status, c.Reason, c.Message = v1beta1.PodGroupScheduled, corev1.ConditionTrue, "MinimumPlaced", "the minimum of pods has nodes"
	case (next.Phase == v1beta1.PodGroupPending || next.Phase == v1beta1.PodGroupInqueue) && isFalse(waits):
		c.Type, c.Status, c.Reason, c.Message = v1beta1.PodGroupUnschedulable, corev1.ConditionTrue, waits.Reason, waits.Message
	default:
		return next
	}
	for _, old := range now.Conditions {
		if old.Type == c.Type && old.Status == c.Status && old.Reason == c.Reason && old.Message == c.Message {
			c = old
		}
	}
	next.Conditions = []v1beta1.PodGroupCondition{c}
	return next
}

// worth reports whether a status is worth a write: its phase or its condition is another one.
func worth(now, next *v1beta1.PodGroupStatus) bool {
	return now.Phase != next.Phase || !equality.Semantic.DeepEqual(now.Conditions, next.Conditions)
}

// news returns what an event says of a status that follows another: why the group waits, if it waits for
// another reason than before, and otherwise nothing.
func news(now, next *v1beta1.PodGroupStatus) string {
	if len(next.Conditions) == 0 || next.Conditions[0].Type != v1beta1.PodGroupUnschedulable {
		return ""
	}
	c := next.Conditions[0]
	for _, old := range now.Conditions {
		if old.Type == c.Type && old.Reason == c.Reason {
			return ""
		}
	}
	return c.Message
}
