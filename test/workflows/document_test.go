package workflows

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// repository is the directory of the repository.
const repository = "../../"

func page(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(repository + "docs/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryCaseIsInTheDocument checks that docs/workflows.md, which lists the cases for each part
// of the API, names every case.
func TestEveryCaseIsInTheDocument(t *testing.T) {
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z0-9-]+`).FindAllString(page(t, "workflows.md"), -1) {
		words[word] = true
	}
	for _, f := range load(t) {
		for _, c := range f.cases {
			if !words[c.name] {
				t.Errorf("%s: case %s is not in docs/workflows.md", f.path, c.name)
			}
		}
	}
}

// shownBy is the end of a difference from Argo in the documents, which names its tests.
var shownBy = regexp.MustCompile(`Shown by ([^.]+)\.$`)

// TestStatementsNameTheirTests checks that every row about a feature of workflows and every
// difference from Argo in the documents names tests that exist.
func TestStatementsNameTheirTests(t *testing.T) {
	exists := tests(t)
	check := func(where, names string) {
		t.Helper()
		for name := range strings.SplitSeq(names, ", ") {
			if !exists(strings.Trim(name, "`")) {
				t.Errorf("%s: there is no test %q", where, name)
			}
		}
	}
	rows, differences := 0, 0
	for _, name := range []string{"workflows.md", "workflow-pods.md", "workflow-controller.md"} {
		inTable, inList := false, false
		for paragraph := range strings.SplitSeq(page(t, name), "\n\n") {
			first, _, _ := strings.Cut(paragraph, "\n")
			if strings.HasPrefix(first, "#") {
				inList = strings.Contains(first, "Where it differs") || strings.Contains(first, "Differences from Argo")
				continue
			}
			inTable = strings.HasSuffix(first, "| tests |") || strings.HasSuffix(first, "| test |")
			switch {
			case inTable:
				for _, row := range strings.Split(strings.TrimSpace(paragraph), "\n")[2:] {
					cells := strings.Split(strings.TrimSuffix(strings.TrimPrefix(row, "| "), " |"), " | ")
					rows++
					check(name+": "+cells[0], cells[len(cells)-1])
				}
			case inList:
				for item := range strings.SplitSeq(strings.TrimPrefix("\n"+paragraph, "\n- "), "\n- ") {
					item = strings.Join(strings.Fields(item), " ")
					differences++
					found := shownBy.FindStringSubmatch(item)
					if found == nil {
						t.Errorf("%s: %.80s... does not say what shows it", name, item)
						continue
					}
					check(name+": "+item[:min(len(item), 80)], found[1])
				}
			}
		}
	}
	if rows < 100 || differences < 15 {
		t.Errorf("%d rows and %d differences were found", rows, differences)
	}
}

// tests returns a function that reports whether a test exists: a case, a script of the engine
// ("script NAME"), pods of a workflow ("pods NAME"), a Go test, or a package or file of tests.
func tests(t *testing.T) func(name string) bool {
	t.Helper()
	found := map[string]bool{}
	for _, f := range load(t) {
		for _, c := range f.cases {
			found[c.name] = true
		}
	}
	function := regexp.MustCompile(`(?m)^func (Test\w+|Fuzz\w+)\(`)
	for _, directory := range []string{"internal", "test"} {
		err := filepath.WalkDir(repository+directory, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			code, err := os.ReadFile(path)
			for _, match := range function.FindAllSubmatch(code, -1) {
				found[string(match[1])] = true
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	there := func(path string) bool { _, err := os.Stat(repository + path); return err == nil }
	return func(name string) bool {
		if script, is := strings.CutPrefix(name, "script "); is {
			return there("internal/workflow/engine/testdata/" + script + ".txt")
		}
		if pod, is := strings.CutPrefix(name, "pods "); is {
			return there("internal/workflow/pods/testdata/" + pod + ".yaml")
		}
		return found[name] || strings.Contains(name, "/") && there(name)
	}
}
