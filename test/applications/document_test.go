package applications

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestEveryCaseIsInTheDocument: docs/applications-reference.md says for every part of the API which cases show it.
func TestEveryCaseIsInTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/applications-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z0-9][a-z0-9-]*`).FindAllString(string(text), -1) {
		words[word] = true
	}
	names := []string{}
	for name := range files(t) {
		names = append(names, name)
	}
	all, err := filepath.Glob(builtins + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		names = append(names, strings.TrimSuffix(filepath.Base(file), ".yaml"))
	}
	if len(names) < 120 {
		t.Errorf("%d cases", len(names))
	}
	for _, name := range names {
		if !words[name] {
			t.Errorf("case %s is not in docs/applications-reference.md", name)
		}
	}
}
