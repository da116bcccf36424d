package config

import "embed"

// Definition is a built-in definition as its file has it: see render.ParseFile.
type Definition struct {
	File   string
	Source []byte
}

//go:embed definitions
var definitionFiles embed.FS

// Definitions returns the built-in definitions, in the order of their files.
func Definitions() []Definition {
	entries, err := definitionFiles.ReadDir("definitions")
	if err != nil {
		panic(err) // compiled in
	}
	var out []Definition
	for _, e := range entries {
		if e.IsDir() {
			continue
		}
		source, err := definitionFiles.ReadFile("definitions/" + e.Name())
		if err != nil {
			panic(err)
		}
		out = append(out, Definition{File: e.Name(), Source: source})
	}
	return out
}

// DefinitionFragment returns a part that built-in definitions include.
func DefinitionFragment(name string) ([]byte, error) {
	return definitionFiles.ReadFile("definitions/fragments/" + name + ".cue")
}
