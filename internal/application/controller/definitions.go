package controller

import (
	"errors"
	"fmt"
	"strings"
	"sync"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/cluster"
)

// errNoDefinition is for names that no definition has: applications that use them look again when definitions change.
var errNoDefinition = errors.New("there is no such definition")

// definitions compiles definitions when they are first used and again when they have changed.
type definitions struct {
	components *cluster.Kind[*oam.ComponentDefinition]
	traits     *cluster.Kind[*oam.TraitDefinition]

	mu       sync.Mutex
	compiled map[definitionKey]compiled
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
	return d.find(render.Component, namespace, name, func(ns, name string) (string, func() *render.Definition, bool) {
		o, ok := d.components.Get(ns, name)
		if !ok {
			return "", nil, false
		}
		return o.ResourceVersion, func() *render.Definition { return render.OfComponent(o) }, true
	})
}

// Trait implements plan.Definitions.
func (d *definitions) Trait(namespace, name string) (*render.Template, error) {
	return d.find(render.Trait, namespace, name, func(ns, name string) (string, func() *render.Definition, bool) {
		o, ok := d.traits.Get(ns, name)
		if !ok {
			return "", nil, false
		}
		return o.ResourceVersion, func() *render.Definition { return render.OfTrait(o) }, true
	})
}

// find looks in the application's namespace first, then among the definitions that every namespace sees.
func (d *definitions) find(kind render.Kind, namespace, name string, get func(ns, name string) (string, func() *render.Definition, bool)) (*render.Template, error) {
	if base, pinned, ok := strings.Cut(name, "@"); ok {
		return nil, fmt.Errorf("%s %s: revisions of definitions cannot be named yet; leave out @%s", kind, base, pinned)
	}
	for _, ns := range []string{namespace, oam.SystemNamespace} {
		version, definition, ok := get(ns, name)
		if !ok {
			continue
		}
		key := definitionKey{kind, ns, name}
		d.mu.Lock()
		c, ok := d.compiled[key]
		d.mu.Unlock()
		if ok && c.version == version {
			return c.template, c.err
		}
		c = compiled{version: version}
		c.template, c.err = render.Compile(definition())
		d.mu.Lock()
		d.compiled[key] = c
		d.mu.Unlock()
		return c.template, c.err
	}
	return nil, fmt.Errorf("%s %s, in namespaces %s and %s: %w", kind, name, namespace, oam.SystemNamespace, errNoDefinition)
}

func (d *definitions) forget(kind render.Kind, namespace, name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.compiled, definitionKey{kind, namespace, name})
}
