package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// target names the template of a call: by name, by reference, or inline.
type target struct {
	template string
	ref      *wf.TemplateRef
	inline   *wf.Template
}

// hasTags reports whether the names of the target contain variables.
func (c target) hasTags() bool {
	return strings.Contains(c.template, "{{") || c.ref != nil && strings.Contains(c.ref.Name+c.ref.Template, "{{")
}

// in returns the scope and the name of the template that a caller of the given scope means.
func (c target) in(scope string) (string, string) {
	if c.ref != nil {
		return scopeOf(c.ref.ClusterScope, c.ref.Name), c.ref.Template
	}
	return scope, c.template
}

// templateNamed returns the template of a spec with this name, or nil.
func templateNamed(spec *wf.WorkflowSpec, name string) *wf.Template {
	if i := slices.IndexFunc(spec.Templates, func(t wf.Template) bool { return t.Name == name }); i >= 0 {
		return &spec.Templates[i]
	}
	return nil
}

// call is one execution of a template as a node.
type call struct {
	name, display string
	target        target
	args          wf.Arguments // resolved
	from          *compiled    // the template that contains the call
	boundary      *node        // the node of the enclosing frame
	parent        *node        // the enclosing node, for progress
	edges         []*node      // nodes that get an edge to the new node
	owner         owner
	depth         int
	onExit        bool // part of an exit handler
	// topLevel is true if args are the workflow's own, so that arguments that the template does not
	// declare are allowed.
	topLevel   bool
	hooked     bool
	retried    bool
	wantResult bool  // some text refers to the result
	failure    error // the call could not be prepared; its node ends with this error
	frame      *frame
	// member is the step or task of frame that the call belongs to, with its item; "" if there is
	// none.
	member string
	outer  []template.Scope // scopes of the template around an inline template

	// For an attempt of a retry:
	attempt    template.Map
	avoidHosts []string
}

// execute runs a template. The returned node may be fulfilled already; its owner is notified later
// in any case.
func (r *Run) execute(c call) *node {
	n := &node{}
	if old := r.nodes[wf.NodeID(r.Workflow.Name, c.name)]; old == nil && len(r.nodes) >= r.config.MaxNodes && !r.ended {
		r.abort(fmt.Sprintf("workflow has more than %d nodes, at %s", r.config.MaxNodes, shorten(c.name)))
	}
	if r.full(c.name) {
		return n
	}
	if c.failure != nil {
		return r.fail(n, &c, c.failure)
	}
	t, err := r.compiled(c.target, c.from.scope)
	if err != nil {
		return r.fail(n, &c, err)
	}
	if c.depth > maxDepth {
		return r.fail(n, &c, fmt.Errorf("maximum recursion depth of %d exceeded", maxDepth))
	}
	inputs, err := r.inputs(t, &c)
	if err != nil {
		return r.fail(n, &c, err)
	}
	if in := inputs.resolved; in != nil { // the texts of arguments were counted before
		args := parametersBytes(c.args.Parameters) + artifactsBytes(c.args.Artifacts)
		r.keep(max(0, parametersBytes(in.Parameters)+artifactsBytes(in.Artifacts)-args))
	}
	if name, found := t.Annotations[wf.AnnotationDisplayName]; found && !c.retried {
		if text, err := resolveText(name, []template.Scope{r.globalsFor(c.name), inputs}); err == nil {
			c.display = text
		}
	}
	if !c.retried {
		if r.meter(n, t, inputs); t.Synchronization != nil || t.Memoize != nil {
			return r.acquire(n, &c, t, inputs)
		}
	}
	return r.runTemplate(n, &c, t, inputs)
}

func (r *Run) runTemplate(n *node, c *call, t *compiled, inputs *inputsScope) *node {
	kind := kindOf(t.Template)
	switch {
	case t.RetryStrategy != nil && !c.retried:
		return r.startRetry(n, c, t, inputs)
	case kind == wf.NodeSteps, kind == wf.NodeDAG:
		return r.startFrame(n, c, t, inputs, kind)
	}
	return r.startLeaf(n, c, t, inputs, kind)
}

// fail ends the call's node in Error.
func (r *Run) fail(n *node, c *call, err error) *node {
	if !r.begin(n, c, wf.NodeSkipped) {
		if !n.known {
			n.Type = kindOfCall(r, c)
		}
		n.reject(err.Error())
	}
	return n
}

func kindOfCall(r *Run, c *call) wf.NodeType {
	if c.from != nil {
		if t, _, err := r.find(c.target, c.from.scope); err == nil {
			return kindOf(t)
		}
	}
	return wf.NodeSkipped
}

func kindOf(t *wf.Template) wf.NodeType {
	switch {
	case t.Steps != nil:
		return wf.NodeSteps
	case t.DAG != nil:
		return wf.NodeDAG
	case t.Suspend != nil:
		return wf.NodeSuspend
	case t.HTTP != nil:
		return wf.NodeHTTP
	case t.Plugin != nil:
		return wf.NodePlugin
	}
	return wf.NodePod
}

// inputsScope is the scope of the inputs of one instance of a template.
type inputsScope struct {
	template.Map
	resolved *wf.Inputs // for the status; nil if there are no inputs
}

// inputs resolves the template's inputs: each parameter takes the call's argument, else the
// template's own value or default.
func (r *Run) inputs(t *compiled, c *call) (*inputsScope, error) {
	in := &inputsScope{Map: template.Map{"node.name": c.name}}
	switch kindOf(t.Template) {
	case wf.NodeSteps, wf.NodeDAG:
	default:
		in.Map["pod.name"] = wf.PodName(r.Workflow.Name, c.name, t.Name)
	}
	switch {
	case c.member == "":
	case c.frame.t.dag != nil:
		in.Map["tasks.name"] = c.member
	default:
		in.Map["steps.name"] = c.member
	}
	given := map[string]*wf.Parameter{}
	for i := range c.args.Parameters {
		given[c.args.Parameters[i].Name] = &c.args.Parameters[i]
	}
	globals := []template.Scope{r.globalsFor(c.name)}
	var resolved wf.Inputs
	for _, p := range t.Inputs.Parameters {
		var value *wf.AnyString
		if arg := given[p.Name]; arg != nil {
			if value = arg.Value; value == nil && arg.ValueFrom != nil && arg.ValueFrom.ConfigMapKeyRef != nil {
				p.Value, p.Default, p.ValueFrom = nil, nil, arg.ValueFrom
			}
			if value == nil {
				p.Default = cmp.Or(p.Default, arg.Default)
			}
		}
		for _, own := range []*wf.AnyString{p.Value, p.Default} {
			if value == nil && own != nil {
				text, err := resolveText(string(*own), globals)
				if err != nil {
					return nil, fmt.Errorf("inputs.parameters.%s: %w", p.Name, err)
				}
				value = wf.Any(text)
			}
		}
		if value == nil && p.ValueFrom != nil && p.ValueFrom.ConfigMapKeyRef != nil {
			if err := r.fromConfigMap(&p); err != nil {
				return nil, fmt.Errorf("inputs.parameters.%s: %w", p.Name, err)
			}
			value = p.Value
		}
		if value == nil {
			return nil, fmt.Errorf("inputs.parameters.%s was not supplied", p.Name)
		}
		for _, by := range []*wf.Parameter{&p, given[p.Name]} {
			if by != nil && !allows(by, *value) {
				return nil, fmt.Errorf("inputs.parameters.%s: %s", p.Name, notInEnum(by, *value))
			}
		}
		in.Map["inputs.parameters."+p.Name] = string(*value)
		resolved.Parameters = append(resolved.Parameters, wf.Parameter{Name: p.Name, Value: value})
	}
	in.Map["inputs.parameters"] = "[]"
	if len(resolved.Parameters) > 0 {
		list, _ := json.Marshal(resolved.Parameters)
		in.Map["inputs.parameters"] = string(list)
	}
	for _, a := range t.Inputs.Artifacts {
		found := a.ArtifactLocation != (wf.ArtifactLocation{})
		for _, b := range c.args.Artifacts {
			if b.Name == a.Name && b.ArtifactLocation != (wf.ArtifactLocation{}) {
				a.ArtifactLocation, a.Archive, found = b.ArtifactLocation, b.Archive, true
				if b.SubPath != "" {
					a.SubPath = b.SubPath
				}
			}
		}
		if !found && !a.Optional {
			return nil, fmt.Errorf("inputs.artifacts.%s was not supplied", a.Name)
		}
		in.Map["inputs.artifacts."+a.Name+".path"] = a.Path
		if found && (t.Steps != nil || t.DAG != nil) { // to be passed on to members
			if err := template.Resolve(&a, []template.Scope{globals[0], in}, known...); err != nil {
				return nil, fmt.Errorf("inputs.artifacts.%s: %w", a.Name, err)
			}
			in.Map["inputs.artifacts."+a.Name] = artifactText(a)
		}
		if found {
			resolved.Artifacts = append(resolved.Artifacts, a)
		}
	}
	for _, p := range t.Outputs.Parameters {
		if p.ValueFrom != nil && p.ValueFrom.Path != "" {
			in.Map["outputs.parameters."+p.Name+".path"] = p.ValueFrom.Path
		}
	}
	for _, a := range t.Outputs.Artifacts {
		in.Map["outputs.artifacts."+a.Name+".path"] = a.Path
	}
	if len(resolved.Parameters)+len(resolved.Artifacts) > 0 {
		in.resolved = &resolved
	}
	return in, nil
}

// locate copies the paths of artifacts, and the locations that no argument replaced, from made, the
// instance of t with its variables resolved.
func (in *inputsScope) locate(t, made *wf.Template) {
	if in.resolved == nil || t == made {
		return
	}
	for i := range in.resolved.Artifacts {
		a := &in.resolved.Artifacts[i]
		for j := range t.Inputs.Artifacts {
			declared, own := &t.Inputs.Artifacts[j], &made.Inputs.Artifacts[j]
			if declared.Name != a.Name {
				continue
			}
			a.Path = own.Path
			// No argument gave the artifact another location.
			if a.ArtifactLocation == declared.ArtifactLocation {
				a.ArtifactLocation = own.ArtifactLocation
			}
		}
	}
}

// known are the prefixes of the variables that must have a value when a template is run.
var known = []string{"inputs.", "steps.", "tasks.", "workflow.", "outputs.", "pod.", "node."}

// instance returns the template with its variables resolved.
func (r *Run) instance(t *compiled, passes []template.Scope) (*wf.Template, error) {
	out := t.Template
	if t.program.HasTags() {
		out = t.Template.DeepCopy()
		if err := t.program.Apply(out, passes, known...); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func resolveText(text string, passes []template.Scope, strict ...string) (string, error) {
	parsed, err := template.Parse(text)
	if err != nil {
		return "", err
	}
	return parsed.Resolve(passes, strict...)
}

func resolveArguments(args wf.Arguments, passes []template.Scope) (wf.Arguments, error) {
	program, err := template.Compile(&args)
	if err != nil || !program.HasTags() {
		return args, err
	}
	out := *args.DeepCopy()
	err = program.Apply(&out, passes, "steps.", "tasks.")
	return out, err
}

// duration parses a number of seconds or a Go duration.
func duration(text string) (time.Duration, error) {
	var seconds float64
	if _, err := fmt.Sscanf(text+"\n", "%g\n", &seconds); err == nil {
		return time.Duration(seconds * float64(time.Second)), nil
	}
	d, err := time.ParseDuration(text)
	if err != nil {
		return 0, fmt.Errorf("'%s' is neither seconds nor a duration", text)
	}
	return d, nil
}
