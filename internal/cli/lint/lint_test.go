package lint

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/cli/command"
)

var rewrite = flag.Bool("rewrite", false, "write what testdata gives as what it should give")

// TestGolden runs lint on each file testdata/*.yaml; the .txt file beside it has what it prints, and its
// error.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			var out bytes.Buffer
			cmd := New(command.Streams{In: strings.NewReader(""), Out: &out, Err: &out})
			cmd.SetArgs([]string{file, "-o", "simple"})
			cmd.SilenceErrors, cmd.SilenceUsage = true, true
			if err := cmd.Execute(); err != nil {
				out.WriteString("error: " + err.Error() + "\n")
			}
			golden := strings.TrimSuffix(file, ".yaml") + ".txt"
			if *rewrite {
				if err := os.WriteFile(golden, out.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), out.String()); diff != "" {
				t.Errorf("(-rewrite to accept; -want +got):\n%s", diff)
			}
		})
	}
}
