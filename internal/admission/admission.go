package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// Refusal is one reason for which the API server refuses an object.
type Refusal struct {
	// Field is the path of the field; empty if no field can be named.
	Field   string
	Message string
}

// UnknownField is the message for a field that the schema does not have.
const UnknownField = "unknown field"

// String returns the field and the message.
func (r Refusal) String() string {
	if r.Field == "" {
		return r.Message
	}
	return r.Field + ": " + r.Message
}

// Rules are the rules of CRDs and policies. They are compiled when they are first used. Rules are not
// safe for concurrent use.
type Rules struct {
	kinds    map[schema.GroupVersionKind]*kind
	policies []*policy
}

// kind has the rules of one version of a CRD.
type kind struct {
	resource   schema.GroupResource
	namespaced bool
	status     bool // there is a status subresource, so that a create request cannot set the status
	props      *apiextensions.JSONSchemaProps

	compiled *compiledKind
}

type compiledKind struct {
	structural *structural.Structural
	schema     validation.SchemaValidator
	cel        *cel.Validator
}

// New returns the rules of CustomResourceDefinitions and ValidatingAdmissionPolicies. Objects of other
// kinds among them are passed over.
func New(crds, policies []*unstructured.Unstructured) (*Rules, error) {
	r := &Rules{kinds: map[schema.GroupVersionKind]*kind{}}
	for _, u := range crds {
		if u.GetKind() != "CustomResourceDefinition" {
			continue
		}
		var v1 apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &v1); err != nil {
			return nil, fmt.Errorf("CustomResourceDefinition %s: %w", u.GetName(), err)
		}
		for i := range v1.Spec.Versions {
			version := &v1.Spec.Versions[i]
			if version.Schema == nil || version.Schema.OpenAPIV3Schema == nil {
				continue
			}
			props := &apiextensions.JSONSchemaProps{}
			if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(
				version.Schema.OpenAPIV3Schema, props, nil); err != nil {
				return nil, fmt.Errorf("CustomResourceDefinition %s: %w", u.GetName(), err)
			}
			r.kinds[schema.GroupVersionKind{Group: v1.Spec.Group, Version: version.Name, Kind: v1.Spec.Names.Kind}] = &kind{
				resource:   schema.GroupResource{Group: v1.Spec.Group, Resource: v1.Spec.Names.Plural},
				namespaced: v1.Spec.Scope == apiextensionsv1.NamespaceScoped,
				status:     version.Subresources != nil && version.Subresources.Status != nil, props: props,
			}
		}
	}
	for _, u := range policies {
		if u.GetKind() != "ValidatingAdmissionPolicy" {
			continue
		}
		var p admissionv1.ValidatingAdmissionPolicy
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &p); err != nil {
			return nil, fmt.Errorf("ValidatingAdmissionPolicy %s: %w", u.GetName(), err)
		}
		if !dependsOnRequest(&p) {
			r.policies = append(r.policies, &policy{spec: &p.Spec, name: p.Name})
		}
	}
	return r, nil
}

// compile compiles the rules of a kind.
func (k *kind) compile() (*compiledKind, error) {
	if k.compiled != nil {
		return k.compiled, nil
	}
	s, err := structural.NewStructural(k.props)
	if err != nil {
		return nil, err
	}
	if err := defaulting.PruneDefaults(s); err != nil {
		return nil, err
	}
	validator, _, err := validation.NewSchemaValidator(k.props)
	if err != nil {
		return nil, err
	}
	k.compiled = &compiledKind{structural: s, schema: validator, cel: cel.NewValidator(s, true, celconfig.PerCallLimit)}
	return k.compiled, nil
}

// Check returns the reasons for which the API server would refuse to create an object, in the order in
// which the server finds them: the rules that need a valid schema are checked only if the schema holds.
// Objects of other kinds, and of other versions, have none.
func (r *Rules) Check(object *unstructured.Unstructured) ([]Refusal, error) {
	gvk := object.GroupVersionKind()
	k := r.kinds[gvk]
	if k == nil {
		return nil, nil
	}
	rules, err := k.compile()
	if err != nil {
		return nil, fmt.Errorf("the schema of %s: %w", gvk.Kind, err)
	}
	u, err := received(object)
	if err != nil {
		return nil, err
	}
	if k.status {
		delete(u.Object, "status")
	}
	if refusals := rules.unknownFields(u); len(refusals) > 0 {
		return refusals, nil
	}
	defaulting.Default(u.Object, rules.structural)
	if u.GetName() == "" && u.GetGenerateName() != "" {
		u.SetName(u.GetGenerateName() + "00000") // as the server makes names, of five more characters
	}
	if k.namespaced && u.GetNamespace() == "" {
		u.SetNamespace("default")
	} else if !k.namespaced {
		u.SetNamespace("") // clients do not send it
	}
	ctx := context.Background()
	errs := metavalidation.ValidateObjectMetaAccessor(u, k.namespaced, metavalidation.NameIsDNSSubdomain,
		field.NewPath("metadata"))
	errs = append(errs, validation.ValidateCustomResource(nil, u.Object, rules.schema)...)
	errs = append(errs, objectmeta.Validate(nil, u.Object, rules.structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, rules.structural, u.Object)...)
	if len(errs) == 0 && rules.cel != nil {
		errs, _ = rules.cel.Validate(ctx, nil, rules.structural, u.Object, nil, celconfig.RuntimeCELCostBudget)
	}
	if len(errs) > 0 {
		return refusals(errs), nil
	}
	var out []Refusal
	for _, p := range r.policies {
		if !p.concerns(k.resource) {
			continue
		}
		refusal, err := p.check(ctx, u, gvk, k.resource.WithVersion(gvk.Version))
		if err != nil {
			return nil, fmt.Errorf("the policy %s: %w", p.name, err)
		}
		if refusal != nil {
			out = append(out, *refusal)
		}
	}
	return out, nil
}

// received returns an object as the server gets it: its whole numbers are integers, however they were
// decoded here.
func received(object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, json.Unmarshal(data, &u.Object)
}

// unknownFields removes from an object what the schema does not have.
func (c *compiledKind) unknownFields(u *unstructured.Unstructured) (out []Refusal) {
	unknown := pruning.PruneWithOptions(u.Object, c.structural, true,
		structural.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	defaulting.PruneNonNullableNullsWithoutDefaults(u.Object, c.structural)
	wrong, inMetadata := objectmeta.CoerceWithOptions(nil, u.Object, c.structural, true,
		objectmeta.CoerceOptions{ReturnUnknownFieldPaths: true})
	if wrong != nil {
		out = append(out, refusals(field.ErrorList{wrong})...)
	}
	for _, path := range append(unknown, inMetadata...) {
		out = append(out, Refusal{Field: path, Message: UnknownField})
	}
	return out
}

// refusals converts errors to refusals, without those that are repeated.
func refusals(errs field.ErrorList) (out []Refusal) {
	for _, err := range errs {
		path := err.Field
		if path == "<nil>" { // the field error of the whole object
			path = ""
		}
		// The validator of the schema repeats the path.
		message := strings.TrimSpace(strings.ReplaceAll(err.ErrorBody(), path+" in body ", ""))
		if r := (Refusal{Field: path, Message: message}); !slices.Contains(out, r) {
			out = append(out, r)
		}
	}
	return out
}
