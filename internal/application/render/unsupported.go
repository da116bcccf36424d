package render

import (
	"fmt"
	"path"
	"strconv"
	"strings"

	"cuelang.org/go/cue/ast"
	cueerrors "cuelang.org/go/cue/errors"
)

const noTerraform = "components are made of configurations of Terraform by definitions with schematic.terraform"

// unsupported has the reasons why definitions that KubeVela has are left out, by kind and name, and those
// of packages, by path. Users may have definitions of their own by these names.
var unsupported = map[string]string{
	"ComponentDefinition terraform": noTerraform,
	"TraitDefinition nocalhost":     "it needs the server of Nocalhost",
	"PolicyDefinition envbinding":   "its name is env-binding",
	"PolicyDefinition health":       "the health of an application is that of its components",
	"vela/terraform":                noTerraform + "; the outputs of components and the step deploy take the place of its operations",
}

// Unsupported returns an error with the reason why Lockstep has no definition of that kind and name, or
// nil if it is no definition of KubeVela.
func Unsupported(kind Kind, name string) error {
	if why := unsupported[string(kind)+" "+name]; why != "" {
		return fmt.Errorf("it is not supported: %s", why)
	}
	return nil
}

// missingPackages returns an error for each import of a package vela/NAME that does not exist.
func missingPackages(f *ast.File) error {
	var found cueerrors.Error
	for spec := range f.ImportSpecs() {
		at, err := strconv.Unquote(spec.Path.Value)
		if err != nil || !strings.HasPrefix(at, "vela/") {
			continue
		}
		if _, err := packages.ReadFile("packages/" + path.Base(at) + ".cue"); err == nil {
			continue
		}
		why := unsupported[at]
		if why == "" {
			why = "there is no such package"
		}
		found = cueerrors.Append(found, cueerrors.Newf(spec.Pos(), "package %s is not supported: %s", at, why))
	}
	if found == nil {
		return nil
	}
	return found
}
