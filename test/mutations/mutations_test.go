package mutations

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// mutationsMin is the minimum number of mutations. It keeps the list from shrinking.
const mutationsMin = 50

// mutated returns the content of the file with the mistake.
func (m *mutation) mutated(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for pair := range slices.Chunk(append([]string{m.old, m.new}, m.also...), 2) {
		if n := strings.Count(text, pair[0]); n != 1 {
			t.Errorf("%q is %d times in %s, want once: the code has changed, so must the mutation", pair[0], n, m.file)
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	return text
}

func TestMutationsApplyToTheCode(t *testing.T) {
	if len(mutations) < mutationsMin {
		t.Errorf("%d mutations, want at least %d", len(mutations), mutationsMin)
	}
	for _, m := range mutations {
		m.mutated(t)
		files, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(data), "func "+m.function()+"(")
		}
		if !found {
			t.Errorf("%s: %s has no %s", m.name, m.pkg, m.test)
		}
	}
}

func TestEveryMutationIsFound(t *testing.T) {
	if os.Getenv("LOCKSTEP_MUTATIONS") == "" {
		t.Skip("compiles and runs a test for each mutation: make test-mutations")
	}
	only := os.Getenv("LOCKSTEP_MUTATION")
	for _, m := range mutations {
		if !strings.Contains(m.name, only) {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			out, err := m.run(t)
			switch text := string(out); {
			case err == nil:
				t.Errorf("%s passes with the mistake", m.test)
			case strings.Contains(text, "panic: test timed out"):
				t.Errorf("%s hangs, as it may on a slow machine without the mistake", m.test)
			case !strings.Contains(text, "--- FAIL: "+m.function()+" ") && !strings.Contains(text, "panic: "):
				t.Errorf("the test could not be run: %s", text[max(0, len(text)-2000):])
			}
		})
	}
}

// function returns the name of the test without its subtest.
func (m *mutation) function() string {
	name, _, _ := strings.Cut(m.test, "/")
	return name
}

// pattern returns a regular expression that matches only the test.
func (m *mutation) pattern() string {
	parts := strings.Split(m.test, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// run runs the mutation's test against the code with the mistake.
func (m *mutation) run(t *testing.T) ([]byte, error) {
	dir := t.TempDir()
	file, err := filepath.Abs(filepath.Join(root, m.file))
	if err != nil {
		t.Fatal(err)
	}
	wrong := filepath.Join(dir, filepath.Base(m.file))
	if err := os.WriteFile(wrong, []byte(m.mutated(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(map[string]any{"Replace": map[string]string{file: wrong}})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, data, 0o600); err != nil {
		t.Fatal(err)
	}
	// Package rapid saves failing inputs, but these belong to a program with a mistake.
	kept := filepath.Join(root, m.pkg, "testdata", "rapid")
	if _, err := os.Stat(kept); errors.Is(err, fs.ErrNotExist) {
		// removes the parent directory only if it is empty
		defer func() { _ = os.RemoveAll(kept); _ = os.Remove(filepath.Dir(kept)) }()
	}
	cmd := exec.CommandContext(t.Context(), "go", "test", "-overlay", overlay, "-vet=off", "-count=1", "-timeout=5m", "-run", m.pattern(), "./"+m.pkg)
	cmd.Dir, cmd.Env = root, append(append(os.Environ(), "CGO_ENABLED=0"), m.env...)
	return cmd.CombinedOutput()
}
