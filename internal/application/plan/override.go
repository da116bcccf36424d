package plan

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/chart"
)

// overriding has the properties of an override policy.
type overriding struct {
	Components []componentPatch `json:"components,omitempty"`
	// Selector has the names of the components to keep; * stands for any characters. If empty, all
	// are kept.
	Selector []string `json:"selector,omitempty"`
}

type componentPatch struct {
	// Name selects components; * stands for any characters. Without a name, Type selects
	// components; without both, all are selected.
	Name       string                `json:"name,omitempty"`
	Type       string                `json:"type,omitempty"`
	Properties *runtime.RawExtension `json:"properties,omitempty"`
	Traits     []traitPatch          `json:"traits,omitempty"`
}

type traitPatch struct {
	Type       string                `json:"type"`
	Properties *runtime.RawExtension `json:"properties,omitempty"`
	// Disable removes the trait.
	Disable bool `json:"disable,omitempty"`
}

// Override returns the components after all override policies are applied in order. Policies of
// other types are ignored.
func Override(components []oam.Component, policies []oam.AppPolicy) ([]oam.Component, error) {
	for i := range policies {
		p := &policies[i]
		if p.Type != TypeOverride {
			continue
		}
		var o overriding
		err := Strict(RawOf(p.Properties), &o)
		if err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.Name, err)
		}
		if components, err = o.apply(components); err != nil {
			return nil, fmt.Errorf("policy %s: %w", p.Name, err)
		}
	}
	return components, nil
}

func (o *overriding) apply(components []oam.Component) ([]oam.Component, error) {
	out := slices.Clone(components)
	for i := range o.Components {
		patch := &o.Components[i]
		found := false
		for n := range out {
			if patch.Name != "" && !matches(patch.Name, out[n].Name) ||
				patch.Name == "" && patch.Type != "" && out[n].Type != patch.Type {
				continue
			}
			found = true
			var err error
			if out[n], err = patch.apply(&out[n]); err != nil {
				return nil, fmt.Errorf("components[%d]: %w", i, err)
			}
		}
		if found || patch.Name == "" || strings.Contains(patch.Name, "*") {
			continue
		}
		if patch.Type == "" {
			return nil, fmt.Errorf("components[%d]: there is no component %s, and a new one needs a type", i, patch.Name)
		}
		added, err := patch.apply(&oam.Component{Name: patch.Name, Type: patch.Type})
		if err != nil {
			return nil, fmt.Errorf("components[%d]: %w", i, err)
		}
		out = append(out, added)
	}
	if len(o.Selector) == 0 {
		return out, nil
	}
	return choose(out, o.Selector)
}

// choose returns the components whose names match one of the names or patterns.
func choose(components []oam.Component, names []string) ([]oam.Component, error) {
	var out []oam.Component
	for i, name := range names {
		found := false
		for n := range components {
			if !matches(name, components[n].Name) {
				continue
			}
			found = true
			if !slices.ContainsFunc(out, func(c oam.Component) bool { return c.Name == components[n].Name }) {
				out = append(out, components[n])
			}
		}
		if !found && !strings.Contains(name, "*") {
			return nil, fmt.Errorf("selector[%d]: there is no component %s", i, name)
		}
	}
	return out, nil
}

// matches reports whether a name matches a pattern in which * stands for any characters. Its time
// is proportional to the length of both.
func matches(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	for _, part := range parts[1:last] {
		_, after, found := strings.Cut(rest, part)
		rest, ok = after, ok && found
	}
	return ok && strings.HasSuffix(rest, parts[last])
}

// apply returns c with the patch applied. A patch with another type replaces the component's
// properties and traits.
func (p *componentPatch) apply(c *oam.Component) (oam.Component, error) {
	out := *c.DeepCopy()
	if p.Type != "" && p.Type != c.Type {
		out.Type, out.Properties, out.Traits = p.Type, nil, nil
	}
	var err error
	if out.Properties, err = mergeProperties(out.Properties, p.Properties); err != nil {
		return out, err
	}
	for i := range p.Traits {
		t := &p.Traits[i]
		at := slices.IndexFunc(out.Traits, func(x oam.Trait) bool { return x.Type == t.Type })
		switch {
		case t.Disable && at >= 0:
			out.Traits = slices.Delete(out.Traits, at, at+1)
		case t.Disable:
		case at < 0:
			out.Traits = append(out.Traits, oam.Trait{Type: t.Type, Properties: t.Properties})
		default:
			if out.Traits[at].Properties, err = mergeProperties(out.Traits[at].Properties, t.Properties); err != nil {
				return out, fmt.Errorf("trait %s: %w", t.Type, err)
			}
		}
	}
	return out, nil
}

// mergeProperties returns base with the fields of over. Maps are merged; lists are replaced.
func mergeProperties(base, over *runtime.RawExtension) (*runtime.RawExtension, error) {
	if len(RawOf(over)) == 0 {
		return base, nil
	}
	if len(RawOf(base)) == 0 {
		return over, nil
	}
	var b, o map[string]any
	if err := kjson.Unmarshal(base.Raw, &b); err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	if err := kjson.Unmarshal(over.Raw, &o); err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	data, err := json.Marshal(chart.MergeValues(b, o))
	if err != nil {
		return nil, fmt.Errorf("properties: %w", err)
	}
	return &runtime.RawExtension{Raw: data}, nil
}
