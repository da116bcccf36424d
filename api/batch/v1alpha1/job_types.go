package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// Job is a set of tasks that are scheduled together. Each task is a number of pods of one template.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=jobs,shortName=vcjob;vj
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.state.phase`
// +kubebuilder:printcolumn:name="minAvailable",type=integer,JSONPath=`.status.minAvailable`
// +kubebuilder:printcolumn:name="RUNNINGS",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="REASON",type=string,JSONPath=`.status.state.reason`
// +kubebuilder:printcolumn:name="QUEUE",type=string,priority=1,JSONPath=`.spec.queue`
// +kubebuilder:printcolumn:name="MESSAGE",type=string,priority=1,JSONPath=`.status.state.message`
type Job struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec JobSpec `json:"spec"`
	// Status is Pending until the manager writes one.
	// +optional
	// +kubebuilder:default={state: {phase: Pending}}
	Status JobStatus `json:"status,omitempty"`
}

// JobSpec is the specification of a job. After creation only minAvailable, priorityClassName, and
// each task's replicas and minAvailable may change.
type JobSpec struct {
	// SchedulerName is the scheduler of pods whose template names none.
	// +optional
	// +kubebuilder:default=lockstep
	// +kubebuilder:validation:MaxLength=63
	SchedulerName string `json:"schedulerName,omitempty"`
	// MinAvailable is the minimum of the gang: the number of pods that must get nodes together;
	// otherwise none gets one. 0 means the sum of the tasks' minAvailable.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinAvailable int32 `json:"minAvailable,omitempty"`
	// Volumes are mounted into every container of every pod.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Volumes []VolumeSpec `json:"volumes,omitempty" patchStrategy:"merge" patchMergeKey:"mountPath"`
	// Tasks are the kinds of pods of the job.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	Tasks []TaskSpec `json:"tasks" patchStrategy:"merge" patchMergeKey:"name"`
	// Policies are the actions to carry out on events of any pod or task of the job.
	// +optional
	Policies LifecyclePolicies `json:"policies,omitempty"`
	// Plugins prepare pods to work together. A plugin's name maps to its arguments, which are
	// in the form of command-line flags.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Plugins map[string]PluginArguments `json:"plugins,omitempty"`
	// RunningEstimate is how long the user expects the job to run.
	// +optional
	RunningEstimate *metav1.Duration `json:"runningEstimate,omitempty"`
	// Queue is the queue whose share the job uses.
	// +optional
	// +kubebuilder:default=default
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	Queue string `json:"queue,omitempty"`
	// MaxRetry is how often the job may be started, including the first time, before it fails.
	// Unlike in Volcano, an explicit 0 is kept: nothing is ever restarted.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	MaxRetry *int32 `json:"maxRetry,omitempty"`
	// TTLSecondsAfterFinished is the number of seconds after which a finished job is deleted. If it
	// is not set, the job is never deleted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// PriorityClassName is the priority class by which the jobs of a queue are ordered, and the
	// priority class of pods whose template names none.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// MinSuccess completes the job as soon as that many pods have succeeded.
	// +optional
	// +kubebuilder:validation:Minimum=1
	MinSuccess *int32 `json:"minSuccess,omitempty"`
	// NetworkTopology keeps the job's pods near each other.
	// +optional
	NetworkTopology *schedulingv1beta1.NetworkTopologySpec `json:"networkTopology,omitempty"`
}

// PluginArguments are the arguments of a job plugin, in the form of command-line flags.
type PluginArguments []string

// VolumeSpec is a volume of every pod: an existing claim, or a claim that is created for the job.
type VolumeSpec struct {
	// MountPath is the path at which containers mount the volume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^:]+$`
	MountPath string `json:"mountPath"`
	// VolumeClaimName is the name of an existing claim.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	VolumeClaimName string `json:"volumeClaimName,omitempty"`
	// VolumeClaim is the claim to create.
	// +optional
	VolumeClaim *corev1.PersistentVolumeClaimSpec `json:"volumeClaim,omitempty"`
}

// NumaPolicy is how a task's pods are aligned with NUMA nodes.
// +kubebuilder:validation:Enum=none;best-effort;restricted;single-numa-node
type NumaPolicy string

// The NUMA policies.
const (
	NumaNone           NumaPolicy = "none"
	NumaBestEffort     NumaPolicy = "best-effort"
	NumaRestricted     NumaPolicy = "restricted"
	NumaSingleNumaNode NumaPolicy = "single-numa-node"
)

// TaskSpec is a number of pods of one template.
type TaskSpec struct {
	// Name is a part of the pods' names. The default is "default" followed by the task's index.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`
	// Replicas is the number of pods of the task. All tasks of a job together have at most 150,000
	// pods, as many as a cluster.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=150000
	Replicas int32 `json:"replicas,omitempty"`
	// MinAvailable is the number of the task's pods that must get nodes with the rest of the gang.
	// The default is minPartitions times partitionSize if partitionPolicy has minPartitions, and
	// otherwise all pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinAvailable *int32 `json:"minAvailable,omitempty"`
	// Template is the template from which the pods are made.
	// +optional
	Template corev1.PodTemplateSpec `json:"template,omitempty"`
	// Policies are the actions to carry out on events of this task. They take precedence over the
	// job's policies.
	// +optional
	Policies LifecyclePolicies `json:"policies,omitempty"`
	// TopologyPolicy aligns the pods with NUMA nodes.
	// +optional
	TopologyPolicy NumaPolicy `json:"topologyPolicy,omitempty"`
	// MaxRetry is the number of restarts of containers, summed over the task, that raises the event
	// TaskFailed. Unlike in Volcano, an explicit 0 is kept: the first restart raises the event. -1
	// means that no number of restarts does.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=-1
	MaxRetry *int32 `json:"maxRetry,omitempty"`
	// DependsOn delays the task's pods until minAvailable pods of other tasks are ready.
	// +optional
	DependsOn *DependsOn `json:"dependsOn,omitempty"`
	// PartitionPolicy divides the pods into groups of equal size.
	// +optional
	PartitionPolicy *PartitionPolicySpec `json:"partitionPolicy,omitempty"`
}

// Iteration is any if a dependency waits for one of the named tasks, and all if it waits for every
// one of them.
// +kubebuilder:validation:Enum=any;all
type Iteration string

// The iterations.
const (
	IterationAny Iteration = "any"
	IterationAll Iteration = "all"
)

// DependsOn names tasks to wait for.
type DependsOn struct {
	// Name lists the names of the tasks.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Name []string `json:"name,omitempty"`
	// Iteration is any to wait for one of the tasks, or all (the default) to wait for every one of
	// them.
	// +optional
	Iteration Iteration `json:"iteration,omitempty"`
}

// PartitionPolicySpec divides a task's pods into groups of equal size.
type PartitionPolicySpec struct {
	// TotalPartitions is the number of groups.
	// +kubebuilder:validation:Minimum=1
	TotalPartitions int32 `json:"totalPartitions"`
	// PartitionSize is the number of pods in each group.
	// +kubebuilder:validation:Minimum=1
	PartitionSize int32 `json:"partitionSize"`
	// MinPartitions is the minimum number of groups that must get nodes together; otherwise none
	// gets any.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	MinPartitions int32 `json:"minPartitions,omitempty"`
	// NetworkTopology keeps each group's pods near each other.
	// +optional
	NetworkTopology *schedulingv1beta1.NetworkTopologySpec `json:"networkTopology,omitempty"`
}

// LifecyclePolicies are the policies of a job or of a task. No two of them may have the same event
// or the same exit code.
// +kubebuilder:validation:MaxItems=32
type LifecyclePolicies []LifecyclePolicy

// LifecyclePolicy is an action to carry out on events, or on the exit code of a container.
type LifecyclePolicy struct {
	// Action is the action to carry out.
	// +kubebuilder:validation:Enum=AbortJob;RestartJob;RestartTask;RestartPod;RestartPartition;TerminateJob;CompleteJob;ResumeJob
	Action busv1alpha1.Action `json:"action"`
	// Event is an event to react to.
	// +optional
	// +kubebuilder:validation:Enum=*;PodPending;PodFailed;PodEvicted;Unknown;TaskCompleted;TaskFailed;JobUpdated
	Event busv1alpha1.Event `json:"event,omitempty"`
	// Events are the events to react to.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Enum=*;PodPending;PodFailed;PodEvicted;Unknown;TaskCompleted;TaskFailed;JobUpdated
	Events []busv1alpha1.Event `json:"events,omitempty"`
	// ExitCode is an exit code of a pod's first container to react to.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Timeout is the time from the event to the action. The action is dropped if the cause of the
	// event has ended by then. The event PodPending requires a timeout.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// JobPhase is the phase of a Job's life.
type JobPhase string

// The phases of a Job.
const (
	Pending     JobPhase = "Pending"     // fewer than minAvailable pods have started
	Running     JobPhase = "Running"     // at least minAvailable pods have started
	Restarting  JobPhase = "Restarting"  // its pods are being removed, to be started again
	Aborting    JobPhase = "Aborting"    // its pods are being removed; it can be resumed
	Aborted     JobPhase = "Aborted"     // its pods have been removed; it can be resumed
	Completing  JobPhase = "Completing"  // its pods are being removed, because it is complete
	Completed   JobPhase = "Completed"   // enough pods have succeeded
	Terminating JobPhase = "Terminating" // its pods are being removed for good
	Terminated  JobPhase = "Terminated"  // its pods have been removed for good
	Failed      JobPhase = "Failed"      // too few pods have succeeded, or it was restarted too often
)

// Finished reports whether the phase is final.
func (p JobPhase) Finished() bool {
	return p == Completed || p == Failed || p == Terminated
}

// JobStatus is the state of a job.
type JobStatus struct {
	// State is the phase of the job, and the reason for the phase.
	// +optional
	State JobState `json:"state,omitempty"`
	// MinAvailable is the gang's minimum that is in force.
	// +optional
	MinAvailable int32 `json:"minAvailable,omitempty"`
	// TaskStatusCount counts each task's pods by phase.
	// +optional
	TaskStatusCount map[string]TaskState `json:"taskStatusCount,omitempty"`
	// Pending, Running, Succeeded, Failed, Terminating and Unknown count the job's pods.
	// +optional
	Pending int32 `json:"pending,omitempty"`
	// +optional
	Running int32 `json:"running,omitempty"`
	// +optional
	Succeeded int32 `json:"succeeded,omitempty"`
	// +optional
	Failed int32 `json:"failed,omitempty"`
	// +optional
	Terminating int32 `json:"terminating,omitempty"`
	// +optional
	Unknown int32 `json:"unknown,omitempty"`
	// Version increases each time that all pods of the job are removed.
	// +optional
	Version int32 `json:"version,omitempty"`
	// RetryCount is the number of restarts of the job.
	// +optional
	RetryCount int32 `json:"retryCount,omitempty"`
	// RunningDuration is how long the job ran.
	// +optional
	RunningDuration *metav1.Duration `json:"runningDuration,omitempty"`
	// ControlledResources are the objects that were created for the job besides its pods, for
	// example "plugin-svc": "svc".
	// +optional
	ControlledResources map[string]string `json:"controlledResources,omitempty"`
	// LastCommand is the UID of the Command that was carried out last. A Command with this UID is
	// deleted and not carried out again.
	// +optional
	LastCommand types.UID `json:"lastCommand,omitempty"`
	// Conditions has two kinds of entries. Entries without a type are the phases that the job went
	// through, as in Volcano; their status is the phase. Entries with a type are Kubernetes
	// conditions; their status is True, False or Unknown.
	// +optional
	Conditions []JobCondition `json:"conditions,omitempty"`
}

// JobState is a phase, and the reason for it.
type JobState struct {
	// +optional
	Phase JobPhase `json:"phase,omitempty"`
	// Reason is the reason for the phase, as a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a human-readable explanation.
	// +optional
	Message string `json:"message,omitempty"`
	// LastTransitionTime is when the phase began.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
}

// TaskState counts a task's pods by phase.
type TaskState struct {
	// +optional
	Phase map[corev1.PodPhase]int32 `json:"phase,omitempty"`
}

// JobConditionType is the type of a Job's condition. It is empty for entries that record a phase.
type JobConditionType string

// The types of a Job's conditions. A condition that would be True is absent.
const (
	// JobScheduled is False while the gang waits for nodes. The message says why: because of the
	// queue, a resource and how much of it is missing, or a filter that no node passes.
	JobScheduled JobConditionType = "Scheduled"
	// JobSurplusScheduled is False while pods above the minimum wait for nodes. The message says why.
	JobSurplusScheduled JobConditionType = "SurplusScheduled"
	// JobSupported is False if the spec has features that Lockstep does not support. The message
	// names the fields.
	JobSupported JobConditionType = "Supported"
	// JobValid is False if the spec has an error that the API server cannot detect, for example in
	// a pod template.
	JobValid JobConditionType = "Valid"
)

// Reasons of a Job's conditions.
const (
	ReasonNotImplemented  = "NotImplemented"  // JobSupported: the message names the fields
	ReasonUnknownArgument = "UnknownArgument" // JobSupported: only the plugin arguments in the message are ignored
	ReasonMalformed       = "Malformed"       // JobValid: the job cannot be decoded; the message names the field
	ReasonInvalidTemplate = "InvalidTemplate" // JobValid: the API server refuses pods of this template
	ReasonGated           = "SchedulingGated" // JobScheduled: pods wait until their scheduling gates are removed
	ReasonNoReplicas      = "NoReplicas"      // JobScheduled: no task has replicas, so there are no pods
)

// JobCondition is a phase that the job went through, or a condition: see JobStatus.Conditions.
type JobCondition struct {
	// Type is empty in an entry that records a phase.
	// +optional
	Type JobConditionType `json:"type,omitempty"`
	// Status is the phase if the type is empty; otherwise it is True, False or Unknown.
	Status JobPhase `json:"status"`
	// LastTransitionTime is when the phase began, or when the condition's status last changed.
	// +optional
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason is the reason for the status, as a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a human-readable explanation.
	// +optional
	Message string `json:"message,omitempty"`
}

// JobList is a list of Jobs.
//
// +kubebuilder:object:root=true
type JobList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Job `json:"items"`
}
