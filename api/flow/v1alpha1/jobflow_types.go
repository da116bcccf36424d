package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
)

// JobFlow creates Jobs from JobTemplates, in the order of their dependencies.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=jobflows,shortName=jf
// +kubebuilder:printcolumn:name="Status",type=string,JSONPath=`.status.state.phase`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.state.message`
type JobFlow struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	Spec JobFlowSpec `json:"spec,omitempty"`
	// +optional
	Status JobFlowStatus `json:"status,omitempty"`
}

// JobFlowSpec is the specification of a JobFlow.
type JobFlowSpec struct {
	// Flows are the Jobs to create, each from the JobTemplate of its name.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Flows []Flow `json:"flows,omitempty"`
	// JobRetainPolicy says what becomes of the Jobs when all have completed.
	// +optional
	// +kubebuilder:default=retain
	JobRetainPolicy RetainPolicy `json:"jobRetainPolicy,omitempty"`
}

// RetainPolicy is retain to keep the Jobs of a JobFlow that succeeded, and delete to delete them.
// +kubebuilder:validation:Enum=retain;delete
type RetainPolicy string

// The retain policies.
const (
	Retain RetainPolicy = "retain"
	Delete RetainPolicy = "delete"
)

// Flow is one Job of a JobFlow. The Job is called JOBFLOW-NAME.
type Flow struct {
	// Name is the name of a JobTemplate of the same namespace.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// DependsOn delays the Job.
	// +optional
	DependsOn *DependsOn `json:"dependsOn,omitempty"`
	// Patch changes the template for this Job.
	// +optional
	Patch *Patch `json:"patch,omitempty"`
}

// DependsOn says what a Job waits for.
type DependsOn struct {
	// Targets are names of other flows. Their Jobs must have completed, or the probes of their
	// tasks must succeed.
	// +optional
	// +kubebuilder:validation:MaxItems=1000
	Targets []string `json:"targets,omitempty"`
	// Probe are conditions of tasks of the targets. A target with such a task need not complete:
	// the Job is created as soon as all probes of the target's tasks succeed.
	// +optional
	Probe *Probe `json:"probe,omitempty"`
}

// Probe are conditions of tasks.
type Probe struct {
	// HTTPGetList are HTTP requests that each pod of a task must answer with a status from 200 to
	// 399.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	HTTPGetList []HTTPGet `json:"httpGetList,omitempty"`
	// TCPSocketList are ports of each pod of a task that must accept connections.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	TCPSocketList []TCPSocket `json:"tcpSocketList,omitempty"`
	// TaskStatusList are phases in which a task's minAvailable pods must be.
	// +optional
	// +kubebuilder:validation:MaxItems=32
	TaskStatusList []TaskStatus `json:"taskStatusList,omitempty"`
}

// HTTPGet is a request to each pod of a task.
type HTTPGet struct {
	// TaskName is the name of the task.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TaskName string `json:"taskName,omitempty"`
	// Path is the path of the request, / by default.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Path string `json:"path,omitempty"`
	// Port is the port of the pods.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
	// HTTPHeader is a header of the request.
	// +optional
	HTTPHeader *corev1.HTTPHeader `json:"httpHeader,omitempty"`
}

// TCPSocket is a connection to each pod of a task.
type TCPSocket struct {
	// TaskName is the name of the task.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TaskName string `json:"taskName,omitempty"`
	// Port is the port of the pods.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port"`
}

// TaskStatus is a phase of the pods of a task.
type TaskStatus struct {
	// TaskName is the name of the task.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TaskName string `json:"taskName,omitempty"`
	// Phase is a phase of pods: Pending, Running, Succeeded, Failed or Unknown. Pods that have
	// succeeded count as Running, too.
	// +optional
	Phase corev1.PodPhase `json:"phase,omitempty"`
}

// Patch changes a JobTemplate for one Job.
type Patch struct {
	// JobSpec is merged into the template's spec like a strategic merge patch: tasks, containers
	// and environment variables are merged by name, volumes by mountPath; other lists are replaced.
	// +kubebuilder:pruning:PreserveUnknownFields
	JobSpec runtime.RawExtension `json:"jobSpec"`
}

// Phase is the phase of a JobFlow.
// +kubebuilder:validation:Enum=Succeed;Terminating;Failed;Running;Pending
type Phase string

// The phases of a JobFlow.
const (
	Pending     Phase = "Pending"     // no Job has started
	Running     Phase = "Running"     // a Job has started
	Succeed     Phase = "Succeed"     // all Jobs have completed
	Failed      Phase = "Failed"      // a Job has failed; no further Job is created
	Terminating Phase = "Terminating" // the JobFlow is being deleted
)

// Finished reports whether the phase is final.
func (p Phase) Finished() bool { return p == Succeed || p == Failed }

// Waiting is the phase in Condition of a Job that does not exist yet.
const Waiting batchv1alpha1.JobPhase = "Waiting"

// JobFlowStatus is the state of a JobFlow.
type JobFlowStatus struct {
	// PendingJobs, RunningJobs, FailedJobs, CompletedJobs, TerminatedJobs and UnKnowJobs name the
	// Jobs that exist, or existed, by their phases.
	// +optional
	PendingJobs []string `json:"pendingJobs,omitempty"`
	// +optional
	RunningJobs []string `json:"runningJobs,omitempty"`
	// +optional
	FailedJobs []string `json:"failedJobs,omitempty"`
	// +optional
	CompletedJobs []string `json:"completedJobs,omitempty"`
	// +optional
	TerminatedJobs []string `json:"terminatedJobs,omitempty"`
	// UnKnowJobs are the Jobs in other phases, for example suspended ones.
	// +optional
	UnKnowJobs []string `json:"unKnowJobs,omitempty"`
	// JobStatusList are the Jobs that exist, or existed.
	// +optional
	JobStatusList []JobStatus `json:"jobStatusList,omitempty"`
	// Conditions are the states of all Jobs, by name. A Job that does not exist yet is Waiting, and
	// the message says for what.
	// +optional
	Conditions map[string]Condition `json:"conditions,omitempty"`
	// State is the phase of the JobFlow, and the reason for it.
	// +optional
	State State `json:"state,omitempty"`
}

// State is a phase, and the reason for it. Volcano has only the phase.
type State struct {
	// +optional
	Phase Phase `json:"phase,omitempty"`
	// Reason is the reason for the phase, as a CamelCase word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a human-readable explanation. It names the field of the spec that is wrong.
	// +optional
	Message string `json:"message,omitempty"`
}

// Reasons of states and conditions.
const (
	ReasonInvalidSpec      = "InvalidSpec"      // the message names the field
	ReasonDependencies     = "Dependencies"     // targets have not completed
	ReasonProbe            = "Probe"            // a probe does not succeed
	ReasonTemplateNotFound = "TemplateNotFound" // there is no JobTemplate of the name
	ReasonRefused          = "Refused"          // the API server refuses the Job
	ReasonJobFailed        = "JobFailed"        // a Job failed or was terminated
	ReasonJobDeleted       = "JobDeleted"       // a Job was deleted before it ended
)

// JobStatus is the history of a Job.
type JobStatus struct {
	// Name is the Job's name.
	// +optional
	Name string `json:"name,omitempty"`
	// State is the Job's phase.
	// +optional
	State batchv1alpha1.JobPhase `json:"state,omitempty"`
	// StartTimestamp is when the Job was created, EndTimestamp when it ended.
	// +optional
	StartTimestamp metav1.Time `json:"startTimestamp,omitempty,omitzero"`
	// +optional
	EndTimestamp metav1.Time `json:"endTimestamp,omitempty,omitzero"`
	// RestartCount is how often the Job was restarted.
	// +optional
	// +kubebuilder:validation:Minimum=0
	RestartCount int32 `json:"restartCount,omitempty"`
	// RunningHistories are the phases that were seen, at most 20.
	// +optional
	RunningHistories []JobRunningHistory `json:"runningHistories,omitempty"`
}

// JobRunningHistory is a phase of a Job.
type JobRunningHistory struct {
	// +optional
	StartTimestamp metav1.Time `json:"startTimestamp,omitempty,omitzero"`
	// +optional
	EndTimestamp metav1.Time `json:"endTimestamp,omitempty,omitzero"`
	// +optional
	State batchv1alpha1.JobPhase `json:"state,omitempty"`
}

// Condition is the state of a Job of the JobFlow.
type Condition struct {
	// Phase is the Job's phase, or Waiting before the Job exists.
	// +optional
	Phase batchv1alpha1.JobPhase `json:"phase,omitempty"`
	// CreateTimestamp is when the Job was created.
	// +optional
	CreateTimestamp metav1.Time `json:"createTime,omitempty,omitzero"`
	// RunningDuration is how long the Job ran.
	// +optional
	RunningDuration *metav1.Duration `json:"runningDuration,omitempty"`
	// TaskStatusCount counts each task's pods by phase.
	// +optional
	TaskStatusCount map[string]batchv1alpha1.TaskState `json:"taskStatusCount,omitempty"`
	// Reason and Message say why the Job does not exist yet. Volcano does not have them.
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// JobFlowList is a list of JobFlows.
//
// +kubebuilder:object:root=true
type JobFlowList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []JobFlow `json:"items"`
}
