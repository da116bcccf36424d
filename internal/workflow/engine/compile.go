package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/strategicpatch"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// compiled is a template with its tags parsed.
type compiled struct {
	*wf.Template
	// scope is the scope in which the template's references are looked up: local/x, namespaced/x or
	// cluster/x.
	scope   string
	program *template.Program // the fields that are resolved when a node is launched: not steps and dag
	groups  [][]*step
	dag     *dag
	results map[string]bool // names of steps and tasks whose result some text refers to
	// named is true if names of steps or tasks, or the dag's target, have variables: groups and dag
	// are not set, and each frame compiles the template again with the names resolved.
	named bool
}

// wants reports whether some text refers to the result of a step or task. The name in the text may
// have variables.
func (t *compiled) wants(name string) bool { return t.results[name] || t.results[""] }

// step is a step or task with its tags parsed.
type step struct {
	wf.WorkflowStep // without items and inline template, because it is copied for each item
	full            *wf.WorkflowStep
	program         *template.Program // all fields but when
	when            *template.Text
	loop            *template.Program // withItems, withParam and withSequence
	depends         condition         // only for tasks
	index           int               // group of a step, position of a task
}

func (s *step) loops() bool { return loops(s.full) }

func loops(s *wf.WorkflowStep) bool {
	return s.WithItems != nil || s.WithParam != "" || s.WithSequence != nil
}

// local returns a template that stands for the workflow as the caller: it has the scope of the
// workflow's own templates.
func (r *Run) local() *compiled {
	scope := "local/" + r.Workflow.Name
	if ref := r.Workflow.Spec.WorkflowTemplateRef; ref != nil {
		scope = scopeOf(ref.ClusterScope, ref.Name)
	}
	return &compiled{scope: scope}
}

func scopeOf(cluster bool, name string) string {
	if cluster {
		return "cluster/" + name
	}
	return "namespaced/" + name
}

// twiceTemplates is the fault of a workflow with templates of its own and with those of a template.
const twiceTemplates = "templates: cannot be used with workflowTemplateRef, whose templates would be replaced"

// load resolves workflowTemplateRef, stores all referenced templates in the status, and validates
// the spec.
func (r *Run) load() error {
	w := r.Workflow
	if err := validName(w.Name, nameMax); err != nil {
		return err
	}
	r.spec = ownSpec(&w.Spec)
	if ref := w.Spec.WorkflowTemplateRef; ref != nil {
		if w.Status.StoredWorkflowTemplateSpec == nil {
			if len(w.Spec.Templates) > 0 {
				return errors.New(twiceTemplates)
			}
			spec, found := r.librarySpec(ref.ClusterScope, ref.Name)
			if fault := r.malformed(ref.ClusterScope, ref.Name); !found && fault != nil {
				return fmt.Errorf("workflowTemplateRef: %w", fault)
			}
			if !found {
				return fmt.Errorf("workflowTemplateRef: %s not found", scopeOf(ref.ClusterScope, ref.Name))
			}
			merged, err := r.mergeTemplate(spec)
			if err != nil {
				return fmt.Errorf("workflowTemplateRef: %w", err)
			}
			w.Status.StoredWorkflowTemplateSpec, r.out.Status = merged, true
		}
		r.spec = ownSpec(w.Status.StoredWorkflowTemplateSpec)
	}
	faultless := r.config.Specs.faultless(r.spec)
	if !faultless {
		if err := Validate(r.spec, r.config.Evaluate); err != nil {
			return err
		}
	}
	if err := r.setGlobals(); err != nil {
		return err
	}
	local := r.local()
	seen := map[string]bool{}
	for i := range r.spec.Templates {
		if err := r.freeze(&r.spec.Templates[i], local.scope, seen); err != nil {
			return err
		}
	}
	calls := hookTargets(r.spec.Hooks)
	for _, name := range []string{r.spec.Entrypoint, r.spec.OnExit} {
		if name != "" {
			calls = append(calls, target{template: name})
		}
	}
	for _, c := range calls {
		if err := r.freezeTarget(c, local.scope, seen); err != nil {
			return err
		}
	}
	if faultless || len(w.Status.Nodes) > 0 {
		return nil // the spec was checked when the workflow started
	}
	c := references{spec: r.spec, find: r.find, parameters: map[string]bool{}, seen: map[string]bool{}}
	for i := range r.spec.Arguments.Parameters {
		c.parameters[r.spec.Arguments.Parameters[i].Name] = true
	}
	c.check(local.scope)
	// Stored templates come from the library, which may change.
	if len(c.findings) == 0 && len(w.Status.StoredTemplates) == 0 {
		r.config.Specs.noFault(r.spec)
	}
	return join(c.findings)
}

// mergeTemplate returns the spec of a workflow that refers to a template: its own fields, then those
// of the template, then the defaults.
func (r *Run) mergeTemplate(spec *wf.WorkflowSpec) (*wf.WorkflowSpec, error) {
	if r.config.Defaults != nil {
		with, err := MergeSpec(r.config.Defaults, spec)
		if err != nil {
			return nil, fmt.Errorf("defaults: %w", err)
		}
		spec = with
	}
	return MergeSpec(spec, &r.Workflow.Spec)
}

// ownSpec returns a copy of a spec for one run. The run sets its arguments; the rest is shared with
// other runs of the same spec.
func ownSpec(s *wf.WorkflowSpec) *wf.WorkflowSpec {
	own := *s
	own.Arguments = *s.Arguments.DeepCopy()
	return &own
}

func (r *Run) librarySpec(cluster bool, name string) (*wf.WorkflowSpec, bool) {
	if r.config.Library == nil {
		return nil, false
	}
	return r.config.Library.Spec(cluster, name)
}

// malformed returns the error that explains why an existing template of the library cannot be
// decoded, or nil.
func (r *Run) malformed(cluster bool, name string) error {
	if l, ok := r.config.Library.(interface{ Malformed(bool, string) error }); ok {
		return l.Malformed(cluster, name)
	}
	return nil
}

// MergeSpec returns base with the fields of over merged into it. Arguments are merged by name.
func MergeSpec(base, over *wf.WorkflowSpec) (*wf.WorkflowSpec, error) {
	out := &wf.WorkflowSpec{}
	if err := mergePatch(base, over, out); err != nil {
		return nil, err
	}
	out.Arguments.Parameters = slices.Clone(base.Arguments.Parameters)
	for _, p := range over.Arguments.Parameters {
		out.Arguments.Parameters = replaceOrAdd(out.Arguments.Parameters, p, func(q wf.Parameter) bool { return q.Name == p.Name })
	}
	out.WorkflowTemplateRef = nil
	return out.DeepCopy(), nil
}

// replaceOrAdd returns list with item in place of its like, or at the end.
func replaceOrAdd[T any](list []T, item T, like func(T) bool) []T {
	if i := slices.IndexFunc(list, like); i >= 0 {
		list[i] = item
		return list
	}
	return append(list, item)
}

// mergePatch merges over into base by strategic merge patch and stores the result in out.
func mergePatch[T any](base, over, out *T) error {
	a, err := json.Marshal(base)
	if err != nil {
		return err
	}
	b, err := json.Marshal(over)
	if err != nil {
		return err
	}
	merged, err := strategicpatch.StrategicMergePatch(a, b, *new(T))
	if err != nil {
		return err
	}
	return json.Unmarshal(merged, out)
}

// targets returns the calls that a template makes, including exit handlers and hooks.
func targets(t *wf.Template) []target {
	var out []target
	for _, s := range stepsOf(t) {
		out = append(out, target{s.Template, s.TemplateRef, s.Inline})
		if s.OnExit != "" {
			out = append(out, target{template: s.OnExit})
		}
		out = append(out, hookTargets(s.Hooks)...)
	}
	return out
}

func hookTargets(hooks wf.LifecycleHooks) (out []target) {
	for _, h := range hooks {
		out = append(out, target{h.Template, h.TemplateRef, nil})
	}
	return out
}

// stepsOf returns the steps and tasks of a template.
func stepsOf(t *wf.Template) (out []*wf.WorkflowStep) {
	for i := range t.Steps {
		for j := range t.Steps[i].Steps {
			out = append(out, &t.Steps[i].Steps[j])
		}
	}
	if t.DAG != nil {
		for i := range t.DAG.Tasks {
			s := asStep(&t.DAG.Tasks[i])
			out = append(out, &s)
		}
	}
	return out
}

// TemplateRefs returns the references of a spec's templates and hooks to templates of other objects.
func TemplateRefs(spec *wf.WorkflowSpec) (refs []*wf.TemplateRef) {
	calls := hookTargets(spec.Hooks)
	for i := range spec.Templates {
		calls = append(calls, targets(&spec.Templates[i])...)
	}
	for i := 0; i < len(calls); i++ { // grows by the calls of inline templates
		if c := calls[i]; c.ref != nil && !c.hasTags() {
			refs = append(refs, c.ref)
		} else if c.inline != nil {
			calls = append(calls, targets(c.inline)...)
		}
	}
	return refs
}

// freeze stores in the status every template outside the workflow that t refers to, directly or
// indirectly.
func (r *Run) freeze(t *wf.Template, scope string, seen map[string]bool) error {
	for _, c := range targets(t) {
		if err := r.freezeTarget(c, scope, seen); err != nil {
			return fmt.Errorf("templates.%s: %w", t.Name, err)
		}
	}
	return nil
}

func (r *Run) freezeTarget(c target, scope string, seen map[string]bool) error {
	if c.hasTags() {
		return nil // the name is known only when the arguments are
	}
	t, at, err := r.find(c, scope)
	if err != nil {
		return err
	}
	key := at + "/" + t.Name
	if c.inline == nil && seen[key] {
		return nil
	}
	seen[key] = true
	return r.freeze(t, at, seen)
}

// find looks up a template by its call and the scope of the caller. A template from the library is
// stored in the status.
func (r *Run) find(c target, scope string) (*wf.Template, string, error) {
	if c.inline != nil {
		return c.inline, scope, nil
	}
	scope, name := c.in(scope)
	if scope == r.local().scope {
		if t := templateNamed(r.spec, name); t != nil {
			return t, scope, nil
		}
	}
	key := scope + "/" + name
	if t, found := r.Workflow.Status.StoredTemplates[key]; found {
		return &t, scope, nil
	}
	kind, resource, _ := strings.Cut(scope, "/")
	if kind == "local" {
		return nil, "", fmt.Errorf("template name '%s' undefined", name)
	}
	spec, found := r.librarySpec(kind == "cluster", resource)
	if fault := r.malformed(kind == "cluster", resource); !found && fault != nil {
		return nil, "", fault
	}
	if !found {
		return nil, "", fmt.Errorf("workflow template %s not found", scope)
	}
	t := templateNamed(spec, name)
	if t == nil {
		return nil, "", fmt.Errorf("template %s not found in workflow template %s", name, scope)
	}
	if err := validateTemplate(t, r.config.Evaluate); err != nil {
		return nil, "", fmt.Errorf("%s: %w", scope, err)
	}
	put(&r.Workflow.Status.StoredTemplates, key, *t.DeepCopy())
	r.out.Status = true
	return t, scope, nil
}

// compiled returns the template of a call. The tags of each template are parsed once per run, or
// once for all runs that share a SpecCache.
func (r *Run) compiled(c target, scope string) (*compiled, error) {
	t, at, err := r.find(c, scope)
	if err != nil {
		return nil, err
	}
	key := at + "/" + t.Name
	if c.inline != nil {
		key = fmt.Sprintf("%s/inline/%p", at, c.inline)
	}
	if done := r.templates[key]; done != nil {
		return done, nil
	}
	declared := t
	if done := r.config.Specs.template(declared); done != nil {
		own := *done
		own.scope = at
		r.templates[key] = &own
		return &own, nil
	}
	if r.spec.TemplateDefaults != nil {
		with := &wf.Template{}
		if err := mergePatch(r.spec.TemplateDefaults, t, with); err != nil {
			return nil, fmt.Errorf("templateDefaults: %w", err)
		}
		t = with
	}
	if t.RetryStrategy == nil && r.spec.RetryStrategy != nil {
		copied := *t
		copied.RetryStrategy = r.spec.RetryStrategy
		t = &copied
	}
	out, err := compileTemplate(t, at)
	if err != nil {
		return nil, fmt.Errorf("template %s: %w", t.Name, err)
	}
	r.templates[key] = out
	if t == declared {
		r.config.Specs.compiled(out)
	}
	return out, nil
}

func compileTemplate(t *wf.Template, scope string) (*compiled, error) {
	out := &compiled{Template: t, scope: scope, results: map[string]bool{}}
	var err error
	if out.program, err = template.Compile(t, "steps", "dag", "name", "retryStrategy", "outputs", "synchronization",
		"memoize", "metrics"); err != nil {
		return nil, err
	}
	if out.named = namesHaveTags(t); out.named {
		return out, nil
	}
	for i := range t.Steps {
		var group []*step
		for j := range t.Steps[i].Steps {
			s, err := compileStep(&t.Steps[i].Steps[j], i)
			if err != nil {
				return nil, fmt.Errorf("steps[%d].%s: %w", i, t.Steps[i].Steps[j].Name, err)
			}
			group = append(group, s)
		}
		out.groups = append(out.groups, group)
	}
	if t.DAG != nil {
		if out.dag, err = compileDAG(t.DAG); err != nil {
			return nil, err
		}
	}
	if t.Steps != nil || t.DAG != nil {
		text, _ := json.Marshal(t)
		for _, word := range strings.FieldsFunc(string(text), func(c rune) bool {
			return strings.ContainsRune("{}()\"' =,;+[]?", c)
		}) {
			if name, found := strings.CutSuffix(word, ".outputs.result"); found {
				out.results[name[strings.Index(name, ".")+1:]] = true
			}
		}
	}
	return out, nil
}

// memberNames calls yield with every text of a steps or dag template that names steps or tasks.
func memberNames(t *wf.Template, yield func(*string)) {
	for i := range t.Steps {
		for j := range t.Steps[i].Steps {
			yield(&t.Steps[i].Steps[j].Name)
		}
	}
	if t.DAG == nil {
		return
	}
	yield(&t.DAG.Target)
	for i := range t.DAG.Tasks {
		task := &t.DAG.Tasks[i]
		yield(&task.Name)
		yield(&task.Depends)
		for j := range task.Dependencies {
			yield(&task.Dependencies[j])
		}
	}
}

func namesHaveTags(t *wf.Template) (found bool) {
	memberNames(t, func(text *string) { found = found || strings.Contains(*text, "{{") })
	return found
}

// withNames returns the template of t with the names of its steps and tasks resolved.
func (t *compiled) withNames(passes []template.Scope) (*compiled, error) {
	own := *t.Template
	own.Steps = slices.Clone(own.Steps)
	for i := range own.Steps {
		own.Steps[i].Steps = slices.Clone(own.Steps[i].Steps)
	}
	if own.DAG != nil {
		dag := *own.DAG
		dag.Tasks = slices.Clone(dag.Tasks)
		for i := range dag.Tasks {
			dag.Tasks[i].Dependencies = slices.Clone(dag.Tasks[i].Dependencies)
		}
		own.DAG = &dag
	}
	var fault error
	memberNames(&own, func(text *string) {
		resolved, err := resolveText(*text, passes, known...)
		if *text = resolved; err != nil && fault == nil {
			fault = err
		}
	})
	if fault != nil {
		return nil, fault
	}
	seen := map[string]bool{}
	for _, s := range stepsOf(&own) {
		if !nameOfMember(s.Name) || seen[s.Name] {
			return nil, fmt.Errorf("'%s' is not a name for a step or task, or not unique", shorten(s.Name))
		}
		seen[s.Name] = true
	}
	return compileTemplate(&own, t.scope)
}

// nameOfMember reports whether a text can be the name of a step or task.
func nameOfMember(name string) bool { return name != "" && !strings.ContainsAny(name, ". (){}") }

func compileStep(full *wf.WorkflowStep, index int) (*step, error) {
	s := &step{full: full, WorkflowStep: *full, index: index}
	s.WithItems, s.WithParam, s.WithSequence, s.Inline = nil, "", nil, nil
	var err error
	// Expressions of hooks are evaluated when nodes change; the variables that they refer to do not
	// exist yet.
	compiled := withoutOptional(&s.WorkflowStep)
	if s.program, err = template.Compile(&compiled, "name", "hooks", "when"); err != nil {
		return nil, err
	}
	if s.when, err = template.Parse(s.When); err != nil {
		return nil, fmt.Errorf("when: %w", err)
	}
	s.loop, err = template.CompileFields(full, "withItems", "withParam", "withSequence")
	return s, err
}

// check returns an error if an expression of the step does not compile.
func (s *step) check(run template.Run) error {
	return cmp.Or(prefixed("when", cmp.Or(s.when.Check(run), s.when.CheckWhen())), s.program.Check(run), s.loop.Check(run))
}

// prefixed returns an error with the name of a field before it, or nil.
func prefixed(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", field, err)
}

// withoutOptional returns the step without the sources of optional artifacts: the sources may be
// missing, and linkArtifacts resolves them.
func withoutOptional(s *wf.WorkflowStep) wf.WorkflowStep {
	out := *s
	out.Arguments.Artifacts = slices.Clone(out.Arguments.Artifacts)
	for i := range out.Arguments.Artifacts {
		if a := &out.Arguments.Artifacts[i]; a.Optional {
			a.From = ""
		}
	}
	return out
}

func asStep(t *wf.DAGTask) wf.WorkflowStep {
	return wf.WorkflowStep{
		Name: t.Name, Template: t.Template, TemplateRef: t.TemplateRef, Inline: t.Inline, Arguments: t.Arguments,
		WithItems: t.WithItems, WithParam: t.WithParam, WithSequence: t.WithSequence, When: t.When,
		ContinueOn: t.ContinueOn, OnExit: t.OnExit, Hooks: t.Hooks,
	}
}
