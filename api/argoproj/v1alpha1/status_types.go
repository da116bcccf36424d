package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeType is the type of a workflow node.
type NodeType string

const (
	NodePod       NodeType = "Pod"
	NodeContainer NodeType = "Container"
	NodeSteps     NodeType = "Steps"
	NodeStepGroup NodeType = "StepGroup"
	NodeDAG       NodeType = "DAG"
	NodeTaskGroup NodeType = "TaskGroup"
	NodeRetry     NodeType = "Retry"
	NodeSkipped   NodeType = "Skipped"
	NodeSuspend   NodeType = "Suspend"
	NodeHTTP      NodeType = "HTTP"
	NodePlugin    NodeType = "Plugin"
)

// NodePhase is the phase of a workflow node.
type NodePhase string

const (
	PhasePending   NodePhase = "Pending"
	PhaseRunning   NodePhase = "Running"
	PhaseSucceeded NodePhase = "Succeeded"
	PhaseSkipped   NodePhase = "Skipped"
	PhaseFailed    NodePhase = "Failed"
	PhaseError     NodePhase = "Error"
	PhaseOmitted   NodePhase = "Omitted"
)

// Fulfilled reports whether the phase is final.
func (p NodePhase) Fulfilled() bool { return p != "" && p != PhasePending && p != PhaseRunning }

// Completed reports whether the node ran and has ended. Skipped and omitted nodes did not run.
func (p NodePhase) Completed() bool {
	return p == PhaseSucceeded || p == PhaseFailed || p == PhaseError
}

// FailedOrError reports whether the phase is Failed or Error.
func (p NodePhase) FailedOrError() bool { return p == PhaseFailed || p == PhaseError }

// WorkflowPhase is the phase of a workflow.
type WorkflowPhase string

const (
	WorkflowUnknown   WorkflowPhase = ""
	WorkflowPending   WorkflowPhase = "Pending"
	WorkflowRunning   WorkflowPhase = "Running"
	WorkflowSucceeded WorkflowPhase = "Succeeded"
	WorkflowFailed    WorkflowPhase = "Failed"
	WorkflowError     WorkflowPhase = "Error"
)

// Completed reports whether the workflow has ended.
func (p WorkflowPhase) Completed() bool {
	return p == WorkflowSucceeded || p == WorkflowFailed || p == WorkflowError
}

// Nodes maps the IDs of a workflow's nodes to their statuses.
type Nodes map[string]NodeStatus

// NodeStatus is the status of one workflow node.
type NodeStatus struct {
	ID            string       `json:"id"`
	Name          string       `json:"name"`
	DisplayName   string       `json:"displayName,omitempty"`
	Type          NodeType     `json:"type"`
	TemplateName  string       `json:"templateName,omitempty"`
	TemplateRef   *TemplateRef `json:"templateRef,omitempty"`
	TemplateScope string       `json:"templateScope,omitempty"`
	Phase         NodePhase    `json:"phase,omitempty"`
	BoundaryID    string       `json:"boundaryID,omitempty"`
	Message       string       `json:"message,omitempty"`
	StartedAt     metav1.Time  `json:"startedAt,omitempty"`
	FinishedAt    metav1.Time  `json:"finishedAt,omitempty"`

	EstimatedDuration int64                         `json:"estimatedDuration,omitempty"`
	Progress          string                        `json:"progress,omitempty"`
	ResourcesDuration map[corev1.ResourceName]int64 `json:"resourcesDuration,omitempty"`

	PodIP        string    `json:"podIP,omitempty"`
	HostNodeName string    `json:"hostNodeName,omitempty"`
	Daemoned     *bool     `json:"daemoned,omitempty"`
	NodeFlag     *NodeFlag `json:"nodeFlag,omitempty"`

	Inputs  *Inputs  `json:"inputs,omitempty"`
	Outputs *Outputs `json:"outputs,omitempty"`

	Children      []string `json:"children,omitempty"`
	OutboundNodes []string `json:"outboundNodes,omitempty"`

	MemoizationStatus     *MemoizationStatus         `json:"memoizationStatus,omitempty"`
	SynchronizationStatus *NodeSynchronizationStatus `json:"synchronizationStatus,omitempty"`
	TaskResultSynced      *bool                      `json:"taskResultSynced,omitempty"`
	FailedPodRestarts     int32                      `json:"failedPodRestarts,omitempty"`
	RestartingPodUID      string                     `json:"restartingPodUID,omitempty"`
}

// Daemon reports whether the node keeps running while the nodes after it treat it as done.
func (n *NodeStatus) Daemon() bool { return n.Daemoned != nil && *n.Daemoned }

// NodeFlag marks nodes that belong to a hook, or that are attempts of a retried node.
type NodeFlag struct {
	Hooked  bool `json:"hooked,omitempty"`
	Retried bool `json:"retried,omitempty"`
}

// MemoizationStatus is the result of the lookup of a memoized output.
type MemoizationStatus struct {
	Hit       bool   `json:"hit"`
	Key       string `json:"key"`
	CacheName string `json:"cacheName"`
}

// NodeSynchronizationStatus is the lock that a node waits for.
type NodeSynchronizationStatus struct {
	Waiting string `json:"waiting,omitempty"`
}

// ConditionType is the type of a workflow's condition.
type ConditionType string

const (
	ConditionCompleted    ConditionType = "Completed"
	ConditionPodRunning   ConditionType = "PodRunning"
	ConditionSpecWarning  ConditionType = "SpecWarning"
	ConditionSpecError    ConditionType = "SpecError"
	ConditionMetricsError ConditionType = "MetricsError"
	// ConditionArtifactGCError names the artifacts that could not be deleted.
	ConditionArtifactGCError ConditionType = "ArtifactGCError"
)

// Condition is one fact about a workflow.
type Condition struct {
	Type    ConditionType          `json:"type,omitempty"`
	Status  metav1.ConditionStatus `json:"status,omitempty"`
	Message string                 `json:"message,omitempty"`
}

// WorkflowStatus is the state of a workflow.
type WorkflowStatus struct {
	Phase             WorkflowPhase `json:"phase,omitempty"`
	StartedAt         metav1.Time   `json:"startedAt,omitempty"`
	FinishedAt        metav1.Time   `json:"finishedAt,omitempty"`
	EstimatedDuration int64         `json:"estimatedDuration,omitempty"`
	Progress          string        `json:"progress,omitempty"`
	Message           string        `json:"message,omitempty"`

	// CompressedNodes is the compressed JSON of Nodes in base64, if the JSON is too large.
	CompressedNodes          string `json:"compressedNodes,omitempty"`
	Nodes                    Nodes  `json:"nodes,omitempty"`
	OffloadNodeStatusVersion string `json:"offloadNodeStatusVersion,omitempty"`

	// StoredTemplates are the referenced templates as they were at the start, by
	// scope/name/template.
	StoredTemplates             map[string]Template           `json:"storedTemplates,omitempty"`
	StoredWorkflowTemplateSpec  *WorkflowSpec                 `json:"storedWorkflowTemplateSpec,omitempty"`
	PersistentVolumeClaims      []corev1.Volume               `json:"persistentVolumeClaims,omitempty"`
	Outputs                     *Outputs                      `json:"outputs,omitempty"`
	Conditions                  []Condition                   `json:"conditions,omitempty"`
	ResourcesDuration           map[corev1.ResourceName]int64 `json:"resourcesDuration,omitempty"`
	Synchronization             *SynchronizationStatus        `json:"synchronization,omitempty"`
	ArtifactRepositoryRef       *ArtifactRepositoryRefStatus  `json:"artifactRepositoryRef,omitempty"`
	ArtifactGCStatus            *ArtifactGCStatus             `json:"artifactGCStatus,omitempty"`
	TaskResultsCompletionStatus map[string]bool               `json:"taskResultsCompletionStatus,omitempty"`
}

// SynchronizationStatus is the locks that a workflow and its nodes have and wait for.
type SynchronizationStatus struct {
	Semaphore *LockStatus `json:"semaphore,omitempty"`
	Mutex     *LockStatus `json:"mutex,omitempty"`
}

// LockStatus is the locks of one type that a workflow and its nodes have and wait for.
type LockStatus struct {
	Holding []LockHolding `json:"holding,omitempty"`
	Waiting []LockHolding `json:"waiting,omitempty"`
}

// LockHolding is a lock and its holders: Holder for a mutex, Holders for a semaphore.
type LockHolding struct {
	Semaphore string   `json:"semaphore,omitempty"`
	Mutex     string   `json:"mutex,omitempty"`
	Holders   []string `json:"holders,omitempty"`
	Holder    string   `json:"holder,omitempty"`
}

// ArtifactRepositoryRefStatus is the artifact repository that was chosen.
type ArtifactRepositoryRefStatus struct {
	ArtifactRepositoryRef `json:",inline"`
	Namespace             string            `json:"namespace,omitempty"`
	Default               bool              `json:"default,omitempty"`
	ArtifactRepository    *ArtifactLocation `json:"artifactRepository,omitempty"`
}

// ArtifactGCStatus is the progress of the deletion of artifacts.
type ArtifactGCStatus struct {
	StrategiesProcessed map[string]bool `json:"strategiesProcessed,omitempty"`
	PodsRecouped        map[string]bool `json:"podsRecouped,omitempty"`
	NotSpecified        bool            `json:"notSpecified,omitempty"`
}

// ResourceUnit returns the unit of a resource in a ResourcesDuration: a container that requests one
// unit for one second adds one.
func ResourceUnit(name corev1.ResourceName) resource.Quantity {
	switch name {
	case corev1.ResourceMemory:
		return resource.MustParse("100Mi")
	case corev1.ResourceStorage, corev1.ResourceEphemeralStorage:
		return resource.MustParse("10Gi")
	}
	return resource.MustParse("1")
}

// HasPod reports whether nodes of the type have pods of their own.
func (t NodeType) HasPod() bool { return t == NodePod || t == NodeHTTP || t == NodePlugin }
