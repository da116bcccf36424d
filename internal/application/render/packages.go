package render

import (
	"embed"
	"strings"

	"cuelang.org/go/cue/build"
	"cuelang.org/go/cue/token"
)

// packages are the CUE packages beside CUE's own that templates may import, by path.
//
//go:embed packages
var packages embed.FS

// loadPackage loads vela/NAME from the packages. Other paths are CUE's own, or do not exist, which the caller finds out.
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
	if err := inst.AddFile(path, source); err != nil {
		return nil // compiled in, and compiled by the tests
	}
	if err := inst.Complete(); err != nil {
		return nil
	}
	return inst
}
