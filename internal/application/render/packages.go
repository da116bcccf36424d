package render

import (
	"embed"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/parser"
	"cuelang.org/go/cue/token"
)

// packages holds the CUE packages that templates may import in addition to CUE's own, by path.
//
//go:embed packages
var packages embed.FS

// loadPackage loads vela/NAME from the embedded packages. It returns nil for other paths, which are
// CUE's own packages or do not exist.
func loadPackage(_ token.Pos, path string) *build.Instance {
	name, ok := strings.CutPrefix(path, "vela/")
	if !ok {
		return nil
	}
	source, err := packages.ReadFile("packages/" + name + ".cue")
	if err != nil {
		return nil
	}
	inst := build.NewContext(build.Loader(loadPackage)).NewInstance("", loadPackage)
	inst.ImportPath = path
	file, err := parser.ParseFile(path, source)
	if err != nil {
		return nil // cannot happen: tests parse the embedded sources
	}
	if err := inst.AddSyntax(file); err != nil {
		return nil
	}
	if err := inst.Complete(); err != nil {
		return nil
	}
	return inst
}

// helmPackage is the path of the package that renders charts.
const helmPackage = "vela/helm"

// imports reports whether a file imports a package.
func imports(f *ast.File, path string) bool {
	for spec := range f.ImportSpecs() {
		if at, err := strconv.Unquote(spec.Path.Value); err == nil && at == path {
			return true
		}
	}
	return false
}
