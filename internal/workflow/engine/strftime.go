package engine

import (
	"fmt"
	"strings"
	"time"

	"github.com/itchyny/timefmt-go"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// conversions are the conversions of strftime in forms of workflow.creationTimestamp.
const conversions = "aAbBcCdDeFfgGhHIjklmMprRsSTuUvVwWxXyYzZ"

// globals is the scope of the variables of the whole workflow.
type globals struct {
	template.Map
	// created is the time that workflow.creationTimestamp and its forms show. The forms are
	// computed on demand, because there are about forty, few are used, and there may be thousands
	// of workflows.
	created time.Time
	// evaluate is Config.Evaluate.
	evaluate template.Run
}

const creationTimestamp = "workflow.creationTimestamp"

// Lookup implements template.Scope. The workflow's clock stands at the workflow's creation time.
func (g *globals) Lookup(name string) (template.Value, bool) {
	if name == template.Clock {
		return template.Value{Typed: g.created}, true
	}
	if name == template.Seed {
		return template.Value{Text: g.Map["workflow.uid"]}, true
	}
	if name == template.Runner {
		return template.Value{Typed: g.evaluate}, true
	}
	if strings.HasPrefix(name, creationTimestamp) {
		return g.forms().Lookup(name)
	}
	return g.Map.Lookup(name)
}

// Walk implements template.Scope.
func (g *globals) Walk(prefix string, yield func(string, template.Value)) {
	if strings.HasPrefix(prefix, creationTimestamp) || strings.HasPrefix(creationTimestamp, prefix) {
		g.forms().Walk(prefix, yield)
	}
	g.Map.Walk(prefix, yield)
}

// globalsOf is the scope of the globals for one node: the node's clock stands at its start time,
// also when another manager loads the workflow and evaluates the node's texts again.
type globalsOf struct {
	*globals
	run  *Run
	node string // the node's name
}

const workflowDuration = "workflow.duration"

// Lookup implements template.Scope.
func (g *globalsOf) Lookup(name string) (template.Value, bool) {
	switch name {
	case workflowDuration:
		return template.Value{Text: g.duration()}, true
	case template.Clock:
		return template.Value{Typed: g.now()}, true
	case template.Seed:
		return template.Value{Text: g.Map["workflow.uid"] + "/" + g.node}, true
	}
	return g.globals.Lookup(name)
}

// Walk implements template.Scope.
func (g *globalsOf) Walk(prefix string, yield func(string, template.Value)) {
	if strings.HasPrefix(workflowDuration, prefix) {
		yield(workflowDuration, template.Value{Text: g.duration()})
	}
	g.globals.Walk(prefix, yield)
}

// now returns the node's start time in whole seconds, as the status has it, or the time of the Step
// if the node has not started.
func (g *globalsOf) now() time.Time {
	at := g.run.now
	if n := g.run.nodes[wf.NodeID(g.run.Workflow.Name, g.node)]; n != nil && !n.StartedAt.IsZero() {
		at = n.StartedAt.Time
	}
	return at.UTC().Truncate(time.Second)
}

func (g *globalsOf) duration() string {
	return seconds(g.run.Workflow.Status.StartedAt.Truncate(time.Second), g.now())
}

// globalsFor returns the globals for the node of that name.
func (r *Run) globalsFor(node string) *globalsOf { return &globalsOf{r.globals, r, node} }

// forms returns workflow.creationTimestamp and its forms: each is named by a conversion of strftime,
// or RFC3339, or L for the milliseconds.
func (g *globals) forms() template.Map {
	text, base := g.created.Format(time.RFC3339), creationTimestamp+"."
	forms := template.Map{creationTimestamp: text, base + "RFC3339": text, base + "L": fmt.Sprintf("%03d", g.created.Nanosecond()/1e6)}
	for _, c := range conversions {
		forms[base+string(c)] = timefmt.Format(g.created, "%"+string(c))
	}
	return forms
}
