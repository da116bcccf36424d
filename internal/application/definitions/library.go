package definitions

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/malformed"
)

// ErrNotFound means that no definition has a name. Applications that use such a name are planned
// again when definitions change.
var ErrNotFound = errors.New("there is no such definition")

// unreadable is the error for a definition that exists but cannot be decoded.
type unreadable struct{ error }

// Is makes unreadable match ErrNotFound, so that Applications wait for a change in the same way.
func (unreadable) Is(target error) bool { return target == ErrNotFound }

// Library caches compiled definitions. Each is compiled at first use and again after a change.
// Library also watches the Policies and Workflows that Applications share.
type Library struct {
	components *informer.Informer[*oam.ComponentDefinition]
	workloads  *informer.Informer[*oam.WorkloadDefinition]
	traits     *informer.Informer[*oam.TraitDefinition]
	policies   *informer.Informer[*oam.PolicyDefinition]
	steps      *informer.Informer[*oam.WorkflowStepDefinition]

	stored    *informer.Informer[*oam.DefinitionRevision]
	revisions *revisionWriter

	SharedPolicies  *informer.Informer[*v1alpha1.Policy]
	SharedWorkflows *informer.Informer[*v1alpha1.Workflow]

	snapshots snapshots

	mu       sync.Mutex
	compiled map[definitionKey]compiled
}

// Config configures a Library.
type Config struct {
	// Beta and Alpha are clients for core.oam.dev/v1beta1 and v1alpha1.
	Beta, Alpha rest.Interface
	Writer      apiwriter.Writer
	Log         *slog.Logger
	Clock       clock.Clock
	// Owns reports whether this manager stores the revisions of the definition namespace/name. If
	// nil, it stores all.
	Owns func(key string) bool
	// Specs iterates over the specs that Applications have and those that they are deployed with,
	// with an error for each that cannot be read.
	Specs iter.Seq2[*oam.ApplicationSpec, error]
	// Changed is called after a change of any definition, shared policy or shared workflow.
	Changed func()
	// Malformed is called for objects that cannot be decoded. If nil, they are not reported.
	Malformed func(runtime.Object, *malformed.Error)
}

// New returns a Library. It reads nothing before Run.
func New(cfg Config) *Library {
	beta, alpha := cfg.Beta, cfg.Alpha
	d := &Library{
		components:      informer.New(beta, "componentdefinitions", informer.Options[*oam.ComponentDefinition]{}),
		workloads:       informer.New(beta, "workloaddefinitions", informer.Options[*oam.WorkloadDefinition]{}),
		traits:          informer.New(beta, "traitdefinitions", informer.Options[*oam.TraitDefinition]{}),
		policies:        informer.New(beta, "policydefinitions", informer.Options[*oam.PolicyDefinition]{Indexes: map[string]func(*oam.PolicyDefinition) []string{byGlobal: globalIn}}),
		steps:           informer.New(beta, "workflowstepdefinitions", informer.Options[*oam.WorkflowStepDefinition]{}),
		stored:          informer.New(beta, "definitionrevisions", informer.Options[*oam.DefinitionRevision]{}),
		SharedPolicies:  informer.New(alpha, "policies", informer.Options[*v1alpha1.Policy]{}),
		SharedWorkflows: informer.New(alpha, "workflows", informer.Options[*v1alpha1.Workflow]{}),
		compiled:        map[definitionKey]compiled{},
	}
	d.handle(cfg.Changed, newRevisionWriter(d, cfg))
	if tell := cfg.Malformed; tell != nil {
		d.components.OnMalformed(tell)
		d.workloads.OnMalformed(tell)
		d.traits.OnMalformed(tell)
		d.policies.OnMalformed(tell)
		d.steps.OnMalformed(tell)
		d.stored.OnMalformed(tell)
		d.SharedPolicies.OnMalformed(tell)
		d.SharedWorkflows.OnMalformed(tell)
	}
	return d
}

// Watched is a watch that can be run and waited for.
type Watched interface {
	Run(ctx context.Context)
	WaitForSync(ctx context.Context) error
}

func (d *Library) watched() []Watched {
	return []Watched{d.components, d.workloads, d.traits, d.policies, d.steps, d.SharedPolicies, d.SharedWorkflows, d.stored}
}

// Run runs the watches, and the retries of writes, until ctx is done.
func (d *Library) Run(ctx context.Context) {
	var running sync.WaitGroup
	for _, w := range d.watched() {
		running.Go(func() { w.Run(ctx) })
	}
	running.Go(func() { d.revisions.run(ctx) })
	running.Wait()
}

// WaitForSync waits until all watches have synced. Then it stores the states of definitions that
// have no revision yet.
func (d *Library) WaitForSync(ctx context.Context) error {
	for _, w := range d.watched() {
		if err := w.WaitForSync(ctx); err != nil {
			return err
		}
	}
	d.revisions.begin()
	return nil
}

// handle registers changed, which is called after every change, and the writer of revisions.
func (d *Library) handle(changed func(), revisions *revisionWriter) {
	d.revisions = revisions
	revised := revisions.changed
	handleKind(d, d.components, render.Component, changed, revised, render.OfComponent)
	handleKind(d, d.workloads, render.Component, changed, nil, nil)
	handleKind(d, d.traits, render.Trait, changed, revised, render.OfTrait)
	handleKind(d, d.policies, render.Policy, changed, revised, render.OfPolicy)
	handleKind(d, d.steps, render.WorkflowStep, changed, revised, render.OfWorkflowStep)
	handleKind(d, d.SharedPolicies, "", changed, nil, nil)
	handleKind(d, d.SharedWorkflows, "", changed, nil, nil)
	d.stored.Handle(informer.Handler[*oam.DefinitionRevision]{
		Added: func(*oam.DefinitionRevision) { changed() },
		Deleted: func(r *oam.DefinitionRevision) {
			revisions.deleted(r)
			d.mu.Lock()
			defer d.mu.Unlock()
			for key := range d.compiled { // few keys are of revisions, and this is rare
				if base, pinned, ok := strings.Cut(key.name, "@"); ok && key.namespace == r.Namespace && pinnedName(base, pinned) == r.Name {
					delete(d.compiled, key)
				}
			}
		},
	})
}

func handleKind[T apiwriter.Object](d *Library, kind *informer.Informer[T], name render.Kind, changed func(), revised func(old, new *revisedDefinition), definition func(T) *render.Definition) {
	of := func(o T) *revisedDefinition { return &revisedDefinition{definition(o), o, statedVersion(o)} }
	kind.Handle(informer.Handler[T]{
		Added: func(o T) {
			if revised != nil {
				revised(nil, of(o))
			}
			changed()
		},
		Updated: func(old, new T) {
			if revised != nil {
				revised(of(old), of(new))
			}
			changed()
		},
		Deleted: func(o T) { d.forget(name, o.GetNamespace(), o.GetName()); changed() },
	})
}

// each calls f with every definition.
func (d *Library) each(f func(*revisedDefinition)) {
	eachOf(d.components, render.OfComponent, f)
	eachOf(d.traits, render.OfTrait, f)
	eachOf(d.policies, render.OfPolicy, f)
	eachOf(d.steps, render.OfWorkflowStep, f)
}

func eachOf[T apiwriter.Object](kind *informer.Informer[T], definition func(T) *render.Definition, f func(*revisedDefinition)) {
	for _, o := range kind.List() {
		f(&revisedDefinition{definition(o), o, statedVersion(o)})
	}
}

type definitionKey struct {
	kind            render.Kind
	namespace, name string
}

type compiled struct {
	version  string // the object's resource version
	template *render.Template
	err      error
}

// Templates finds definitions for one Application. Run compiles those that are not compiled yet.
type Templates struct {
	*Library
	Run render.Run
}

// Component implements plan.Definitions. A WorkloadDefinition takes the place of a ComponentDefinition
// that does not exist.
func (d Templates) Component(namespace, name string) (*render.Template, error) {
	t, err := find(d, d.components, render.Component, &oam.ComponentDefinition{}, render.OfComponent, namespace, name)
	if !errors.Is(err, ErrNotFound) {
		return t, err
	}
	if o := d.workload(namespace, name); o != nil {
		return d.compile(definitionKey{render.Component, o.Namespace, o.Name}, o.ResourceVersion, func() (*render.Definition, error) { return render.OfWorkload(o), nil })
	}
	return nil, err
}

// workload returns the WorkloadDefinition of that name, or nil.
func (d *Library) workload(namespace, name string) *oam.WorkloadDefinition {
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		if o, there := d.workloads.Get(ns, name); there {
			return o
		}
	}
	return nil
}

// Trait implements plan.Definitions.
func (d Templates) Trait(namespace, name string) (*render.Template, error) {
	return find(d, d.traits, render.Trait, &oam.TraitDefinition{}, render.OfTrait, namespace, name)
}

// Policy implements plan.Definitions.
func (d Templates) Policy(namespace, name string) (*render.Template, error) {
	return find(d, d.policies, render.Policy, &oam.PolicyDefinition{}, render.OfPolicy, namespace, name)
}

// byGlobal is the index of global policies by their namespace.
const byGlobal = "global"

func globalIn(o *oam.PolicyDefinition) []string {
	if !o.Spec.Global || o.Spec.Scope != oam.ScopeApplication {
		return nil
	}
	return []string{o.Namespace}
}

// GlobalPolicies implements plan.GivingPolicies.
func (d Templates) GlobalPolicies(namespace string) []string {
	list := d.policies.ByIndex(byGlobal, oam.SystemNamespace)
	if namespace != oam.SystemNamespace {
		// A definition of the namespace takes the place of one of the same name for all namespaces.
		list = slices.DeleteFunc(slices.Clone(list), func(o *oam.PolicyDefinition) bool {
			_, own := d.policies.Get(namespace, o.Name)
			return own
		})
		list = append(list, d.policies.ByIndex(byGlobal, namespace)...)
	}
	slices.SortFunc(list, func(a, b *oam.PolicyDefinition) int {
		return cmp.Or(cmp.Compare(b.Spec.Priority, a.Spec.Priority), cmp.Compare(a.Name, b.Name))
	})
	var out []string
	for _, o := range list {
		out = append(out, o.Name)
	}
	return out
}

// Revision implements plan.GivingPolicies.
func (d Templates) Revision(def *render.Definition) (name string, number int64) {
	for _, r := range slices.Backward(d.revisionsOf(def)) {
		if r.Spec.RevisionHash == def.Hash {
			return r.Name, r.Spec.Revision
		}
	}
	return "", 0
}

// Step returns the template of a workflow step type.
func (d Templates) Step(namespace, name string) (*render.Template, error) {
	return find(d, d.steps, render.WorkflowStep, &oam.WorkflowStepDefinition{}, render.OfWorkflowStep, namespace, name)
}

// find looks for a definition in the Application's namespace, then in oam.SystemNamespace. A name
// with @ refers to a revision of a definition.
func find[T apiwriter.Object](d Templates, kind *informer.Informer[T], called render.Kind, empty T, definition func(T) *render.Definition, namespace, name string) (*render.Template, error) {
	base, pinned, ok := strings.Cut(name, "@")
	if ok {
		t, err := pinnedTo(d, called, empty, definition, namespace, base, pinned)
		if err == nil || !first(pinned) {
			return t, err
		}
	}
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		o, there := kind.Get(ns, base)
		if !there {
			continue
		}
		if ok && len(d.revisionsNamed(called, ns, base)) > 0 {
			break // the first state of the definition is no longer kept
		}
		return d.compile(definitionKey{called, ns, base}, o.GetResourceVersion(), func() (*render.Definition, error) { return definition(o), nil })
	}
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		if fault := kind.Malformed(ns, base); fault != nil {
			return nil, unreadable{fault}
		}
	}
	err := fmt.Errorf("%s %s, in namespaces %s and %s: %w", called, name, namespace, oam.SystemNamespace, ErrNotFound)
	if why := render.Unsupported(called, base); why != nil {
		err = fmt.Errorf("%w; %w", err, why)
	}
	return nil, err
}

// compile returns a definition's template. It compiles the definition if the cached template is of
// another version.
func (d Templates) compile(key definitionKey, version string, definition func() (*render.Definition, error)) (*render.Template, error) {
	d.mu.Lock()
	c, ok := d.compiled[key]
	d.mu.Unlock()
	if ok && c.version == version {
		return c.template, c.err
	}
	def, err := definition()
	if err != nil {
		return nil, err
	}
	c = compiled{version: version}
	c.template, c.err = render.Compile(def, d.Run)
	if errors.Is(c.err, plan.ErrNotYet) {
		return nil, fmt.Errorf("%s: %w", def, c.err)
	}
	d.mu.Lock()
	d.compiled[key] = c
	d.mu.Unlock()
	return c.template, c.err
}

func (d *Library) forget(kind render.Kind, namespace, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.compiled, definitionKey{kind, namespace, name})
}
