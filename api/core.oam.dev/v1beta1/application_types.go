package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Application is a set of components that are deployed, watched and removed together.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=applications,shortName=app;velaapp,categories=oam
// +kubebuilder:printcolumn:name="COMPONENT",type=string,JSONPath=`.spec.components[*].name`
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.components[*].type`
// +kubebuilder:printcolumn:name="PHASE",type=string,JSONPath=`.status.status`
// +kubebuilder:printcolumn:name="HEALTHY",type=boolean,JSONPath=`.status.services[*].healthy`
// +kubebuilder:printcolumn:name="STATUS",type=string,JSONPath=`.status.services[*].message`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 63",message="the name becomes a label of every managed object: at most 63 characters"
type Application struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ApplicationSpec `json:"spec"`
	// +optional
	Status ApplicationStatus `json:"status,omitempty"`
}

// ApplicationSpec says what is to run, where, and in which order.
type ApplicationSpec struct {
	// Components are the parts of the application. Their names are unique.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=512
	Components []Component `json:"components"`
	// Policies change how components are placed, changed, kept and removed.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:XValidation:rule="self.all(p, !has(p.name) || self.filter(q, has(q.name) && q.name == p.name).size() == 1)",message="two policies have the same name"
	Policies []AppPolicy `json:"policies,omitempty"`
	// Workflow says in which steps the application is deployed. Without it every component is deployed, in the order
	// of what depends on what.
	// +optional
	Workflow *WorkflowSpec `json:"workflow,omitempty"`
}

// Component is one part of an application: one main workload and what goes with it.
type Component struct {
	// Name becomes the label app.oam.dev/component and, unless the definition says otherwise, the name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// Type is the ComponentDefinition, as name, name@vN or name@semver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// ExternalRevision names the component's revision, where others count them.
	// +optional
	ExternalRevision string `json:"externalRevision,omitempty"`
	// Properties are the parameters of the definition's template.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
	// DependsOn names components that must be healthy before this one is deployed.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DependsOn []string `json:"dependsOn,omitempty"`
	// Inputs take values that other components or steps put out.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Inputs []StepInput `json:"inputs,omitempty"`
	// Outputs are values that others may take.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Outputs []StepOutput `json:"outputs,omitempty"`
	// Traits change the workload or add to it, in this order.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	Traits []Trait `json:"traits,omitempty"`
	// Scopes are accepted and have no effect.
	// +optional
	Scopes map[string]string `json:"scopes,omitempty"`
	// ReplicaKey tells the copies of a component that a replication policy makes.
	// +optional
	ReplicaKey string `json:"replicaKey,omitempty"`
}

// Trait is one change of a component's workload, or an object beside it.
type Trait struct {
	// Type is the TraitDefinition, as name, name@vN or name@semver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// Properties are the parameters of the definition's template.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
}

// AppPolicy is a policy of an application.
type AppPolicy struct {
	// Name is how workflow steps refer to the policy.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// Type is one of the built-in policies or a PolicyDefinition.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// Properties are the policy's own.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
}

// WorkflowSpec is how an application is deployed.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.ref) && has(self.steps) && size(self.steps) > 0)",message="a workflow has either steps or a ref"
type WorkflowSpec struct {
	// Ref names a Workflow of the same namespace.
	// +optional
	Ref string `json:"ref,omitempty"`
	// +optional
	Mode *WorkflowExecuteMode `json:"mode,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=128
	// +kubebuilder:validation:XValidation:rule="self.all(s, !has(s.name) || self.filter(o, has(o.name) && o.name == s.name).size() == 1)",message="two steps have the same name"
	Steps []WorkflowStep `json:"steps,omitempty"`
}

// WorkflowMode is how steps follow one another.
//
// +kubebuilder:validation:Enum=StepByStep;DAG
type WorkflowMode string

// The modes of workflows and of groups of steps.
const (
	WorkflowModeStep WorkflowMode = "StepByStep"
	WorkflowModeDAG  WorkflowMode = "DAG"
)

// WorkflowExecuteMode says how steps, and the steps in groups, follow one another.
type WorkflowExecuteMode struct {
	// Steps is StepByStep by default.
	// +optional
	Steps WorkflowMode `json:"steps,omitempty"`
	// SubSteps is DAG by default.
	// +optional
	SubSteps WorkflowMode `json:"subSteps,omitempty"`
}

// WorkflowStep is one step, or a group of steps.
type WorkflowStep struct {
	WorkflowStepBase `json:",inline"`
	// Mode is how the sub-steps follow one another.
	// +optional
	Mode WorkflowMode `json:"mode,omitempty"`
	// SubSteps are the steps of a group.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	SubSteps []WorkflowStepBase `json:"subSteps,omitempty"`
}

// WorkflowStepBase is what steps and sub-steps have in common.
type WorkflowStepBase struct {
	// Name is unique in the workflow; step-N by default.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`
	// Type is a built-in step or a WorkflowStepDefinition.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// +optional
	Meta *WorkflowStepMeta `json:"meta,omitempty"`
	// If says when the step runs: empty, when the steps before it succeeded; "always"; or an expression over status,
	// context and inputs.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	If string `json:"if,omitempty"`
	// Timeout is a duration such as 30s or 1h.
	// +optional
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ns|us|ms|s|m|h))+$`
	Timeout string `json:"timeout,omitempty"`
	// DependsOn names steps that must have ended before this one starts.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DependsOn []string `json:"dependsOn,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Inputs []StepInput `json:"inputs,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Outputs []StepOutput `json:"outputs,omitempty"`
	// Properties are the parameters of the step.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
}

// WorkflowStepMeta is what people call a step.
type WorkflowStepMeta struct {
	// +optional
	Alias string `json:"alias,omitempty"`
}

// StepInput puts a value into the properties.
type StepInput struct {
	// ParameterKey is where in the properties, as a path such as a.b[0].
	// +optional
	ParameterKey string `json:"parameterKey,omitempty"`
	// From names an output.
	From string `json:"from"`
}

// StepOutput names a value.
type StepOutput struct {
	Name string `json:"name"`
	// ValueFrom is an expression over output and outputs.
	ValueFrom string `json:"valueFrom"`
}

// ApplicationPhase sums up where an application is.
type ApplicationPhase string

// The phases of applications.
const (
	PhaseStarting           ApplicationPhase = "starting"
	PhaseRendering          ApplicationPhase = "rendering"
	PhaseGeneratingPolicy   ApplicationPhase = "generatingPolicy"
	PhaseRunningWorkflow    ApplicationPhase = "runningWorkflow"
	PhaseWorkflowSuspending ApplicationPhase = "workflowSuspending"
	PhaseWorkflowTerminated ApplicationPhase = "workflowTerminated"
	PhaseWorkflowFailed     ApplicationPhase = "workflowFailed"
	PhaseRunning            ApplicationPhase = "running"
	PhaseUnhealthy          ApplicationPhase = "unhealthy"
	PhaseDeleting           ApplicationPhase = "deleting"
)

// ApplicationStatus is what Lockstep says about an application.
type ApplicationStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase sums up where the application is.
	// +optional
	Phase ApplicationPhase `json:"status,omitempty"`
	// Components are the workloads of the components.
	// +optional
	Components []ObjectReference `json:"components,omitempty"`
	// Services are the components' health, one entry for each component and placement.
	// +optional
	Services []ComponentStatus `json:"services,omitempty"`
	// +optional
	Workflow *WorkflowStatus `json:"workflow,omitempty"`
	// LatestRevision is the revision that runs, or is being deployed.
	// +optional
	LatestRevision *Revision `json:"latestRevision,omitempty"`
	// AppliedResources are the objects that the application manages.
	// +optional
	AppliedResources []ClusterObjectReference `json:"appliedResources,omitempty"`
	// Policies are the status of the policies.
	// +optional
	Policies []PolicyStatus `json:"policy,omitempty"`
	// WorkflowRestartScheduledAt is when the workflow runs again.
	// +optional
	WorkflowRestartScheduledAt *metav1.Time `json:"workflowRestartScheduledAt,omitempty"`
}

// ConditionType names a stage of an application's way.
type ConditionType string

// The stages, in order.
const (
	ConditionParsed   ConditionType = "Parsed"
	ConditionRevision ConditionType = "Revision"
	ConditionPolicy   ConditionType = "Policy"
	ConditionRender   ConditionType = "Render"
	ConditionWorkflow ConditionType = "Workflow"
	ConditionReady    ConditionType = "Ready"
	ConditionDeleting ConditionType = "Deleting"
	// ConditionStateKeep is False when a managed object could not be brought back to what it should be.
	ConditionStateKeep ConditionType = "StateKeep"
)

// The reasons of conditions.
const (
	ReasonAvailable        = "Available"
	ReasonReconcileSuccess = "ReconcileSuccess"
	ReasonReconcileError   = "ReconcileError"
)

// Condition says how one stage went.
type Condition struct {
	Type ConditionType `json:"type"`
	// +kubebuilder:validation:Enum="True";"False";Unknown
	Status             metav1.ConditionStatus `json:"status"`
	LastTransitionTime metav1.Time            `json:"lastTransitionTime"`
	Reason             string                 `json:"reason"`
	// +optional
	Message string `json:"message,omitempty"`
}

// ObjectReference names an object.
type ObjectReference struct {
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	// +optional
	Kind string `json:"kind,omitempty"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +optional
	Name string `json:"name,omitempty"`
}

// ClusterObjectReference names an object in one of the clusters.
type ClusterObjectReference struct {
	// Cluster is empty for the local one.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// Creator is what made the object: workflow, policy.
	// +optional
	Creator         string `json:"creator,omitempty"`
	ObjectReference `json:",inline"`
}

// ComponentStatus is the health of one component in one place.
type ComponentStatus struct {
	Name string `json:"name"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// +optional
	Env string `json:"env,omitempty"`
	// +optional
	WorkloadDefinition WorkloadGVK `json:"workloadDefinition,omitempty"`
	// Healthy is the workload's health and that of all traits.
	Healthy bool `json:"healthy"`
	// +optional
	WorkloadHealthy bool `json:"workloadHealthy,omitempty"`
	// +optional
	Details map[string]string `json:"details,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	Traits []TraitStatus `json:"traits,omitempty"`
}

// WorkloadGVK is the type of a workload.
type WorkloadGVK struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// TraitStatus is the health of one trait.
type TraitStatus struct {
	Type    string `json:"type"`
	Healthy bool   `json:"healthy"`
	// Pending is set while the trait waits for its workload.
	// +optional
	Pending bool `json:"pending,omitempty"`
	// +optional
	Details map[string]string `json:"details,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// WorkflowStatus is how far the workflow is.
type WorkflowStatus struct {
	// +optional
	AppRevision string `json:"appRevision,omitempty"`
	// Mode is the steps' and the sub-steps', as in DAG-DAG.
	Mode string `json:"mode"`
	// +optional
	Phase string `json:"status,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	Suspend bool   `json:"suspend"`
	// +optional
	SuspendState string `json:"suspendState,omitempty"`
	Terminated   bool   `json:"terminated"`
	Finished     bool   `json:"finished"`
	// +optional
	ContextBackend *ObjectReference `json:"contextBackend,omitempty"`
	// +optional
	Steps []WorkflowStepStatus `json:"steps,omitempty"`
	// +optional
	StartTime metav1.Time `json:"startTime,omitempty"`
	// +optional
	// +nullable
	EndTime metav1.Time `json:"endTime,omitempty"`
}

// WorkflowStepPhase says where a step is.
type WorkflowStepPhase string

// The phases of steps.
const (
	StepSucceeded  WorkflowStepPhase = "succeeded"
	StepFailed     WorkflowStepPhase = "failed"
	StepSkipped    WorkflowStepPhase = "skipped"
	StepRunning    WorkflowStepPhase = "running"
	StepPending    WorkflowStepPhase = "pending"
	StepSuspending WorkflowStepPhase = "suspending"
)

// The reasons of steps' phases.
const (
	StepReasonWait               = "Wait"
	StepReasonSkip               = "Skip"
	StepReasonRendering          = "Rendering"
	StepReasonExecute            = "Execute"
	StepReasonSuspend            = "Suspend"
	StepReasonTerminate          = "Terminate"
	StepReasonParameter          = "ProcessParameter"
	StepReasonInput              = "Input"
	StepReasonOutput             = "Output"
	StepReasonFailedAfterRetries = "FailedAfterRetries"
	StepReasonTimeout            = "Timeout"
	StepReasonAction             = "Action"
)

// WorkflowStepStatus is where a step is, and its sub-steps.
type WorkflowStepStatus struct {
	StepStatus `json:",inline"`
	// +optional
	SubSteps []StepStatus `json:"subSteps,omitempty"`
}

// StepStatus is where one step is.
type StepStatus struct {
	ID string `json:"id"`
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	Type string `json:"type,omitempty"`
	// +optional
	Phase WorkflowStepPhase `json:"phase,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	FirstExecuteTime metav1.Time `json:"firstExecuteTime,omitempty"`
	// +optional
	LastExecuteTime metav1.Time `json:"lastExecuteTime,omitempty"`
}

// Revision is a counted state of an application or a definition.
type Revision struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	// RevisionHash tells states apart.
	// +optional
	RevisionHash string `json:"revisionHash,omitempty"`
}

// PolicyStatus is the status of a policy.
type PolicyStatus struct {
	Name string `json:"name"`
	Type string `json:"type"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Status *runtime.RawExtension `json:"status,omitempty"`
}

// ApplicationList is a list of applications.
//
// +kubebuilder:object:root=true
type ApplicationList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Application `json:"items"`
}
