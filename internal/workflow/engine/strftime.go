package engine

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// strftime maps the conversions of strftime to Go layouts, where Go has one.
var strftime = map[string]string{
	"a": "Mon", "A": "Monday", "b": "Jan", "B": "January", "c": "Mon Jan _2 15:04:05 2006", "d": "02", "D": "01/02/06",
	"e": "_2",
	"F": "2006-01-02", "h": "Jan", "H": "15", "I": "03", "m": "01", "M": "04", "p": "PM", "r": "03:04:05 PM", "R": "15:04",
	"S": "05", "T": "15:04:05", "v": "_2-Jan-2006", "x": "01/02/06", "X": "15:04:05", "y": "06", "Y": "2006", "z": "-0700",
	"Z":       "MST",
	"RFC3339": time.RFC3339,
}

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

// forms returns workflow.creationTimestamp and its forms, each named by a conversion of strftime.
func (g *globals) forms() template.Map {
	at := g.created
	forms := template.Map{creationTimestamp: at.Format(time.RFC3339)}
	for conversion, layout := range strftime {
		forms[creationTimestamp+"."+conversion] = at.Format(layout)
	}
	year, week := at.ISOWeek()
	weekday := int(at.Weekday())
	for conversion, text := range map[string]string{
		"C": fmt.Sprintf("%02d", at.Year()/100), "f": fmt.Sprintf("%06d", at.Nanosecond()/1000),
		"L": fmt.Sprintf("%03d", at.Nanosecond()/1e6),
		"G": strconv.Itoa(year), "g": fmt.Sprintf("%02d", year%100), "V": fmt.Sprintf("%02d", week),
		"j": fmt.Sprintf("%03d", at.YearDay()), "k": fmt.Sprintf("%2d", at.Hour()),
		"l": fmt.Sprintf("%2d", (at.Hour()+11)%12+1),
		"s": strconv.FormatInt(at.Unix(), 10), "u": strconv.Itoa((weekday+6)%7 + 1), "w": strconv.Itoa(weekday),
		"U": fmt.Sprintf("%02d", (at.YearDay()+6-weekday)/7), "W": fmt.Sprintf("%02d", (at.YearDay()+6-(weekday+6)%7)/7),
	} {
		forms[creationTimestamp+"."+conversion] = text
	}
	return forms
}
