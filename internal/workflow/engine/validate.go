package engine

import (
	"errors"
	"fmt"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Bounds on a spec, those of the API's schema.
const (
	maxTemplates = 200
	maxTasks     = 20_000 // of one template
)

// Validate says what is wrong with a spec, or not built, naming each field.
func Validate(spec *wf.WorkflowSpec) error {
	var errs []error
	add := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	missing := func(field string, set bool) {
		if set {
			add("%s: is not supported", field)
		}
	}
	if err := validateSynchronization(spec.Synchronization); err != nil {
		add("synchronization.%w", err)
	}
	if err := validateMetrics(spec.Metrics); err != nil {
		add("metrics.%w", err)
	}
	missing("executorPlugins", len(spec.ExecutorPlugins) > 0)
	if spec.Entrypoint == "" {
		add("entrypoint: is required")
	}
	if len(spec.Templates) > maxTemplates {
		add("templates: more than %d", maxTemplates)
	}
	switch spec.Shutdown {
	case wf.ShutdownNone, wf.ShutdownStop, wf.ShutdownTerminate:
	default:
		add("shutdown: '%s' is not known", spec.Shutdown)
	}
	names := map[string]bool{}
	for i := range spec.Templates {
		t := &spec.Templates[i]
		switch {
		case t.Name == "":
			add("templates[%d].name: is required", i)
		case names[t.Name]:
			add("templates.%s: name is not unique", t.Name)
		}
		names[t.Name] = true
		if err := validateTemplate(t); err != nil {
			errs = append(errs, fmt.Errorf("templates.%w", err))
		}
	}
	return errors.Join(errs...)
}

// validateTemplate says what is wrong with a template. Errors start with its name.
func validateTemplate(t *wf.Template) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("%s.%w", t.Name, fmt.Errorf(format, args...))
	}
	for field, set := range map[string]bool{
		"plugin": t.Plugin != nil, "data": t.Data != nil,
	} {
		if set {
			return fail("%s: is not supported", field)
		}
	}
	if err := validateSynchronization(t.Synchronization); err != nil {
		return fail("synchronization.%w", err)
	}
	if err := validateMetrics(t.Metrics); err != nil {
		return fail("metrics.%w", err)
	}
	if m := t.Memoize; m != nil {
		if m.Cache == nil || m.Cache.ConfigMap == nil || m.Cache.ConfigMap.Name == "" {
			return fail("memoize.cache.configMap.name: is required")
		}
		if _, err := duration(m.MaxAge); m.MaxAge != "" && err != nil && !strings.Contains(m.MaxAge, "{{") {
			return fail("memoize.maxAge: %w", err)
		}
	}
	kinds := 0
	for _, set := range []bool{t.Container != nil, t.Script != nil, t.Steps != nil, t.DAG != nil, t.Suspend != nil,
		t.Resource != nil, t.ContainerSet != nil, t.HTTP != nil} {
		if set {
			kinds++
		}
	}
	if kinds != 1 {
		return fail("%w", errors.New("must have exactly one of container, script, steps, dag, suspend, resource, containerSet, http"))
	}
	if err := unique(parameterNames(t.Inputs.Parameters)); err != nil {
		return fail("inputs.parameters.%w", err)
	}
	if err := unique(parameterNames(t.Outputs.Parameters)); err != nil {
		return fail("outputs.parameters.%w", err)
	}
	if t.RetryStrategy != nil && t.RetryStrategy.Expression != "" && !strings.Contains(t.RetryStrategy.Expression, "{{") {
		if _, err := template.CompileExpr(t.RetryStrategy.Expression); err != nil {
			return fail("retryStrategy.expression: %w", err)
		}
	}
	count := 0
	seen := map[string]bool{}
	for i := range t.Steps {
		for j := range t.Steps[i].Steps {
			s := &t.Steps[i].Steps[j]
			where := fmt.Sprintf("steps[%d].%s", i, s.Name)
			if count++; seen[s.Name] {
				return fail("%s: name is not unique", where)
			}
			seen[s.Name] = true
			if err := validateStep(s); err != nil {
				return fail("%s: %w", where, err)
			}
		}
	}
	if t.DAG != nil {
		count += len(t.DAG.Tasks)
		for i := range t.DAG.Tasks {
			s := asStep(&t.DAG.Tasks[i])
			if err := validateStep(&s); err != nil {
				return fail("dag.tasks.%s: %w", s.Name, err)
			}
		}
	}
	if count > maxTasks {
		return fail("has more than %d steps or tasks", maxTasks)
	}
	// What compiles is otherwise well formed: tags, expressions, depends, cycles.
	if _, err := compileTemplate(t, ""); err != nil {
		return fail("%w", err)
	}
	return nil
}

func validateSynchronization(s *wf.Synchronization) error {
	if s == nil {
		return nil
	}
	for i, m := range s.Mutexes {
		if m.Database {
			return fmt.Errorf("mutexes[%d].database: is not supported", i)
		}
		if m.Name == "" {
			return fmt.Errorf("mutexes[%d].name: is required", i)
		}
	}
	for i, m := range s.Semaphores {
		if m.Database != nil {
			return fmt.Errorf("semaphores[%d].database: is not supported", i)
		}
		if m.ConfigMapKeyRef == nil {
			return fmt.Errorf("semaphores[%d].configMapKeyRef: is required", i)
		}
	}
	return nil
}

func validateStep(s *wf.WorkflowStep) error {
	if s.Name == "" || strings.ContainsAny(s.Name, ". (){}") {
		return errors.New("name must not be empty nor hold dots, spaces, parentheses or braces")
	}
	calls := 0
	for _, set := range []bool{s.Template != "", s.TemplateRef != nil, s.Inline != nil} {
		if set {
			calls++
		}
	}
	if calls != 1 {
		return errors.New("must have exactly one of template, templateRef, inline")
	}
	loops := 0
	for _, set := range []bool{s.WithItems != nil, s.WithParam != "", s.WithSequence != nil} {
		if set {
			loops++
		}
	}
	if loops > 1 {
		return errors.New("must have only one of withItems, withParam, withSequence")
	}
	if q := s.WithSequence; q != nil && (q.Count == nil) == (q.End == nil) {
		return errors.New("withSequence must have either count or end")
	}
	if s.Inline != nil {
		if err := validateTemplate(s.Inline); err != nil {
			return fmt.Errorf("inline%w", err)
		}
	}
	if err := unique(parameterNames(s.Arguments.Parameters)); err != nil {
		return fmt.Errorf("arguments.parameters.%w", err)
	}
	for name, h := range s.Hooks {
		if h.Expression == "" {
			if name != wf.ExitHook {
				return fmt.Errorf("hooks.%s.expression: is required", name)
			}
			continue
		}
		if _, err := template.CompileExpr(h.Expression); err != nil {
			return fmt.Errorf("hooks.%s.expression: %w", name, err)
		}
	}
	return nil
}

func parameterNames(list []wf.Parameter) []string {
	names := make([]string, len(list))
	for i := range list {
		names[i] = list[i].Name
	}
	return names
}

func unique(names []string) error {
	seen := map[string]bool{}
	for _, n := range names {
		if seen[n] {
			return fmt.Errorf("%s: name is not unique", n)
		}
		seen[n] = true
	}
	return nil
}
