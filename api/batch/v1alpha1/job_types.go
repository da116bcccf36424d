package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
)

// Job is a set of tasks, each a number of pods of one template, that are scheduled together.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=jobs,shortName=vcjob;vj
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.state.phase`
// +kubebuilder:printcolumn:name="minAvailable",type=integer,JSONPath=`.status.minAvailable`
// +kubebuilder:printcolumn:name="RUNNINGS",type=integer,JSONPath=`.status.running`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="QUEUE",type=string,priority=1,JSONPath=`.spec.queue`
type Job struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec JobSpec `json:"spec"`
	// +optional
	Status JobStatus `json:"status,omitempty"`
}

// JobSpec says what is to run. After creation only minAvailable, priorityClassName, and each task's replicas and
// minAvailable may change.
type JobSpec struct {
	// SchedulerName goes to pods whose template names none.
	// +optional
	// +kubebuilder:default=lockstep
	// +kubebuilder:validation:MaxLength=63
	SchedulerName string `json:"schedulerName,omitempty"`
	// MinAvailable is the gang: how many pods must get nodes together, or none does. 0 means the sum of the tasks'
	// minAvailable.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinAvailable int32 `json:"minAvailable,omitempty"`
	// Volumes are mounted into every container of every pod.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Volumes []VolumeSpec `json:"volumes,omitempty"`
	// Tasks are the kinds of pods of the job.
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=128
	Tasks []TaskSpec `json:"tasks"`
	// Policies say what to do when something happens to any pod or task of the job.
	// +optional
	Policies LifecyclePolicies `json:"policies,omitempty"`
	// Plugins prepare pods to work together: the plugin's name and its arguments, in the manner of a command line.
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
	// MaxRetry is how often the job is started before it has failed, the first time included. Unlike with Volcano an
	// explicit 0 is kept: it means that nothing is ever restarted.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	MaxRetry *int32 `json:"maxRetry,omitempty"`
	// TTLSecondsAfterFinished is after how many seconds the finished job is deleted. Nil means never.
	// +optional
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
	// PriorityClassName orders the job among those of its queue, and goes to pods whose template names none.
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

// PluginArguments are the arguments of a job plugin, in the manner of a command line.
type PluginArguments []string

// VolumeSpec is a volume of every pod: an existing claim by name, or a claim that is created for the job.
type VolumeSpec struct {
	// MountPath is where containers see the volume.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[^:]+$`
	MountPath string `json:"mountPath"`
	// VolumeClaimName is an existing claim.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`
	VolumeClaimName string `json:"volumeClaimName,omitempty"`
	// VolumeClaim is the claim to create.
	// +optional
	VolumeClaim *corev1.PersistentVolumeClaimSpec `json:"volumeClaim,omitempty"`
}

// NumaPolicy says how a task's pods are aligned with NUMA nodes.
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
	// Name is part of the pods' names. A task without one is called "default" and its index.
	// +optional
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`
	// Replicas is how many pods the task has. All tasks of a job have at most 150,000 pods together, as many as a cluster.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=150000
	Replicas int32 `json:"replicas,omitempty"`
	// MinAvailable is how many of the task's pods must get nodes with the rest of the gang. Nil means all, or
	// minPartitions times partitionSize where the partitionPolicy has minPartitions.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinAvailable *int32 `json:"minAvailable,omitempty"`
	// Template is what the pods are made from.
	// +optional
	Template corev1.PodTemplateSpec `json:"template,omitempty"`
	// Policies come before the job's for what happens to this task.
	// +optional
	Policies LifecyclePolicies `json:"policies,omitempty"`
	// TopologyPolicy aligns the pods with NUMA nodes.
	// +optional
	TopologyPolicy NumaPolicy `json:"topologyPolicy,omitempty"`
	// MaxRetry is how many restarts of containers, summed over the task, raise TaskFailed. Unlike with Volcano an
	// explicit 0 is kept: the first restart raises it.
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	MaxRetry *int32 `json:"maxRetry,omitempty"`
	// DependsOn holds the task's pods back until other tasks have their minAvailable ready.
	// +optional
	DependsOn *DependsOn `json:"dependsOn,omitempty"`
	// PartitionPolicy divides the pods into groups of equal size.
	// +optional
	PartitionPolicy *PartitionPolicySpec `json:"partitionPolicy,omitempty"`
}

// Iteration says how many of the named tasks a dependency waits for.
// +kubebuilder:validation:Enum=any;all
type Iteration string

// The iterations.
const (
	IterationAny Iteration = "any"
	IterationAll Iteration = "all"
)

// DependsOn names tasks to wait for.
type DependsOn struct {
	// Name are the tasks.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=63
	Name []string `json:"name,omitempty"`
	// Iteration is all when empty.
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
	// MinPartitions is how many groups must get nodes together, or none does.
	// +optional
	// +kubebuilder:default=0
	// +kubebuilder:validation:Minimum=0
	MinPartitions int32 `json:"minPartitions,omitempty"`
	// NetworkTopology keeps each group's pods near each other.
	// +optional
	NetworkTopology *schedulingv1beta1.NetworkTopologySpec `json:"networkTopology,omitempty"`
}

// LifecyclePolicies are the policies of a job or of a task. An event is in one of them at most, as is an exit code.
// +kubebuilder:validation:MaxItems=32
type LifecyclePolicies []LifecyclePolicy

// LifecyclePolicy does something when something happens: on one or more events, or on the exit code of a container.
type LifecyclePolicy struct {
	// Action is what to do.
	// +kubebuilder:validation:Enum=AbortJob;RestartJob;RestartTask;RestartPod;RestartPartition;TerminateJob;CompleteJob;ResumeJob
	Action busv1alpha1.Action `json:"action"`
	// Event is one event to react to.
	// +optional
	// +kubebuilder:validation:Enum=*;PodPending;PodFailed;PodEvicted;Unknown;TaskCompleted;TaskFailed;JobUpdated
	Event busv1alpha1.Event `json:"event,omitempty"`
	// Events are the events to react to.
	// +optional
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:Enum=*;PodPending;PodFailed;PodEvicted;Unknown;TaskCompleted;TaskFailed;JobUpdated
	Events []busv1alpha1.Event `json:"events,omitempty"`
	// ExitCode is the exit code of a pod's first container to react to.
	// +optional
	ExitCode *int32 `json:"exitCode,omitempty"`
	// Timeout is how long to wait before acting; what then no longer holds is not acted on. The event PodPending needs one.
	// +optional
	Timeout *metav1.Duration `json:"timeout,omitempty"`
}

// JobPhase is where a Job is in its life.
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

// Finished says whether the phase is final.
func (p JobPhase) Finished() bool {
	return p == Completed || p == Failed || p == Terminated
}

// JobStatus is what has become of the job.
type JobStatus struct {
	// State is the phase, and why the job is in it.
	// +optional
	State JobState `json:"state,omitempty"`
	// MinAvailable is the gang's minimum in force.
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
	// Version goes up each time that all of the job's pods are removed.
	// +optional
	Version int32 `json:"version,omitempty"`
	// RetryCount is how often the job was restarted.
	// +optional
	RetryCount int32 `json:"retryCount,omitempty"`
	// RunningDuration is how long the job ran.
	// +optional
	RunningDuration *metav1.Duration `json:"runningDuration,omitempty"`
	// ControlledResources are what else was created for the job, for example "plugin-svc": "svc".
	// +optional
	ControlledResources map[string]string `json:"controlledResources,omitempty"`
	// LastCommand is the UID of the Command that was carried out last. A Command that has it is deleted and not carried out again.
	// +optional
	LastCommand types.UID `json:"lastCommand,omitempty"`
	// Conditions are of two sorts. Without a type: the phases that the job went through, each with its time, as Volcano
	// has them; status is the phase. With a type: Kubernetes conditions, where status is True, False or Unknown.
	// +optional
	Conditions []JobCondition `json:"conditions,omitempty"`
}

// JobState is a phase, and why.
type JobState struct {
	// +optional
	Phase JobPhase `json:"phase,omitempty"`
	// Reason is a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a sentence for people.
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

// JobConditionType is the type of a Job's condition; empty for the entries that record a phase.
type JobConditionType string

// The types of a Job's conditions. A condition that has nothing to say is absent.
const (
	// JobScheduled is False while the gang waits for nodes, and says for what: the queue, a resource and how much of it
	// is short, or a filter that no node passes.
	JobScheduled JobConditionType = "Scheduled"
	// JobSupported is False when the spec asks for something that Lockstep does not act on; the message names the fields.
	JobSupported JobConditionType = "Supported"
	// JobValid is False when the spec has a fault that the API server could not see, for example in a pod template.
	JobValid JobConditionType = "Valid"
)

// Reasons of a Job's conditions.
const (
	ReasonNotImplemented  = "NotImplemented"  // JobSupported: names the fields
	ReasonUnknownArgument = "UnknownArgument" // JobSupported: names arguments of plugins, and nothing but them is ignored
	ReasonMalformed       = "Malformed"       // JobValid: the job cannot be read; the message names the field
	ReasonInvalidTemplate = "InvalidTemplate" // JobValid: the API server refuses pods of this template
)

// JobCondition is a phase that the job went through (no type), or a condition (see JobStatus.Conditions).
type JobCondition struct {
	// Type is empty in an entry that records a phase.
	// +optional
	Type JobConditionType `json:"type,omitempty"`
	// Status is the phase where there is no type, else True, False or Unknown.
	Status JobPhase `json:"status"`
	// LastTransitionTime is when the phase began, or when the condition's status last changed.
	// +optional
	LastTransitionTime *metav1.Time `json:"lastTransitionTime,omitempty"`
	// Reason is a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a sentence for people.
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
