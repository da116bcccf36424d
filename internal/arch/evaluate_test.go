package arch

import (
	"go/ast"
	"maps"
	"path"
	"slices"
	"strconv"
	"testing"
)

// inProcess maps the packages that may evaluate users' programs in their own process to the reason
// why the process belongs to the author of the programs.
var inProcess = map[string]string{
	"internal/cli":              "runs on the user's own machine",
	"internal/workflow/request": "runs in the pod of the step",
	"internal/workflow/data":    "runs in the pod of the step",
}

// evaluatorPackages are the packages with an InProcess variant of their evaluators.
var evaluatorPackages = []string{"internal/workflow/template", "internal/application/render", "internal/application/chart"}

// boundsPatterns is the package that bounds the size of the patterns that it compiles. They are those of
// HyperNodes, which administrators of the cluster write.
const boundsPatterns = "internal/scheduler/network"

// interpreters maps libraries that evaluate users' programs to the packages that may import them:
// packages whose evaluators run in child processes, the packages of inProcess, the laboratory, which
// runs on the user's own machine, on the user's own files, and internal/admission, which evaluates the
// rules in config/ and no program of a user.
var interpreters = map[string][]string{
	"github.com/expr-lang/expr":             {"internal/workflow/template"},
	"github.com/casbin/govaluate":           {"internal/workflow/template"},
	"github.com/Masterminds/sprig/v3":       {"internal/workflow/template"},
	"github.com/theory/jsonpath":            {"internal/workflow/template"},
	"cuelang.org/go":                        {"internal/application/render", "internal/cli"},
	"helm.sh/helm/v4":                       {"internal/application/chart", "internal/application/charts", "internal/cli"},
	"text/template":                         {"internal/application/chart", "internal/lab"},
	"github.com/itchyny/gojq":               {"internal/workflow/resource"},
	"github.com/tidwall/gjson":              {"internal/workflow/resource"},
	"k8s.io/client-go/util/jsonpath":        {"internal/workflow/resource", "internal/cli", "internal/lab"},
	"github.com/google/cel-go":              {"internal/admission"},
	"k8s.io/apiserver/pkg/cel":              {"internal/admission"},
	"github.com/dop251/goja":                nil,
	"github.com/yuin/gopher-lua":            nil,
	"go.starlark.net":                       nil,
	"github.com/open-policy-agent/opa":      nil,
	"github.com/PaesslerAG/jsonpath":        nil,
	"github.com/ohler55/ojg":                nil,
	"github.com/dlclark/regexp2":            nil,
	"github.com/santhosh-tekuri/jsonschema": {"internal/application/chart"},
}

// TestProgramsOfUsersRunInChildren checks that users' programs are evaluated in child processes, as
// docs/security.md says.
func TestProgramsOfUsersRunInChildren(t *testing.T) {
	const why = "the manager evaluates programs of users in child processes, by an internal/sandbox.Pool"
	found := map[string]bool{}
	for _, f := range load(t) {
		if f.test || !under(f.pkg, "internal", "cmd") {
			continue
		}
		names := map[string]string{} // local names of this file's imports
		for _, spec := range f.Imports {
			imported, _ := strconv.Unquote(spec.Path.Value)
			for library, by := range interpreters {
				if under(imported, library) && !under(f.pkg, by...) {
					t.Errorf("%s imports %s: %s", f.at(spec), imported, why)
				}
			}
			for _, p := range evaluatorPackages {
				if imported == module+p {
					name := path.Base(p)
					if spec.Name != nil {
						name = spec.Name.Name
					}
					names[name] = p
				}
			}
			if imported == "regexp" || imported == "regexp/syntax" {
				names["regexp"] = "regexp"
			}
		}
		ast.Inspect(f.File, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := selector.X.(*ast.Ident)
			switch {
			case !ok || names[x.Name] == "":
			case selector.Sel.Name == "InProcess":
				if found["InProcess"] = true; !under(f.pkg, slices.Collect(maps.Keys(inProcess))...) {
					t.Errorf("%s evaluates in its own process: %s", f.at(n), why)
				}
			case names[x.Name] == "regexp" && (selector.Sel.Name == "Compile" || selector.Sel.Name == "MustCompile"):
				if literal(call.Args[0]) {
					break
				}
				if found["pattern"] = true; !under(f.pkg, "internal/cli", "internal/lab", "internal/submit", boundsPatterns) {
					t.Errorf("%s compiles a regular expression that may be a user's, which takes up to gigabytes: %s", f.at(n), why)
				}
			}
			return true
		})
	}
	if !found["InProcess"] || !found["pattern"] {
		t.Errorf("the test finds nothing any longer: %v", found)
	}
}

// literal reports whether an expression consists of constants in the source.
func literal(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return true
	case *ast.BinaryExpr:
		return literal(e.X) && literal(e.Y)
	}
	return false
}
