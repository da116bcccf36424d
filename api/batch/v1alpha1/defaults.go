package v1alpha1

import (
	"maps"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// The defaults of fields that a Job leaves empty are computed here and never written into its spec,
// so that a Job stays as its author wrote it and no admission webhook is needed.

// DefaultMaxRetry is the default of JobSpec.MaxRetry and TaskSpec.MaxRetry.
const DefaultMaxRetry = 3

// TaskName returns the name of task i: its own, or "default" followed by i.
func (j *Job) TaskName(i int) string {
	if name := j.Spec.Tasks[i].Name; name != "" {
		return name
	}
	return "default" + strconv.Itoa(i)
}

// PodName returns the name of the pod with that index in task i: JOB-TASK-INDEX.
func (j *Job) PodName(i, index int) string {
	return j.Name + "-" + j.TaskName(i) + "-" + strconv.Itoa(index)
}

// TotalReplicas returns the number of pods of all tasks.
func (j *Job) TotalReplicas() int32 {
	var n int32
	for i := range j.Spec.Tasks {
		n += j.Spec.Tasks[i].Replicas
	}
	return n
}

// MinAvailable returns the gang's minimum: the job's own, or the sum of its tasks' minimums.
func (j *Job) MinAvailable() int32 {
	if j.Spec.MinAvailable > 0 {
		return j.Spec.MinAvailable
	}
	var n int32
	for i := range j.Spec.Tasks {
		n += j.Spec.Tasks[i].Min()
	}
	return n
}

// Min returns the number of the task's pods that must get nodes with the rest of the gang: its
// minAvailable, or the pods of its partition policy's minPartitions, or all.
func (t *TaskSpec) Min() int32 {
	if t.MinAvailable != nil {
		return *t.MinAvailable
	}
	if p := t.PartitionPolicy; p != nil && p.MinPartitions > 0 {
		return p.MinPartitions * p.PartitionSize
	}
	return t.Replicas
}

// FailsAfter reports whether so many restarts of containers raise the event TaskFailed.
func (t *TaskSpec) FailsAfter(restarts int32) bool {
	most := int32(DefaultMaxRetry)
	if t.MaxRetry != nil {
		most = *t.MaxRetry
	}
	return most >= 0 && restarts > 0 && restarts >= most
}

// Retries returns how often the job may be started, including the first time, before it fails.
func (j *Job) Retries() int32 {
	if j.Spec.MaxRetry == nil {
		return DefaultMaxRetry
	}
	return *j.Spec.MaxRetry
}

// QueueName returns the queue whose share the job uses, or the default queue if the job names none.
func (j *Job) QueueName() string {
	if j.Spec.Queue == "" {
		return schedulingv1beta1.DefaultQueue
	}
	return j.Spec.Queue
}

// SchedulerName returns the scheduler of task i's pods: the template's, or the job's, or Lockstep.
func (j *Job) SchedulerName(i int) string {
	if name := j.Spec.Tasks[i].Template.Spec.SchedulerName; name != "" {
		return name
	}
	if j.Spec.SchedulerName != "" {
		return j.Spec.SchedulerName
	}
	return schedulingv1beta1.SchedulerLockstep
}

// PriorityClassName returns the priority class of task i's pods: the template's, or the job's.
func (j *Job) PriorityClassName(i int) string {
	if name := j.Spec.Tasks[i].Template.Spec.PriorityClassName; name != "" {
		return name
	}
	return j.Spec.PriorityClassName
}

// DNSPolicy returns the DNS policy of the task's pods. The default of a pod on the host network is
// ClusterFirstWithHostNet, so that it finds services by name.
func (t *TaskSpec) DNSPolicy() corev1.DNSPolicy {
	if p := t.Template.Spec.DNSPolicy; p != "" || !t.Template.Spec.HostNetwork {
		return p
	}
	return corev1.DNSClusterFirstWithHostNet
}

// Plugins returns the job's plugins with their arguments, and the plugins on which they depend: the
// frameworks find their peers through svc, and mpi connects to them through ssh. The result may be
// the spec's own map and must not be modified.
func (j *Job) Plugins() map[string]PluginArguments {
	has := func(name string) bool { _, ok := j.Spec.Plugins[name]; return ok }
	needSvc := !has(SvcPlugin) && (has(TensorFlowPlugin) || has(MPIPlugin) || has(PyTorchPlugin) || has(RayPlugin))
	needSSH := !has(SSHPlugin) && has(MPIPlugin)
	if !needSvc && !needSSH {
		return j.Spec.Plugins
	}
	plugins := maps.Clone(j.Spec.Plugins)
	if needSvc {
		plugins[SvcPlugin] = nil
	}
	if needSSH {
		plugins[SSHPlugin] = nil
	}
	return plugins
}
