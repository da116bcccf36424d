package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

	"k8s.io/apimachinery/pkg/runtime"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Kind is the kind of a definition.
type Kind string

// The kinds of definitions.
const (
	Component    Kind = "ComponentDefinition"
	Trait        Kind = "TraitDefinition"
	Policy       Kind = "PolicyDefinition"
	WorkflowStep Kind = "WorkflowStepDefinition"
)

// Workload types of components whose templates are not sufficient to make the objects.
const (
	// ChartWorkload is the type of Helm charts.
	ChartWorkload = "charts.lockstep.dev"
	// ReferenceWorkload is the type of existing objects: they replace the references in the
	// properties.
	ReferenceWorkload = "references.lockstep.dev"
)

// Definition is the part of a definition object that rendering needs.
type Definition struct {
	Kind      Kind
	Namespace string
	Name      string
	// Hash differs between definitions that render differently.
	Hash string
	// Template is the CUE source. It is empty if the definition has none.
	Template string
	Health   oam.DefinitionHealth
	// Workload is the type of the main object, if the definition states it.
	Workload oam.WorkloadGVK
	// Fault says why there is no template, if it is not merely missing.
	Fault string
	// Terraform is set for a component that is made of a configuration of Terraform.
	Terraform bool
	// Chart is set if the output describes a Helm chart and is not an object.
	Chart bool
	// Refers is set if the properties refer to objects that must be looked up before the template
	// is evaluated.
	Refers bool
	// ManagesHealth is set for a policy that claims to determine the Application's health.
	ManagesHealth bool
	// OfApplication is set for a policy whose output gives the Application labels and annotations.
	OfApplication bool
	// Global is set for a policy of Applications that do not name it. Priority orders such policies.
	Global   bool
	Priority int32

	// The following fields are set for traits only.

	Stage            oam.StageType
	WorkloadRefPath  string
	ManageWorkload   bool
	ControlPlaneOnly bool
	AppliesTo        []string
	ConflictsWith    []string
}

// String returns the definition's kind and name.
func (d *Definition) String() string { return string(d.Kind) + " " + d.Name }

// OfComponent returns the Definition of a ComponentDefinition.
func OfComponent(o *oam.ComponentDefinition) *Definition {
	d := &Definition{Kind: Component, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec),
		Template: templateOr(o.Spec.Schematic, o.Spec.Extension)}
	if o.Spec.Status != nil {
		d.Health = *o.Spec.Status
	}
	if s := o.Spec.Schematic; s != nil && s.CUE == nil && s.Terraform != nil {
		d.ofTerraform(s.Terraform.Raw)
	}
	d.Chart, d.Refers = o.Spec.Workload.Type == ChartWorkload, o.Spec.Workload.Type == ReferenceWorkload
	if o.Spec.Workload.Definition != nil {
		d.Workload = *o.Spec.Workload.Definition
	}
	return d
}

// OfWorkload returns the Definition of components whose type is a WorkloadDefinition.
func OfWorkload(o *oam.WorkloadDefinition) *Definition {
	d := &Definition{Kind: Component, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec),
		Template: templateOr(o.Spec.Schematic, o.Spec.Extension)}
	if o.Spec.Status != nil {
		d.Health = *o.Spec.Status
	}
	return d
}

// OfTrait returns the Definition of a TraitDefinition.
func OfTrait(o *oam.TraitDefinition) *Definition {
	d := &Definition{
		Kind: Trait, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec), Template: templateOr(o.Spec.Schematic, o.Spec.Extension),
		Stage: o.Spec.Stage, WorkloadRefPath: o.Spec.WorkloadRefPath, ManageWorkload: o.Spec.ManageWorkload,
		ControlPlaneOnly: o.Spec.ControlPlaneOnly, AppliesTo: o.Spec.AppliesToWorkloads, ConflictsWith: o.Spec.ConflictsWith,
	}
	if o.Spec.Status != nil {
		d.Health = *o.Spec.Status
	}
	return d
}

// OfPolicy returns the Definition of a PolicyDefinition.
func OfPolicy(o *oam.PolicyDefinition) *Definition {
	return &Definition{Kind: Policy, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec),
		Template: templateOf(o.Spec.Schematic), ManagesHealth: o.Spec.ManageHealthCheck, OfApplication: o.Spec.Scope == oam.ScopeApplication,
		Global: o.Spec.Global, Priority: o.Spec.Priority}
}

// OfWorkflowStep returns the Definition of a WorkflowStepDefinition.
func OfWorkflowStep(o *oam.WorkflowStepDefinition) *Definition {
	return &Definition{Kind: WorkflowStep, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec),
		Template: templateOf(o.Spec.Schematic)}
}

func templateOf(s *oam.Schematic) string {
	if s == nil || s.CUE == nil {
		return ""
	}
	return s.CUE.Template
}

// templateOr returns the template of the schematic, or else the one of spec.extension, where older
// definitions have it.
func templateOr(s *oam.Schematic, extension *runtime.RawExtension) string {
	template := templateOf(s)
	if template != "" || extension == nil || s != nil && s.CUE == nil && s.Terraform != nil {
		return template
	}
	var older struct {
		Template string `json:"template"`
	}
	if err := json.Unmarshal(extension.Raw, &older); err != nil {
		return "" // what else an extension has is for other programs
	}
	return older.Template
}

// hashOf returns a short hash of a definition's spec.
func hashOf(spec any) string {
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err) // cannot happen: plain data
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
