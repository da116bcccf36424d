package arch

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// Limits on files and types of internal/application.
const (
	linesMax   = 500
	methodsMax = 20
	fieldsMax  = 20
)

// TestPartsOfApplicationsAreSmall checks the sizes of files and types in internal/application. A
// field counts if any file of internal/application assigns to a field of that name, or takes its
// address; so it counts also if only a field of another struct with the same name is assigned.
func TestPartsOfApplicationsAreSmall(t *testing.T) {
	const why = "a part that is larger does several things, and each of them can have a file or a type of its own"
	var files []sourceFile
	assigned := map[string]bool{} // names of fields
	assign := func(e ast.Expr) {
		if sel, ok := e.(*ast.SelectorExpr); ok {
			assigned[sel.Sel.Name] = true
		}
	}
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal/application") {
			continue
		}
		files = append(files, f)
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for _, e := range n.Lhs {
					assign(e)
				}
			case *ast.IncDecStmt:
				assign(n.X)
			case *ast.RangeStmt:
				assign(n.Key)
				assign(n.Value)
			case *ast.UnaryExpr:
				if n.Op == token.AND {
					assign(n.X)
				}
			}
			return true
		})
	}
	methods, largest := map[string]int{}, 0
	for _, f := range files {
		lines := fset.Position(f.FileEnd).Line
		if largest = max(largest, lines); lines > linesMax {
			t.Errorf("%s has %d lines, more than %d: %s", f.name, lines, linesMax, why)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				methods[f.pkg+"."+receiver(fn)]++
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			s, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			if changing := changingFields(s, assigned); changing > fieldsMax {
				t.Errorf("%s: struct %s has %d fields that change, more than %d: %s", f.at(spec), spec.Name.Name, changing, fieldsMax, why)
			}
			return true
		})
	}
	for name, n := range methods {
		if n > methodsMax {
			t.Errorf("%s has %d methods, more than %d: %s", name, n, methodsMax, why)
		}
	}
	if largest < 100 || len(assigned) < 100 || len(methods) < 50 {
		t.Errorf("the test finds nothing any longer: %d lines, %d fields, %d types", largest, len(assigned), len(methods))
	}
}

// receiver returns the name of a method's receiver type.
func receiver(fn *ast.FuncDecl) string {
	name := ""
	ast.Inspect(fn.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return name == ""
	})
	return name
}

// changingFields counts the fields of a struct that have an assigned name.
func changingFields(s *ast.StructType, assigned map[string]bool) int {
	n := 0
	for _, f := range s.Fields.List {
		for _, name := range f.Names {
			if assigned[name.Name] {
				n++
			}
		}
		if len(f.Names) == 0 && assigned[embeddedName(f.Type)] {
			n++
		}
	}
	return n
}

// embeddedName returns the name of an embedded field.
func embeddedName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return embeddedName(e.X)
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.IndexExpr:
		return embeddedName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// doublers maps the packages that compute delays that double by themselves to the reason why
// controlloop.Backoff does not serve.
var doublers = map[string]string{
	"internal/controlloop":                 "has the one Backoff",
	"internal/apiwriter":                   "is below internal/controlloop, and its delays follow from the attempts of one request and from outages, with jitter",
	"internal/application/flow":            "is pure: the delay of a step follows from its counted errors, the same count after which it fails",
	"internal/workflow/controller":         "spaces out statuses of a workflow that change often, whether or not they fail",
	"internal/workflow/executor/incluster": "runs in the pod of a step, whose program is to stay small, and waits in a loop",
	"internal/workflow/artifacts":          "runs in the pod of a step, whose program is to stay small, and waits in a loop",
}

// TestOneBackoff checks that only the packages of doublers compute delays that double. It detects
// them by their traces in the source: shifts by a variable of what is a duration by its name, and
// variables that are multiplied by 2.
func TestOneBackoff(t *testing.T) {
	const why = "delays after failures are those of a controlloop.Backoff, so that there is one bound and one rule when failures are forgotten; " +
		"if it does not serve, say why in doublers"
	used := map[string]bool{}
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal", "cmd") {
			continue
		}
		found := func(n ast.Node) {
			allowed := longest(f.pkg, doublers)
			if used[allowed] = true; allowed == "" {
				t.Errorf("%s computes a delay that doubles: %s", f.at(n), why)
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.BinaryExpr:
				if _, constant := n.Y.(*ast.BasicLit); n.Op == token.SHL && !constant && isDelay(n.X) {
					found(n)
				}
			case *ast.AssignStmt:
				if two, ok := n.Rhs[0].(*ast.BasicLit); ok && n.Tok == token.MUL_ASSIGN && two.Value == "2" && isDelay(n.Lhs[0]) {
					found(n)
				}
			}
			return true
		})
	}
	for p := range doublers {
		if !used[p] {
			t.Errorf("doublers has %s, which computes no delay that doubles", p)
		}
	}
}

// isDelay reports whether an expression is a duration by its name.
func isDelay(e ast.Expr) bool {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
		if x, ok := e.X.(*ast.Ident); ok && x.Name == "time" {
			return true // such as time.Second
		}
	}
	name = strings.ToLower(name)
	for _, word := range []string{"delay", "backoff", "wait", "pause", "interval", "retry", "repeat", "outage", "least", "first"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}
