package plan

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

// Given are the labels and annotations that policies of the scope Application give an Application.
// They are a part of its revision: they change when the Application does, and not with the definitions.
type Given struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	// Definitions has the hash of each definition that gave them, by kind and name.
	Definitions map[string]string `json:"definitions,omitempty"`
}

// GivingPolicies finds policies of the scope Application.
type GivingPolicies interface {
	// Policy is as in Definitions.
	Policy(namespace, name string) (*render.Template, error)
	// GlobalPolicies returns the names of those that Applications in namespace have without naming
	// them, those with the highest priority first.
	GlobalPolicies(namespace string) []string
	// Revision returns the name and the number of a definition's newest revision, or an empty name.
	Revision(d *render.Definition) (name string, number int64)
}

// GivenBy returns what the policies of scope Application give an Application: global ones first, then
// those that it names, in their order. Later ones prevail. It returns nil if there are none. Its
// errors are of type *Error.
func GivenBy(in *Input, defs GivingPolicies) (*Given, error) {
	global := defs.GlobalPolicies(in.Namespace)
	var policies []oam.AppPolicy
	if in.Annotations[oam.SkipGlobalAnnotation] != "true" {
		for _, name := range global {
			policies = append(policies, oam.AppPolicy{Name: name, Type: name})
		}
	}
	for i, p := range in.whole().Policies {
		if BuiltIn(p.Type) {
			continue
		}
		template, err := defs.Policy(in.Namespace, p.Type)
		if errors.Is(err, ErrNotYet) {
			return nil, &Error{Stage: Policy, Err: err}
		}
		if err != nil || !template.Definition.OfApplication {
			continue // Make says what is wrong with it
		}
		if base, _, _ := strings.Cut(p.Type, "@"); slices.Contains(global, base) {
			return nil, &Error{Stage: Policy, Err: fmt.Errorf("spec.policies[%d]: %s is global: applications have it without naming it", i, p.Type)}
		}
		policies = append(policies, p)
	}
	if len(policies) == 0 {
		return nil, nil
	}
	out := &Given{Labels: map[string]string{}, Annotations: map[string]string{}, Definitions: map[string]string{}}
	for i := range policies {
		if err := out.add(in, &policies[i], defs); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// add evaluates one policy. It sees the labels and annotations that earlier ones have given.
func (g *Given) add(in *Input, policy *oam.AppPolicy, defs GivingPolicies) *Error {
	fail := func(err error) *Error {
		return &Error{Stage: Policy, Err: fmt.Errorf("policy %s: %w", policy.Name, err)}
	}
	template, err := defs.Policy(in.Namespace, policy.Type)
	if err != nil {
		return fail(err)
	}
	target, err := in.Clusters.Target("")
	if err != nil {
		return fail(err)
	}
	comp := Component{Name: policy.Name, Placement: Placement{Namespace: in.Namespace}}
	ctx := g.on(in).context(&comp, target)
	ctx.PolicyName, ctx.PolicyType = policy.Name, template.Definition.Name
	ctx.PolicyRevisionName, ctx.PolicyRevision = defs.Revision(template.Definition)
	made, err := render.Render(&render.Request{Context: ctx, Component: render.Use{Template: template, Properties: RawOf(policy.Properties)}, Run: in.Run})
	if err != nil {
		return fail(err)
	}
	if len(made.Auxiliaries) > 0 {
		return fail(errors.New("outputs: a policy of the scope Application makes no objects"))
	}
	g.Definitions[template.Definition.String()] = template.Definition.Hash
	if made.Workload == nil {
		return nil
	}
	for _, field := range slices.Sorted(maps.Keys(made.Workload.Object)) {
		value := made.Workload.Object[field]
		switch field {
		case "labels":
			err = give(g.Labels, value, validation.IsValidLabelValue)
		case "annotations":
			err = give(g.Annotations, value, nil)
		default:
			err = errors.New("a policy of the scope Application gives labels and annotations, and nothing else")
		}
		if err != nil {
			return fail(fmt.Errorf("output.%s: %w", field, err))
		}
	}
	return nil
}

// give adds labels or annotations. It refuses those by which applications are commanded, because
// whoever writes a policy is not who writes the applications.
func give(to map[string]string, value any, check func(string) []string) error {
	fields, ok := value.(map[string]any)
	if !ok {
		return errors.New("it is not a map of strings")
	}
	for _, key := range slices.Sorted(maps.Keys(fields)) {
		text, ok := fields[key].(string)
		if !ok {
			return fmt.Errorf("%s is not a string", key)
		}
		faults := validation.IsQualifiedName(key)
		if check != nil {
			faults = append(faults, check(text)...)
		}
		if len(faults) > 0 {
			return fmt.Errorf("%s: %s", key, strings.Join(faults, "; "))
		}
		domain, _, _ := strings.Cut(key, "/")
		for _, own := range []string{"oam.dev", "lockstep.dev"} {
			if domain == own || strings.HasSuffix(domain, "."+own) {
				return fmt.Errorf("%s: labels and annotations of %s are not given by policies", key, own)
			}
		}
		to[key] = text
	}
	return nil
}

// on returns the input with what policies give. g may be nil.
func (g *Given) on(in *Input) *Input {
	out := *in
	if g != nil {
		out.Labels, out.Annotations = with(in.Labels, g.Labels), with(in.Annotations, g.Annotations)
	}
	return &out
}

// On sets what policies give in the input, so that templates see it. g may be nil.
func (g *Given) On(in *Input) { *in = *g.on(in) }

// with returns have with the entries of more.
func with(have, more map[string]string) map[string]string {
	if len(more) == 0 {
		return have
	}
	out := make(map[string]string, len(have)+len(more))
	maps.Copy(out, have)
	maps.Copy(out, more)
	return out
}

// Same reports whether the two give the same. Either may be nil.
func (g *Given) Same(other *Given) bool {
	if g == nil || other == nil {
		return g == other
	}
	return maps.Equal(g.Labels, other.Labels) && maps.Equal(g.Annotations, other.Annotations) && maps.Equal(g.Definitions, other.Definitions)
}
