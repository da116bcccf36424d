package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestWhatOfATextIsCompared(t *testing.T) {
	for name, c := range map[string]struct{ source, want string }{
		"tokens":                             {`a: b.c`, "a : b . c"},
		"comments are left out":              {"// no\na: 1 // nor this\n", "a : 1"},
		"a line's end is a comma":            {"a: 1\nb: 2\n", "a : 1 , b : 2"},
		"the same in one line":               {"a: 1, b: 2", "a : 1 , b : 2"},
		"no comma before a bracket":          {"a: {\n\tb: [\n\t\t1,\n\t]\n}\n", "a : { b : [ 1 ] }"},
		"an interpolation":                   {`a: "x\(f("\(b)"))y"`, `a : "x\( ( f ( "\( ( b )" ) )y"`},
		"two expressions in one text":        {`a: "\(b)-\(c)"`, `a : "\( ( b )-\( ( c )"`},
		"text of several lines that is CUE":  {"a: #\"\"\"\n\tb: \"\\(c)\"\n\td: 1\n\t\"\"\"#", `a : b : "\( ( c )" , d : 1`},
		"text of several lines that is none": {"a: \"\"\"\n\thow {are you\n\t\"\"\"", "a : \"\"\"\n\thow {are you\n\t\"\"\""},
		"parameters are left out":            {"a: 1\nparameter: {\n\tb: [...{c: int}]\n}\nd: 2", "a : 1 | d : 2"},
		"inside of a struct":                 {"template: {\n\ta: 1\n\tparameter: x?: string\n}\nb: 2", "template : { a : 1 | } , b : 2"},
		"on one line":                        {`template: {parameter: {a: 1}, b: parameter.a}`, `template : { | b : parameter . a }`},
		"at the end of a path":               {`template: parameter: {a: 1}`, "template :"},
		"that are optional, or quoted":       {"parameter?: {a: 1}\n\"parameter\": *#A | close({b: 1})\nc: parameter", "c : parameter"},
		"at the end of the text":             {`a: 1, parameter: {b: [1`, "a : 1"},
		"a parameter that is only used":      {`a: parameter.b, c: {d: parameter}, "\(parameter)": 1`, `a : parameter . b , c : { d : parameter } , "\( ( parameter )" : 1`},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, piece := range piecesOf([]byte(c.source)) {
				got = append(got, strings.Join(piece, " "))
			}
			if g := strings.Join(got, " | "); g != c.want {
				t.Errorf("%q, not %q", g, c.want)
			}
		})
	}
}

func TestSequencesDoNotReachAcrossParameters(t *testing.T) {
	if got := sequences(piecesOf([]byte("a: b\nparameter: x\nc: d")), 3); len(got) != 2 {
		t.Errorf("%d sequences: %q", len(got), got)
	}
}

// many returns a definition of n fields whose names begin with name.
func many(n int, name string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "%s%d: %d\n", name, i, i)
	}
	return b.String()
}

func TestTheTable(t *testing.T) {
	cue := many(40, "a")
	indented := "    " + strings.ReplaceAll(strings.TrimSpace(cue), "\n", "\n    ")
	for name, c := range map[string]struct {
		ours, file, theirs string
		row                string
		refused            bool
	}{
		"the same":                 {cue, "d/x.cue", "template: {\n" + cue + "}\n", "x 135 135 100.0 too much", true},
		"other names":              {cue, "x.cue", many(40, "b"), "x 135 0 0.0", false},
		"few sequences":            {many(10, "a"), "x.cue", cue, "x 15 15 100.0 not counted", false},
		"parameters only":          {"parameter: {\n" + cue + "}\n", "x.cue", cue, "x 0 0 0.0 not counted", false},
		"in YAML":                  {cue, "x.yaml", "spec: {a: 1}\n---\nspec:\n  template: |\n" + indented + "\n", "x 135 135 100.0 too much", true},
		"in YAML's other fields":   {cue, "x.yaml", "spec:\n  note: |\n" + indented + "\n  template: \"a: 1\"\n", "x 135 0 0.0", false},
		"in a template of a chart": {cue, "x.yaml", "namespace: {{ include \"ns\" . }}\n  template: |\n" + indented + "\n  other: 1\n", "x 135 135 100.0 too much", true},
		"a tenth":                  {cue + many(90, "b"), "x.cue", many(20, "a"), "x 495 55 11.1", false},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := t.TempDir(), t.TempDir()
			for path, text := range map[string]string{filepath.Join(ours, "x.cue"): c.ours, filepath.Join(theirs, c.file): c.theirs} {
				if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			var out strings.Builder
			err := run(&out, ours, theirs, 25, 15)
			if errors.Is(err, errOverlap) != c.refused || err != nil && !c.refused {
				t.Error(err)
			}
			rows := strings.Split(strings.TrimSpace(out.String()), "\n")
			if got := strings.Join(strings.Fields(rows[len(rows)-1]), " "); got != c.row {
				t.Errorf("%q, not %q", got, c.row)
			}
		})
	}
	if err := run(&strings.Builder{}, t.TempDir(), t.TempDir(), 25, 15); err == nil {
		t.Error("a comparison of nothing is an error")
	}
}
