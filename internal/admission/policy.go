package admission

import (
	"context"
	"slices"
	"strings"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	admissionreviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/environment"
)

// policy is a ValidatingAdmissionPolicy.
type policy struct {
	name string
	spec *admissionv1.ValidatingAdmissionPolicySpec

	compiled *compiledPolicy
}

type compiledPolicy struct {
	conditions  cel.ConditionEvaluator
	validations cel.ConditionEvaluator
	messages    cel.ConditionEvaluator // one for each validation
}

// expression is an expression of a policy, named if it is a variable.
type expression struct {
	name, text string
	returns    *celgo.Type
}

func (e *expression) GetName() string            { return e.name }
func (e *expression) GetExpression() string      { return e.text }
func (e *expression) ReturnTypes() []*celgo.Type { return []*celgo.Type{e.returns} }

// expressions returns all expressions of a policy.
func expressions(spec *admissionv1.ValidatingAdmissionPolicySpec) (out []string) {
	for _, c := range spec.MatchConditions {
		out = append(out, c.Expression)
	}
	for _, v := range spec.Variables {
		out = append(out, v.Expression)
	}
	for _, v := range spec.Validations {
		out = append(out, v.Expression, v.MessageExpression)
	}
	return out
}

// dependsOnRequest reports whether a policy asks who sends a request.
func dependsOnRequest(p *admissionv1.ValidatingAdmissionPolicy) bool {
	return slices.ContainsFunc(expressions(&p.Spec), func(e string) bool {
		return strings.Contains(e, "request.") || strings.Contains(e, "authorizer.")
	})
}

// concerns reports whether the policy checks create requests of a resource.
func (p *policy) concerns(resource schema.GroupResource) bool {
	if p.spec.MatchConstraints == nil {
		return false
	}
	return slices.ContainsFunc(p.spec.MatchConstraints.ResourceRules, func(rule admissionv1.NamedRuleWithOperations) bool {
		return slices.Contains(rule.APIGroups, resource.Group) && slices.Contains(rule.Resources, resource.Resource) &&
			(slices.Contains(rule.Operations, admissionv1.Create) || slices.Contains(rule.Operations, admissionv1.OperationAll))
	})
}

func (p *policy) compile() (*compiledPolicy, error) {
	if p.compiled != nil {
		return p.compiled, nil
	}
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		return nil, err
	}
	var options cel.OptionalVariableDeclarations
	for _, v := range p.spec.Variables {
		compiler.CompileAndStoreVariable(&expression{v.Name, v.Expression, celgo.AnyType}, options, environment.StoredExpressions)
	}
	compile := func(list []cel.ExpressionAccessor) cel.ConditionEvaluator {
		return compiler.CompileCondition(list, options, environment.StoredExpressions)
	}
	var conditions, validations, messages []cel.ExpressionAccessor
	for _, c := range p.spec.MatchConditions {
		conditions = append(conditions, &expression{text: c.Expression, returns: celgo.BoolType})
	}
	for _, v := range p.spec.Validations {
		validations = append(validations, &expression{text: v.Expression, returns: celgo.BoolType})
		message := v.MessageExpression
		if message == "" {
			message = "''"
		}
		messages = append(messages, &expression{text: message, returns: celgo.StringType})
	}
	p.compiled = &compiledPolicy{compile(conditions), compile(validations), compile(messages)}
	return p.compiled, nil
}

// check returns the first refusal of a create request for an object, or nil.
func (p *policy) check(ctx context.Context, u *unstructured.Unstructured, gvk schema.GroupVersionKind,
	gvr schema.GroupVersionResource) (*Refusal, error) {
	compiled, err := p.compile()
	if err != nil {
		return nil, err
	}
	attributes := &admission.VersionedAttributes{
		Attributes: admission.NewAttributesRecord(u, nil, gvk, u.GetNamespace(), u.GetName(), gvr, "", admission.Create,
			nil, false, nil),
		VersionedKind: gvk, VersionedObject: u,
	}
	evaluate := func(e cel.ConditionEvaluator) ([]cel.EvaluationResult, error) {
		results, _, err := e.ForInput(ctx, attributes, &admissionreviewv1.AdmissionRequest{}, cel.OptionalVariableBindings{}, nil,
			celconfig.RuntimeCELCostBudget)
		return results, err
	}
	conditions, err := evaluate(compiled.conditions)
	if err != nil {
		return nil, err
	}
	for _, c := range conditions {
		if c.Error != nil {
			return nil, c.Error
		}
		if c.EvalResult != types.True {
			return nil, nil
		}
	}
	validations, err := evaluate(compiled.validations)
	if err != nil {
		return nil, err
	}
	for i, v := range validations {
		if v.Error != nil {
			return nil, v.Error
		}
		if v.EvalResult == types.True {
			continue
		}
		message := p.spec.Validations[i].Message
		if texts, err := evaluate(compiled.messages); err == nil && texts[i].Error == nil {
			if text, ok := texts[i].EvalResult.(types.String); ok && text != "" {
				message = string(text)
			}
		}
		return refusal(message), nil
	}
	return nil, nil
}

// refusal returns a message of our policies, which begin with the field and a colon.
func refusal(message string) *Refusal {
	if path, rest, ok := strings.Cut(message, ": "); ok && !strings.Contains(path, " ") {
		return &Refusal{Field: path, Message: rest}
	}
	return &Refusal{Message: message}
}
