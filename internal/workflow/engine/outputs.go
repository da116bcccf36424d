package engine

import (
	"encoding/json"
	"fmt"
	"path"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// resolveOutputs returns the declared outputs of a leaf with their variables resolved.
func resolveOutputs(declared wf.Outputs, passes []template.Scope) (wf.Outputs, error) {
	program, err := template.Compile(&declared)
	if err != nil || !program.HasTags() {
		return declared, err
	}
	out := *declared.DeepCopy()
	if err := program.Apply(&out, passes, known...); err != nil {
		return out, fmt.Errorf("outputs.%w", err)
	}
	return out, nil
}

// frameOutputs computes the outputs of a steps or dag template from the outputs of its members.
func (r *Run) frameOutputs(f *frame) (*wf.Outputs, error) {
	declared := f.t.Outputs
	if len(declared.Parameters)+len(declared.Artifacts) == 0 {
		return nil, nil
	}
	passes := []template.Scope{r.globalsFor(f.node.Name), f.inputs, &siblings{frame: f}}
	out := &wf.Outputs{}
	for _, p := range declared.Parameters {
		value, err := frameParameter(p, passes)
		if err != nil && p.ValueFrom != nil && p.ValueFrom.Default != nil {
			value, err = p.ValueFrom.Default, nil
		}
		if err != nil {
			return nil, fmt.Errorf("outputs.parameters.%s: %w", p.Name, err)
		}
		p.Value = value
		out.Parameters = append(out.Parameters, p)
	}
	for _, a := range declared.Artifacts {
		linked, err := linkArtifact(a, passes)
		if err != nil {
			if a.Optional {
				continue
			}
			return nil, fmt.Errorf("outputs.artifacts.%s: %w", a.Name, err)
		}
		out.Artifacts = append(out.Artifacts, linked)
	}
	r.export(out)
	return out, nil
}

func frameParameter(p wf.Parameter, passes []template.Scope) (*wf.AnyString, error) {
	text := ""
	switch {
	case p.Value != nil:
		text = string(*p.Value)
	case p.ValueFrom == nil:
		return nil, fmt.Errorf("has neither value nor valueFrom")
	case p.ValueFrom.Expression != "":
		e, err := template.CompileExpr(p.ValueFrom.Expression)
		if err != nil {
			return nil, err
		}
		value, err := e.Text(template.Scopes(passes))
		return wf.Any(value), err
	default:
		text = p.ValueFrom.Parameter
	}
	value, err := resolveText(text, passes, known...)
	return wf.Any(value), err
}

// linkArtifacts returns args in which each artifact that comes from another node has the location
// of its source. Optional artifacts whose source is missing are left out.
func linkArtifacts(args wf.Arguments, passes []template.Scope) (wf.Arguments, error) {
	if len(args.Artifacts) == 0 {
		return args, nil
	}
	linked := make([]wf.Artifact, 0, len(args.Artifacts))
	for _, a := range args.Artifacts {
		l, err := linkArtifact(a, passes)
		if err != nil {
			if a.Optional {
				continue
			}
			return args, fmt.Errorf("arguments.artifacts.%s: %w", a.Name, err)
		}
		linked = append(linked, l)
	}
	args.Artifacts = linked
	return args, nil
}

// linkArtifact returns a with the location of its source. The value of a variable that names an
// artifact is the artifact's JSON.
func linkArtifact(a wf.Artifact, passes []template.Scope) (wf.Artifact, error) {
	text, err := a.From, error(nil)
	switch {
	case a.FromExpression != "":
		var e *template.Expr
		if e, err = template.CompileExpr(a.FromExpression); err == nil {
			text, err = e.Text(template.Scopes(passes))
		}
	case a.From == "":
		return a, nil
	case !strings.HasPrefix(strings.TrimSpace(a.From), "{\""):
		text, err = resolveText(a.From, passes, known...)
	}
	if err != nil {
		return a, err
	}
	var source wf.Artifact
	if err := json.Unmarshal([]byte(text), &source); err != nil {
		return a, fmt.Errorf("'%s' is not an artifact", shorten(text))
	}
	a.ArtifactLocation, a.Archive, a.From, a.FromExpression = source.ArtifactLocation, source.Archive, "", ""
	if source.SubPath != "" { // the source already has a path below another artifact
		a.SubPath = path.Join(source.SubPath, a.SubPath)
	}
	return a, nil
}

// artifactText returns the value of a variable that names an artifact: the artifact as JSON.
func artifactText(a wf.Artifact) string {
	text, _ := json.Marshal(a)
	return string(text)
}

// export makes outputs with a global name available to the whole workflow. A later export of the
// same name wins.
func (r *Run) export(out *wf.Outputs) {
	for _, p := range out.Parameters {
		if p.GlobalName == "" || p.Value == nil {
			continue
		}
		r.globals.Map["workflow.outputs.parameters."+p.GlobalName] = string(*p.Value)
		s := r.globalOutputs()
		s.Parameters = replaceOrAdd(s.Parameters, wf.Parameter{Name: p.GlobalName, Value: p.Value},
			func(q wf.Parameter) bool { return q.Name == p.GlobalName })
	}
	for _, a := range out.Artifacts {
		if a.GlobalName == "" {
			continue
		}
		s := r.globalOutputs()
		name := a.GlobalName
		a.Name, a.GlobalName = name, ""
		r.globals.Map["workflow.outputs.artifacts."+name] = artifactText(a)
		s.Artifacts = replaceOrAdd(s.Artifacts, a, func(b wf.Artifact) bool { return b.Name == name })
	}
}

func (r *Run) globalOutputs() *wf.Outputs {
	s := &r.Workflow.Status
	if s.Outputs == nil {
		s.Outputs = &wf.Outputs{}
	}
	r.out.Status = true
	return s.Outputs
}
