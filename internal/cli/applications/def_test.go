package applications_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli"
)

// TestFilesOfCUEBecomeManifests prints a CUE file, which kubectl cannot read, as a manifest, which
// kubectl can read, and then reads that manifest.
func TestFilesOfCUEBecomeManifests(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	page := write("page.cue", `
page: {
	type:        "component"
	description: "A page"
	attributes: workload: definition: {apiVersion: "v1", kind: "ConfigMap"}
}
template: {
	output: {apiVersion: "v1", kind: "ConfigMap", data: text: parameter.text}
	// +usage=what it says
	parameter: text: string
}
`)
	owner := write("owner.cue", `
owner: {type: "trait", attributes: podDisruptive: true}
template: {
	patch: metadata: labels: owner: parameter.name
	parameter: name: string
}
`)
	var out, errOut strings.Builder
	if code := cli.Run([]string{"def", "manifest", page, owner}, strings.NewReader(""), &out, &errOut); code != 0 {
		t.Fatalf("%d: %s", code, errOut.String())
	}
	for _, want := range []string{"kind: ComponentDefinition\n", "  name: page\n", "\n---\n", "kind: TraitDefinition\n", "podDisruptive: true\n", "// +usage=what it says\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	manifest := write("both.yaml", out.String())
	out.Reset()
	if code := cli.Run([]string{"def", "vet", manifest}, strings.NewReader(""), &out, &errOut); code != 0 || out.String() != "ComponentDefinition page: valid\nTraitDefinition owner: valid\n" {
		t.Errorf("%d: %s%s", code, out.String(), errOut.String())
	}

	broken := write("broken.cue", `
broken: type: "trait"
template: {patch: metadata: labels: owner: nobody}
`)
	out.Reset()
	if code := cli.Run([]string{"def", "manifest", broken}, strings.NewReader(""), &out, &errOut); code != 1 || out.Len() != 0 || !strings.Contains(errOut.String(), "nobody") {
		t.Errorf("of one that does not compile: %d: %s%s", code, out.String(), errOut.String())
	}
}

// TestVetRefusesUnknownOperations checks that def vet refuses what a step could not do.
func TestVetRefusesUnknownOperations(t *testing.T) {
	for template, want := range map[string]string{
		`x: op.#CreateConfig & {name: "a"}`: "vela/op has no #CreateConfig",
		`x: {#do: "fly", #provider: "op"}`:  "the operation fly is not supported",
	} {
		file := filepath.Join(t.TempDir(), "step.cue")
		text := "import \"vela/op\"\n\nstep: type: \"workflow-step\"\ntemplate: {\n\t" + template + "\n\tparameter: {}\n}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out, errOut strings.Builder
		if code := cli.Run([]string{"def", "vet", file}, strings.NewReader(""), &out, &errOut); code != 1 || out.Len() != 0 || !strings.Contains(errOut.String(), want) {
			t.Errorf("%s: %d: %s%s", template, code, out.String(), errOut.String())
		}
	}
}
