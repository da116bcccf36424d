package render

import (
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/literal"
	"cuelang.org/go/cue/token"
)

// wording is what the text of a program says about what it can do with strings.
type wording struct {
	// parametric programs treat strings as wholes: they copy them, put them together, take their lengths and ask whether
	// two are equal, and nothing else.
	parametric bool
	// words are the strings in the program, names among them: together with its inputs, all that it can make strings of.
	words []string
	// signed says that it may make numbers that are written with more than digits.
	signed bool
}

// The functions that keep a program parametric. What they take as numbers may be anything.
var parametricCalls = map[string]bool{
	"len": true, "close": true, "and": true, "or": true, "div": true, "mod": true, "quo": true, "rem": true,
	"list.Concat": true, "list.Repeat": true, "list.Range": true, "list.FlattenN": true, "list.Contains": true, "list.Sum": true,
	"list.UniqueItems": true, "list.MinItems": true, "list.MaxItems": true, "strings.Join": true, "strconv.FormatInt": true,
}

// wordingOf reads a program that has been adapted.
func wordingOf(f *ast.File) wording {
	t := wording{parametric: true}
	imports := map[string]string{listPackage: "list"}
	for _, d := range f.Decls {
		if imported, ok := d.(*ast.ImportDecl); ok {
			for _, spec := range imported.Specs {
				path, err := literal.Unquote(spec.Path.Value)
				t.parametric = t.parametric && err == nil
				imports[importName(spec)] = path
			}
		}
	}
	inside := map[ast.Node]bool{} // of calls and interpolations, whose parts have been seen with them
	ast.Walk(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ImportDecl:
			return false
		case *ast.CallExpr:
			t.parametric = t.parametric && parametricCalls[called(n.Fun, imports)]
			inside[n.Fun] = true
		case *ast.Field:
			if name, _, err := ast.LabelName(n.Label); err == nil {
				t.words = append(t.words, name)
			}
		case *ast.SelectorExpr:
			if name, _, err := ast.LabelName(n.Sel); err == nil {
				t.words = append(t.words, name)
			}
			if id, ok := n.X.(*ast.Ident); ok && imports[id.Name] != "" && !inside[n] {
				t.parametric = false // a value of a package, which may be a condition
			}
		case *ast.UnaryExpr:
			switch n.Op {
			case token.SUB:
				t.signed = true
			case token.MAT, token.NMAT:
				t.parametric = false
			case token.LSS, token.LEQ, token.GTR, token.GEQ:
				t.parametric = t.parametric && isNumber(n.X)
			}
		case *ast.BinaryExpr:
			switch n.Op {
			case token.SUB, token.QUO:
				t.signed = true
			case token.MAT, token.NMAT:
				t.parametric = false
			case token.LSS, token.LEQ, token.GTR, token.GEQ:
				t.parametric = t.parametric && (isNumber(n.X) || isNumber(n.Y))
			}
		case *ast.Interpolation:
			for i, e := range n.Elts {
				if i%2 == 1 {
					continue
				}
				lit, ok := e.(*ast.BasicLit)
				if !ok {
					t.parametric = false
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
			t.parametric = false
		}
		return true
	}, nil)
	return t
}

// called is the name of a function, with that of its package, or empty.
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

// literal takes in a literal.
func (t *wording) literal(lit *ast.BasicLit) {
	switch lit.Kind {
	case token.FLOAT:
		t.signed = true
	case token.STRING:
		text, err := literal.Unquote(lit.Value)
		if err != nil {
			t.parametric = false
			return
		}
		t.words = append(t.words, text)
	}
}

// fragment takes in the text before, between or after the expressions of an interpolation, which is as it is in the
// source.
func (t *wording) fragment(source string, first, last bool) {
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
		t.parametric = false // what it stands for is not what it says
		return
	}
	t.words = append(t.words, source)
}
