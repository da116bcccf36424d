package render

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"
	"cuelang.org/go/cue/format"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// ParseFile reads a definition in the form in which authors write it, as one file of CUE, and
// returns the object to create in a cluster:
//
//	// +include=pod,serving            optional: fragments that become part of the definition
//	import "strings"                   imports of the template
//	NAME: {
//		type:        "component"       or trait, policy, workflow-step
//		description: "..."
//		labels: {...}, annotations: {...}
//		attributes: {...}              the object's spec without the template; the parts of its
//		                               status may be strings or structs
//	}
//	template: {...}
//
// file is the source's name in errors. fragment returns the text of a fragment; it may be nil if
// there are no fragments. A fragment is appended to the template, except for its top-level field
// attributes, which is unified with the definition's attributes.
func ParseFile(file string, source []byte, fragment func(name string) ([]byte, error)) (map[string]any, error) {
	f, err := parser.ParseFile(file, source, parser.ParseComments)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var imports []ast.Decl
	var head *ast.Field
	var body *ast.StructLit
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.ImportDecl:
			imports = append(imports, d)
		case *ast.Field:
			name, _, _ := ast.LabelName(d.Label)
			if name == "template" {
				if body, _ = d.Value.(*ast.StructLit); body == nil || !body.Lbrace.IsValid() {
					return nil, fmt.Errorf("%s: template is not a struct in braces", file)
				}
				continue
			}
			if head != nil {
				return nil, fmt.Errorf("%s: a definition has two fields: what it is, under its name, and template", file)
			}
			head = d
		}
	}
	if head == nil || body == nil {
		return nil, fmt.Errorf("%s: a definition has two fields: what it is, under its name, and template", file)
	}
	name, _, err := ast.LabelName(head.Label)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var text bytes.Buffer
	for _, i := range imports {
		text.Write(source[i.Pos().Offset():i.End().Offset()])
		text.WriteByte('\n')
	}
	text.WriteString(dedent(string(source[body.Lbrace.Offset()+1 : body.Rbrace.Offset()])))
	described := head.Value
	for _, name := range includes(source) {
		if fragment == nil {
			return nil, fmt.Errorf("%s: there are no fragments to include", file)
		}
		more, err := fragment(name)
		if err != nil {
			return nil, fmt.Errorf("%s: fragment %s: %w", file, name, err)
		}
		more, attributes, err := splitFragment(name, more)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		text.Write(more)
		if attributes != nil {
			if err := sectionsAsText(attributes, imports); err != nil {
				return nil, fmt.Errorf("%s: fragment %s: %w", file, name, err)
			}
			described = ast.NewBinExpr(token.AND, described, attributes)
		}
	}
	if err := sectionsAsText(head.Value, imports); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	v := cuecontext.New().BuildExpr(described)
	fields, err := plain(v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, problems(err, file))
	}
	return definitionObject(file, name, fields, text.String())
}

// splitFragment returns a fragment's part of the template, and {attributes: ...} if the fragment
// has that field.
func splitFragment(name string, source []byte) ([]byte, ast.Expr, error) {
	f, err := parser.ParseFile(name, source, parser.ParseComments)
	if err != nil {
		return nil, nil, fmt.Errorf("fragment %s: %w", name, err)
	}
	for _, d := range f.Decls {
		field, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		if label, _, _ := ast.LabelName(field.Label); label != "attributes" {
			continue
		}
		from, to := field.Label.Pos().Offset(), field.Value.End().Offset()
		return slices.Concat(source[:from], bytes.TrimLeft(source[to:], "\n")), ast.NewStruct(field), nil
	}
	return source, nil, nil
}

// sectionsAsText converts status sections that are written as structs to strings, because they are
// evaluated later, with their own inputs. head is the value of the definition's field NAME.
func sectionsAsText(head ast.Expr, imports []ast.Decl) error {
	for _, section := range []string{"healthPolicy", "customStatus", "details"} {
		field := fieldAt(head, "attributes", "status", section)
		if field == nil {
			continue
		}
		body, ok := field.Value.(*ast.StructLit)
		if !ok {
			continue
		}
		f := &ast.File{}
		for _, d := range imports {
			f.Decls = append(f.Decls, &ast.ImportDecl{Specs: slices.Clone(d.(*ast.ImportDecl).Specs)})
		}
		f.Decls = append(f.Decls, body.Elts...)
		tidyImports(f)
		text, err := format.Node(f)
		if err != nil {
			return fmt.Errorf("attributes.status.%s: %w", section, err)
		}
		field.Value = ast.NewString(string(text))
	}
	return nil
}

// fieldAt returns the field at a path in a struct, or nil.
func fieldAt(e ast.Expr, path ...string) *ast.Field {
	lit, ok := e.(*ast.StructLit)
	if !ok {
		return nil
	}
	for _, d := range lit.Elts {
		field, ok := d.(*ast.Field)
		if !ok {
			continue
		}
		if name, _, err := ast.LabelName(field.Label); err != nil || name != path[0] {
			continue
		}
		if len(path) == 1 {
			return field
		}
		if found := fieldAt(field.Value, path[1:]...); found != nil {
			return found
		}
	}
	return nil
}

func problems(err error, file string) error {
	return &Error{Definition: file, Section: "head", Problems: problemsOf(err, file)}
}

// kinds has the kinds of definitions by the type that files state.
var kinds = map[string]Kind{"component": Component, "trait": Trait, "policy": Policy, "workflow-step": WorkflowStep}

func definitionObject(file, name string, head any, template string) (map[string]any, error) {
	fields, ok := head.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("%s: %s is not a struct", file, name)
	}
	kind, ok := kinds[fmt.Sprint(fields["type"])]
	if !ok {
		return nil, fmt.Errorf("%s: %s.type is %v; want component, trait, policy or workflow-step", file, name,
			fields["type"])
	}
	annotations, _ := fields["annotations"].(map[string]any)
	if annotations == nil {
		annotations = map[string]any{}
	}
	if d, ok := fields["description"].(string); ok && d != "" {
		annotations["definition.oam.dev/description"] = d
	}
	metadata := map[string]any{"name": name, "annotations": annotations}
	if labels, ok := fields["labels"].(map[string]any); ok && len(labels) > 0 {
		metadata["labels"] = labels
	}
	spec, _ := fields["attributes"].(map[string]any)
	if spec == nil {
		spec = map[string]any{}
	}
	if kind == Component && spec["workload"] == nil {
		spec["workload"] = map[string]any{"type": "autodetects.core.oam.dev"}
	}
	spec["schematic"] = map[string]any{"cue": map[string]any{"template": template}}
	return map[string]any{
		"apiVersion": "core.oam.dev/v1beta1", "kind": string(kind), "metadata": metadata, "spec": spec,
	}, nil
}

// includes returns the names of the fragments in the file's first comment.
func includes(source []byte) []string {
	for line := range strings.Lines(string(source)) {
		names, ok := strings.CutPrefix(strings.TrimSpace(line), "// +include=")
		if ok {
			return strings.Split(names, ",")
		}
		if !strings.HasPrefix(line, "//") {
			break
		}
	}
	return nil
}

// dedent removes one tab from the beginning of each line.
func dedent(s string) string {
	s = strings.TrimLeft(s, "\n")
	var b strings.Builder
	for line := range strings.Lines(s) {
		b.WriteString(strings.TrimPrefix(line, "\t"))
	}
	return strings.TrimRight(b.String(), "\t\n ") + "\n"
}
