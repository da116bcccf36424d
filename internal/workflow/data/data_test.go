package data

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/workflow/execapi"
)

func TestTransform(t *testing.T) {
	files := []any{"a.pdf", "b.txt", "deep/c.pdf"}
	for name, c := range map[string]struct {
		expressions []string
		want, fault string
	}{
		"nothing":             {nil, `["a.pdf","b.txt","deep/c.pdf"]`, ""},
		"filter, then map":    {[]string{`filter(data, {# endsWith ".pdf"})`, `map(data, {# + ".ready"})`}, `["a.pdf.ready","deep/c.pdf.ready"]`, ""},
		"a text":              {[]string{`data[0]`}, `"a.pdf"`, ""},
		"a number":            {[]string{`len(data)`, `data + 1`}, `4`, ""},
		"maps":                {[]string{`{"all": data}`, `data.all[1]`}, `"b.txt"`, ""},
		"sprig":               {[]string{`map(data, {sprig.upper(#)})`}, `["A.PDF","B.TXT","DEEP/C.PDF"]`, ""},
		"a comment":           {[]string{"data[0] // the first"}, `"a.pdf"`, ""},
		"an empty list":       {[]string{`filter(data, {# == "x"})`}, `[]`, ""},
		"no expression":       {[]string{`data`, `) + (`}, "", "data.transformation[1].expression"},
		"of the wrong type":   {[]string{`data.name`}, "", "data.transformation[0].expression"},
		"the end of the call": {[]string{`data), toJson(data`}, "", "data.transformation[0].expression"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Transform(files, c.expressions)
			if c.fault != "" {
				if err == nil || !strings.Contains(err.Error(), c.fault) {
					t.Errorf("%s, %v; want %s", got, err, c.fault)
				}
				return
			}
			if err != nil || got != c.want {
				t.Errorf("got %s, %v; want %s", got, err, c.want)
			}
		})
	}
}

// TestRun lists a volume. A result that does not fit goes to a WorkflowTaskResult if it is read, and
// is left out if not.
func TestRun(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"wf/" + strings.Repeat("long", 50), "wf/b", "other/c"} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		path      string
		wanted    bool
		max       int
		want, put string
		code      int
	}{
		"all":                        {"wf", true, 4096, `"result":"[\"wf/b\",`, "", 0},
		"too long, and read":         {"wf", true, 100, `"elsewhere":true`, `["wf/b",`, 0},
		"too long, and read by none": {"wf", false, 100, `{"lockstep":1,"plain":true}`, "", 0},
		"nothing there":              {"nowhere", true, 4096, `data.source.artifactPaths`, "", execapi.ExitExecutor},
	} {
		t.Run(name, func(t *testing.T) {
			put := ""
			plan := &execapi.DataPlan{From: execapi.Location{Volume: &execapi.File{Root: root, Path: c.path}}, Result: c.wanted, MaxMessage: c.max, Task: &execapi.Task{Name: "n"}}
			message, code := Run(t.Context(), plan, func(_ *execapi.Task, r *execapi.Report) error {
				put = *r.Result
				return nil
			})
			if code != c.code || !strings.Contains(message, c.want) || !strings.HasPrefix(put, c.put) || (put == "") != (c.put == "") {
				t.Errorf("%d %s, put %s", code, message, put)
			}
		})
	}
}
