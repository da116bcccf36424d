package controller

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/rawjson"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/settings"
)

// generation is a configuration in force, with the caches of the specs that began under it. Runs
// share compiled parts of a spec only if their settings are the same, and defaults change them.
type generation struct {
	*settings.Settings
	specs, specsWithDefaults engine.SpecCache
}

// configured returns the configuration in force.
func (c *Controller) configured() *generation {
	now := c.Settings()
	for {
		g := c.generation.Load()
		if g != nil && g.Settings == now {
			return g
		}
		next := &generation{Settings: now}
		if c.generation.CompareAndSwap(g, next) {
			return next
		}
	}
}

// Configured takes in that Settings has a new answer. Workflows that have begun keep their specs.
func (c *Controller) Configured() {
	if old := c.generation.Load(); old == nil || old.InstanceID != c.configured().InstanceID {
		c.taken.changing() // workflows of another controller are this one's from now on
	}
	c.countRunning()
	c.retire()
	c.locks.database.wake()
	c.Rebalance()
}

// events returns the changes of which users get events: flags has those of the manager's flags.
func (g *generation) events(flags Events) Events {
	if g.WorkflowEvents != nil {
		flags.Workflows = *g.WorkflowEvents
	}
	if g.NodeEvents != nil {
		flags.Nodes = *g.NodeEvents
	}
	return flags
}

// defaults are what workflowDefaults add to a workflow and no write has stored yet.
type defaults struct {
	of    *settings.Defaults
	patch statusPatch // of the spec
}

// configure applies the configuration to a workflow that is about to begin, or that is loaded
// again: its defaults if it is new, and its restrictions. It returns the cache for its spec, and
// the error with which the workflow has to end.
func (c *Controller) configure(r *record, own *wf.Workflow, config *generation) (*engine.SpecCache, error) {
	if own.Status.Phase.Completed() {
		return &config.specs, nil
	}
	if err := config.Refuses(&own.Spec); err != nil {
		return &config.specs, err
	}
	if config.Restriction == settings.Secure {
		if err := c.secure(own, config); err != nil {
			return &config.specs, err
		}
	}
	if config.Defaults == nil || own.Status.Phase != wf.WorkflowUnknown {
		return &config.specs, nil
	}
	r.extraLabels = settings.Added(own.Labels, config.Defaults.Metadata.Labels)
	r.extraAnnotations = settings.Added(own.Annotations, config.Defaults.Metadata.Annotations)
	own.Labels, own.Annotations = merged(own.Labels, r.extraLabels), merged(own.Annotations, r.extraAnnotations)
	if own.Spec.WorkflowTemplateRef != nil {
		return &config.specs, nil // the engine merges the defaults below the template
	}
	r.defaults = &defaults{of: config.Defaults}
	own.Spec = *c.withDefaults(r, own)
	return &config.specsWithDefaults, nil
}

// withDefaults returns the spec of a workflow with the defaults that no write has stored yet.
func (c *Controller) withDefaults(r *record, w *wf.Workflow) *wf.WorkflowSpec {
	if r.defaults == nil {
		return &w.Spec
	}
	spec, err := r.defaults.of.Merge(&w.Spec)
	if err == nil {
		r.defaults.patch, err = specPatch(&w.Spec, spec)
	}
	if err != nil {
		c.Log.Warn("a workflow gets no defaults", "workflow", r.key, "error", err)
		r.defaults = nil
		return &w.Spec
	}
	return spec
}

// specPatch returns the patch that sets the fields in which a spec differs from before.
func specPatch(before, after *wf.WorkflowSpec) (p statusPatch, err error) {
	fields := func(spec *wf.WorkflowSpec) (map[string]string, error) {
		own := *spec
		own.Templates = nil
		data, err := json.Marshal(&own)
		if err != nil {
			return nil, err
		}
		out := map[string]string{}
		return out, rawjson.Members(data, func(m rawjson.Member) bool {
			out[string(m.Name)] = string(data[m.From:m.End])
			return true
		})
	}
	old, err := fields(before)
	if err != nil {
		return nil, err
	}
	now, err := fields(after)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(now)) {
		if old[name] != now[name] {
			p.add("/spec/"+name, json.RawMessage(now[name]))
		}
	}
	if len(after.Templates) != len(before.Templates) {
		p.add("/spec/templates", after.Templates)
	}
	return p, nil
}

// errTemplateChanged ends a workflow whose status has templates that its references do not have.
var errTemplateChanged = errors.New("a template that it refers to has changed since it began, or its status was changed")

// secure makes a workflow run what its templates have: it drops the copies in the status, from
// which the engine would run, after it has compared their templates.
func (c *Controller) secure(own *wf.Workflow, config *generation) error {
	library := templateLibrary{c, own.Namespace}
	if stored := own.Status.StoredWorkflowTemplateSpec; stored != nil {
		ref := own.Spec.WorkflowTemplateRef
		spec, found := library.Spec(ref.ClusterScope, ref.Name)
		if found && config.Defaults != nil {
			with, err := engine.MergeSpec(&config.Defaults.Spec, spec)
			if err != nil {
				return fmt.Errorf("workflowDefaults: %w", err)
			}
			spec = with
		}
		if !found || !equality.Semantic.DeepEqual(spec.Templates, stored.Templates) {
			return fmt.Errorf("workflowTemplateRef: %w", errTemplateChanged)
		}
	}
	for key, stored := range own.Status.StoredTemplates {
		scope, rest, _ := strings.Cut(key, "/")
		name, of, _ := strings.Cut(rest, "/")
		spec, found := library.Spec(scope == "cluster", name)
		if !found || !slices.ContainsFunc(spec.Templates, func(t wf.Template) bool {
			return t.Name == of && equality.Semantic.DeepEqual(t, stored)
		}) {
			return fmt.Errorf("templateRef %s/%s: %w", name, of, errTemplateChanged)
		}
	}
	own.Status.StoredWorkflowTemplateSpec, own.Status.StoredTemplates = nil, nil
	return nil
}

// logFailed logs the spec of a failed pod. The watch does not keep specs, so it is built again; the
// pod of an earlier manager is not logged.
func (c *Controller) logFailed(r *record, p *nodePod) {
	if p.create == nil || r.run == nil || r.repository == nil {
		return
	}
	options, err := c.podOptions(r)
	if err != nil {
		return
	}
	if pod, err := c.build(r, p.create, options); err == nil {
		c.logSpec(r, p.name, &pod.Spec)
	}
}

// logSpec logs the spec of a pod.
func (c *Controller) logSpec(r *record, name string, spec any) {
	text, err := json.Marshal(spec)
	c.Log.Info("the spec of a pod", "workflow", r.key, "pod", name, "spec", string(text), "error", err)
}
