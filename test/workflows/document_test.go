package workflows

import (
	"os"
	"regexp"
	"testing"
)

// TestEveryCaseIsInTheDocument checks that docs/workflows.md, which lists the cases for each part
// of the API, names every case.
func TestEveryCaseIsInTheDocument(t *testing.T) {
	text, err := os.ReadFile("../../docs/workflows.md")
	if err != nil {
		t.Fatal(err)
	}
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z0-9-]+`).FindAllString(string(text), -1) {
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
