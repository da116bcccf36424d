package plan

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Types of built-in policies.
const (
	TypeApplyOnce      = "apply-once"
	TypeGarbageCollect = "garbage-collect"
	TypeSharedResource = "shared-resource"
	TypeTakeOver       = "take-over"
	TypeReadOnly       = "read-only"
	TypeResourceUpdate = "resource-update"
	TypeTopology       = "topology"
	TypeOverride       = "override"
	TypeReplication    = "replication"
	TypeDebug          = "debug"
	// TypeEnvBinding has the environments to which steps of the type deploy2env deploy.
	TypeEnvBinding = "env-binding"
)

// selector selects objects. Each field that is set must have a matching entry.
type selector struct {
	ComponentNames []string `json:"componentNames,omitempty"`
	ComponentTypes []string `json:"componentTypes,omitempty"`
	OAMTypes       []string `json:"oamTypes,omitempty"`
	TraitTypes     []string `json:"traitTypes,omitempty"`
	ResourceTypes  []string `json:"resourceTypes,omitempty"`
	ResourceNames  []string `json:"resourceNames,omitempty"`
}

func (s *selector) matches(r *Resource) bool {
	given := 0
	for _, f := range []struct {
		want []string
		is   string
	}{
		{s.ComponentNames, r.Component}, {s.ComponentTypes, r.ComponentType}, {s.OAMTypes, r.ResourceType()},
		{s.TraitTypes, r.Trait}, {s.ResourceTypes, r.GVK.Kind}, {s.ResourceNames, r.Name},
	} {
		if len(f.want) == 0 {
			continue
		}
		given++
		if !slices.Contains(f.want, f.is) {
			return false
		}
	}
	return given > 0
}

// check returns an error for a selector that would never match.
func (s *selector) check() error {
	if len(s.ComponentNames)+len(s.ComponentTypes)+len(s.OAMTypes)+len(s.TraitTypes)+len(s.ResourceTypes)+
		len(s.ResourceNames) == 0 {
		return errors.New("selector must say something: an empty one matches nothing")
	}
	for _, t := range s.OAMTypes {
		if err := oneOf("selector.oamTypes", t, oam.ResourceTypeWorkload, oam.ResourceTypeTrait); err != nil {
			return err
		}
	}
	return nil
}

// Affect says when the fields of an apply-once rule keep their live values.
type Affect string

// Values of Affect.
const (
	Always      Affect = "always"
	OnUpdate    Affect = "onUpdate"
	OnStateKeep Affect = "onStateKeep"
)

type applyOnceRule struct {
	Selector selector `json:"selector"`
	Strategy struct {
		Path   []string `json:"path"`
		Affect Affect   `json:"affect,omitempty"`
	} `json:"strategy"`
}

// GCStrategy says when an object that has left the plan is deleted.
type GCStrategy string

// Values of GCStrategy.
const (
	GCOnAppUpdate GCStrategy = "onAppUpdate"
	GCOnAppDelete GCStrategy = "onAppDelete"
	GCNever       GCStrategy = "never"
)

type gcRule struct {
	Selector    selector   `json:"selector"`
	Strategy    GCStrategy `json:"strategy,omitempty"`
	Propagation string     `json:"propagation,omitempty"`
}

type rule struct {
	Selector selector `json:"selector"`
}

type updateRule struct {
	Selector selector `json:"selector"`
	Strategy struct {
		// Op is patch, which removes only fields that have left the plan, or replace, which also removes
		// what others have added when the object is updated.
		Op             string   `json:"op,omitempty"`
		RecreateFields []string `json:"recreateFields,omitempty"`
	} `json:"strategy"`
}

// Policies is the merged content of an Application's built-in policies.
type Policies struct {
	applyOnce      bool
	applyOnceRules []applyOnceRule

	// RevisionLimit is the number of revisions to keep besides the one in use. Nil means the manager's
	// default.
	RevisionLimit *int
	// KeepLegacy keeps objects that have left the plan until the Application is deleted.
	KeepLegacy bool
	// ContinueOnFailure deletes objects that have left the plan even if the workflow has failed.
	ContinueOnFailure bool
	// DependencyOrder deletes dependents before the components that they depend on.
	DependencyOrder bool
	gc              []gcRule

	shared, takeOver, readOnly []rule
	update                     []updateRule

	// Topologies say where components are deployed. Without any, they are deployed to the
	// Application's namespace in the local cluster.
	Topologies []Topology
}

// parsePolicies reads the built-in policies and returns the other policies, which have definitions.
// labels are the Application's labels: apply-once is enabled for addons.
func parsePolicies(policies []oam.AppPolicy, labels map[string]string) (*Policies, []oam.AppPolicy, error) {
	p := &Policies{applyOnce: labels[oam.AddonLabel] != ""}
	var others []oam.AppPolicy
	for i := range policies {
		own, err := p.add(&policies[i])
		if err != nil {
			return nil, nil, fmt.Errorf("spec.policies[%d] (%s): %w", i, policies[i].Type, err)
		}
		if !own {
			others = append(others, policies[i])
		}
	}
	return p, others, nil
}

// RulesOf returns the built-in policies of an Application. Its errors are of type *Error.
func RulesOf(in *Input) (*Policies, error) {
	policies, _, err := parsePolicies(in.Spec.Policies, in.Labels)
	if err != nil {
		return nil, &Error{Stage: Policy, Err: err}
	}
	return policies, nil
}

// add merges one policy into p. It returns false if the policy is not a built-in one.
func (p *Policies) add(policy *oam.AppPolicy) (bool, error) {
	raw := RawOf(policy.Properties)
	switch policy.Type {
	case TypeApplyOnce:
		var in struct {
			Enable bool            `json:"enable,omitempty"`
			Rules  []applyOnceRule `json:"rules,omitempty"`
		}
		if err := Strict(raw, &in); err != nil {
			return true, err
		}
		for i := range in.Rules {
			r := &in.Rules[i]
			if err := errors.Join(r.Selector.check(),
				oneOf("strategy.affect", string(r.Strategy.Affect), string(Always), string(OnUpdate),
					string(OnStateKeep))); err != nil {
				return true, ruleError(i, err)
			}
			if len(r.Strategy.Path) == 0 {
				return true, ruleError(i, errors.New("strategy.path must name fields, or * for all"))
			}
		}
		p.applyOnce = p.applyOnce || in.Enable
		if in.Enable {
			p.applyOnceRules = append(p.applyOnceRules, in.Rules...)
		}
	case TypeGarbageCollect:
		var in struct {
			RevisionLimit     *int     `json:"applicationRevisionLimit,omitempty"`
			KeepLegacy        bool     `json:"keepLegacyResource,omitempty"`
			ContinueOnFailure bool     `json:"continueOnFailure,omitempty"`
			Order             string   `json:"order,omitempty"`
			Rules             []gcRule `json:"rules,omitempty"`
		}
		if err := Strict(raw, &in); err != nil {
			return true, err
		}
		if in.Order != "" && in.Order != "dependency" {
			return true, fmt.Errorf("order is %q; it can be dependency", in.Order)
		}
		if in.RevisionLimit != nil && *in.RevisionLimit < 0 {
			return true, fmt.Errorf("applicationRevisionLimit is %d; it must not be negative", *in.RevisionLimit)
		}
		for i := range in.Rules {
			r := &in.Rules[i]
			if r.Strategy == "" && r.Propagation == "" {
				return true, ruleError(i, errors.New("strategy or propagation must be given"))
			}
			if err := errors.Join(r.Selector.check(),
				oneOf("strategy", string(r.Strategy), string(GCOnAppUpdate), string(GCOnAppDelete), string(GCNever)),
				oneOf("propagation", r.Propagation, "orphan", "cascading")); err != nil {
				return true, ruleError(i, err)
			}
		}
		if p.RevisionLimit == nil {
			p.RevisionLimit = in.RevisionLimit
		}
		p.KeepLegacy = p.KeepLegacy || in.KeepLegacy
		p.ContinueOnFailure = p.ContinueOnFailure || in.ContinueOnFailure
		p.DependencyOrder = p.DependencyOrder || in.Order == "dependency"
		p.gc = append(p.gc, in.Rules...)
	case TypeSharedResource:
		return true, addRules(raw, &p.shared)
	case TypeTakeOver:
		return true, addRules(raw, &p.takeOver)
	case TypeReadOnly:
		return true, addRules(raw, &p.readOnly)
	case TypeResourceUpdate:
		var in struct {
			Rules []updateRule `json:"rules,omitempty"`
		}
		if err := Strict(raw, &in); err != nil {
			return true, err
		}
		for i := range in.Rules {
			r := &in.Rules[i]
			if err := errors.Join(r.Selector.check(), oneOf("strategy.op", r.Strategy.Op, "patch", "replace")); err != nil {
				return true, ruleError(i, err)
			}
		}
		p.update = append(p.update, in.Rules...)
	case TypeTopology:
		t := Topology{Name: policy.Name}
		if err := Strict(raw, &t); err != nil {
			return true, err
		}
		p.Topologies = append(p.Topologies, t)
	case TypeEnvBinding:
		_, err := environments(policy)
		return true, err
	case TypeDebug, TypeOverride, TypeReplication: // used by steps only
	default:
		return false, nil
	}
	return true, nil
}

func addRules(raw []byte, to *[]rule) error {
	var in struct {
		Rules []rule `json:"rules,omitempty"`
	}
	if err := Strict(raw, &in); err != nil {
		return err
	}
	for i := range in.Rules {
		if err := in.Rules[i].Selector.check(); err != nil {
			return ruleError(i, err)
		}
	}
	*to = append(*to, in.Rules...)
	return nil
}

// ruleError adds the index of a policy's rule to an error.
func ruleError(i int, err error) error { return fmt.Errorf("properties: rules[%d]: %w", i, err) }

// oneOf returns an error unless value is empty or in can.
func oneOf(field, value string, can ...string) error {
	if value == "" || slices.Contains(can, value) {
		return nil
	}
	return fmt.Errorf("%s is %q; it can be %s", field, value, strings.Join(can, " or "))
}

// Strict decodes properties and returns an error for unknown fields: a misspelt rule must not
// become a rule that never matches.
func Strict(raw []byte, into any) error {
	if len(raw) == 0 {
		return nil
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return fmt.Errorf("properties: %w", err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("properties: more than one value")
	}
	return nil
}

// BuiltIn reports whether a policy type needs no definition.
func BuiltIn(policyType string) bool {
	switch policyType {
	case TypeApplyOnce, TypeGarbageCollect, TypeSharedResource, TypeTakeOver, TypeReadOnly, TypeResourceUpdate,
		TypeTopology, TypeOverride, TypeReplication, TypeDebug, TypeEnvBinding:
		return true
	}
	return false
}

// Treat applies the policies' rules to r.
func (p *Policies) Treat(r *Resource) {
	if p.applyOnce && len(p.applyOnceRules) == 0 {
		r.Keep = []KeptField{{Path: "*", Affect: OnStateKeep, Deletion: true}}
	}
	for i := range p.applyOnceRules {
		rule := &p.applyOnceRules[i]
		if !rule.Selector.matches(r) {
			continue
		}
		affect := rule.Strategy.Affect
		if affect == "" {
			affect = Always
		}
		for _, path := range rule.Strategy.Path {
			r.Keep = append(r.Keep, KeptField{Path: path, Affect: affect})
		}
		break
	}
	for i := range p.gc {
		rule := &p.gc[i]
		if r.GC == "" && rule.Strategy != "" && rule.Selector.matches(r) {
			r.GC = rule.Strategy
		}
		if r.Propagation == "" && rule.Propagation != "" && rule.Selector.matches(r) {
			r.Propagation = rule.Propagation
		}
	}
	any := func(rules []rule) bool {
		return slices.ContainsFunc(rules, func(x rule) bool { return x.Selector.matches(r) })
	}
	r.Shared, r.TakeOver, r.ReadOnly = any(p.shared), any(p.takeOver), any(p.readOnly)
	for i := range p.update {
		if p.update[i].Selector.matches(r) {
			r.RecreateFields, r.Replace = p.update[i].Strategy.RecreateFields, p.update[i].Strategy.Op == "replace"
			break
		}
	}
}

// Leaves returns the strategy of the rules, which may be empty, and the propagation for deleting an
// object that has left the plan. An object that is read-only by now stays.
func (p *Policies) Leaves(m *oam.ManagedResource, componentType string) (GCStrategy, metav1.DeletionPropagation) {
	r := Resource{
		Ref:       Ref{m.Cluster, schema.FromAPIVersionAndKind(m.APIVersion, m.Kind), m.Namespace, m.Name},
		Component: m.Component, ComponentType: componentType, Trait: m.Trait, Output: m.Resource,
	}
	p.Treat(&r)
	if r.ReadOnly {
		r.GC = GCNever
	}
	switch r.Propagation {
	case "orphan":
		return r.GC, metav1.DeletePropagationOrphan
	case "cascading":
		return r.GC, metav1.DeletePropagationForeground
	}
	return r.GC, metav1.DeletePropagationBackground
}
