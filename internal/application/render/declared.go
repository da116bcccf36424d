package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/token"

	"lockstep.dev/lockstep/internal/spelling"
)

// declared lists the fields that a template's source declares for its properties. For a list, it holds
// the fields of the items.
type declared struct {
	// Open is set if there may be other fields.
	Open   bool                 `json:",omitempty"`
	Fields map[string]*declared `json:",omitempty"`
}

// declaredDepthMax bounds the depth of declarations, which may refer to themselves.
const declaredDepthMax = 16

// declaredBy returns the properties that a file declares.
func declaredBy(f *ast.File) *declared {
	top := map[string][]ast.Expr{}
	into(top, f.Decls, func(string) bool { return true })
	var out *declared
	for _, e := range top["parameter"] {
		out = out.with(declaredIn(e, top, 0))
	}
	return out
}

// into adds the values of fields whose names match to scope.
func into(scope map[string][]ast.Expr, decls []ast.Decl, match func(name string) bool) {
	for _, d := range decls {
		if field, ok := d.(*ast.Field); ok {
			if name, _, err := ast.LabelName(field.Label); err == nil && match(name) {
				scope[name] = append(slices.Clip(scope[name]), field.Value)
			}
		}
	}
}

// internal reports whether name denotes a CUE definition or a hidden field.
func internal(name string) bool { return strings.HasPrefix(name, "#") || strings.HasPrefix(name, "_") }

// declaredIn returns the fields that an expression declares, or nil if it is no struct or list of
// structs. scope has the values of the names that it may refer to.
func declaredIn(e ast.Expr, scope map[string][]ast.Expr, depth int) *declared {
	if depth > declaredDepthMax {
		return &declared{Open: true}
	}
	in := func(e ast.Expr) *declared { return declaredIn(e, scope, depth+1) }
	var out *declared
	switch e := e.(type) {
	case nil, *ast.BasicLit, *ast.BottomLit:
	case *ast.ParenExpr:
		return in(e.X)
	case *ast.UnaryExpr:
		return in(e.X)
	case *ast.BinaryExpr:
		if e.Op == token.AND || e.Op == token.OR {
			return in(e.X).with(in(e.Y))
		}
	case *ast.ListLit:
		for _, item := range e.Elts {
			if rest, ok := item.(*ast.Ellipsis); ok {
				if item = rest.Type; item == nil {
					return &declared{Open: true}
				}
			}
			out = out.with(in(item))
		}
	case *ast.StructLit:
		out = &declared{Fields: map[string]*declared{}}
		scope = maps.Clone(scope)
		into(scope, e.Elts, internal)
		for _, elt := range e.Elts {
			switch elt := elt.(type) {
			case *ast.Field:
				name, _, err := ast.LabelName(elt.Label)
				if err != nil { // a pattern of names
					out.Open = true
					continue
				}
				if internal(name) {
					continue
				}
				out.Fields[name] = out.Fields[name].with(in(elt.Value))
			case *ast.Comprehension:
				out = out.with(in(elt.Value))
			case *ast.EmbedDecl:
				out = out.with(in(elt.Expr))
			case *ast.Ellipsis:
				out.Open = true
			}
		}
	case *ast.Ident:
		switch e.Name {
		case "string", "bytes", "bool", "int", "uint", "float", "number", "null":
			return nil
		}
		if scope[e.Name] == nil {
			return &declared{Open: true}
		}
		for _, value := range scope[e.Name] {
			out = out.with(in(value))
		}
	default:
		return &declared{Open: true}
	}
	return out
}

// with returns what either declares. Both may be nil.
func (d *declared) with(other *declared) *declared {
	switch {
	case d == nil:
		return other
	case other == nil:
		return d
	}
	out := &declared{Open: d.Open || other.Open, Fields: maps.Clone(d.Fields)}
	for name, inner := range other.Fields {
		if out.Fields == nil {
			out.Fields = map[string]*declared{}
		}
		out.Fields[name] = out.Fields[name].with(inner)
	}
	return out
}

// selectedIn returns the names that a file selects of any value: a, of x.a and x["a"].
func selectedIn(f *ast.File) []string {
	names := map[string]bool{}
	ast.Walk(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if name, _, err := ast.LabelName(n.Sel); err == nil {
				names[name] = true
			}
		case *ast.IndexExpr:
			if lit, ok := n.Index.(*ast.BasicLit); ok && lit.Kind == token.STRING {
				if name, err := strconv.Unquote(lit.Value); err == nil {
					names[name] = true
				}
			}
		}
		return true
	}, nil)
	return slices.Sorted(maps.Keys(names))
}

// Undeclared returns the fields within properties that a template neither declares nor selects of any
// value, each with the declared name that is most like it, if one is. A template may still pass them on.
// Unused returns properties themselves.
func (t *Template) Undeclared(properties []byte) []string {
	if t.main == nil || t.main.Declared == nil || len(properties) == 0 {
		return nil
	}
	var given map[string]any
	if json.Unmarshal(properties, &given) != nil {
		return nil // rendering reports the error
	}
	var out []string
	for _, name := range slices.Sorted(maps.Keys(given)) {
		out = t.undeclared(out, given[name], t.main.Declared.Fields[name], name)
	}
	return out
}

func (t *Template) undeclared(out []string, given any, d *declared, at string) []string {
	if d == nil || d.Open {
		return out
	}
	switch given := given.(type) {
	case []any:
		for i, item := range given {
			out = t.undeclared(out, item, d, fmt.Sprintf("%s[%d]", at, i))
		}
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(given)) {
			inner, known := d.Fields[name]
			path := at + "." + name
			_, selected := slices.BinarySearch(t.main.Selected, name)
			switch {
			case known:
				out = t.undeclared(out, given[name], inner, path)
			case !selected:
				if like := mostLike(name, d.Fields); like != "" {
					path += " (" + like + "?)"
				}
				out = append(out, path)
			}
		}
	}
	return out
}

// mostLike returns the field whose name differs from name by at most two edits, or "".
func mostLike(name string, fields map[string]*declared) string {
	best, least := "", 3
	for _, f := range slices.Sorted(maps.Keys(fields)) {
		if n := spelling.Distance(name, f); n < least && n < len(f) {
			best, least = f, n
		}
	}
	return best
}
