package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/malformed"
)

// errNoDefinition marks names that no definition has. Applications that use such a name are planned
// again when definitions change.
var errNoDefinition = errors.New("there is no such definition")

// unreadable is the error for a definition that exists but cannot be decoded.
type unreadable struct{ error }

// Is makes unreadable match errNoDefinition, so that Applications wait for a change in the same
// way.
func (unreadable) Is(target error) bool { return target == errNoDefinition }

// definitions caches compiled definitions. Each is compiled at first use and again after a change.
// definitions also watches the Policies and Workflows that Applications share.
type definitions struct {
	components *informer.Informer[*oam.ComponentDefinition]
	traits     *informer.Informer[*oam.TraitDefinition]
	policies   *informer.Informer[*oam.PolicyDefinition]
	steps      *informer.Informer[*oam.WorkflowStepDefinition]

	revisions *informer.Informer[*oam.DefinitionRevision]

	sharedPolicies  *informer.Informer[*v1alpha1.Policy]
	sharedWorkflows *informer.Informer[*v1alpha1.Workflow]

	mu       sync.Mutex
	compiled map[definitionKey]compiled
}

func newDefinitions(beta, alpha rest.Interface) *definitions {
	return &definitions{
		components:      informer.New(beta, "componentdefinitions", informer.Options[*oam.ComponentDefinition]{}),
		traits:          informer.New(beta, "traitdefinitions", informer.Options[*oam.TraitDefinition]{}),
		policies:        informer.New(beta, "policydefinitions", informer.Options[*oam.PolicyDefinition]{}),
		steps:           informer.New(beta, "workflowstepdefinitions", informer.Options[*oam.WorkflowStepDefinition]{}),
		revisions:       informer.New(beta, "definitionrevisions", informer.Options[*oam.DefinitionRevision]{}),
		sharedPolicies:  informer.New(alpha, "policies", informer.Options[*v1alpha1.Policy]{}),
		sharedWorkflows: informer.New(alpha, "workflows", informer.Options[*v1alpha1.Workflow]{}),
		compiled:        map[definitionKey]compiled{},
	}
}

// watched is a watch that can be run and waited for.
type watched interface {
	Run(ctx context.Context)
	WaitForSync(ctx context.Context) error
}

// watched returns all watches.
func (d *definitions) watched() []watched {
	return []watched{d.components, d.traits, d.policies, d.steps, d.sharedPolicies, d.sharedWorkflows, d.revisions}
}

// onMalformed registers tell for objects that cannot be decoded.
func (d *definitions) onMalformed(tell func(runtime.Object, *malformed.Error)) {
	d.components.OnMalformed(tell)
	d.traits.OnMalformed(tell)
	d.policies.OnMalformed(tell)
	d.steps.OnMalformed(tell)
	d.revisions.OnMalformed(tell)
	d.sharedPolicies.OnMalformed(tell)
	d.sharedWorkflows.OnMalformed(tell)
}

// handle registers changed, which is called after every change, and revised, which is called with a
// definition's old and new state.
func (d *definitions) handle(changed func(), revised func(old, new *revisedDefinition)) {
	handleKind(d, d.components, render.Component, changed, revised, render.OfComponent)
	handleKind(d, d.traits, render.Trait, changed, revised, render.OfTrait)
	handleKind(d, d.policies, render.Policy, changed, revised, render.OfPolicy)
	handleKind(d, d.steps, render.WorkflowStep, changed, revised, render.OfWorkflowStep)
	handleKind(d, d.sharedPolicies, "", changed, nil, nil)
	handleKind(d, d.sharedWorkflows, "", changed, nil, nil)
	d.revisions.Handle(informer.Handler[*oam.DefinitionRevision]{
		Added: func(*oam.DefinitionRevision) { changed() },
		Deleted: func(r *oam.DefinitionRevision) {
			d.mu.Lock()
			defer d.mu.Unlock()
			for key := range d.compiled { // few are of revisions, and this is rare
				if base, pinned, ok := strings.Cut(key.name, "@"); ok && key.namespace == r.Namespace && pinnedName(base, pinned) == r.Name {
					delete(d.compiled, key)
				}
			}
		},
	})
}

func handleKind[T apiwriter.Object](d *definitions, kind *informer.Informer[T], name render.Kind, changed func(), revised func(old, new *revisedDefinition), definition func(T) *render.Definition) {
	of := func(o T) *revisedDefinition { return &revisedDefinition{definition(o), o, specVersion(o)} }
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
func (d *definitions) each(f func(*revisedDefinition)) {
	eachOf(d.components, render.OfComponent, f)
	eachOf(d.traits, render.OfTrait, f)
	eachOf(d.policies, render.OfPolicy, f)
	eachOf(d.steps, render.OfWorkflowStep, f)
}

func eachOf[T apiwriter.Object](kind *informer.Informer[T], definition func(T) *render.Definition, f func(*revisedDefinition)) {
	for _, o := range kind.List() {
		f(&revisedDefinition{definition(o), o, specVersion(o)})
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

// appDefinitions are the definitions for one Application. Templates that are not compiled yet are
// compiled on its behalf.
type appDefinitions struct {
	*definitions
	run render.Run
}

// Component implements plan.Definitions.
func (d appDefinitions) Component(namespace, name string) (*render.Template, error) {
	return find(d, d.components, render.Component, &oam.ComponentDefinition{}, render.OfComponent, namespace, name)
}

// Trait implements plan.Definitions.
func (d appDefinitions) Trait(namespace, name string) (*render.Template, error) {
	return find(d, d.traits, render.Trait, &oam.TraitDefinition{}, render.OfTrait, namespace, name)
}

// Policy implements plan.Definitions.
func (d appDefinitions) Policy(namespace, name string) (*render.Template, error) {
	return find(d, d.policies, render.Policy, &oam.PolicyDefinition{}, render.OfPolicy, namespace, name)
}

// Step returns the template of a workflow step type.
func (d appDefinitions) Step(namespace, name string) (*render.Template, error) {
	return find(d, d.steps, render.WorkflowStep, &oam.WorkflowStepDefinition{}, render.OfWorkflowStep, namespace, name)
}

// find looks for a definition in the Application's namespace, then in oam.SystemNamespace. A name
// with @ is a revision of a definition.
func find[T apiwriter.Object](d appDefinitions, kind *informer.Informer[T], called render.Kind, empty T, definition func(T) *render.Definition, namespace, name string) (*render.Template, error) {
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
			break // its first state is no longer kept
		}
		return d.compile(definitionKey{called, ns, base}, o.GetResourceVersion(), func() (*render.Definition, error) { return definition(o), nil })
	}
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		if fault := kind.Malformed(ns, base); fault != nil {
			return nil, unreadable{fault}
		}
	}
	return nil, fmt.Errorf("%s %s, in namespaces %s and %s: %w", called, name, namespace, oam.SystemNamespace, errNoDefinition)
}

// compile returns a definition's template. It compiles the definition if the cached template is of
// another version.
func (d appDefinitions) compile(key definitionKey, version string, definition func() (*render.Definition, error)) (*render.Template, error) {
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
	c.template, c.err = render.Compile(def, d.run)
	if errors.Is(c.err, plan.ErrNotYet) {
		return nil, fmt.Errorf("%s: %w", def, c.err)
	}
	d.mu.Lock()
	d.compiled[key] = c
	d.mu.Unlock()
	return c.template, c.err
}

func (d *definitions) forget(kind render.Kind, namespace, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.compiled, definitionKey{kind, namespace, name})
}
