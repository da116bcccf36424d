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

// ApplicationSpec specifies what is deployed, where, and in which order.
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
	// Workflow is the steps in which the application is deployed. Without it all components are
	// deployed, in the order of their dependencies.
	// +optional
	Workflow *WorkflowSpec `json:"workflow,omitempty"`
}

// Component is one part of an application: a main workload and the objects that belong to it.
type Component struct {
	// Name becomes the label app.oam.dev/component and, unless the definition sets another one, the
	// name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$`
	Name string `json:"name"`
	// Type is the ComponentDefinition, as name, name@vN or name@semver.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// ExternalRevision names the component's revision, if another system counts revisions.
	// +optional
	ExternalRevision string `json:"externalRevision,omitempty"`
	// Properties are the parameters of the definition's template.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
	// DependsOn names components that must be healthy before this component is deployed.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	DependsOn []string `json:"dependsOn,omitempty"`
	// Inputs are outputs of other components or steps that are put into the properties.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Inputs []StepInput `json:"inputs,omitempty"`
	// Outputs are values that other components or steps may use as inputs.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	Outputs []StepOutput `json:"outputs,omitempty"`
	// Traits change the workload or add objects to it, in this order.
	// +optional
	// +kubebuilder:validation:MaxItems=128
	Traits []Trait `json:"traits,omitempty"`
	// Scopes are accepted and have no effect.
	// +optional
	Scopes map[string]string `json:"scopes,omitempty"`
	// ReplicaKey distinguishes the copies of a component that a replication policy makes.
	// +optional
	ReplicaKey string `json:"replicaKey,omitempty"`
}

// Trait is a change of a component's workload, or an additional object.
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
	// Name is the name by which workflow steps refer to the policy.
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name,omitempty"`
	// Type is a built-in policy or the name of a PolicyDefinition.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// Properties are the parameters of the policy.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Properties *runtime.RawExtension `json:"properties,omitempty"`
}

// WorkflowSpec is the steps in which an application is deployed.
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

// WorkflowMode is the order of steps: one after another, or by their dependencies.
//
// +kubebuilder:validation:Enum=StepByStep;DAG
type WorkflowMode string

// The modes of workflows and of groups of steps.
const (
	WorkflowModeStep WorkflowMode = "StepByStep"
	WorkflowModeDAG  WorkflowMode = "DAG"
)

// WorkflowExecuteMode is the modes of a workflow and of its groups of steps.
type WorkflowExecuteMode struct {
	// Steps is the mode of the steps; the default is StepByStep.
	// +optional
	Steps WorkflowMode `json:"steps,omitempty"`
	// SubSteps is the mode of the steps in groups; the default is DAG.
	// +optional
	SubSteps WorkflowMode `json:"subSteps,omitempty"`
}

// WorkflowStep is one step, or a group of steps.
type WorkflowStep struct {
	WorkflowStepBase `json:",inline"`
	// Mode is the mode of the sub-steps.
	// +optional
	Mode WorkflowMode `json:"mode,omitempty"`
	// SubSteps are the steps of a group.
	// +optional
	// +kubebuilder:validation:MaxItems=64
	SubSteps []WorkflowStepBase `json:"subSteps,omitempty"`
}

// WorkflowStepBase is the common fields of steps and sub-steps.
type WorkflowStepBase struct {
	// Name is unique in the workflow; the default is step-N.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	Name string `json:"name,omitempty"`
	// Type is a built-in step or the name of a WorkflowStepDefinition.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Type string `json:"type"`
	// +optional
	Meta *WorkflowStepMeta `json:"meta,omitempty"`
	// If is the condition under which the step runs. If empty, the step runs if the steps before it
	// succeeded. "always" runs the step in any case. Otherwise If is an expression over status,
	// context and inputs.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	If string `json:"if,omitempty"`
	// Timeout is the maximum duration of the step, such as 30s or 1h.
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

// WorkflowStepMeta is a name of a step for display.
type WorkflowStepMeta struct {
	// +optional
	Alias string `json:"alias,omitempty"`
}

// StepInput puts an output of another step or component into the properties.
type StepInput struct {
	// ParameterKey is the place in the properties, as a path such as a.b[0].
	// +optional
	ParameterKey string `json:"parameterKey,omitempty"`
	// From is the name of the output.
	From string `json:"from"`
}

// StepOutput is a named value that inputs refer to.
type StepOutput struct {
	Name string `json:"name"`
	// ValueFrom is an expression over output and outputs that yields the value.
	ValueFrom string `json:"valueFrom"`
}

// ApplicationPhase summarizes the state of an application.
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

// ApplicationStatus is the state of an application.
type ApplicationStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Phase summarizes the state of the application.
	// +optional
	Phase ApplicationPhase `json:"status,omitempty"`
	// Components are the workloads of the components.
	// +optional
	Components []ObjectReference `json:"components,omitempty"`
	// Services is the health of the components, one entry for each component and placement.
	// +optional
	Services []ComponentStatus `json:"services,omitempty"`
	// +optional
	Workflow *WorkflowStatus `json:"workflow,omitempty"`
	// LatestRevision is the revision that is deployed, or is being deployed.
	// +optional
	LatestRevision *Revision `json:"latestRevision,omitempty"`
	// AppliedResources are the objects that the application manages.
	// +optional
	AppliedResources []ClusterObjectReference `json:"appliedResources,omitempty"`
	// Policies is the status of the policies.
	// +optional
	Policies []PolicyStatus `json:"policy,omitempty"`
	// WorkflowRestartScheduledAt is the time of the next scheduled run of the workflow.
	// +optional
	WorkflowRestartScheduledAt *metav1.Time `json:"workflowRestartScheduledAt,omitempty"`
}

// ConditionType is the type of an application's condition, mostly a stage of its deployment.
type ConditionType string

// The stages of a deployment, in order, and further conditions.
const (
	ConditionParsed   ConditionType = "Parsed"
	ConditionRevision ConditionType = "Revision"
	ConditionPolicy   ConditionType = "Policy"
	ConditionRender   ConditionType = "Render"
	ConditionWorkflow ConditionType = "Workflow"
	ConditionReady    ConditionType = "Ready"
	ConditionDeleting ConditionType = "Deleting"
	// ConditionStateKeep is False if a managed object that was changed could not be restored.
	ConditionStateKeep ConditionType = "StateKeep"
)

// The reasons of conditions.
const (
	ReasonAvailable        = "Available"
	ReasonReconcileSuccess = "ReconcileSuccess"
	ReasonReconcileError   = "ReconcileError"
)

// Condition is the result of one stage, or another fact about an application.
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
	// Cluster is the name of the cluster; empty for the local one.
	// +optional
	Cluster string `json:"cluster,omitempty"`
	// Creator is the kind of the object's creator: workflow or policy.
	// +optional
	Creator         string `json:"creator,omitempty"`
	ObjectReference `json:",inline"`
}

// ComponentStatus is the health of one component in one placement.
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
	// Healthy is true if the workload and all traits are healthy.
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
	// Pending is true while the trait waits for its workload.
	// +optional
	Pending bool `json:"pending,omitempty"`
	// +optional
	Details map[string]string `json:"details,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
}

// WorkflowStatus is the state of an application's workflow.
type WorkflowStatus struct {
	// +optional
	AppRevision string `json:"appRevision,omitempty"`
	// Mode is the execution mode of the steps, then of the sub-steps, for example StepByStep-DAG.
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

// WorkflowStepPhase is the phase of a step.
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

// WorkflowStepStatus is the state of a step and of its sub-steps.
type WorkflowStepStatus struct {
	StepStatus `json:",inline"`
	// +optional
	SubSteps []StepStatus `json:"subSteps,omitempty"`
}

// StepStatus is the state of one step or sub-step.
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

// Revision is a numbered state of an application or a definition.
type Revision struct {
	Name     string `json:"name"`
	Revision int64  `json:"revision"`
	// RevisionHash is a hash of the state.
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
