package engine

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/cron/schedule"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Problem is one fault of an object.
type Problem struct {
	Object                runtime.Object
	Kind, Namespace, Name string // of the object
	Field                 string // path of the field: spec.templates[0].steps[1][0].when
	// Where is Field with names in place of indexes: spec.templates.main.steps[1].check.when.
	Where   string
	Message string
	Warning bool // the field may be intended
}

func (p Problem) String() string { return fmt.Sprintf("%s: %s", p.Where, p.Message) }

// Lint checks Workflows, WorkflowTemplates, ClusterWorkflowTemplates and CronWorkflows; it skips
// other objects. The objects may refer to each other and to the library, which may be nil. Problems
// are in the order of the objects. run compiles the expressions that are not cheap.
func Lint(objects []runtime.Object, library Library, run template.Run) []Problem {
	l := linter{specs: map[string]*wf.WorkflowSpec{}, library: library, run: run}
	for _, o := range objects {
		switch o := o.(type) {
		case *wf.WorkflowTemplate:
			l.specs[scopeOf(false, o.Name)] = &o.Spec
		case *wf.ClusterWorkflowTemplate:
			l.specs[scopeOf(true, o.Name)] = &o.Spec
		}
	}
	for _, o := range objects {
		switch o := o.(type) {
		case *wf.Workflow:
			name := cmp.Or(o.Name, o.GenerateName)
			l.object = Problem{Object: o, Kind: "Workflow", Namespace: o.Namespace, Name: name}
			l.name(nameMax)
			l.workflow(&o.Spec, "spec", "local/"+name, true)
		case *wf.WorkflowTemplate:
			l.object = Problem{Object: o, Kind: "WorkflowTemplate", Namespace: o.Namespace, Name: o.Name}
			l.name(nameMax)
			l.workflow(&o.Spec, "spec", scopeOf(false, o.Name), false)
		case *wf.ClusterWorkflowTemplate:
			l.object = Problem{Object: o, Kind: "ClusterWorkflowTemplate", Name: o.Name}
			l.name(nameMax)
			l.workflow(&o.Spec, "spec", scopeOf(true, o.Name), false)
		case *wf.CronWorkflow:
			l.object = Problem{Object: o, Kind: "CronWorkflow", Namespace: o.Namespace, Name: o.Name}
			l.cron(o)
		}
	}
	return l.problems
}

type linter struct {
	specs    map[string]*wf.WorkflowSpec // the templates among the objects, by scope
	library  Library
	run      template.Run
	object   Problem // kind and name of the object being checked
	problems []Problem
}

func (l *linter) report(prefix string, findings []finding) {
	join := func(field string) string { return strings.TrimSuffix(prefix+"."+field, ".") }
	for _, f := range findings {
		p := l.object
		p.Field, p.Where, p.Message, p.Warning = join(f.field), join(f.where), f.message, f.warning
		l.problems = append(l.problems, p)
	}
}

func (l *linter) spec(cluster bool, name string) (*wf.WorkflowSpec, bool) {
	if spec, found := l.specs[scopeOf(cluster, name)]; found {
		return spec, true
	}
	if l.library == nil {
		return nil, false
	}
	return l.library.Spec(cluster, name)
}

// name checks the name of the object, which is a label of what is made from it.
func (l *linter) name(most int) {
	if err := validName(l.object.Name, most); err != nil {
		p := l.object
		p.Field, p.Where, p.Message = "metadata.name", "metadata.name", strings.TrimPrefix(err.Error(), "metadata.name: ")
		l.problems = append(l.problems, p)
	}
}

// workflow checks the spec of a workflow or, if complete is false, of a template.
func (l *linter) workflow(spec *wf.WorkflowSpec, prefix, scope string, complete bool) {
	c := references{spec: spec, lint: true, checker: checker{run: l.run}}
	if ref := spec.WorkflowTemplateRef; ref != nil {
		at := place{}.at("workflowTemplateRef")
		base, found := l.spec(ref.ClusterScope, ref.Name)
		if !found {
			c.add(at, "%s not found", scopeOf(ref.ClusterScope, ref.Name))
			l.report(prefix, c.findings)
			return
		}
		if field, message, _ := strings.Cut(twiceTemplates, ": "); len(spec.Templates) > 0 {
			c.add(place{}.at(field), "%s", message)
			l.report(prefix, c.findings)
			return
		}
		merged, err := MergeSpec(base, spec)
		if err != nil {
			c.add(at, "%s", err)
			l.report(prefix, c.findings)
			return
		}
		c.spec, scope = merged, scopeOf(ref.ClusterScope, ref.Name)
	}
	c.checker.spec(c.spec, complete)
	c.manifests(c.spec)
	if complete {
		c.parameters = map[string]bool{}
		for i := range c.spec.Arguments.Parameters {
			p := &c.spec.Arguments.Parameters[i]
			c.parameters[p.Name] = true
			// Arguments of a workflow may get their values when it is submitted, those of a cron may not.
			if l.object.Kind == "CronWorkflow" && p.Value == nil && p.Default == nil && p.ValueFrom == nil {
				c.add(place{}.at("arguments").named("parameters", i, p.Name), "has no value")
			}
		}
	}
	c.find = l.finder(c.spec, scope)
	c.check(scope)
	findings := unique(c.findings)
	for i := range findings {
		if spec.WorkflowTemplateRef != nil && strings.HasPrefix(findings[i].field, "templates") {
			findings[i].field = "workflowTemplateRef" // its spec has the templates
		}
	}
	l.report(prefix, findings)
}

// finder returns a finder that looks up templates in own, whose scope is given, and in the specs of
// other scopes.
func (l *linter) finder(own *wf.WorkflowSpec, scope string) finder {
	return func(c target, from string) (*wf.Template, string, error) {
		if c.inline != nil {
			return c.inline, from, nil
		}
		from, name := c.in(from)
		spec := own
		if from != scope {
			kind, resource, _ := strings.Cut(from, "/")
			found := false
			if spec, found = l.spec(kind == "cluster", resource); !found {
				return nil, "", fmt.Errorf("workflow template %s not found", from)
			}
		}
		if t := templateNamed(spec, name); t != nil {
			return t, from, nil
		}
		if from == scope && c.ref == nil {
			return nil, "", fmt.Errorf("template name '%s' undefined", name)
		}
		return nil, "", fmt.Errorf("template %s not found in workflow template %s", name, from)
	}
}

// unique drops duplicate findings.
func unique(findings []finding) []finding {
	seen := map[finding]bool{}
	var out []finding
	for _, f := range findings {
		if !seen[f] {
			seen[f] = true
			out = append(out, f)
		}
	}
	return out
}

func (l *linter) cron(o *wf.CronWorkflow) {
	s := &o.Spec
	c := checker{run: l.run}
	top := place{}
	l.name(schedule.NameBytesMax)
	all, field := s.AllSchedules(), "schedules"
	if s.Schedule != "" {
		field = "schedule"
	}
	if len(all) == 0 {
		c.add(top.at(field), "is required")
	}
	if _, err := schedule.Parse(all, s.Timezone, time.Time{}); err != nil && len(all) > 0 {
		c.add(top.at(field), "%s", err)
	}
	c.choice(top.at("concurrencyPolicy"), string(s.ConcurrencyPolicy), "", string(wf.ConcurrencyAllow),
		string(wf.ConcurrencyForbid), string(wf.ConcurrencyReplace))
	for field, n := range map[string]*int32{"successfulJobsHistoryLimit": s.SuccessfulJobsHistoryLimit,
		"failedJobsHistoryLimit": s.FailedJobsHistoryLimit} {
		if n != nil && *n < 0 {
			c.add(top.at(field), "must not be negative")
		}
	}
	if d := s.StartingDeadlineSeconds; d != nil && *d < 0 {
		c.add(top.at("startingDeadlineSeconds"), "must not be negative")
	}
	when, err := template.Parse(s.When)
	if err == nil {
		err = when.Check(l.run)
	}
	if err == nil && s.When != "" && !strings.Contains(s.When, "{{") {
		_, err = template.When(s.When, l.run)
	}
	if err != nil {
		c.add(top.at("when"), "%s", err)
	}
	if s.StopStrategy != nil {
		if s.StopStrategy.Expression == "" {
			c.add(top.at("stopStrategy.expression"), "is required")
		}
		c.expression(top.at("stopStrategy.expression"), s.StopStrategy.Expression)
	}
	l.report("spec", c.findings)
	l.workflow(&s.WorkflowSpec, "spec.workflowSpec", "local/"+o.Name, true)
}
