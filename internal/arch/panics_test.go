package arch

import (
	"go/ast"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/panics"
)

// TestSharedStateIsNamedAsItIs checks that the list of package panics names existing functions,
// because an entry that names no function protects nothing.
func TestSharedStateIsNamedAsItIs(t *testing.T) {
	declared := map[string]bool{}
	for _, f := range load(t) {
		declared[f.pkg+"."] = true
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv == nil {
				continue
			}
			star, ok := fn.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				continue
			}
			receiver, args := star.X, ""
			switch r := receiver.(type) {
			case *ast.IndexExpr:
				receiver, args = r.X, "[...]"
			case *ast.IndexListExpr:
				receiver, args = r.X, "[...]"
			}
			if name, ok := receiver.(*ast.Ident); ok {
				declared[f.pkg+".(*"+name.Name+args+")"] = true
				declared[f.pkg+".(*"+name.Name+args+")."+fn.Name.Name] = true
			}
		}
	}
	for _, s := range panics.Shared() {
		s = strings.TrimPrefix(s, module)
		if strings.HasSuffix(s, "[") {
			s += "...])"
		}
		if !declared[s] {
			t.Errorf("internal/panics ends the process for panics in %s, which does not exist", s)
		}
	}
}

// TestFailpointsAreArmedByTestsAlone checks that only tests arm failpoints. A failpoint that could
// be armed in production would be a way to make the manager fail.
func TestFailpointsAreArmedByTestsAlone(t *testing.T) {
	for _, f := range load(t) {
		if f.test || f.pkg == "internal/failpoint" {
			continue
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Arm" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "failpoint" {
					t.Errorf("%s arms a failpoint, which only tests may", f.at(n))
				}
			}
			return true
		})
	}
}
