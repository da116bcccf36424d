package plan

import (
	"errors"
	"fmt"
	"slices"

	"lockstep.dev/lockstep/internal/application/render"
)

// Late is the state of a component's late traits: those that are rendered from its live objects.
type Late struct {
	// Traits are the indexes of the late traits.
	Traits []int
	// Waiting is set if they have no objects in this plan. Err says why if the live objects exist.
	Waiting bool
	Err     error
	// read is the part of the live objects from which they were rendered.
	read string
}

// render returns the component's objects as the templates and, if the live objects exist, the late
// traits make them.
func (c *Component) render(in *Input, req *render.Request, work func(*render.Request) ([]Resource, []int, error)) ([]Resource, error) {
	resources, late, err := work(req)
	if err != nil || len(late) == 0 {
		return resources, err
	}
	c.Late = &Late{Traits: late, Waiting: true}
	part, err := c.livePart(in.Live, slices.All(resources))
	if err != nil || part == nil {
		return resources, err
	}
	c.Late.read = string(part)
	live := *req
	live.Live = part
	all, _, err := work(&live)
	switch {
	case errors.Is(err, ErrNotYet):
		return nil, err
	case err != nil: // what they read may come about
		c.Late.Err = err
		return resources, nil
	}
	c.Late.Waiting = false
	return all, nil
}

// livePart returns what the component's late traits read of the live objects among resources, or nil
// if the workload does not exist.
func (c *Component) livePart(live func(Ref) []byte, resources func(func(int, Resource) bool)) ([]byte, error) {
	if live == nil {
		return nil, nil
	}
	objects := &render.LiveObjects{Outputs: map[string][]byte{}}
	workload := false
	for _, r := range resources {
		if slices.Contains(c.Late.Traits, r.TraitIndex) {
			continue
		}
		there := live(r.Ref)
		switch {
		case r.Output == "":
			workload, objects.Output = true, there
		case there != nil:
			objects.Outputs[r.Output] = there
		}
	}
	if workload && objects.Output == nil || !workload && len(objects.Outputs) == 0 {
		return nil, nil
	}
	var uses []render.Use
	for _, t := range c.Traits {
		uses = append(uses, render.Use{Template: t.Template, Properties: t.Properties})
	}
	part, err := render.LivePart(uses, objects)
	if err != nil {
		return nil, fmt.Errorf("a live object: %w", err)
	}
	return part, nil
}

// LiveChanged reports whether late traits are to be rendered again, because what they read of live
// objects has changed. p may be nil.
func (p *Plan) LiveChanged(live func(Ref) []byte) bool {
	if p == nil {
		return false
	}
	for i := range p.Components {
		c := &p.Components[i]
		if c.Late == nil {
			continue
		}
		part, err := c.livePart(live, func(yield func(int, Resource) bool) {
			for _, at := range c.Resources {
				if !yield(at, p.Resources[at]) {
					return
				}
			}
		})
		if err == nil && part != nil && string(part) != c.Late.read {
			return true
		}
	}
	return false
}

// Waiting reports whether a component has late traits without objects. Which objects they would have
// is unknown, so none are removed. p may be nil.
func (p *Plan) Waiting() bool {
	return p != nil && slices.ContainsFunc(p.Components, func(c Component) bool { return c.Late != nil && c.Late.Waiting })
}
