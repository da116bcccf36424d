package chart_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/chart/charttest"
)

var run = chart.InProcess()

func object(kind, name, rest string) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: %s\nmetadata:\n  name: %s\n%s", kind, name, rest)
}

func hook(kind, name, events, weight string) string {
	return object(kind, name, "  annotations: {helm.sh/hook: \""+events+"\", helm.sh/hook-weight: \""+weight+"\"}\n")
}

// rendered packs a chart of the given files and renders it.
func rendered(t *testing.T, files map[string]string, req chart.Request) (*chart.Rendered, error) {
	t.Helper()
	c, err := chart.Open(run, charttest.Pack("web", "1.2.3", files))
	if err != nil {
		return nil, err
	}
	if req.Release == "" {
		req.Release = "rel"
	}
	if req.KubeVersion == "" {
		req.KubeVersion = "v1.36.3"
	}
	req.Namespace, req.Now = "ns", time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	return c.Render(run, &req)
}

func text(t *testing.T, r *chart.Rendered) string {
	t.Helper()
	data, err := json.Marshal(r.Objects)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestWhatChartsMake(t *testing.T) {
	for name, c := range map[string]struct {
		files  map[string]string
		values map[string]any
		apis   []string
		want   []string // parts of the objects' JSON
		not    []string
	}{
		"values, the release and the chart are known": {
			files:  map[string]string{"values.yaml": "size: 1\nlabel: none\n", "templates/a.yaml": object("ConfigMap", "{{ .Release.Name }}-{{ .Chart.Name }}", "data: {size: {{ .Values.size | quote }}, label: {{ .Values.label }}, ns: {{ .Release.Namespace }}, install: {{ .Release.IsInstall | quote }}}\n")},
			values: map[string]any{"size": int64(3)},
			want:   []string{`"name":"rel-web"`, `"size":"3"`, `"label":"none"`, `"ns":"ns"`, `"install":"true"`},
		},
		"lists of numbers": {
			files: map[string]string{"templates/a.yaml": object("ConfigMap", "a", "data: {up: {{ untilStep 1 6 2 | quote }}, down: {{ untilStep 3 -3 -2 | quote }}, "+
				"none: {{ untilStep 3 1 2 | quote }}, high: {{ untilStep 9223372036854775800 9223372036854775807 5 | quote }}, "+
				"low: {{ untilStep -9223372036854775800 -9223372036854775808 -5 | quote }}}\n")},
			want: []string{`"up":"[1 3 5]"`, `"down":"[3 1 -1]"`, `"none":"[]"`, `"high":"[9223372036854775800 9223372036854775805]"`, `"low":"[-9223372036854775800 -9223372036854775805]"`},
		},
		"charts inside a chart, with conditions": {
			files: map[string]string{
				"Chart.yaml":                      "apiVersion: v2\nname: web\nversion: 1.2.3\ndependencies: [{name: db, version: 1.x, repository: \"\", condition: db.enabled}, {name: cache, version: 1.x, repository: \"\", condition: cache.enabled}]\n",
				"charts/db/Chart.yaml":            "apiVersion: v2\nname: db\nversion: 1.0.0\n",
				"charts/db/templates/a.yaml":      object("ConfigMap", "db", "data: {v: {{ .Values.v | quote }}}\n"),
				"charts/cache/Chart.yaml":         "apiVersion: v2\nname: cache\nversion: 1.0.0\n",
				"charts/cache/templates/a.yaml":   object("ConfigMap", "cache", ""),
				"templates/a.yaml":                object("ConfigMap", "web", ""),
				"charts/db/templates/_x.yaml":     "not an object",
				"charts/db/templates/NOTES.txt":   "nor this",
				"charts/cache/templates/b.yaml":   "",
				"charts/cache/templates/NOTES.md": "",
			},
			values: map[string]any{"db": map[string]any{"enabled": true, "v": "5"}, "cache": map[string]any{"enabled": false}},
			want:   []string{`"name":"db"`, `"v":"5"`, `"name":"web"`},
			not:    []string{`"name":"cache"`},
		},
		"what the cluster serves": {
			files: map[string]string{"templates/a.yaml": "{{ if .Capabilities.APIVersions.Has \"example.com/v1/Thing\" }}\n" + object("ConfigMap", "has", "") + "{{ end }}\n" + object("ConfigMap", "v{{ .Capabilities.KubeVersion.Minor }}", "")},
			apis:  []string{"example.com/v1/Thing"},
			want:  []string{`"name":"has"`, `"name":"v36"`},
		},
		"several documents, and lists": {
			files: map[string]string{"templates/a.yaml": object("ConfigMap", "a", "") + object("ConfigMap", "b", "") + "---\napiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Secret, metadata: {name: c}}]\n---\n# nothing\n"},
			want:  []string{`"name":"a"`, `"name":"b"`, `"name":"c"`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := rendered(t, c.files, chart.Request{Values: c.values, APIVersions: c.apis, Revision: 1})
			if err != nil {
				t.Fatal(err)
			}
			got := text(t, r)
			for _, part := range c.want {
				if !strings.Contains(got, part) {
					t.Errorf("%s lacks %s", got, part)
				}
			}
			for _, part := range c.not {
				if strings.Contains(got, part) {
					t.Errorf("%s has %s", got, part)
				}
			}
		})
	}
}

func TestWavesFollowHooksAndTheirWeights(t *testing.T) {
	files := map[string]string{
		"crds/a.yaml": object("CustomResourceDefinition", "crd", ""),
		"templates/a.yaml": object("ConfigMap", "main", "") + object("Namespace", "space", "") +
			hook("Job", "pre-late", "pre-install,pre-upgrade", "5") + hook("Job", "pre-early", "pre-install", "-5") +
			hook("Job", "post", "post-install", "0") + hook("Job", "upgrade", "pre-upgrade", "0") +
			hook("Pod", "test", "test", "0") + hook("Job", "bye", "pre-delete", "0"),
	}
	order := func(revision int64, skip bool) (names, left []string) {
		r, err := rendered(t, files, chart.Request{Revision: revision, SkipHooks: skip, SkipCRDs: skip})
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range r.Objects {
			name := o.Object["metadata"].(map[string]any)["name"].(string)
			if i > 0 && o.Wave > r.Objects[i-1].Wave {
				name = "< " + name
			}
			names = append(names, name)
		}
		return names, r.Left
	}
	check := func(what string, got []string, want string) {
		t.Helper()
		if text := strings.Join(got, " "); text != want {
			t.Errorf("%s: %s, not %s", what, text, want)
		}
	}
	first, left := order(1, false)
	check("the first revision", first, "crd < space < pre-early < pre-late < main < post")
	check("what is left out", left, "Job/upgrade (pre-upgrade) Job/bye (pre-delete)")
	later, _ := order(2, false)
	check("a later revision", later, "crd < space < pre-early < upgrade < pre-late < main < post")
	none, _ := order(1, true)
	check("without hooks", none, "space < main")
}

func TestWhatIsMadeUpIsKeptApart(t *testing.T) {
	r, err := rendered(t, map[string]string{"templates/a.yaml": object("Secret", "s", "stringData: {user: me, password: {{ randAlphaNum 20 }}}\n") +
		object("ConfigMap", "c", "  annotations: {at: {{ now | date \"2006-01-02\" | quote }}}\ndata: {k: v}\n") + object("ConfigMap", "same", "data: {k: v}\n")}, chart.Request{Revision: 1})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []struct{ once, rest string }{
		{`{"stringData":{"password":`, `"stringData":{"user":"me"}`},
		{`{"metadata":{"annotations":{"at":`, `"data":{"k":"v"}`},
		{`null`, `"data":{"k":"v"}`},
	} {
		once, _ := json.Marshal(r.Objects[i].Once)
		rest, _ := json.Marshal(r.Objects[i].Object)
		if !strings.HasPrefix(string(once), want.once) || !strings.Contains(string(rest), want.rest) || strings.Contains(string(rest), "password") {
			t.Errorf("object %d: once %s, and %s", i, once, rest)
		}
	}
	if _, err := rendered(t, map[string]string{"templates/a.yaml": object("Pod", "p-{{ randAlphaNum 5 | lower }}", "")}, chart.Request{}); err == nil || !strings.Contains(err.Error(), "the name of Pod") {
		t.Errorf("a name that is made up: %v", err)
	}
}

func TestChartsThatAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		files map[string]string
		says  string
	}{
		"a library":                        {map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\ntype: library\n"}, "is a library"},
		"a chart without its parts":        {map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\ndependencies: [{name: db, version: 1.x}]\n"}, "without db"},
		"one for another Kubernetes":       {map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\nkubeVersion: \"< 1.20\"\n"}, "needs Kubernetes < 1.20"},
		"a template that does not parse":   {map[string]string{"templates/a.yaml": "{{ if }}"}, "templates/a.yaml:1"},
		"a template that refuses values":   {map[string]string{"templates/a.yaml": `{{ required "size must be given" .Values.size }}`}, "size must be given"},
		"values that the schema refuses":   {map[string]string{"values.yaml": "size: many", "values.schema.json": `{"properties": {"size": {"type": "integer"}}}`}, "/size"},
		"an object without a kind":         {map[string]string{"templates/a.yaml": "metadata: {name: x}"}, "no kind"},
		"what is not YAML":                 {map[string]string{"templates/a.yaml": "a: b: c"}, "templates/a.yaml"},
		"a list of all numbers":            {map[string]string{"templates/a.yaml": "{{ range untilStep -9223372036854775807 9223372036854775807 1 }}x{{ end }}"}, "more than 65536 numbers"},
		"a list of all numbers, backwards": {map[string]string{"templates/a.yaml": "{{ range untilStep 9223372036854775807 -9223372036854775807 -1 }}x{{ end }}"}, "more than 65536 numbers"},
		"a list that is too long":          {map[string]string{"templates/a.yaml": "{{ range until 1000000000 }}x{{ end }}"}, "more than 65536 numbers"},
		"a text that is too long":          {map[string]string{"templates/a.yaml": `{{ repeat 1000000000 "x" }}`}, "more than 1048576 bytes"},
		"a template that includes itself":  {map[string]string{"templates/_a.tpl": `{{ define "a" }}{{ include "a" . }}{{ end }}`, "templates/a.yaml": `{{ include "a" . }}`}, "nested reference"},
		"objects that change their number": {map[string]string{"templates/a.yaml": "{{ if lt (now | date \"2006\" | int) 2040 }}\n" + object("ConfigMap", "x", "") + "{{ end }}"}, "other objects each time"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := rendered(t, c.files, chart.Request{Revision: 1})
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, not %q", err, c.says)
			}
		})
	}
	if _, err := chart.Open(run, []byte("no archive")); err == nil {
		t.Error("what is not an archive is taken for one")
	}
	if _, err := chart.Open(run, charttest.Pack("web", "1.0.0", map[string]string{"files/a": strings.Repeat("0", 33<<20)})); err == nil || !strings.Contains(err.Error(), "unpacked") {
		t.Errorf("an archive that is small and unpacks to much: %v", err)
	}
}

// TestSchemasLoadFromTheChartAlone checks that references of schemas are never fetched, in whatever
// form they are written.
func TestSchemasLoadFromTheChartAlone(t *testing.T) {
	const secret = "s3cr3t-bytes"
	file := filepath.Join(t.TempDir(), "secret.json")
	if err := os.WriteFile(file, []byte(secret), 0o600); err != nil {
		t.Fatal(err)
	}
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		fmt.Fprint(w, secret)
	}))
	defer server.Close()
	for _, address := range []string{server.URL + "/x.json", "file://" + file, "FILE://" + file, "../../../.." + file, "/" + file, "urn:x:y", "metadata.json"} {
		for name, schema := range map[string]string{
			"$ref":                   `{"$ref": %q}`,
			"$ref, escaped":          `{"\u0024ref": %q}`,
			"$schema":                `{"$schema": %q}`,
			"$schema, escaped":       `{"\u0024\u0073chema": %q}`,
			"$ref below":             `{"properties": {"a": {"allOf": [{"$ref": %q}]}}}`,
			"$dynamicRef":            `{"$dynamicRef": %q}`,
			"$ref relative to an id": `{"$id": %q, "$ref": "other.json"}`,
		} {
			for place, files := range map[string]map[string]string{
				"the chart":      {"values.schema.json": fmt.Sprintf(schema, address)},
				"one inside":     {"charts/in/Chart.yaml": "apiVersion: v2\nname: in\nversion: 1.0.0\n", "charts/in/values.schema.json": fmt.Sprintf(schema, address)},
				"a file of that": {"values.schema.json": `{"$ref": "schemas/a.json"}`, "schemas/a.json": fmt.Sprintf(schema, address)},
			} {
				files["templates/a.yaml"] = object("ConfigMap", "x", "")
				_, err := rendered(t, files, chart.Request{Revision: 1})
				if err != nil && strings.Contains(err.Error(), "reference cycle") {
					continue // a reference to the schema itself
				}
				if err == nil || !strings.Contains(err.Error(), "schemas are loaded from the chart alone") || strings.Contains(err.Error(), secret) {
					t.Errorf("%s of %s in %s: %v", name, address, place, err)
				}
			}
		}
	}
	if asked.Load() != 0 {
		t.Errorf("%d requests were sent", asked.Load())
	}
}

func TestValuesAreCheckedBySchemas(t *testing.T) {
	port := `{"type": "object", "properties": {"port": {"type": "integer", "maximum": 65535}}}`
	inner := map[string]string{"charts/in/Chart.yaml": "apiVersion: v2\nname: in\nversion: 1.0.0\n", "charts/in/values.schema.json": port}
	for name, c := range map[string]struct {
		files  map[string]string
		values map[string]any
		want   string // part of the error
	}{
		"values that fit":                {map[string]string{"values.schema.json": port}, map[string]any{"port": int64(80)}, ""},
		"values that do not":             {map[string]string{"values.schema.json": port}, map[string]any{"port": "80"}, "web: values do not fit values.schema.json: - at '/port': got string, want integer"},
		"a value that is too large":      {map[string]string{"values.schema.json": port}, map[string]any{"port": int64(80000)}, "maximum"},
		"a schema in another file":       {map[string]string{"values.schema.json": `{"$ref": "schemas/port.json"}`, "schemas/port.json": port}, map[string]any{"port": "80"}, "want integer"},
		"a part of a schema":             {map[string]string{"values.schema.json": `{"$defs": {"p": ` + port + `}, "$ref": "#/$defs/p"}`}, map[string]any{"port": "80"}, "want integer"},
		"a schema that says its version": {map[string]string{"values.schema.json": `{"$schema": "http://json-schema.org/draft-07/schema#", "required": ["a"]}`}, nil, "missing property 'a'"},
		"the newest version":             {map[string]string{"values.schema.json": `{"$schema": "https://json-schema.org/draft/2020-12/schema", "required": ["a"]}`}, nil, "missing property 'a'"},
		"a chart inside":                 {inner, map[string]any{"in": map[string]any{"port": "80"}}, "in: values do not fit"},
		"a chart inside, that fits":      {inner, map[string]any{"in": map[string]any{"port": int64(80)}}, ""},
		"a schema that is no JSON":       {map[string]string{"values.schema.json": `{`}, nil, "values.schema.json is not JSON"},
		"a schema that is no schema":     {map[string]string{"values.schema.json": `{"type": 5}`}, nil, "values.schema.json"},
	} {
		t.Run(name, func(t *testing.T) {
			c.files["templates/a.yaml"] = object("ConfigMap", "x", "")
			_, err := rendered(t, c.files, chart.Request{Revision: 1, Values: c.values})
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, not %q", err, c.want)
			}
		})
	}
}

// TestTemplatesLookAtNothingOutside checks that templates see nothing of the manager's machine,
// network or cluster.
func TestTemplatesLookAtNothingOutside(t *testing.T) {
	t.Setenv("LOCKSTEP_TEST_SECRET", "s3cr3t-bytes")
	for template, want := range map[string]string{
		`{{ env "LOCKSTEP_TEST_SECRET" }}`:                         "not defined",
		`{{ expandenv "$LOCKSTEP_TEST_SECRET" }}`:                  "not defined",
		`{{ tpl "{{ env \"LOCKSTEP_TEST_SECRET\" }}" . }}`:         "not defined",
		`{{ getHostByName "localhost" }}`:                          `x: ""`,
		`{{ lookup "v1" "Secret" "kube-system" "" | toJson }}`:     `x: "{}"`,
		`{{ .Files.Get "/etc/passwd" }}`:                           `x: ""`,
		`{{ .Files.Get "../../../../etc/passwd" }}`:                `x: ""`,
		`{{ range $k, $v := .Files.Glob "/**" }}{{ $k }}{{ end }}`: `x: ""`,
		`{{ include "x" . }}`:                                      "rendering template has a nested reference name",
	} {
		r, err := rendered(t, map[string]string{
			"templates/_x.tpl": `{{ define "x" }}` + template + `{{ end }}`, "templates/a.yaml": object("ConfigMap", "x", "data:\n  x: {{ include \"x\" . | quote }}\n"),
		}, chart.Request{Revision: 1})
		got := fmt.Sprint(err)
		if err == nil {
			got = strings.NewReplacer(`"data":{"x":`, "x: ").Replace(text(t, r))
		}
		if !strings.Contains(got, want) || strings.Contains(got, "s3cr3t-bytes") || strings.Contains(got, "root:") {
			t.Errorf("%s: %s", template, got)
		}
	}
}

// nested returns a chart with charts inside, of which each unpacks to bytes.
func nested(charts, bytes int) []byte {
	inner := map[string]string{}
	for i := 0; i < bytes; i += 4 << 20 {
		inner[fmt.Sprintf("files/%d", i)] = strings.Repeat("x", min(4<<20, bytes-i))
	}
	packed := string(charttest.Pack("in", "1.0.0", inner))
	files := map[string]string{}
	for i := range charts {
		files[fmt.Sprintf("charts/in%d-1.0.0.tgz", i)] = packed
	}
	return charttest.Pack("web", "1.0.0", files)
}

func TestChartsInChartsAreBoundedTogether(t *testing.T) {
	laughs := "a: &a " + strings.Repeat("x", 100<<10) + "\nb: [" + strings.Repeat("*a,", 100<<10) + "]\n"
	for name, c := range map[string]struct {
		archive []byte
		want    string
	}{
		"charts that unpack to much, together":  {nested(100, 20<<20), "unpacked"},
		"charts that do not":                    {nested(3, 1<<20), ""},
		"values with aliases":                   {charttest.Pack("web", "1.0.0", map[string]string{"values.yaml": laughs}), "aliases"},
		"values of a chart inside with aliases": {charttest.Pack("web", "1.0.0", map[string]string{"charts/in/Chart.yaml": "apiVersion: v2\nname: in\nversion: 1.0.0\n", "charts/in/values.yaml": laughs}), "aliases"},
		"metadata with aliases":                 {charttest.Pack("web", "1.0.0", map[string]string{"Chart.yaml": "apiVersion: v2\nname: web\nversion: 1.0.0\nkeywords:\n- " + laughs}), "aliases"},
		"values that are long":                  {charttest.Pack("web", "1.0.0", map[string]string{"values.yaml": strings.Repeat("a: 1\n", 1<<18)}), "values.yaml"},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := chart.Open(run, c.archive)
		runtime.ReadMemStats(&after)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 200 {
			t.Errorf("%s: %d MiB were allocated", name, made)
		}
	}
}

// TestChartsLookNothingUp checks that templates see no cluster and resolve no names.
func TestChartsLookNothingUp(t *testing.T) {
	files := map[string]string{"templates/a.yaml": object("ConfigMap", "a",
		"data:\n  secret: {{ lookup \"v1\" \"Secret\" \"kube-system\" \"any\" | toJson | quote }}\n  all: {{ lookup \"v1\" \"Secret\" \"\" \"\" | toJson | quote }}\n  host: {{ getHostByName \"localhost\" | quote }}\n")}
	r, err := rendered(t, files, chart.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if got := text(t, r); !strings.Contains(got, `"secret":"{}"`) || !strings.Contains(got, `"all":"{}"`) || !strings.Contains(got, `"host":""`) {
		t.Errorf("it found %s", got)
	}
}
