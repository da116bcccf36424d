package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
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

// Ref identifies an object in one of the clusters.
type Ref struct {
	// Cluster is empty for the local cluster.
	Cluster   string
	GVK       schema.GroupVersionKind
	Namespace string
	Name      string
}

func (r Ref) String() string {
	name := r.Name
	if r.Namespace != "" {
		name = r.Namespace + "/" + r.Name
	}
	if r.Cluster != "" {
		return r.GVK.Kind + " " + name + " in cluster " + r.Cluster
	}
	return r.GVK.Kind + " " + name
}

// KeptField is a field whose live value is kept.
type KeptField struct {
	// Path is a path such as spec.replicas, or * for the whole object.
	Path   string
	Affect Affect
}

// Resource is one object of an Application.
type Resource struct {
	Ref
	// JSON is the normalised object, with its owner's labels but without the revision's labels.
	JSON []byte
	// Hash is the hash of JSON.
	Hash string

	Component     string
	ComponentType string
	// Trait is the type of the trait that made the object, or empty.
	Trait string
	// Output is the object's name in outputs, or empty for a workload.
	Output string
	// Step is the workflow step that applied the object itself, or empty.
	Step string
	// TraitIndex is the index of the trait in the component; -1 for the component itself.
	TraitIndex int
	// Stage is PostDispatch for objects that are created when the workload is healthy, and
	// PreDispatch for objects that are created before the workload.
	Stage oam.StageType

	Keep           []KeptField
	GC             GCStrategy
	Propagation    string
	Shared         bool
	TakeOver       bool
	ReadOnly       bool
	RecreateFields []string

	// Wave orders the objects of a component: an object is created after the objects of lower waves
	// exist and are complete.
	Wave int
	// Once is a JSON merge patch that applies when the object is created and never again, or nil.
	Once []byte
}

// ResourceType returns the type of the object in its component, as policies and labels name it.
func (r *Resource) ResourceType() string {
	if r.Output == "" {
		return oam.ResourceTypeWorkload
	}
	return oam.ResourceTypeTrait
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
}

// Key returns the component's key in the plan: a component may be in several placements.
func (c *Component) Key() string {
	key := c.Name + "@" + c.Cluster + "/" + c.Namespace
	if c.Context.ReplicaKey != "" {
		key += "#" + c.Context.ReplicaKey
	}
	return key
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

	bytes int // size of the resources
}

// bytesMax bounds the size of a plan's objects, in bytes.
const bytesMax = 8 << 20

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
	// Memo caches earlier results. If nil, everything is rendered.
	Memo *Memo
	// Charts may be nil if charts are not available. External may be nil if other systems must not
	// be asked.
	Charts   Charts
	External ExternalReader
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

// Make makes the plan of an Application. Its errors are of type *Error.
func Make(in *Input, defs Definitions) (*Plan, error) {
	policies, others, err := parsePolicies(in.Spec.Policies, in.Labels)
	if err != nil {
		return nil, &Error{Stage: Policy, Err: err}
	}
	p := &Plan{Policies: policies, Definitions: map[string]string{}}
	names := map[string]bool{}
	for i := range in.Spec.Components {
		names[in.Spec.Components[i].Name] = true
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
	for _, at := range placements {
		for i := range in.Spec.Components {
			c := &in.Spec.Components[i]
			for _, d := range c.DependsOn {
				if !names[d] {
					return nil, &Error{Parse, c.Name, fmt.Errorf("it depends on %s, which does not exist", d)}
				}
			}
			if err := p.component(in, c, at, defs, seen); err != nil {
				return nil, err
			}
		}
	}
	if cycle := p.cycle(); cycle != "" {
		return nil, &Error{Parse, cycle, fmt.Errorf("it depends on itself")}
	}
	return p, nil
}

func (p *Plan) component(in *Input, c *oam.Component, at Placement, defs Definitions, seen map[Ref]string) error {
	fail := func(stage Stage, err error) error { return &Error{stage, c.Name, err} }
	template, err := defs.Component(in.Namespace, c.Type)
	if err != nil {
		return fail(Parse, err)
	}
	p.use(template)
	target, err := in.Clusters.Target(at.Cluster)
	if err != nil {
		return fail(Policy, err)
	}
	comp := Component{
		Name: c.Name, Type: c.Type, Placement: at, DependsOn: c.DependsOn, Template: template, Workload: -1,
		Revision: componentRevision(c),
	}
	if c.Properties != nil {
		comp.Properties = c.Properties.Raw
	}
	p.warn("component "+c.Name, template, comp.Properties)
	if template.Definition.Refers {
		if err := p.refer(in, &comp); err != nil {
			return fail(Render, err)
		}
	}
	comp.Context = render.Context{
		Name: c.Name, Namespace: at.Namespace, AppName: in.Name, AppRevision: in.Revision, AppRevisionNum: in.RevisionNum,
		AppLabels: in.Labels, AppAnnotations: in.Annotations, Revision: comp.Revision, ClusterVersion: target.Version,
		Cluster: at.ClusterName(), PublishVersion: in.PublishVersion, ReplicaKey: c.ReplicaKey, ComponentType: c.Type,
		Components: in.whole().Components, Policies: in.whole().Policies, Workflow: in.whole().Workflow,
	}
	req := &render.Request{Context: comp.Context, Component: render.Use{Template: template, Properties: comp.Properties},
		Fetch: p.fetch(in, &comp), Run: in.Run}
	for i, t := range c.Traits {
		template, err := defs.Trait(in.Namespace, t.Type)
		if err != nil {
			return fail(Parse, fmt.Errorf("traits[%d]: %w", i, err))
		}
		p.use(template)
		trait := Trait{Type: t.Type, Template: template}
		if t.Properties != nil {
			trait.Properties = t.Properties.Raw
		}
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
	p.use(template)
	target, err := in.Clusters.Target("")
	if err != nil {
		return &Error{Stage: Policy, Err: err}
	}
	comp := Component{Name: policy.Name, Type: policy.Type, Policy: true, Placement: Placement{Namespace: in.Namespace},
		Template: template, Workload: -1}
	if comp.Name == "" {
		comp.Name = policy.Type
	}
	if policy.Properties != nil {
		comp.Properties = policy.Properties.Raw
	}
	p.warn("policy "+comp.Name, template, comp.Properties)
	comp.Context = render.Context{
		Name: comp.Name, Namespace: in.Namespace, AppName: in.Name, AppRevision: in.Revision, AppRevisionNum: in.RevisionNum,
		AppLabels: in.Labels, AppAnnotations: in.Annotations, ClusterVersion: target.Version, Cluster: oam.LocalCluster,
		PublishVersion: in.PublishVersion, Components: in.whole().Components, Policies: in.whole().Policies,
		Workflow: in.whole().Workflow,
	}
	req := &render.Request{Context: comp.Context, Component: render.Use{Template: template, Properties: comp.Properties},
		Run: in.Run}
	if err := p.render(in, &comp, req, target, seen); err != nil {
		return &Error{Stage: Policy, Err: fmt.Errorf("policy %s: %w", comp.Name, err)}
	}
	return nil
}

// render adds a component and its objects to the plan.
func (p *Plan) render(in *Input, comp *Component, req *render.Request, target Target, seen map[Ref]string) error {
	var resources []Resource
	var err error
	if comp.Template.Definition.Chart {
		resources, err = p.chart(in, comp, req, target)
	} else {
		resources, err = in.Memo.resources(in, comp, req, target.Kinds)
	}
	if err != nil {
		return err
	}
	for i := range resources {
		r := &resources[i]
		if other, twice := seen[r.Ref]; twice {
			return fmt.Errorf("%s is also made by component %s", r.Ref, other)
		}
		seen[r.Ref] = comp.Name
		if p.bytes += len(r.JSON); p.bytes > bytesMax {
			return fmt.Errorf("the application makes objects of more than %d MiB", bytesMax>>20)
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

// warn adds warnings about properties that a template does not use.
func (p *Plan) warn(where string, t *render.Template, properties []byte) {
	for _, name := range t.Unused(properties) {
		if w := fmt.Sprintf("%s: properties.%s has no effect: %s does not know it", where, name,
			t.Definition); !slices.Contains(p.Warnings, w) {
			p.Warnings = append(p.Warnings, w)
		}
	}
}

func (p *Plan) use(t *render.Template) { p.Definitions[t.Definition.String()] = t.Definition.Hash }

// cycle returns the name of a component that depends on itself, or "".
func (p *Plan) cycle() string {
	byName := map[string]*Component{}
	for i := range p.Components {
		byName[p.Components[i].Name] = &p.Components[i]
	}
	const open, done = 1, 2
	state := map[string]int{}
	var visit func(name string) string
	visit = func(name string) string {
		switch state[name] {
		case open:
			return name
		case done:
			return ""
		}
		state[name] = open
		for _, d := range byName[name].DependsOn {
			if c := visit(d); c != "" {
				return c
			}
		}
		state[name] = done
		return ""
	}
	for i := range p.Components {
		if c := visit(p.Components[i].Name); c != "" {
			return c
		}
	}
	return ""
}

// newResource makes a resource from a rendered object: it sets the name, the namespace and the
// labels.
func newResource(in *Input, comp *Component, o *render.Object, kinds Kinds) (*Resource, error) {
	cluster := comp.Cluster
	if o.ControlPlaneOnly && cluster != "" {
		cluster = ""
		local, err := in.Clusters.Target("")
		if err != nil {
			return nil, err
		}
		kinds = local.Kinds
	}
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.Object)}
	gvk := u.GroupVersionKind()
	what := "output"
	if o.Name != "" {
		what = "outputs." + o.Name
	}
	if gvk.Kind == "" || gvk.Version == "" {
		return nil, fmt.Errorf("%s has no apiVersion or no kind", what)
	}
	namespaced, err := kinds.Namespaced(gvk)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if u.GetName() == "" {
		u.SetName(comp.Name)
	}
	switch {
	case !namespaced:
		u.SetNamespace("")
	case u.GetNamespace() == "":
		u.SetNamespace(comp.Namespace)
	}
	unstructured.RemoveNestedField(u.Object, "status")
	for _, f := range []string{"uid", "resourceVersion", "generation", "creationTimestamp", "managedFields",
		"ownerReferences", "selfLink"} {
		unstructured.RemoveNestedField(u.Object, "metadata", f)
	}
	r := &Resource{
		Ref:       Ref{cluster, gvk, u.GetNamespace(), u.GetName()},
		Component: comp.Name, ComponentType: comp.Type, Trait: o.Trait, Output: o.Name, TraitIndex: o.TraitIndex,
		Stage: o.Stage,
	}
	labels := u.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels[oam.AppNameLabel], labels[oam.AppNamespaceLabel] = in.Name, in.Namespace
	if comp.Type == "" {
		// A step's own object: its labels may name another component.
		return r, r.complete(u, labels, what)
	}
	labels[oam.AppComponentLabel] = comp.Name
	if comp.Context.ReplicaKey != "" {
		labels[oam.ReplicaKeyLabel] = labelValue(comp.Context.ReplicaKey)
	}
	labels[oam.ResourceTypeLabel] = r.ResourceType()
	if cluster != "" {
		labels[oam.AppClusterLabel] = labelValue(cluster)
	}
	if o.Name == "" {
		labels[oam.WorkloadTypeLabel] = labelValue(comp.Type)
	} else {
		labels[oam.TraitResourceLabel] = labelValue(o.Name)
		labels[oam.TraitTypeLabel] = "AuxiliaryWorkload"
		if o.Trait != "" {
			labels[oam.TraitTypeLabel] = labelValue(o.Trait)
		}
	}
	return r, r.complete(u, labels, what)
}

// complete sets the resource's JSON and hash.
func (r *Resource) complete(u *unstructured.Unstructured, labels map[string]string, what string) error {
	u.SetLabels(labels)
	if err := normalise(u); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	var err error
	if r.JSON, err = json.Marshal(u.Object); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	r.Hash = Hash(r.JSON)
	return nil
}

// labelValue makes a valid label value from a string such as type@v1.
func labelValue(s string) string {
	s = strings.ReplaceAll(s, "@", "-")
	if len(s) > 63 {
		s = s[:63]
	}
	return strings.Trim(s, "-_.")
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
