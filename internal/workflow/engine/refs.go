package engine

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// finder looks up a template by its call and the scope of the caller. It also returns the
// template's scope.
type finder func(c target, scope string) (*wf.Template, string, error)

// references checks that the templates, arguments and variables that a spec's templates refer to
// exist. It reports only what is a fault in every run of the workflow; with lint set it also adds
// warnings.
type references struct {
	checker
	find       finder
	spec       *wf.WorkflowSpec
	parameters map[string]bool // names of the workflow's parameters; nil if unknown
	lint       bool            // also warn about what may be intended
	// seen are the templates of other scopes that were checked; nil: such templates are not
	// checked.
	seen map[string]bool
}

// check checks the templates of the spec, and its entrypoint, exit handler and hooks.
func (c *references) check(scope string) {
	for i := range c.spec.Templates {
		t := &c.spec.Templates[i]
		c.template(t, scope, place{}.named("templates", i, t.Name), nil)
	}
	start := func(p place, call target) {
		if call.hasTags() {
			return
		}
		t, _, err := c.find(call, scope)
		if err != nil {
			c.add(p, "%s", err)
			return
		}
		c.arguments(c.spec.Arguments, t, p, true)
	}
	if c.spec.Entrypoint != "" {
		start(place{}.at("entrypoint"), target{template: c.spec.Entrypoint})
	}
	if c.spec.OnExit != "" {
		start(place{}.at("onExit"), target{template: c.spec.OnExit})
	}
	root := &wf.Template{Name: "the workflow"}
	for _, name := range []string{c.spec.Entrypoint, c.spec.OnExit} {
		root.Steps = append(root.Steps, wf.ParallelSteps{Steps: []wf.WorkflowStep{{Template: name}}})
	}
	c.deadlock(root, scope, mutexes(c.spec.Synchronization), place{}.at("synchronization"), map[*wf.Template]bool{})
	c.hooks(c.spec.Hooks, scope, place{})
}

func (c *references) hooks(hooks wf.LifecycleHooks, scope string, p place) {
	for _, name := range sortedKeys(hooks) {
		h := hooks[name]
		if strings.Contains(h.Template, "{{") {
			continue
		}
		at := p.at("hooks." + name)
		t, _, err := c.find(target{template: h.Template, ref: h.TemplateRef}, scope)
		if err != nil {
			c.add(at.at("template"), "%s", err)
			continue
		}
		args := h.Arguments
		own := p.field == "" && len(args.Parameters)+len(args.Artifacts) == 0
		if own {
			args = c.spec.Arguments
		}
		c.arguments(args, t, at, own)
	}
}

// arguments checks that a call supplies every input parameter that has no value of its own.
// submitted is true for the arguments of the spec: their values may come when it is submitted, and
// those of a WorkflowTemplate may come whole with the workflow that uses it.
func (c *references) arguments(args wf.Arguments, t *wf.Template, p place, submitted bool) {
	if submitted && c.parameters == nil {
		return
	}
	for i := range args.Parameters {
		a := &args.Parameters[i]
		at := slices.IndexFunc(t.Inputs.Parameters, func(in wf.Parameter) bool { return in.Name == a.Name })
		if at >= 0 && constant(a.Value) && !allows(&t.Inputs.Parameters[at], *a.Value) {
			c.add(p.at("arguments").named("parameters", i, a.Name).at("value"), "%s", notInEnum(&t.Inputs.Parameters[at], *a.Value))
		}
	}
	for i := range t.Inputs.Artifacts {
		in := &t.Inputs.Artifacts[i]
		given := slices.ContainsFunc(args.Artifacts, func(a wf.Artifact) bool { return a.Name == in.Name })
		if !given && !in.Optional && in.ArtifactLocation == (wf.ArtifactLocation{}) && c.spec.TemplateDefaults == nil {
			c.add(p.at("arguments"), "inputs.artifacts.%s was not supplied, which template %s needs", in.Name, t.Name)
		}
	}
	for _, in := range t.Inputs.Parameters {
		if in.Value != nil || in.Default != nil || in.ValueFrom != nil {
			continue
		}
		given := slices.ContainsFunc(args.Parameters, func(a wf.Parameter) bool {
			return a.Name == in.Name && (submitted || a.Value != nil || a.Default != nil || a.ValueFrom != nil)
		})
		if !given && c.spec.TemplateDefaults == nil {
			c.add(p.at("arguments"), "inputs.parameters.%s was not supplied, which template %s needs", in.Name, t.Name)
		}
	}
}

// view is the set of names that the texts of a template may refer to.
type view struct {
	template *wf.Template
	outer    *view // of the template around an inline template
	members  map[string]*memberView
	viewer   *memberView // the step or task whose texts are checked; nil sees all members
	dag      *dag
	named    bool // names of members have variables: any reference may be to one of them
}

// memberView is a step or task with what other members may refer to.
type memberView struct {
	step   *wf.WorkflowStep
	called *wf.Template // nil if unknown
	index  int          // group of a step, position of a task
}

func (c *references) template(t *wf.Template, scope string, p place, outer *view) {
	v := &view{template: t, outer: outer, members: map[string]*memberView{}}
	if program, err := template.Compile(t, "steps", "dag", "name", "metrics", "outputs"); err == nil {
		c.names(program, p, v)
	}
	add := func(s *wf.WorkflowStep, index int, at place) *memberView {
		m := &memberView{step: s, index: index}
		if s.Template != "" || s.TemplateRef != nil || s.Inline != nil {
			called := target{s.Template, s.TemplateRef, s.Inline}
			var err error
			var from string
			if m.called, from, err = c.find(called, scope); err == nil && from != scope && c.seen != nil &&
				!c.seen[from+"/"+m.called.Name] {
				c.seen[from+"/"+m.called.Name] = true
				name := from + "." + m.called.Name
				c.template(m.called, from, place{"." + name, "." + name}, nil)
			} else if err != nil && !called.hasTags() {
				c.add(at.at("template"), "%s", err)
			}
		}
		v.members[s.Name] = m
		return m
	}
	type visit struct {
		member *memberView
		at     place
	}
	var visits []visit
	for i := range t.Steps {
		for j := range t.Steps[i].Steps {
			s := &t.Steps[i].Steps[j]
			at := stepPlace(p, i, j, s.Name)
			visits = append(visits, visit{add(s, i, at), at})
		}
	}
	v.named = namesHaveTags(t)
	if t.DAG != nil {
		if !v.named {
			v.dag, _ = compileDAG(t.DAG)
		}
		for i := range t.DAG.Tasks {
			s := asStep(&t.DAG.Tasks[i])
			at := p.at("dag").named("tasks", i, s.Name)
			visits = append(visits, visit{add(&s, i, at), at})
		}
	}
	for _, call := range visits {
		own := *v
		own.viewer = call.member
		c.call(call.member, scope, call.at, &own)
	}
	if t.Steps != nil || t.DAG != nil {
		c.deadlock(t, scope, mutexes(t.Synchronization), p.at("synchronization"), map[*wf.Template]bool{})
		c.frameOutputs(t, p.at("outputs"), v)
	}
}

// mutexes returns the mutexes of a synchronization whose names have no variables, as namespace/name.
func mutexes(s *wf.Synchronization) (names []string) {
	if s == nil {
		return nil
	}
	for _, m := range s.AllMutexes() {
		name := m.Namespace + "/" + m.Name
		if m.Database {
			name += " of the database"
		}
		if !strings.Contains(name, "{{") {
			names = append(names, name)
		}
	}
	return names
}

// deadlock reports a template that t calls in every run and that wants a mutex of held: held is
// released when all that was called is done.
func (c *references) deadlock(t *wf.Template, scope string, held []string, p place, seen map[*wf.Template]bool) {
	if len(held) == 0 || seen[t] {
		return
	}
	seen[t] = true
	for i, s := range stepsOf(t) {
		maybe := s.When != "" || s.WithParam != "" || s.WithSequence != nil ||
			t.DAG != nil && (t.DAG.Target != "" || t.DAG.Tasks[i].Depends != "")
		call := target{s.Template, s.TemplateRef, s.Inline}
		if maybe || call == (target{}) || call.hasTags() {
			continue
		}
		called, from, err := c.find(call, scope)
		if err != nil {
			continue
		}
		for _, name := range mutexes(called.Synchronization) {
			if slices.Contains(held, name) {
				_, name, _ = strings.Cut(name, "/")
				c.add(p, "step %s, which runs while the mutex '%s' is held here, wants it too: it would wait for ever",
					cmp.Or(s.Name, called.Name), name)
				return
			}
		}
		c.deadlock(called, from, held, p, seen)
	}
}

func (c *references) call(m *memberView, scope string, p place, v *view) {
	s := m.step
	if m.called != nil {
		c.arguments(s.Arguments, m.called, p, false)
	}
	plain := withoutOptional(s)
	plain.Inline = nil
	if program, err := template.Compile(&plain, "name", "hooks"); err == nil {
		c.names(program, p, v)
	}
	c.hooks(s.Hooks, scope, p)
	if s.OnExit != "" && !strings.Contains(s.OnExit, "{{") {
		if _, _, err := c.find(target{template: s.OnExit}, scope); err != nil {
			c.add(p.at("onExit"), "%s", err)
		}
	}
	if s.Inline != nil {
		c.template(s.Inline, scope, p.at("inline"), v)
	}
}

// frameOutputs checks the variables in the outputs of a steps or dag template.
func (c *references) frameOutputs(t *wf.Template, p place, v *view) {
	for i := range t.Outputs.Parameters {
		o := t.Outputs.Parameters[i]
		if o.ValueFrom != nil && (o.ValueFrom.Default != nil || o.ValueFrom.Expression != "") {
			continue
		}
		if program, err := template.Compile(&o, "name"); err == nil {
			c.names(program, p.named("parameters", i, o.Name), v)
		}
	}
}

func (c *references) names(program *template.Program, p place, v *view) {
	program.Names(func(where, name string, guarded bool) {
		if guarded {
			return
		}
		switch c.resolves(name, v) {
		case never:
			c.add(p.at(where), "failed to resolve {{%s}}", name)
		case literally:
			if c.lint {
				c.add(p.at(where), "{{%s}} is not a variable here, and stays as it is", name)
				c.findings[len(c.findings)-1].warning = true
			}
		}
	})
}

// verdict says whether a variable can be resolved.
type verdict int

const (
	maybe     verdict = iota
	never             // its namespace has no such variable
	literally         // it is in no namespace: the text stays as it is
)

// ofWorkflow are the workflow's variables, without the prefix "workflow."; ofWorkflowBelow are
// prefixes of further ones. ofNode are the variables of a step or task.
var (
	ofWorkflow = []string{
		"name", "namespace", "uid", "serviceAccountName", "mainEntrypoint", "priority", "scheduledTime", "creationTimestamp",
		"duration",
		"status", "failures", "parameters", "labels", "annotations", "outputs",
	}
	ofWorkflowBelow = []string{"creationTimestamp.", "labels.", "annotations.", "outputs.", "parameters.json"}
	ofNode          = []string{"id", "startedAt", "finishedAt", "hostNodeName", "ip", "status", "exitCode", "outputs",
		"outputs.result", "outputs.parameters", "outputs.artifacts"}
)

func (c *references) resolves(name string, v *view) verdict {
	found := func(is bool) verdict {
		if is {
			return maybe
		}
		return never
	}
	space, rest, _ := strings.Cut(name, ".")
	switch space {
	case "workflow":
		if parameter, is := strings.CutPrefix(rest, "parameters."); is && parameter != "json" {
			return found(c.parameters == nil || c.parameters[parameter])
		}
		below := func(prefix string) bool { return strings.HasPrefix(rest, prefix) }
		return found(rest == "" || slices.Contains(ofWorkflow, rest) || slices.ContainsFunc(ofWorkflowBelow, below))
	case "inputs", "outputs":
		for at := v; at != nil; at = at.outer {
			if at.declares(space, rest) {
				return maybe
			}
		}
		return never
	case "steps", "tasks":
		return found(rest == "" || rest == "name" || v.mentions(space, rest) ||
			v.outer != nil && v.outer.mentions(space, rest))
	case "pod", "node":
		return found(rest == "name" || rest == "")
	case "item":
		for at := v; at != nil; at = at.outer {
			if m := at.viewer; m != nil && loops(m.step) {
				return found(itemsHave(m.step.WithItems, rest))
			}
		}
		if rest == "" {
			return literally
		}
		return never
	case "retries", "lastRetry", "status", "exitCode", "duration", "cronworkflow":
		return maybe
	}
	return literally
}

// itemsHave reports whether an item has the key, or may have it: those of withParam are not known yet.
func itemsHave(items []wf.Item, key string) bool {
	if items == nil || key == "" {
		return true
	}
	first, _, _ := strings.Cut(key, ".")
	return slices.ContainsFunc(items, func(item wf.Item) bool {
		fields := map[string]json.RawMessage{}
		if err := json.Unmarshal(item.Raw, &fields); err != nil {
			return strings.HasPrefix(string(item.Raw), "[")
		}
		return fields[key] != nil || fields[first] != nil
	})
}

// declares reports whether the template declares the input or output that rest names.
func (v *view) declares(space, rest string) bool {
	parameters, artifacts := v.template.Inputs.Parameters, v.template.Inputs.Artifacts
	if space == "outputs" {
		parameters, artifacts = v.template.Outputs.Parameters, v.template.Outputs.Artifacts
	}
	kind, name, more := strings.Cut(rest, ".")
	switch {
	case !more:
		return kind == "" || kind == "parameters" || kind == "artifacts"
	case kind == "parameters":
		return slices.ContainsFunc(parameters, func(p wf.Parameter) bool {
			return p.Name == name && space == "inputs" || p.Name+".path" == name && space == "outputs"
		})
	case kind == "artifacts":
		return slices.ContainsFunc(artifacts, func(a wf.Artifact) bool { return a.Name == name || a.Name+".path" == name })
	}
	return false
}

// mentions reports whether a member that the viewer sees has the variable that rest names.
func (v *view) mentions(space, rest string) bool {
	if (space == "tasks") != (v.template.DAG != nil) {
		return false
	}
	name, variable, _ := strings.Cut(rest, ".")
	m := v.members[name]
	if v.named && m == nil {
		return true
	}
	if m == nil || !v.sees(m) {
		return false
	}
	if variable == "" || slices.Contains(ofNode, variable) || m.called == nil {
		return true
	}
	if output, found := strings.CutPrefix(variable, "outputs.parameters."); found {
		return slices.ContainsFunc(m.called.Outputs.Parameters, func(p wf.Parameter) bool { return p.Name == output })
	}
	if output, found := strings.CutPrefix(variable, "outputs.artifacts."); found {
		return slices.ContainsFunc(m.called.Outputs.Artifacts, func(a wf.Artifact) bool {
			return a.Name == output
		}) || m.called.ContainerSet != nil
	}
	return false
}

func (v *view) sees(m *memberView) bool {
	switch {
	case v.viewer == nil || v.viewer == m:
		return true
	case v.template.DAG == nil:
		return m.index < v.viewer.index
	}
	return v.dag == nil || v.dag.ancestor(v.viewer.index, m.index)
}
