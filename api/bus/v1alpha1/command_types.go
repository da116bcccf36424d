package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Action is what a Command, or a lifecycle policy of a Job, orders.
type Action string

// The actions that users may request.
const (
	AbortJobAction         Action = "AbortJob"
	RestartJobAction       Action = "RestartJob"
	RestartTaskAction      Action = "RestartTask"
	RestartPodAction       Action = "RestartPod"
	RestartPartitionAction Action = "RestartPartition"
	TerminateJobAction     Action = "TerminateJob"
	CompleteJobAction      Action = "CompleteJob"
	ResumeJobAction        Action = "ResumeJob"
	OpenQueueAction        Action = "OpenQueue"
	CloseQueueAction       Action = "CloseQueue"
)

// The internal actions of controllers. A Command that requests one is ignored.
const (
	SyncJobAction   Action = "SyncJob"
	EnqueueAction   Action = "EnqueueJob"
	SyncQueueAction Action = "SyncQueue"
)

// Event is an event to which a lifecycle policy reacts.
type Event string

// The events that a policy may name.
const (
	AnyEvent           Event = "*"
	PodPendingEvent    Event = "PodPending"
	PodFailedEvent     Event = "PodFailed"
	PodEvictedEvent    Event = "PodEvicted"
	JobUnknownEvent    Event = "Unknown"
	TaskCompletedEvent Event = "TaskCompleted"
	TaskFailedEvent    Event = "TaskFailed"
	JobUpdatedEvent    Event = "JobUpdated"
)

// The internal events of controllers. No policy may name one.
const (
	PodRunningEvent    Event = "PodRunning"
	OutOfSyncEvent     Event = "OutOfSync"
	CommandIssuedEvent Event = "CommandIssued"
)

// Command orders a controller to carry out an action on one object, once. The controller acts,
// records the action in the object's status, and then deletes the Command. Unlike most kinds,
// Command has no spec: its fields are at the top level.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=commands
// +kubebuilder:printcolumn:name="ACTION",type=string,JSONPath=`.action`
// +kubebuilder:printcolumn:name="KIND",type=string,JSONPath=`.target.kind`
// +kubebuilder:printcolumn:name="TARGET",type=string,JSONPath=`.target.name`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type Command struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Action is the action to carry out.
	// +optional
	// +kubebuilder:validation:Enum=AbortJob;RestartJob;RestartTask;RestartPod;RestartPartition;TerminateJob;CompleteJob;ResumeJob;OpenQueue;CloseQueue;SyncJob;EnqueueJob;SyncQueue
	Action Action `json:"action,omitempty"`
	// TargetObject is the Job (of this namespace) or the Queue to act on.
	// +optional
	TargetObject *metav1.OwnerReference `json:"target,omitempty"`
	// Reason is the reason for the action, as a CamelCase word for the object's status.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a human-readable explanation for the object's status.
	// +optional
	Message string `json:"message,omitempty"`
}

// CommandList is a list of Commands.
//
// +kubebuilder:object:root=true
type CommandList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Command `json:"items"`
}
