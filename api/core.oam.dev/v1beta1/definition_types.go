package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Schematic is the template by which a definition makes objects from parameters.
type Schematic struct {
	// CUE is a template in CUE.
	// +optional
	CUE *CUE `json:"cue,omitempty"`
	// Terraform is a configuration of Terraform, of which components are made. It is for definitions of
	// components only.
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Terraform *runtime.RawExtension `json:"terraform,omitempty"`
}

// CUE is a template in CUE.
type CUE struct {
	// +kubebuilder:validation:MaxLength=262144
	Template string `json:"template"`
}

// DefinitionHealth computes the status of the objects that a definition made. Each field is CUE
// over context and parameter.
type DefinitionHealth struct {
	// CustomStatus computes the field message.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	CustomStatus string `json:"customStatus,omitempty"`
	// HealthPolicy computes the field isHealth.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	HealthPolicy string `json:"healthPolicy,omitempty"`
	// Details computes fields for users and scripts.
	// +optional
	// +kubebuilder:validation:MaxLength=65536
	Details string `json:"details,omitempty"`
}

// DefinitionStatus is the state of a definition.
type DefinitionStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	ConfigMapRef string `json:"configMapRef,omitempty"`
	// +optional
	LatestRevision *Revision `json:"latestRevision,omitempty"`
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// WorkloadTypeDescriptor is the type of a component's workload.
//
// +kubebuilder:validation:XValidation:rule="has(self.type) || has(self.definition)",message="a workload has a type or a definition"
type WorkloadTypeDescriptor struct {
	// Type names a kind; autodetects.core.oam.dev means the kind of the template's output.
	// +optional
	Type string `json:"type,omitempty"`
	// +optional
	Definition *WorkloadGVK `json:"definition,omitempty"`
}

// ChildResourceKind is a kind of object that a workload's controller creates.
type ChildResourceKind struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// +optional
	Selector map[string]string `json:"selector,omitempty"`
}

// ComponentDefinition is a type of component.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=componentdefinitions,shortName=comp,categories=oam
// +kubebuilder:printcolumn:name="WORKLOAD-KIND",type=string,JSONPath=`.spec.workload.definition.kind`
// +kubebuilder:printcolumn:name="DESCRIPTION",type=string,JSONPath=`.metadata.annotations.definition\.oam\.dev/description`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type ComponentDefinition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec ComponentDefinitionSpec `json:"spec,omitempty"`
	// +optional
	Status DefinitionStatus `json:"status,omitempty"`
}

// ComponentDefinitionSpec specifies the objects of a type of component.
type ComponentDefinitionSpec struct {
	Workload WorkloadTypeDescriptor `json:"workload"`
	// +optional
	ChildResourceKinds []ChildResourceKind `json:"childResourceKinds,omitempty"`
	// +optional
	RevisionLabel string `json:"revisionLabel,omitempty"`
	// PodSpecPath is the path of the pod spec in the workload.
	// +optional
	PodSpecPath string `json:"podSpecPath,omitempty"`
	// +optional
	Status *DefinitionHealth `json:"status,omitempty"`
	// +optional
	Schematic *Schematic `json:"schematic,omitempty"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Extension *runtime.RawExtension `json:"extension,omitempty"`
	// Version is a semantic version that names the revision.
	// +optional
	Version string `json:"version,omitempty"`
}

// ComponentDefinitionList is a list of component definitions.
//
// +kubebuilder:object:root=true
type ComponentDefinitionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ComponentDefinition `json:"items"`
}

// WorkloadDefinition is a kind of workload. A component may name a WorkloadDefinition that has a
// template as its type; ComponentDefinitions of the same name come first.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=workloaddefinitions,shortName=workload,categories=oam
// +kubebuilder:printcolumn:name="DEFINITION-NAME",type=string,JSONPath=`.spec.definitionRef.name`
// +kubebuilder:printcolumn:name="DESCRIPTION",type=string,JSONPath=`.metadata.annotations.definition\.oam\.dev/description`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkloadDefinition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec WorkloadDefinitionSpec `json:"spec,omitempty"`
	// +optional
	Status DefinitionStatus `json:"status,omitempty"`
}

// WorkloadDefinitionSpec specifies a kind of workload.
type WorkloadDefinitionSpec struct {
	// Reference names the kind, as RESOURCE.GROUP.
	Reference DefinitionReference `json:"definitionRef"`
	// +optional
	ChildResourceKinds []ChildResourceKind `json:"childResourceKinds,omitempty"`
	// +optional
	RevisionLabel string `json:"revisionLabel,omitempty"`
	// PodSpecPath is the path of the pod spec in the workload.
	// +optional
	PodSpecPath string `json:"podSpecPath,omitempty"`
	// +optional
	Status *DefinitionHealth `json:"status,omitempty"`
	// +optional
	Schematic *Schematic `json:"schematic,omitempty"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Extension *runtime.RawExtension `json:"extension,omitempty"`
}

// WorkloadDefinitionList is a list of workload definitions.
//
// +kubebuilder:object:root=true
type WorkloadDefinitionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkloadDefinition `json:"items"`
}

// StageType is the time at which the objects of a trait are created.
//
// +kubebuilder:validation:Enum=PreDispatch;DefaultDispatch;PostDispatch
type StageType string

// The stages of traits.
const (
	PreDispatch     StageType = "PreDispatch"
	DefaultDispatch StageType = "DefaultDispatch"
	PostDispatch    StageType = "PostDispatch"
)

// TraitDefinition is a type of trait.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=traitdefinitions,shortName=trait,categories=oam
// +kubebuilder:printcolumn:name="APPLIES-TO",type=string,JSONPath=`.spec.appliesToWorkloads`
// +kubebuilder:printcolumn:name="DESCRIPTION",type=string,JSONPath=`.metadata.annotations.definition\.oam\.dev/description`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type TraitDefinition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec TraitDefinitionSpec `json:"spec,omitempty"`
	// +optional
	Status DefinitionStatus `json:"status,omitempty"`
}

// TraitDefinitionSpec specifies the objects of a type of trait, or its changes of the workload.
type TraitDefinitionSpec struct {
	// Reference names a CustomResourceDefinition, for traits without a template.
	// +optional
	Reference *DefinitionReference `json:"definitionRef,omitempty"`
	// +optional
	RevisionEnabled bool `json:"revisionEnabled,omitempty"`
	// WorkloadRefPath is the path in the trait's objects at which a reference to the workload is
	// set.
	// +optional
	WorkloadRefPath string `json:"workloadRefPath,omitempty"`
	// PodDisruptive means that a change of the trait restarts pods.
	// +optional
	PodDisruptive bool `json:"podDisruptive,omitempty"`
	// AppliesToWorkloads are the workloads for which the trait is intended.
	// +optional
	AppliesToWorkloads []string `json:"appliesToWorkloads,omitempty"`
	// ConflictsWith are traits that cannot be used together with this one.
	// +optional
	ConflictsWith []string `json:"conflictsWith,omitempty"`
	// +optional
	Schematic *Schematic `json:"schematic,omitempty"`
	// +optional
	Status *DefinitionHealth `json:"status,omitempty"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	Extension *runtime.RawExtension `json:"extension,omitempty"`
	// ManageWorkload means that the trait creates the workload instead of the component.
	// +optional
	ManageWorkload bool `json:"manageWorkload,omitempty"`
	// ControlPlaneOnly means that the trait's objects are created in the local cluster, wherever
	// the workload is placed.
	// +optional
	ControlPlaneOnly bool `json:"controlPlaneOnly,omitempty"`
	// Stage is when the trait's objects are created: before the workload (PreDispatch), with it
	// (DefaultDispatch), or when it is healthy (PostDispatch).
	// +optional
	Stage StageType `json:"stage,omitempty"`
	// Version is a semantic version that names the revision.
	// +optional
	Version string `json:"version,omitempty"`
}

// DefinitionReference names a CustomResourceDefinition.
type DefinitionReference struct {
	Name string `json:"name"`
	// +optional
	Version string `json:"version,omitempty"`
}

// TraitDefinitionList is a list of trait definitions.
//
// +kubebuilder:object:root=true
type TraitDefinitionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []TraitDefinition `json:"items"`
}

// PolicyDefinition is a type of policy.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=policydefinitions,shortName=def-policy,categories=oam
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type PolicyDefinition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec PolicyDefinitionSpec `json:"spec,omitempty"`
	// +optional
	Status DefinitionStatus `json:"status,omitempty"`
}

// PolicyDefinitionSpec specifies the objects of a type of policy.
//
// +kubebuilder:validation:XValidation:rule="!has(self.global) || !self.global || has(self.scope) && self.scope == 'Application'",message="global policies are of the scope Application"
type PolicyDefinitionSpec struct {
	// +optional
	Reference *DefinitionReference `json:"definitionRef,omitempty"`
	// +optional
	Schematic *Schematic `json:"schematic,omitempty"`
	// ManageHealthCheck means that the policy, not the components, determines the application's
	// health.
	// +optional
	ManageHealthCheck bool `json:"manageHealthCheck,omitempty"`
	// Scope is Application for policies whose output gives applications labels and annotations, and
	// empty for those that make objects.
	// +optional
	Scope string `json:"scope,omitempty"`
	// Global policies are a part of all applications of their namespace, or of all namespaces if their
	// own is vela-system, without being named. Their scope is Application.
	// +optional
	Global bool `json:"global,omitempty"`
	// Priority orders global policies: those with the highest priority come first.
	// +optional
	Priority int32 `json:"priority,omitempty"`
	// Version is a semantic version that names the revision.
	// +optional
	Version string `json:"version,omitempty"`
}

// ScopeApplication is the scope of policies that give applications labels and annotations.
const ScopeApplication = "Application"

// PolicyDefinitionList is a list of policy definitions.
//
// +kubebuilder:object:root=true
type PolicyDefinitionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []PolicyDefinition `json:"items"`
}

// WorkflowStepDefinition is a type of workflow step.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=workflowstepdefinitions,shortName=workflowstep,categories=oam
// +kubebuilder:printcolumn:name="DESCRIPTION",type=string,JSONPath=`.metadata.annotations.definition\.oam\.dev/description`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type WorkflowStepDefinition struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec WorkflowStepDefinitionSpec `json:"spec,omitempty"`
	// +optional
	Status DefinitionStatus `json:"status,omitempty"`
}

// WorkflowStepDefinitionSpec specifies what a type of step does.
type WorkflowStepDefinitionSpec struct {
	// +optional
	Reference *DefinitionReference `json:"definitionRef,omitempty"`
	// +optional
	Schematic *Schematic `json:"schematic,omitempty"`
	// Version is a semantic version that names the revision.
	// +optional
	Version string `json:"version,omitempty"`
}

// WorkflowStepDefinitionList is a list of step definitions.
//
// +kubebuilder:object:root=true
type WorkflowStepDefinitionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []WorkflowStepDefinition `json:"items"`
}

// DefinitionType is the kind of a definition.
type DefinitionType string

// The kinds of definitions that have revisions.
const (
	ComponentType    DefinitionType = "Component"
	TraitType        DefinitionType = "Trait"
	PolicyType       DefinitionType = "Policy"
	WorkflowStepType DefinitionType = "WorkflowStep"
)

// DefinitionRevision is one revision of a definition.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=definitionrevisions,shortName=defrev,categories=oam
// +kubebuilder:printcolumn:name="REVISION",type=integer,JSONPath=`.spec.revision`
// +kubebuilder:printcolumn:name="HASH",type=string,JSONPath=`.spec.revisionHash`
// +kubebuilder:printcolumn:name="TYPE",type=string,JSONPath=`.spec.definitionType`
// +kubebuilder:printcolumn:name="AGE",type=date,JSONPath=`.metadata.creationTimestamp`
type DefinitionRevision struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`
	// +optional
	Spec DefinitionRevisionSpec `json:"spec,omitempty"`
}

// DefinitionRevisionSpec is the definition as it was, in the field of its type.
type DefinitionRevisionSpec struct {
	Revision       int64          `json:"revision"`
	RevisionHash   string         `json:"revisionHash"`
	DefinitionType DefinitionType `json:"definitionType"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	ComponentDefinition *runtime.RawExtension `json:"componentDefinition,omitempty"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	TraitDefinition *runtime.RawExtension `json:"traitDefinition,omitempty"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	PolicyDefinition *runtime.RawExtension `json:"policyDefinition,omitempty"`
	// +optional
	// +kubebuilder:validation:Type=object
	// +kubebuilder:pruning:PreserveUnknownFields
	WorkflowStepDefinition *runtime.RawExtension `json:"workflowStepDefinition,omitempty"`
}

// DefinitionRevisionList is a list of definition revisions.
//
// +kubebuilder:object:root=true
type DefinitionRevisionList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DefinitionRevision `json:"items"`
}
