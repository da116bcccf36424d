package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Action is what is to be done: by a Command or by a lifecycle policy of a Job.
type Action string

// The actions that users may ask for.
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

// The actions that controllers use among themselves; a Command that asks for one is ignored.
const (
	SyncJobAction   Action = "SyncJob"
	EnqueueAction   Action = "EnqueueJob"
	SyncQueueAction Action = "SyncQueue"
)

// Event is what a lifecycle policy reacts to.
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

// The events that only controllers raise; no policy may name one.
const (
	PodRunningEvent    Event = "PodRunning"
	OutOfSyncEvent     Event = "OutOfSync"
	CommandIssuedEvent Event = "CommandIssued"
)

// Command asks a controller to do something to one object, once: the controller acts, has the object's status say so, and
// deletes the Command then. Unlike most kinds it has no spec: its fields are at the top.
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

	// Action is what is to be done.
	// +optional
	// +kubebuilder:validation:Enum=AbortJob;RestartJob;RestartTask;RestartPod;RestartPartition;TerminateJob;CompleteJob;ResumeJob;OpenQueue;CloseQueue;SyncJob;EnqueueJob;SyncQueue
	Action Action `json:"action,omitempty"`
	// TargetObject is the Job (of this namespace) or the Queue to act on.
	// +optional
	TargetObject *metav1.OwnerReference `json:"target,omitempty"`
	// Reason is a CamelCase word for the object's status.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message is a sentence for people.
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
