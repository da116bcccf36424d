package engine

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// Bounds on a spec, the same as in the API's schema.
const (
	maxTemplates = 200
	maxTasks     = 20_000 // per template
)

// finding is one fault of a spec.
type finding struct {
	field   string // path of the field: templates[0].steps[1][0].when
	where   string // field with names in place of indexes: templates.main.steps[1].check.when
	message string
	warning bool
}

func (f finding) Error() string { return f.where + ": " + f.message }

// checker checks a spec and collects findings.
type checker struct {
	findings []finding
	run      template.Run // compiles expressions that are not cheap
	partial  bool         // templates get more fields from templateDefaults
}

// place is a position in a spec: field and where are as in finding, with a leading dot.
type place struct{ field, where string }

func (p place) at(name string) place { return place{p.field + "." + name, p.where + "." + name} }

func (p place) index(list string, i int) place {
	return place{fmt.Sprintf("%s.%s[%d]", p.field, list, i), fmt.Sprintf("%s.%s[%d]", p.where, list, i)}
}

// named returns the place of a list element that has a name.
func (p place) named(list string, i int, name string) place {
	return place{fmt.Sprintf("%s.%s[%d]", p.field, list, i), p.where + "." + list + "." + name}
}

func (c *checker) add(p place, format string, args ...any) {
	c.findings = append(c.findings, finding{
		strings.TrimPrefix(p.field, "."), strings.TrimPrefix(p.where, "."), fmt.Sprintf(format, args...), false,
	})
}

// fault adds an error whose text may begin with the path of the field below p.
func (c *checker) fault(p place, err error) {
	field, message, found := strings.Cut(err.Error(), ": ")
	if !found || strings.ContainsAny(field, " '\"") {
		c.add(p, "%s", err)
		return
	}
	c.add(p.at(field), "%s", message)
}

// Validate returns an error that names every invalid or unsupported field of a spec. run compiles
// the expressions that are not cheap.
func Validate(spec *wf.WorkflowSpec, run template.Run) error {
	c := checker{run: run}
	c.spec(spec, true)
	return join(c.findings)
}

// join joins findings to one error. It drops warnings, and returns nil if nothing is left.
func join(findings []finding) error {
	var errs []error
	for _, f := range findings {
		if !f.warning {
			errs = append(errs, f)
		}
	}
	return errors.Join(errs...)
}

// spec checks a spec. complete is false for the spec of a template, which need not have an
// entrypoint.
func (c *checker) spec(spec *wf.WorkflowSpec, complete bool) {
	top := place{}
	c.partial = spec.TemplateDefaults != nil
	for i := range spec.ExecutorPlugins {
		if spec.ExecutorPlugins[i].Name == "" {
			c.add(top.index("executorPlugins", i).at("name"), "is required")
		}
	}
	c.synchronization(spec.Synchronization, top.at("synchronization"))
	c.metrics(spec.Metrics, top.at("metrics"))
	if spec.Entrypoint == "" && complete {
		c.add(top.at("entrypoint"), "is required")
	}
	if len(spec.Templates) > maxTemplates {
		c.add(top.at("templates"), "more than %d", maxTemplates)
	}
	switch spec.Shutdown {
	case wf.ShutdownNone, wf.ShutdownStop, wf.ShutdownTerminate:
	default:
		c.add(top.at("shutdown"), "'%s' is not known", spec.Shutdown)
	}
	if spec.ArtifactGC != nil {
		c.collected(top.at("artifactGC.strategy"), spec.ArtifactGC.Strategy)
	}
	if spec.PodGC != nil {
		c.choice(top.at("podGC.strategy"), spec.PodGC.Strategy, "", wf.PodGCOnPodCompletion, wf.PodGCOnPodSuccess,
			wf.PodGCOnWorkflowCompletion, wf.PodGCOnWorkflowSuccess)
		if _, err := metav1.LabelSelectorAsSelector(spec.PodGC.LabelSelector); err != nil {
			c.add(top.at("podGC.labelSelector"), "%s", err)
		}
		c.duration(top.at("podGC.deleteDelayDuration"), spec.PodGC.DeleteDelayDuration)
	}
	if m := spec.WorkflowMetadata; m != nil {
		for _, name := range slices.Sorted(maps.Keys(m.LabelsFrom)) {
			c.expression(top.at("workflowMetadata.labelsFrom."+name+".expression"), m.LabelsFrom[name].Expression)
		}
	}
	c.parameters(spec.Arguments.Parameters, top.at("arguments"))
	c.valuesFrom(spec.Arguments.Parameters, top.at("arguments"))
	for i := range spec.Arguments.Artifacts {
		a := &spec.Arguments.Artifacts[i]
		c.nameOfValue(top.at("arguments").named("artifacts", i, a.Name), a.Name)
		c.location(&a.ArtifactLocation, top.at("arguments").named("artifacts", i, a.Name))
	}
	c.hooks(spec.Hooks, top)
	c.retryStrategy(spec.RetryStrategy, top.at("retryStrategy"))
	unused(spec, func(p place) {
		c.add(p, "has no effect")
		c.findings[len(c.findings)-1].warning = true
	})
	names := map[string]bool{}
	for i := range spec.Templates {
		t := &spec.Templates[i]
		at := top.named("templates", i, t.Name)
		switch {
		case t.Name == "":
			at = top.index("templates", i)
			c.add(at.at("name"), "is required")
		case names[t.Name]:
			c.add(at, "name is not unique")
		default:
			c.nameOfCall(at, t.Name)
		}
		names[t.Name] = true
		c.template(t, at)
	}
}

// choice checks that a value is one of the allowed values, unless it contains tags.
func (c *checker) choice(p place, value string, allowed ...string) {
	if !slices.Contains(allowed, value) && !strings.Contains(value, "{{") {
		if allowed[0] == "" {
			allowed = allowed[1:]
		}
		c.add(p, "'%s' is none of %s", shorten(value), strings.Join(allowed, ", "))
	}
}

// duration checks that a value is a duration, unless it is empty or contains tags.
func (c *checker) duration(p place, value string) {
	if value != "" && !strings.Contains(value, "{{") {
		if _, err := duration(value); err != nil {
			c.add(p, "%s", err)
		}
	}
}

// validateTemplate returns an error that names every invalid field of a template.
func validateTemplate(t *wf.Template, run template.Run) error {
	c := checker{run: run}
	c.template(t, place{where: "." + t.Name})
	return join(c.findings)
}

func (c *checker) template(t *wf.Template, p place) {
	var kinds []string
	for _, k := range []struct {
		name string
		set  bool
	}{
		{"container", t.Container != nil}, {"script", t.Script != nil}, {"steps", t.Steps != nil}, {"dag", t.DAG != nil},
		{"suspend", t.Suspend != nil}, {"resource", t.Resource != nil}, {"containerSet", t.ContainerSet != nil},
		{"http", t.HTTP != nil},
		{"plugin", t.Plugin != nil}, {"data", t.Data != nil},
	} {
		if k.set {
			kinds = append(kinds, k.name)
		}
	}
	if len(kinds) != 1 {
		has := "none"
		if len(kinds) > 0 {
			has = strings.Join(kinds, " and ")
		}
		c.add(p, "must have exactly one of container, script, steps, dag, suspend, resource, containerSet, http, data, plugin; it has %s",
			has)
	}
	c.parameters(t.Inputs.Parameters, p.at("inputs"))
	c.parameters(t.Outputs.Parameters, p.at("outputs"))
	c.artifacts(t, p)
	if len(kinds) == 1 {
		c.shape(t, p)
	}
	for i, containers := range [][]wf.UserContainer{t.InitContainers, t.Sidecars} {
		list := []string{"initContainers", "sidecars"}[i]
		for i := range containers {
			if containers[i].Name == "" {
				c.add(p.index(list, i).at("name"), "is required")
			}
		}
	}
	if t.ArchiveLocation != nil {
		c.location(t.ArchiveLocation, p.at("archiveLocation"))
	}
	c.synchronization(t.Synchronization, p.at("synchronization"))
	c.metrics(t.Metrics, p.at("metrics"))
	c.retryStrategy(t.RetryStrategy, p.at("retryStrategy"))
	if m := t.Memoize; m != nil {
		if m.Key == "" {
			c.add(p.at("memoize.key"), "is required")
		}
		if m.Cache == nil || m.Cache.ConfigMap == nil || m.Cache.ConfigMap.Name == "" {
			c.add(p.at("memoize.cache.configMap.name"), "is required")
		}
		c.duration(p.at("memoize.maxAge"), m.MaxAge)
	}
	if t.Timeout != "" && (t.Steps != nil || t.DAG != nil) {
		c.add(p.at("timeout"), "has no effect on steps and dag; the templates that they call can have one")
	}
	c.duration(p.at("timeout"), t.Timeout)
	c.duration(p.at("pendingTimeout"), t.PendingTimeout)
	c.outputs(t, p)
	switch {
	case t.Suspend != nil:
		c.duration(p.at("suspend.duration"), t.Suspend.Duration)
	case t.Resource != nil:
		c.choice(p.at("resource.action"), t.Resource.Action, "get", "create", "apply", "delete", "replace", "patch")
		c.choice(p.at("resource.mergeStrategy"), t.Resource.MergeStrategy, "", "strategic", "merge", "json")
	case t.HTTP != nil:
		if t.HTTP.URL == "" {
			c.add(p.at("http.url"), "is required")
		}
		if t.HTTP.TimeoutSeconds != nil && *t.HTTP.TimeoutSeconds <= 0 {
			c.add(p.at("http.timeoutSeconds"), "must be positive")
		}
		for i := range t.HTTP.Headers {
			if h := &t.HTTP.Headers[i]; h.Name == "" {
				c.add(p.at("http").index("headers", i).at("name"), "is required")
			} else if h.ValueFrom != nil &&
				(h.ValueFrom.SecretKeyRef == nil || h.ValueFrom.SecretKeyRef.Name == "" || h.ValueFrom.SecretKeyRef.Key == "") {
				c.add(p.at("http").named("headers", i, h.Name).at("valueFrom.secretKeyRef"), "needs name and key")
			}
		}
		c.expression(p.at("http.successCondition"), t.HTTP.SuccessCondition)
	case t.Plugin != nil:
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(t.Plugin.Raw, &fields); err != nil || len(fields) == 0 {
			c.add(p.at("plugin"), "must be an object that names a plugin")
		}
	case t.Data != nil:
		c.data(t.Data, p.at("data"))
	case t.ContainerSet != nil:
		c.containerSet(t, p.at("containerSet"))
	}
	program, err := template.Compile(t, "steps", "dag", "name", "retryStrategy")
	if err == nil {
		err = program.Check(c.run)
	}
	if err != nil {
		c.fault(p, err)
	}
	before := len(c.findings)
	c.calls(t, p)
	if t.DAG == nil || len(c.findings) > before || namesHaveTags(t) {
		return
	}
	// compileDAG finds the remaining faults: of dependencies, depends, and cycles.
	if _, err := compileDAG(t.DAG); err != nil {
		c.dagFault(t.DAG, p, err)
	}
}

// dagFault adds an error of compileDAG, whose text begins with a task or a field of the dag.
func (c *checker) dagFault(t *wf.DAGTemplate, p place, err error) {
	where, message, _ := strings.Cut(err.Error(), ": ")
	at := place{p.field + "." + where, p.where + "." + where}
	if rest, found := strings.CutPrefix(where, "dag.tasks."); found {
		name, field, more := strings.Cut(rest, ".")
		for i := range t.Tasks {
			if t.Tasks[i].Name == name {
				if at = p.at("dag").named("tasks", i, name); more {
					at = at.at(field)
				}
			}
		}
	}
	c.add(at, "%s", message)
}

func (c *checker) containerSet(t *wf.Template, p place) {
	if r := t.ContainerSet.RetryStrategy; r != nil {
		if r.Retries != nil && !strings.Contains(r.Retries.String(), "{{") {
			if n, err := strconv.Atoi(r.Retries.String()); err != nil || n < 0 {
				c.add(p.at("retryStrategy.retries"), "'%s' is not a number of retries", shorten(r.Retries.String()))
			}
		}
		if r.Duration != "" && !strings.Contains(r.Duration, "{{") {
			if _, err := time.ParseDuration(r.Duration); err != nil {
				c.add(p.at("retryStrategy.duration"), "'%s' is not a duration", shorten(r.Duration))
			}
		}
	}
	names := map[string]bool{}
	for i := range t.ContainerSet.Containers {
		name := t.ContainerSet.Containers[i].Name
		if at := p.named("containers", i, name); name == "" {
			c.add(p.index("containers", i).at("name"), "is required")
		} else if names[name] {
			c.add(at, "name is not unique")
		}
		names[name] = true
	}
	waits := map[string][]string{}
	for i := range t.ContainerSet.Containers {
		n := &t.ContainerSet.Containers[i]
		for _, d := range n.Dependencies {
			if !names[d] {
				c.add(p.named("containers", i, n.Name).at("dependencies"), "container '%s' not defined", d)
			}
		}
		waits[n.Name] = n.Dependencies
	}
	done := map[string]bool{}
	for range waits {
		for name, on := range waits {
			if !slices.ContainsFunc(on, func(d string) bool { return !done[d] && names[d] }) {
				done[name] = true
			}
		}
	}
	if len(done) < len(waits) {
		c.add(p.at("containers"), "dependency cycle detected")
	}
	if len(t.ContainerSet.Containers) == 0 {
		c.add(p.at("containers"), "is required")
	}
	if len(t.Outputs.Parameters)+len(t.Outputs.Artifacts) > 0 && !names[mainContainer] {
		c.add(p.at("containers"), "outputs come from the container named '%s', and there is none", mainContainer)
	}
	if len(t.Inputs.Artifacts) > 0 && !names[mainContainer] {
		c.add(p.at("containers"), "input artifacts are in the container named '%s', and there is none", mainContainer)
	}
}

// artifacts checks the names and paths of artifacts.
func (c *checker) artifacts(t *wf.Template, p place) {
	for i, artifacts := range [][]wf.Artifact{t.Inputs.Artifacts, t.Outputs.Artifacts} {
		list := []string{"inputs", "outputs"}[i]
		names, paths := map[string]bool{}, map[string]string{}
		for i := range artifacts {
			a := &artifacts[i]
			at := p.at(list).named("artifacts", i, a.Name)
			if names[a.Name] {
				c.add(at, "name is not unique")
			}
			names[a.Name] = true
			if a.Name == "" {
				c.add(p.at(list).index("artifacts", i).at("name"), "is required")
			}
			c.nameOfValue(at, a.Name)
			c.globalName(at, a.GlobalName)
			if other, twice := paths[a.Path]; twice && a.Path != "" && list == "inputs" {
				c.add(at.at("path"), "%s is also the path of %s", a.Path, other)
			}
			paths[a.Path] = a.Name
			c.file(a, at)
			c.expression(at.at("fromExpression"), a.FromExpression)
			c.location(&a.ArtifactLocation, at)
			if a.ArtifactGC != nil {
				c.collected(at.at("artifactGC.strategy"), a.ArtifactGC.Strategy)
			}
		}
	}
}

// data checks a data template.
func (c *checker) data(d *wf.Data, p place) {
	source := d.Source.ArtifactPaths
	if source == nil {
		c.add(p.at("source.artifactPaths"), "is required")
		return
	}
	at := p.at("source.artifactPaths")
	c.location(&source.ArtifactLocation, at)
	for kind, set := range map[string]bool{"git": source.Git != nil, "http": source.HTTP != nil, "raw": source.Raw != nil, "artifactory": source.Artifactory != nil} {
		if set {
			c.add(at.at(kind), "artifacts cannot be listed there")
		}
	}
	for i := range d.Transformation {
		step := p.index("transformation", i).at("expression")
		if d.Transformation[i].Expression == "" {
			c.add(step, "is required")
		}
		c.expression(step, d.Transformation[i].Expression)
	}
}

// file checks how the file or directory of an artifact is to be read or written.
func (c *checker) file(a *wf.Artifact, p place) {
	if slices.Contains(strings.Split(a.Path, "/"), "..") {
		c.add(p.at("path"), "must not contain '..'")
	}
	if a.Mode != nil && (*a.Mode < 0 || *a.Mode > 0o777) {
		c.add(p.at("mode"), "must be between 0 and 0777 (511)")
	}
	if s := a.Archive; s != nil && count(s.Tar != nil, s.None != nil, s.Zip != nil) > 1 {
		c.add(p.at("archive"), "must have only one of tar, none, zip")
	}
}

// location refuses what no store does.
func (c *checker) location(l *wf.ArtifactLocation, p place) {
	if count(l.S3 != nil, l.Git != nil, l.HTTP != nil, l.Raw != nil, l.GCS != nil, l.Azure != nil, l.Artifactory != nil, l.HDFS != nil,
		l.OSS != nil, l.Plugin != nil, l.Volume != nil) > 1 {
		c.add(p, "must have only one store")
	}
	if l.Plugin != nil {
		c.add(p.at("plugin"), "is not supported: artifacts of plugins are stored by drivers of Argo's controller; name the store itself")
	}
	if l.Git != nil && l.Git.Repo == "" {
		c.add(p.at("git.repo"), "is required")
	}
	if l.OSS != nil && l.OSS.LifecycleRule != nil && *l.OSS.LifecycleRule != (wf.OSSLifecycleRule{}) {
		c.add(p.at("oss.lifecycleRule"), "is not supported: rules belong to the bucket, set them there")
	}
}

// collected checks an artifactGC strategy.
func (c *checker) collected(p place, strategy string) {
	c.choice(p, strategy, "", wf.ArtifactGCNever, wf.ArtifactGCOnCompletion, wf.ArtifactGCOnDeletion)
}

// outputs checks the sources of output parameters.
func (c *checker) outputs(t *wf.Template, p place) {
	for i := range t.Outputs.Parameters {
		o := &t.Outputs.Parameters[i]
		at := p.at("outputs").named("parameters", i, o.Name)
		c.globalName(at, o.GlobalName)
		v := o.ValueFrom
		if v == nil {
			if o.Value == nil {
				c.add(at, "has neither value nor valueFrom")
			}
			continue
		}
		c.source(t, o, at)
		c.expression(at.at("valueFrom.expression"), v.Expression)
	}
}

func (c *checker) expression(p place, text string) {
	if text == "" || strings.Contains(text, "{{") {
		return
	}
	e, err := template.CompileExpr(text)
	if err == nil {
		err = e.Check(c.run)
	}
	if err != nil {
		c.add(p, "%s", err)
	}
}

// calls checks the steps and tasks of a template.
func (c *checker) calls(t *wf.Template, p place) {
	calls := 0
	seen := map[string]bool{}
	for i := range t.Steps {
		for j := range t.Steps[i].Steps {
			s := &t.Steps[i].Steps[j]
			at := stepPlace(p, i, j, s.Name)
			if calls++; seen[s.Name] && s.Name != "" {
				c.add(at, "name is not unique")
			}
			seen[s.Name] = true
			c.call(s, at)
		}
	}
	if t.DAG != nil {
		calls += len(t.DAG.Tasks)
		depends := slices.ContainsFunc(t.DAG.Tasks, func(s wf.DAGTask) bool { return s.Depends != "" })
		for i := range t.DAG.Tasks {
			s := asStep(&t.DAG.Tasks[i])
			at := p.at("dag").named("tasks", i, s.Name)
			if seen[s.Name] && s.Name != "" {
				c.add(at, "name is not unique")
			}
			seen[s.Name] = true
			needs := len(t.DAG.Tasks[i].Dependencies) > 0
			if (depends || needs) && s.Name != "" && s.Name[0] >= '0' && s.Name[0] <= '9' {
				c.add(at.at("name"), "must not begin with a digit in a dag with depends, or with dependencies")
			}
			if depends && needs {
				c.add(at.at("dependencies"), "cannot be used in a dag with depends")
			}
			c.call(&s, at)
		}
	}
	if calls > maxTasks {
		c.add(p, "has more than %d steps or tasks", maxTasks)
	}
}

// withoutTags matches the tags of a text.
var withoutTags = regexp.MustCompile(`\{\{[^{}]*\}\}`)

// count returns how many of the conditions are true.
func count(conditions ...bool) (n int) {
	for _, c := range conditions {
		if c {
			n++
		}
	}
	return n
}

func stepPlace(p place, group, i int, name string) place {
	return place{fmt.Sprintf("%s.steps[%d][%d]", p.field, group, i), fmt.Sprintf("%s.steps[%d].%s", p.where, group, name)}
}

func (c *checker) call(s *wf.WorkflowStep, p place) {
	c.nameOfCall(p, s.Name)
	if count(s.Template != "", s.TemplateRef != nil, s.Inline != nil) != 1 {
		c.add(p, "must have exactly one of template, templateRef, inline")
	}
	if r := s.TemplateRef; r != nil && (r.Name == "" || r.Template == "") {
		c.add(p.at("templateRef"), "must have name and template")
	}
	if count(s.WithItems != nil, s.WithParam != "", s.WithSequence != nil) > 1 {
		c.add(p, "must have only one of withItems, withParam, withSequence")
	}
	if q := s.WithSequence; q != nil {
		if (q.Count == nil) == (q.End == nil) {
			c.add(p.at("withSequence"), "must have either count or end")
		} else if _, err := sequence(withoutVariables(q)); err != nil {
			c.add(p, "%s", err)
		}
	}
	if len(s.WithItems) > maxItems {
		c.add(p.at("withItems"), "more than %d items", maxItems)
	}
	if s.Inline != nil {
		if s.Inline.Steps != nil || s.Inline.DAG != nil {
			for _, call := range targets(s.Inline) {
				if call.inline != nil {
					c.add(p.at("inline"), "must not hold another inline template")
				}
			}
		}
		c.template(s.Inline, p.at("inline"))
	}
	c.parameters(s.Arguments.Parameters, p.at("arguments"))
	c.values(s.Arguments.Parameters, p.at("arguments"))
	for i := range s.Arguments.Artifacts {
		a := &s.Arguments.Artifacts[i]
		at := p.at("arguments").named("artifacts", i, a.Name)
		c.nameOfValue(at, a.Name)
		switch {
		case a.From != "" && a.FromExpression != "":
			c.add(at, "has both from and fromExpression")
		case a.From == "" && a.FromExpression == "" && a.ArtifactLocation == (wf.ArtifactLocation{}) && !a.Optional:
			c.add(at, "must have from, fromExpression or a location")
		}
		c.location(&a.ArtifactLocation, at)
	}
	if s.When != "" && !strings.Contains(s.When, "{{") {
		if _, err := template.When(s.When, c.run); err != nil {
			c.add(p.at("when"), "%s", err)
		}
	}
	c.hooks(s.Hooks, p)
	compiled, err := compileStep(s, 0)
	if err == nil {
		err = compiled.check(c.run)
	}
	if err != nil {
		c.fault(p, err)
	}
}

// withoutVariables returns the sequence with values that are right in place of those with variables.
func withoutVariables(q *wf.Sequence) *wf.Sequence {
	out := *q
	tagged := func(v *intstr.IntOrString) bool { return v != nil && strings.Contains(v.StrVal, "{{") }
	number := func(n int32) *intstr.IntOrString { v := intstr.FromInt32(n); return &v }
	if tagged(q.Count) {
		out.Count = number(1)
	}
	if tagged(q.End) {
		out.End = cmp.Or(q.Start, number(0))
	}
	if tagged(q.Start) {
		if out.Start = number(0); q.End != nil {
			out.Start = out.End
		}
	}
	if tagged(q.Start) && tagged(q.End) {
		out.Start, out.End = number(0), number(0)
	}
	if strings.Contains(q.Format, "{{") {
		out.Format = ""
	}
	return &out
}
