// Command licences lists the licences of the Go modules that programs are linked with. It fails for
// a licence that is unknown or that requires more than its notice.
//
//	go run ./hack/licences ./cmd/...
package main

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/google/licensecheck"
)

// allowed lists the SPDX identifiers of the licences that a linked module may have.
var allowed = []string{"Apache-2.0", "MIT", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MPL-2.0", "Unlicense", "CC0-1.0",
	"Zlib", "0BSD"}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(packages []string) error {
	modules, err := linked(packages)
	if err != nil {
		return err
	}
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	refused := 0
	for _, m := range modules {
		found, err := licencesOf(m.dir)
		if err != nil {
			return fmt.Errorf("%s: %w", m.name, err)
		}
		note := ""
		if len(found) == 0 || slices.ContainsFunc(found, func(id string) bool { return !slices.Contains(allowed, id) }) {
			refused++
			note = "NOT ALLOWED"
		}
		fmt.Fprintf(out, "%s\t%s\t%s\n", m.name, strings.Join(found, " "), note)
	}
	if err := out.Flush(); err != nil {
		return err
	}
	if refused > 0 {
		return fmt.Errorf("%d modules have no licence that is allowed (see allowed in hack/licences)", refused)
	}
	return nil
}

// module is a Go module and the directory of its files.
type module struct{ name, dir string }

// linked returns the modules, except the main one, whose packages are linked into the programs.
func linked(packages []string) ([]module, error) {
	const format = `{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}	` +
		`{{with .Replace}}{{.Dir}}{{else}}{{.Dir}}{{end}}{{end}}{{end}}`
	cmd := exec.Command("go", append([]string{"list", "-deps", "-f", format}, packages...)...)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	var modules []module
	lines := bufio.NewScanner(strings.NewReader(string(text)))
	for lines.Scan() {
		if name, dir, ok := strings.Cut(lines.Text(), "\t"); ok {
			modules = append(modules, module{name, dir})
		}
	}
	slices.SortFunc(modules, func(a, b module) int { return strings.Compare(a.name, b.name) })
	return slices.Compact(modules), lines.Err()
}

// licencesOf returns the SPDX identifiers of the licence files in a module's root directory. It
// ignores licences of documentation (LICENSE.docs), which do not apply to programs.
func licencesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var found []string
	for _, e := range entries {
		name := strings.ToUpper(e.Name())
		if e.IsDir() || strings.HasSuffix(name, ".DOCS") ||
			!strings.HasPrefix(name, "LICEN") && !strings.HasPrefix(name, "COPYING") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, m := range licensecheck.Scan(text).Match {
			if !m.IsURL && !slices.Contains(found, m.ID) {
				found = append(found, m.ID)
			}
		}
	}
	slices.Sort(found)
	return found, nil
}
