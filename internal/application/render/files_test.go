package render_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestFilesAreEvaluatedTogether checks files that refer to each other and to values beside them.
func TestFilesAreEvaluatedTogether(t *testing.T) {
	answer, err := render.Files(render.InProcess(), &render.FilesRequest{
		Sources: []render.Source{
			{Name: "template.cue", Text: "package main\noutput: spec: components: [_web] + [{name: \"\\(context.name)-more\"}]\n"},
			{Name: "resources/web.cue", Text: "package main\nimport \"strings\"\n_web: {name: strings.ToLower(parameter.name), if parameter.size != _|_ {size: parameter.size}}\n"},
			{Name: "parameter.cue", Text: "parameter: {\n\tname: *\"WEB\" | string\n\tsize?: int\n\tcount?: int\n}\n"},
		},
		Values: map[string]json.RawMessage{"parameter": json.RawMessage(`{"size":3,"sise":4,"count":2}`), "context": json.RawMessage(`{"name":"one"}`)},
		Fields: []string{"output", "outputs"},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := &render.FilesAnswer{
		Fields: map[string]json.RawMessage{"output": json.RawMessage(`{"spec":{"components":[{"name":"web","size":3},{"name":"one-more"}]}}`)},
		Strays: []string{"context.name", "parameter.sise"},
	}
	if diff := cmp.Diff(want, answer); diff != "" {
		t.Error(diff)
	}
}

// TestFilesThatAreWrong checks that errors name the file and the line.
func TestFilesThatAreWrong(t *testing.T) {
	parameter := render.Source{Name: "parameter.cue", Text: "parameter: name: string\n"}
	for what, c := range map[string]struct {
		text, values, want string
	}{
		"a syntax error":            {"\noutput: {", `{}`, "a.cue, CUE: line 2"},
		"a conflict":                {"output: name: parameter.name\n", `{"name":1}`, "parameter.name: conflicting values"},
		"a value that is missing":   {"output: name: parameter.name\n", `{}`, "parameter.name: cannot convert incomplete value"},
		"a package that is missing": {"import \"vela/none\"\noutput: x: none.#A\n", `{}`, "package vela/none is not supported"},
		"files that are too large":  {"// " + strings.Repeat("x", 5<<20), `{}`, "the limit is 4194304"},
	} {
		t.Run(what, func(t *testing.T) {
			_, err := render.Files(render.InProcess(), &render.FilesRequest{
				Sources: []render.Source{{Name: "a.cue", Text: c.text}, parameter},
				Values:  map[string]json.RawMessage{"parameter": json.RawMessage(c.values)}, Fields: []string{"output"},
			})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}
