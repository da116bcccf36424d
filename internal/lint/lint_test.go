package lint

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

var rewrite = flag.Bool("rewrite", false, "write what testdata gives as what it should give")

func check(objects []Object) []Problem {
	var out []Problem
	var typed []runtime.Object
	for _, o := range objects {
		typed = append(typed, o.Typed)
	}
	for _, p := range engine.Lint(typed, nil, template.InProcess()) {
		out = append(out, Problem{Object: p.Object, Field: p.Field, Message: p.String(), Warning: p.Warning})
	}
	return out
}

// TestGolden lints the files testdata/*.yaml; the .txt file beside each has the expected findings.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		_, findings := Lint([]File{{filepath.Base(file), data}}, Options{Check: check})
		var b strings.Builder
		for _, f := range findings {
			b.WriteString(f.String() + "\n")
		}
		golden := strings.TrimSuffix(file, ".yaml") + ".txt"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(b.String()), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if b.String() != string(want) {
			t.Errorf("%s gives (-rewrite to accept):\n%s", file, b.String())
		}
	}
}

// TestFindingsAreInTheFileOfTheirObject checks objects of one kind and name, in one file and in two.
func TestFindingsAreInTheFileOfTheirObject(t *testing.T) {
	manifest := func(template string) string {
		return "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: same-}\n" +
			"spec:\n  entrypoint: main\n  templates:\n  - name: main\n    " + template + "\n"
	}
	good, bad := manifest("container: {image: a}"), manifest("timeout: soon")
	_, findings := Lint([]File{{"good", []byte(good)}, {"bad", []byte(good + "---\n" + bad)}}, Options{Check: check})
	for _, f := range findings {
		if f.File != "bad" || f.Line < 9 {
			t.Errorf("%s", f)
		}
	}
	if len(findings) != 2 {
		t.Errorf("%d findings: %v", len(findings), findings)
	}
}

func FuzzLint(f *testing.F) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(_ *testing.T, text string) {
		Lint([]File{{"f", []byte(text)}}, Options{Check: check})
	})
}
