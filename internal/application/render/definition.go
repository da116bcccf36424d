package render

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"

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

// The workloads' types of components that are more than what their templates say.
const (
	// ChartWorkload is of Helm charts.
	ChartWorkload = "charts.lockstep.dev"
	// ReferenceWorkload is of objects that exist already: they take the place of what names them in the properties.
	ReferenceWorkload = "references.lockstep.dev"
)

// Definition is what rendering needs of a definition object.
type Definition struct {
	Kind      Kind
	Namespace string
	Name      string
	// Hash tells definitions apart that are rendered differently.
	Hash string
	// Template is the CUE, or empty for a definition that has none.
	Template string
	Health   oam.DefinitionHealth
	// Workload is the main object's type, where the definition states it.
	Workload oam.WorkloadGVK
	// Chart says that the output asks for a Helm chart, and is no object itself.
	Chart bool
	// Refers says that the properties name objects, which are looked up before the template is evaluated.
	Refers bool

	// What follows is of traits only.

	Stage            oam.StageType
	WorkloadRefPath  string
	ManageWorkload   bool
	ControlPlaneOnly bool
	AppliesTo        []string
	ConflictsWith    []string
}

// String names the definition as users do in manifests.
func (d *Definition) String() string { return string(d.Kind) + " " + d.Name }

// OfComponent takes a ComponentDefinition.
func OfComponent(o *oam.ComponentDefinition) *Definition {
	d := &Definition{Kind: Component, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec), Template: templateOf(o.Spec.Schematic)}
	if o.Spec.Status != nil {
		d.Health = *o.Spec.Status
	}
	d.Chart, d.Refers = o.Spec.Workload.Type == ChartWorkload, o.Spec.Workload.Type == ReferenceWorkload
	if o.Spec.Workload.Definition != nil {
		d.Workload = *o.Spec.Workload.Definition
	}
	return d
}

// OfTrait takes a TraitDefinition.
func OfTrait(o *oam.TraitDefinition) *Definition {
	d := &Definition{
		Kind: Trait, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec), Template: templateOf(o.Spec.Schematic),
		Stage: o.Spec.Stage, WorkloadRefPath: o.Spec.WorkloadRefPath, ManageWorkload: o.Spec.ManageWorkload,
		ControlPlaneOnly: o.Spec.ControlPlaneOnly, AppliesTo: o.Spec.AppliesToWorkloads, ConflictsWith: o.Spec.ConflictsWith,
	}
	if o.Spec.Status != nil {
		d.Health = *o.Spec.Status
	}
	return d
}

// OfPolicy takes a PolicyDefinition.
func OfPolicy(o *oam.PolicyDefinition) *Definition {
	return &Definition{Kind: Policy, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec), Template: templateOf(o.Spec.Schematic)}
}

// OfWorkflowStep takes a WorkflowStepDefinition.
func OfWorkflowStep(o *oam.WorkflowStepDefinition) *Definition {
	return &Definition{Kind: WorkflowStep, Namespace: o.Namespace, Name: o.Name, Hash: hashOf(o.Spec), Template: templateOf(o.Spec.Schematic)}
}

func templateOf(s *oam.Schematic) string {
	if s == nil || s.CUE == nil {
		return ""
	}
	return s.CUE.Template
}

// hashOf is a short hash of a definition's spec.
func hashOf(spec any) string {
	b, err := json.Marshal(spec)
	if err != nil {
		panic(err) // plain data
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:8])
}
