package lint

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli/command"
)

var rewrite = flag.Bool("rewrite", false, "write what testdata gives as what it should give")

// lintCommand runs the verb, and returns what it prints and its error.
func lintCommand(t *testing.T, in string, args ...string) (string, error) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := New(command.Streams{In: strings.NewReader(in), Out: &out, Err: &errOut}, "")
	cmd.SilenceUsage, cmd.SilenceErrors = true, true
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// TestGolden lints the files testdata/*.yaml; the .txt file beside each has the expected findings.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		got, err := lintCommand(t, "", file, "-o", "simple")
		golden := strings.TrimSuffix(file, ".yaml") + ".txt"
		if *rewrite {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, readErr := os.ReadFile(golden)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if got != string(want) {
			t.Errorf("%s gives (-rewrite to accept):\n%s", file, got)
		}
		if (err != nil) != (len(want) > 0) {
			t.Errorf("%s: the error is %v", file, err)
		}
	}
}

// TestReportsForPrograms checks that all kinds are in the reports for programs, with file and line.
func TestReportsForPrograms(t *testing.T) {
	const queue = "apiVersion: scheduling.volcano.sh/v1beta1\nkind: Queue\nmetadata: {name: q}\nspec:\n  wieght: 3\n"
	got, err := lintCommand(t, queue, "-", "-o", "json")
	var list []struct {
		File, Message, Severity string
		Line                    int
	}
	if json.Unmarshal([]byte(got), &list) != nil || len(list) != 1 || err == nil {
		t.Fatalf("%v\n%s", err, got)
	}
	if f := list[0]; f.File != "stdin" || f.Line != 5 || f.Severity != "error" || !strings.Contains(f.Message, "did you mean weight?") {
		t.Errorf("%+v", f)
	}
	got, err = lintCommand(t, queue, "-", "-o", "sarif")
	if !strings.Contains(got, `"startLine": 5`) || !strings.Contains(got, "wieght") || err == nil {
		t.Errorf("%v\n%s", err, got)
	}
}

// TestKinds checks that only the kinds that are asked for are checked.
func TestKinds(t *testing.T) {
	if got, err := lintCommand(t, "", "testdata/jobs.yaml", "--kinds", "queues,podgroup", "-o", "simple"); err == nil ||
		!strings.Contains(got, "minMembers") || strings.Contains(got, "minAvaliable") {
		t.Errorf("%v\n%s", err, got)
	}
	if _, err := lintCommand(t, "", "testdata/jobs.yaml", "--kinds", "Services"); err == nil || !strings.Contains(err.Error(), "JobFlow") {
		t.Errorf("%v", err)
	}
}
