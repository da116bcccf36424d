package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"

	"k8s.io/client-go/rest"

	"lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cluster"
)

// errNoDefinition is for names that no definition has: applications that use them look again when definitions change.
var errNoDefinition = errors.New("there is no such definition")

// definitions compiles definitions when they are first used and again when they have changed. It also knows the policies
// and workflows that several applications share.
type definitions struct {
	components *cluster.Kind[*oam.ComponentDefinition]
	traits     *cluster.Kind[*oam.TraitDefinition]
	policies   *cluster.Kind[*oam.PolicyDefinition]
	steps      *cluster.Kind[*oam.WorkflowStepDefinition]

	sharedPolicies  *cluster.Kind[*v1alpha1.Policy]
	sharedWorkflows *cluster.Kind[*v1alpha1.Workflow]

	mu       sync.Mutex
	compiled map[definitionKey]compiled
}

func newDefinitions(beta, alpha rest.Interface) *definitions {
	return &definitions{
		components:      cluster.Watch(beta, "componentdefinitions", "", &oam.ComponentDefinition{}, nil),
		traits:          cluster.Watch(beta, "traitdefinitions", "", &oam.TraitDefinition{}, nil),
		policies:        cluster.Watch(beta, "policydefinitions", "", &oam.PolicyDefinition{}, nil),
		steps:           cluster.Watch(beta, "workflowstepdefinitions", "", &oam.WorkflowStepDefinition{}, nil),
		sharedPolicies:  cluster.Watch(alpha, "policies", "", &v1alpha1.Policy{}, nil),
		sharedWorkflows: cluster.Watch(alpha, "workflows", "", &v1alpha1.Workflow{}, nil),
		compiled:        map[definitionKey]compiled{},
	}
}

// watched is a watch.
type watched interface {
	Run(ctx context.Context)
	Synced() bool
}

// watched are the watches, to be run and waited for.
func (d *definitions) watched() []watched {
	return []watched{d.components, d.traits, d.policies, d.steps, d.sharedPolicies, d.sharedWorkflows}
}

// handle calls changed after changes.
func (d *definitions) handle(changed func()) error {
	return errors.Join(
		handleKind(d, d.components, render.Component, changed), handleKind(d, d.traits, render.Trait, changed),
		handleKind(d, d.policies, render.Policy, changed), handleKind(d, d.steps, render.WorkflowStep, changed),
		handleKind(d, d.sharedPolicies, "", changed), handleKind(d, d.sharedWorkflows, "", changed),
	)
}

func handleKind[T apiwriter.Object](d *definitions, kind *cluster.Kind[T], name render.Kind, changed func()) error {
	return kind.Handle(cluster.Handler[T]{
		Added:   func(T) { changed() },
		Updated: func(_, _ T) { changed() },
		Deleted: func(o T) { d.forget(name, o.GetNamespace(), o.GetName()); changed() },
	})
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

// Component implements plan.Definitions.
func (d *definitions) Component(namespace, name string) (*render.Template, error) {
	return find(d, d.components, render.Component, render.OfComponent, namespace, name)
}

// Trait implements plan.Definitions.
func (d *definitions) Trait(namespace, name string) (*render.Template, error) {
	return find(d, d.traits, render.Trait, render.OfTrait, namespace, name)
}

// Policy implements plan.Definitions.
func (d *definitions) Policy(namespace, name string) (*render.Template, error) {
	return find(d, d.policies, render.Policy, render.OfPolicy, namespace, name)
}

// Step is the definition of a type of step.
func (d *definitions) Step(namespace, name string) (*render.Template, error) {
	return find(d, d.steps, render.WorkflowStep, render.OfWorkflowStep, namespace, name)
}

// find looks in the application's namespace first, then among the definitions that every namespace sees.
func find[T apiwriter.Object](d *definitions, kind *cluster.Kind[T], called render.Kind, definition func(T) *render.Definition, namespace, name string) (*render.Template, error) {
	if base, pinned, ok := strings.Cut(name, "@"); ok {
		return nil, fmt.Errorf("%s %s: revisions of definitions cannot be named yet; leave out @%s", called, base, pinned)
	}
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		o, ok := kind.Get(ns, name)
		if !ok {
			continue
		}
		key := definitionKey{called, ns, name}
		d.mu.Lock()
		c, ok := d.compiled[key]
		d.mu.Unlock()
		if ok && c.version == o.GetResourceVersion() {
			return c.template, c.err
		}
		c = compiled{version: o.GetResourceVersion()}
		c.template, c.err = render.Compile(definition(o))
		d.mu.Lock()
		d.compiled[key] = c
		d.mu.Unlock()
		return c.template, c.err
	}
	return nil, fmt.Errorf("%s %s, in namespaces %s and %s: %w", called, name, namespace, oam.SystemNamespace, errNoDefinition)
}

func (d *definitions) forget(kind render.Kind, namespace, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.compiled, definitionKey{kind, namespace, name})
}
