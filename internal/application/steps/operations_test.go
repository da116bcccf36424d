package steps

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestStepsCarryOutEveryOperation checks that action.act carries out the operations that
// render.Outside lists, by which definitions are checked, and no others.
func TestStepsCarryOutEveryOperation(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "actions.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var done []string
	ast.Inspect(file, func(n ast.Node) bool {
		if f, ok := n.(*ast.FuncDecl); ok && f.Name.Name != "act" {
			return false
		}
		if c, ok := n.(*ast.CaseClause); ok {
			for _, e := range c.List {
				name, err := strconv.Unquote(e.(*ast.BasicLit).Value)
				if err != nil {
					t.Fatal(err)
				}
				done = append(done, name)
			}
		}
		return true
	})
	slices.Sort(done)
	if want := slices.Sorted(slices.Values(render.Outside)); !slices.Equal(done, want) {
		t.Errorf("act carries out %v; render.Outside has %v", done, want)
	}
}
