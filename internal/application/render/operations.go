package render

import (
	"path"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
	"cuelang.org/go/cue/parser"
)

// Outside has the operations of steps that the caller of Template.Step carries out: the values of
// Action.Do.
var Outside = []string{
	"apply", "apply-env-binding", "apply-in-parallel", "collectServiceEndpoints", "component-apply", "delete", "deploy", "do",
	"get-placements-from-topology-policies", "list", "list-clusters", "patch", "promCheck", "read", "render-config", "send",
	"terraform-env-binding",
}

// inside has the operations that stepRun.do carries out, and "steps", which groups operations.
var inside = []string{
	"break", "date", "fail", "load", "load-comps-in-order", "load-policies", "log", "message", "patch-k8s-object", "steps",
	"string", "suspend", "timestamp", "var", "wait",
}

// knownOperation reports whether steps can carry out an operation.
func knownOperation(do string) bool {
	return slices.Contains(Outside, do) || slices.Contains(inside, do)
}

// Vet returns an error for operations of a step that compile, but that no step can carry out.
func Vet(d *Definition) error {
	file, err := parser.ParseFile("template", d.Template, parser.ParseComments)
	if err != nil {
		return asError(d, "template", err)
	}
	var found cueerrors.Error
	ast.Walk(file, func(n ast.Node) bool {
		field, ok := n.(*ast.Field)
		if !ok {
			return true
		}
		lit, ok := field.Value.(*ast.BasicLit)
		if name, _, err := ast.LabelName(field.Label); err != nil || name != "#do" || !ok {
			return true
		}
		if do, err := strconv.Unquote(lit.Value); err == nil && !knownOperation(do) {
			found = cueerrors.Append(found, cueerrors.Newf(lit.Pos(), "the operation %s is not supported", do))
		}
		return true
	}, nil)
	if found == nil {
		return nil
	}
	return asError(d, "template", found)
}

// missingOperations returns an error for each name that a file uses of a package vela/NAME and that
// the package does not have. CUE accepts such names, and a step would pass over them.
func missingOperations(f *ast.File) error {
	names := map[string]map[string]bool{} // by the name of the import in the file
	paths := map[string]string{}
	for spec := range f.ImportSpecs() {
		at, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(at, "vela/") {
			continue
		}
		if source, err := packages.ReadFile("packages/" + path.Base(at) + ".cue"); err == nil {
			names[importName(spec)], paths[importName(spec)] = labelsOf(at, source), at
		}
	}
	if len(names) == 0 {
		return nil
	}
	var found cueerrors.Error
	ast.Walk(f, func(n ast.Node) bool {
		sel, ok := n.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		pkg, ok := sel.X.(*ast.Ident)
		if !ok || names[pkg.Name] == nil {
			return true
		}
		if name, _, err := ast.LabelName(sel.Sel); err == nil && !names[pkg.Name][name] {
			found = cueerrors.Append(found, cueerrors.Newf(sel.Sel.Pos(), "%s has no %s", paths[pkg.Name], name))
		}
		return true
	}, nil)
	if found == nil {
		return nil
	}
	return found
}

// labelsOf returns the names of a package's fields.
func labelsOf(name string, source []byte) map[string]bool {
	out := map[string]bool{}
	file, err := parser.ParseFile(name, source)
	if err != nil {
		return out // cannot happen: tests parse the embedded sources
	}
	for _, d := range file.Decls {
		if field, ok := d.(*ast.Field); ok {
			if label, _, err := ast.LabelName(field.Label); err == nil {
				out[label] = true
			}
		}
	}
	return out
}
