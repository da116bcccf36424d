package plan

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/dependency"
	"lockstep.dev/lockstep/internal/application/render"
)

// Definitions finds the definitions that an Application uses.
type Definitions interface {
	// Component, Trait and Policy return the compiled definition that an Application in namespace
	// uses under a name, or an error that says why there is none.
	Component(namespace, name string) (*render.Template, error)
	Trait(namespace, name string) (*render.Template, error)
	Policy(namespace, name string) (*render.Template, error)
}

// Kinds knows the scope of kinds.
type Kinds interface {
	// Namespaced reports whether objects of a kind are namespaced. It returns an error if the kind
	// does not exist.
	Namespaced(gvk schema.GroupVersionKind) (bool, error)
}

// Component is one component of a plan.
type Component struct {
	Name string
	Type string
	Placement
	Revision  string
	DependsOn []string
	Context   render.Context
	// Template and Properties are used to evaluate the component's state.
	Template   *render.Template
	Properties []byte
	Traits     []Trait
	// Policy is set if the component stands for a policy. Policies have no health.
	Policy bool
	// Notes tell users about the component, such as hooks of its chart that are not run.
	Notes []string
	// Resources are indexes into the plan's Resources. Workload is one of them, or -1.
	Resources []int
	Workload  int
	// once has, by kind and name, the generated values of objects of charts that its template renders.
	once map[string]json.RawMessage
	// Late is nil if the component has no late traits.
	Late *Late
	// Err says why the component has no objects in this plan although others have. Which objects it
	// has is unknown then.
	Err *Error
}

// Key returns the component's key in the plan: a component may be in several places.
func (c *Component) Key() string { return c.Name + "@" + c.Place() }

// Place returns the key of the component's place: its placement, and its replica if it has several.
func (c *Component) Place() string { return c.Placement.Key(c.Context.ReplicaKey) }

// Several reports whether the plan has several components with this name.
func (p *Plan) Several(name string) bool {
	n := 0
	for i := range p.Components {
		if p.Components[i].Name == name {
			n++
		}
	}
	return n > 1
}

// Trait is one trait of a component.
type Trait struct {
	Type       string
	Template   *render.Template
	Properties []byte
}

// Plan has the components, the objects and the rules of an Application.
type Plan struct {
	Components []Component
	Resources  []Resource
	// Loose has the indexes of resources that belong to no component, because workflow steps
	// applied them.
	Loose    []int
	Policies *Policies
	// Definitions has the hash of each used definition, chart and answer, by kind and name.
	Definitions map[string]string
	// Warnings tell about properties without effect.
	Warnings []string
	// Left has the names of components that were left out (Input.LeavesTerraform).
	Left []string

	bytes int // size of the resources
}

// bytesMax bounds the size of a plan's objects, in bytes.
const bytesMax = 8 << 20

var errTooLarge = fmt.Errorf("the application makes objects of more than %d MiB", bytesMax>>20)

// Stage is the part of planning in which an error occurred.
type Stage string

// The stages of planning.
const (
	Parse  Stage = "parse"
	Policy Stage = "policy"
	Render Stage = "render"
)

// Error says why there is no plan.
type Error struct {
	Stage Stage
	// Component is the component with the error, or empty.
	Component string
	Err       error
}

func (e *Error) Error() string {
	if e.Component == "" {
		return e.Err.Error()
	}
	return fmt.Sprintf("component %s: %v", e.Component, e.Err)
}

func (e *Error) Unwrap() error { return e.Err }

// Input is everything that a plan depends on, except definitions.
type Input struct {
	Namespace, Name string
	// Revision is the name of the Application's revision, such as NAME-v3, and RevisionNum is its
	// number.
	Revision       string
	RevisionNum    int64
	PublishVersion string
	Labels         map[string]string
	Annotations    map[string]string
	Spec           *oam.ApplicationSpec
	// Whole is the Application's complete spec, as templates see it, if Spec is only a part of it;
	// otherwise nil.
	Whole    *oam.ApplicationSpec
	Clusters Clusters
	// At overrides Spec's components for single placements, where inputs have other values or are
	// missing.
	At map[Placement][]oam.Component
	// LeavesTerraform leaves out components that are made of configurations of Terraform.
	LeavesTerraform bool
	// Memo caches earlier results. If nil, everything is rendered.
	Memo *Memo
	// Charts may be nil if charts are not available. External may be nil if other systems must not
	// be asked.
	Charts   Charts
	External ExternalReader
	// Live returns an object of the Application as it is in its cluster, in JSON, or nil if it does
	// not exist. If Live is nil, no object exists.
	Live func(Ref) []byte
	// Now is the current time that charts see.
	Now time.Time
	// Run evaluates templates and charts.
	Run render.Run
	// Pinned has the chart versions with which the revision was deployed, in the form of
	// Plan.Definitions.
	Pinned map[string]string
}

// whole returns the Application's complete spec.
func (in *Input) whole() *oam.ApplicationSpec {
	if in.Whole != nil {
		return in.Whole
	}
	return in.Spec
}

// context returns the context of a component's template, without what only components have.
func (in *Input) context(comp *Component, target Target) render.Context {
	whole := in.whole()
	return render.Context{
		Name: comp.Name, Namespace: comp.Namespace, AppName: in.Name, AppRevision: in.Revision, AppRevisionNum: in.RevisionNum,
		AppLabels: in.Labels, AppAnnotations: in.Annotations, ClusterVersion: target.Version, Cluster: comp.ClusterName(),
		PublishVersion: in.PublishVersion, Components: whole.Components, Policies: whole.Policies, Workflow: whole.Workflow,
	}
}

// Make makes the plan of an Application. Its errors are of type *Error.
func Make(in *Input, defs Definitions) (*Plan, error) {
	policies, others, err := parsePolicies(in.Spec.Policies, in.Labels)
	if err != nil {
		return nil, &Error{Stage: Policy, Err: err}
	}
	p := &Plan{Policies: policies, Definitions: map[string]string{}}
	var names []string
	dependsOn := map[string][]string{}
	for i := range in.Spec.Components {
		c := &in.Spec.Components[i]
		names = append(names, c.Name)
		dependsOn[c.Name] = c.DependsOn
	}
	placements, err := policies.placements(in)
	if err != nil {
		return nil, &Error{Stage: Policy, Err: err}
	}
	seen := map[Ref]string{}
	for i := range others {
		if err := p.policy(in, &others[i], defs, seen); err != nil {
			return nil, err
		}
	}
	var broken *Error
	for _, at := range placements {
		components := in.Spec.Components
		if in.At != nil {
			components = in.At[at]
		}
		for i := range components {
			c := &components[i]
			for _, d := range c.DependsOn {
				if _, exists := dependsOn[d]; !exists {
					return nil, &Error{Parse, c.Name, fmt.Errorf("it depends on %s, which does not exist", d)}
				}
			}
			if err := p.component(in, c, at, defs, seen); err != nil {
				if err.Stage == Policy || errors.Is(err, ErrNotYet) || errors.Is(err, errTooLarge) {
					return nil, err
				}
				p.Components = append(p.Components, Component{Name: c.Name, Type: c.Type, Placement: at, DependsOn: c.DependsOn, Workload: -1, Err: err,
					Context: render.Context{ReplicaKey: c.ReplicaKey}})
				broken = cmp.Or(broken, err)
			}
		}
	}
	p.forgetLeft()
	if broken != nil && !slices.ContainsFunc(p.Components, func(c Component) bool { return c.Err == nil && !c.Policy }) {
		return nil, broken
	}
	if cycle := dependency.Cycle(names, func(name string) []string { return dependsOn[name] }); cycle != "" {
		return nil, &Error{Parse, cycle, fmt.Errorf("it depends on itself")}
	}
	return p, nil
}

// forgetLeft drops dependencies on components that were left out.
func (p *Plan) forgetLeft() {
	if len(p.Left) == 0 {
		return
	}
	for i := range p.Components {
		c := &p.Components[i]
		c.DependsOn = slices.DeleteFunc(slices.Clone(c.DependsOn), func(d string) bool { return slices.Contains(p.Left, d) })
	}
}

// Broken returns the errors of the components without objects. p may be nil.
func (p *Plan) Broken() []*Error {
	var out []*Error
	if p == nil {
		return nil
	}
	for i := range p.Components {
		if err := p.Components[i].Err; err != nil {
			out = append(out, err)
		}
	}
	return out
}

// component adds a component and its objects to the plan. After an error the plan is as before.
func (p *Plan) component(in *Input, c *oam.Component, at Placement, defs Definitions, seen map[Ref]string) *Error {
	fail := func(stage Stage, err error) *Error { return &Error{stage, c.Name, err} }
	template, err := defs.Component(in.Namespace, c.Type)
	if err != nil {
		return fail(Parse, err)
	}
	if in.LeavesTerraform && template.Definition.Terraform {
		if !slices.Contains(p.Left, c.Name) {
			p.Left = append(p.Left, c.Name)
		}
		return nil
	}
	p.use(template)
	target, err := in.Clusters.Target(at.Cluster)
	if err != nil {
		return fail(Policy, err)
	}
	comp := Component{
		Name: c.Name, Type: c.Type, Placement: at, DependsOn: c.DependsOn, Template: template, Workload: -1,
		Revision: componentRevision(c), Properties: RawOf(c.Properties),
	}
	p.warn("component "+c.Name, template, comp.Properties)
	if template.Definition.Refers {
		if err := p.refer(in, &comp); err != nil {
			return fail(Render, err)
		}
	}
	comp.Context = in.context(&comp, target)
	comp.Context.Revision, comp.Context.ReplicaKey, comp.Context.ComponentType = comp.Revision, c.ReplicaKey, c.Type
	req := &render.Request{Context: comp.Context, Component: render.Use{Template: template, Properties: comp.Properties},
		Fetch: p.fetch(in, &comp, target), Run: in.Run}
	for i, t := range c.Traits {
		template, err := defs.Trait(in.Namespace, t.Type)
		if err != nil {
			return fail(Parse, fmt.Errorf("traits[%d]: %w", i, err))
		}
		p.use(template)
		trait := Trait{Type: t.Type, Template: template, Properties: RawOf(t.Properties)}
		p.warn(fmt.Sprintf("component %s: traits[%d]", c.Name, i), template, trait.Properties)
		for _, other := range comp.Traits {
			if slices.Contains(template.Definition.ConflictsWith, other.Type) ||
				slices.Contains(other.Template.Definition.ConflictsWith, t.Type) {
				return fail(Parse, fmt.Errorf("traits[%d]: %s cannot be used beside %s", i, t.Type, other.Type))
			}
		}
		comp.Traits = append(comp.Traits, trait)
		req.Traits = append(req.Traits, render.Use{Template: template, Properties: trait.Properties})
	}
	if err := p.render(in, &comp, req, target, seen); err != nil {
		return fail(Render, err)
	}
	return nil
}

// policy adds the objects of a policy that has a user's definition.
func (p *Plan) policy(in *Input, policy *oam.AppPolicy, defs Definitions, seen map[Ref]string) error {
	template, err := defs.Policy(in.Namespace, policy.Type)
	if err != nil {
		return &Error{Stage: Policy, Err: fmt.Errorf("policy %s: %w", policy.Name, err)}
	}
	if template.Definition.OfApplication {
		return nil // see GivenBy
	}
	p.use(template)
	target, err := in.Clusters.Target("")
	if err != nil {
		return &Error{Stage: Policy, Err: err}
	}
	comp := Component{Name: policy.Name, Type: policy.Type, Policy: true, Placement: Placement{Namespace: in.Namespace},
		Template: template, Properties: RawOf(policy.Properties), Workload: -1}
	if comp.Name == "" {
		comp.Name = policy.Type
	}
	p.warn("policy "+comp.Name, template, comp.Properties)
	if template.Definition.ManagesHealth {
		p.Warn(fmt.Sprintf("policy %s: manageHealthCheck of %s has no effect: components determine the health", comp.Name, template.Definition))
	}
	comp.Context = in.context(&comp, target)
	req := &render.Request{Context: comp.Context, Component: render.Use{Template: template, Properties: comp.Properties},
		Run: in.Run}
	if err := p.render(in, &comp, req, target, seen); err != nil {
		return &Error{Stage: Policy, Err: fmt.Errorf("policy %s: %w", comp.Name, err)}
	}
	return nil
}

// render adds a component and its objects to the plan.
func (p *Plan) render(in *Input, comp *Component, req *render.Request, target Target, seen map[Ref]string) error {
	resources, err := comp.render(in, req, func(req *render.Request) ([]Resource, []int, error) {
		if comp.Template.Definition.Chart {
			return p.chart(in, comp, req, target)
		}
		return in.Memo.resources(in, comp, req, target.Kinds)
	})
	if err != nil {
		return err
	}
	own := map[Ref]bool{}
	for i := range resources {
		r := &resources[i]
		if once := comp.once[onceKey(r.GVK.Kind, r.Name)]; once != nil {
			r.Once = once
		}
		if own[r.Ref] {
			return fmt.Errorf("%s is also made by component %s", r.Ref, comp.Name)
		}
		if other, twice := seen[r.Ref]; twice && !p.shares(r, comp) {
			return fmt.Errorf("%s is also made by component %s", r.Ref, other)
		}
		own[r.Ref] = true
	}
	for i := range resources {
		r := &resources[i]
		if _, twice := seen[r.Ref]; twice {
			continue // it belongs to the component in its first placement
		}
		seen[r.Ref] = comp.Name
		if p.bytes += len(r.JSON); p.bytes > bytesMax {
			return errTooLarge
		}
		p.Policies.Treat(r)
		if r.Output == "" {
			comp.Workload = len(p.Resources)
		}
		comp.Resources = append(comp.Resources, len(p.Resources))
		p.Resources = append(p.Resources, *r)
	}
	slices.SortStableFunc(comp.Resources, func(a, b int) int { return p.Resources[a].Wave - p.Resources[b].Wave })
	p.Components = append(p.Components, *comp)
	return nil
}

// shares reports whether a component makes the same auxiliary object in another cluster for each of
// its placements.
func (p *Plan) shares(r *Resource, comp *Component) bool {
	return r.Output != "" && elsewhere(r, comp) && slices.ContainsFunc(p.Resources, func(x Resource) bool {
		return x.Ref == r.Ref && x.Hash == r.Hash && x.Component == comp.Name && x.Output == r.Output
	})
}

func (p *Plan) use(t *render.Template) { p.Definitions[t.Definition.String()] = t.Definition.Hash }

// RawOf returns properties as JSON, or nil if there are none.
func RawOf(properties *runtime.RawExtension) []byte {
	if properties == nil {
		return nil
	}
	return properties.Raw
}

// Hash returns a hash of data as 16 hexadecimal digits.
func Hash(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}

// componentRevision returns the name of a component's revision, which is a hash of the component.
func componentRevision(c *oam.Component) string {
	data, err := json.Marshal(c)
	if err != nil {
		return ""
	}
	return Hash(data)
}
