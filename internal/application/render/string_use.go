package render

import (
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"
)

// stringUse describes, from a program's source, what the program can do with strings.
type stringUse struct {
	// Parametric is set if the program treats strings as opaque: it only copies them, joins them,
	// takes their lengths and compares them for equality.
	Parametric bool
	// Words are the strings in the program's source, including names. The program makes all its
	// strings from them and from its inputs.
	Words []string
	// Signed is set if the program may make numbers whose text has other characters than digits.
	Signed bool
}

// parametricCalls are the functions that keep a program parametric. Their numeric arguments may be
// arbitrary.
var parametricCalls = map[string]bool{
	"len": true, "close": true, "and": true, "or": true, "div": true, "mod": true, "quo": true, "rem": true,
	"list.Concat": true, "list.Repeat": true, "list.Range": true, "list.FlattenN": true, "list.Contains": true,
	"list.Sum":         true,
	"list.UniqueItems": true, "list.MinItems": true, "list.MaxItems": true, "strings.Join": true,
	"strconv.FormatInt": true,
}

// stringUseOf returns the stringUse of a program that adapt has rewritten.
func stringUseOf(f *ast.File) stringUse {
	t := stringUse{Parametric: true}
	imports := map[string]string{listPackage: "list"}
	for _, d := range f.Decls {
		if imported, ok := d.(*ast.ImportDecl); ok {
			for _, spec := range imported.Specs {
				path, err := literal.Unquote(spec.Path.Value)
				t.Parametric = t.Parametric && err == nil
				imports[importName(spec)] = path
			}
		}
	}
	inside := map[ast.Node]bool{} // parts of calls and interpolations that were handled with them
	ast.Walk(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportDecl:
			return false
		case *ast.CallExpr:
			t.Parametric = t.Parametric && parametricCalls[called(n.Fun, imports)]
			inside[n.Fun] = true
		case *ast.Field:
			if name, _, err := ast.LabelName(n.Label); err == nil {
				t.Words = append(t.Words, name)
			}
		case *ast.SelectorExpr:
			if name, _, err := ast.LabelName(n.Sel); err == nil {
				t.Words = append(t.Words, name)
			}
			if id, ok := n.X.(*ast.Ident); ok && imports[id.Name] != "" && !inside[n] {
				t.Parametric = false // a value of a package, which may be a constraint
			}
		case *ast.UnaryExpr:
			switch n.Op {
			case token.SUB:
				t.Signed = true
			case token.MAT, token.NMAT:
				t.Parametric = false
			case token.LSS, token.LEQ, token.GTR, token.GEQ:
				t.Parametric = t.Parametric && isNumber(n.X)
			}
		case *ast.BinaryExpr:
			switch n.Op {
			case token.SUB, token.QUO:
				t.Signed = true
			case token.MAT, token.NMAT:
				t.Parametric = false
			case token.LSS, token.LEQ, token.GTR, token.GEQ:
				t.Parametric = t.Parametric && (isNumber(n.X) || isNumber(n.Y))
			}
		case *ast.Interpolation:
			for i, e := range n.Elts {
				if i%2 == 1 {
					continue
				}
				lit, ok := e.(*ast.BasicLit)
				if !ok {
					t.Parametric = false
					continue
				}
				inside[lit] = true
				t.fragment(lit.Value, i == 0, i == len(n.Elts)-1)
			}
		case *ast.BasicLit:
			if !inside[n] {
				t.literal(n)
			}
		case *ast.SliceExpr, *ast.PostfixExpr, *ast.Func, *ast.TryClause, *ast.FallbackClause, *ast.BadExpr, *ast.BadDecl:
			t.Parametric = false
		}
		return true
	}, nil)
	return t
}

// called returns the name of a called function with its package, or "".
func called(fun ast.Expr, imports map[string]string) string {
	switch fun := fun.(type) {
	case *ast.Ident:
		return fun.Name
	case *ast.SelectorExpr:
		id, ok := fun.X.(*ast.Ident)
		name, _, err := ast.LabelName(fun.Sel)
		if ok && err == nil {
			return imports[id.Name] + "." + name
		}
	}
	return ""
}

func isNumber(e ast.Expr) bool {
	lit, ok := e.(*ast.BasicLit)
	return ok && (lit.Kind == token.INT || lit.Kind == token.FLOAT)
}

// literal adds a literal.
func (t *stringUse) literal(lit *ast.BasicLit) {
	switch lit.Kind {
	case token.FLOAT:
		t.Signed = true
	case token.STRING:
		text, err := literal.Unquote(lit.Value)
		if err != nil {
			t.Parametric = false
			return
		}
		t.Words = append(t.Words, text)
	}
}

// fragment adds the text before, between or after the expressions of an interpolation. source is
// the text as written in the template.
func (t *stringUse) fragment(source string, first, last bool) {
	if first {
		source = strings.TrimPrefix(source, `"`)
	} else {
		source = strings.TrimPrefix(source, ")")
	}
	if last {
		source = strings.TrimSuffix(source, `"`)
	} else {
		source = strings.TrimSuffix(source, `\(`)
	}
	if strings.ContainsAny(source, "\\\"#\n'") {
		t.Parametric = false // escape sequences are not supported
		return
	}
	t.Words = append(t.Words, source)
}
