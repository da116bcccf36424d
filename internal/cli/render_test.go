package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRenderingAFileWithoutObjectsFails(t *testing.T) {
	for _, text := range []string{"", "---\n", "# nothing\n"} {
		file := filepath.Join(t.TempDir(), "empty.yaml")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errOut := runAlone(t, "def", "render", file); code != 1 || out != "" || !strings.Contains(errOut, "empty.yaml") {
			t.Errorf("%q: exit code %d, %q, %q", text, code, out, errOut)
		}
	}
}
