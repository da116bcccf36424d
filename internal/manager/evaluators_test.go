package manager_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
	"lockstep.dev/lockstep/internal/application/chart"
	"lockstep.dev/lockstep/internal/application/chart/charttest"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/manager"
	"lockstep.dev/lockstep/internal/race"
	"lockstep.dev/lockstep/internal/sandbox"
)

const configMap = "output: {apiVersion: \"v1\", kind: \"ConfigMap\", data: x: "

func doubled(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "\n_a%d: _a%d + _a%d", i+1, i, i)
	}
	return b.String()
}

const spin = `len([for a in list.Range(0, 2000, 1) for b in list.Range(0, 2000, 1) for c in list.Range(0, 2000, 1) if a*b == c {a}])`

// hostile programs take many times their limits. Those that the evaluator refuses by itself cause
// no error of the pool.
var hostile = map[string]struct {
	run  func(run render.Run) error
	want []string // one of these messages is expected
}{
	"three nested repetitions": {cue(`import "strings"` + "\n" + configMap + `strings.Repeat(strings.Repeat(strings.Repeat("x", 4096), 4096), 4096)}`), []string{"256 MiB of memory"}},
	"33 doublings":             {cue(configMap + "_a33}\n_a0: \"xxxxxxxxxxxxxxxx\"" + doubled(33)), []string{"256 MiB of memory", "500ms of CPU"}},
	"nested comprehensions": {cue(`import "list"` + "\n" + `output: {apiVersion: "v1", kind: "ConfigMap", data: {for a in list.Range(0, 4000, 1) for b in list.Range(0, 4000, 1) {"k\(a)-\(b)": "x"}}}`),
		[]string{"256 MiB of memory", "500ms of CPU"}},
	"a loop":       {cue(`import "list"` + "\n" + configMap + `"\(` + spin + `)"}`), []string{"500ms of CPU", "256 MiB of memory"}},
	"a long text":  {cue(`import "strings"` + "\n" + configMap + `strings.Repeat(strings.Repeat("x", 4096), 640)}`), []string{"output over 256 KiB"}},
	"parentheses":  {cue(configMap + strings.Repeat("(", 100000) + "1" + strings.Repeat(")", 100000) + "}"), []string{"nest", "stack", "CPU", "memory"}},
	"deep structs": {cue("output: " + strings.Repeat("a: ", 60000) + "1"), []string{"nest", "stack", "CPU", "memory", "deep"}},
	"a large regular expression": {cue(`import "regexp"` + "\n" + configMap + `"\(regexp.Match("` + strings.Repeat("((a{1,30}){1,30}){1,1000}", 100) + `", "a"))"}`),
		[]string{"invalid", "CPU", "memory"}},
	"a condition": {func(run render.Run) error {
		_, err := render.Condition(run, `strings.Repeat(strings.Repeat("xxxxxxxxxx", 100000), 1000000) == ""`, nil)
		return err
	}, []string{"256 MiB of memory"}},
	"an output of a step": {func(run render.Run) error {
		_, err := render.ValueFrom(run, `strings.Repeat(strings.Repeat("xxxxxxxxxx", 100000), 1000000)`, nil)
		return err
	}, []string{"256 MiB of memory"}},
	"health": {func(run render.Run) error {
		t, err := render.Compile(&render.Definition{Kind: render.Component, Name: "c", Template: "output: {}", Health: oam.DefinitionHealth{
			HealthPolicy: "import \"list\"\nisHealth: " + spin + " > 0"}}, run)
		if err != nil {
			return err
		}
		_, err = t.State(&render.Live{Output: []byte("{}")})
		return err
	}, []string{"500ms of CPU", "256 MiB of memory"}},
	"a step": {func(run render.Run) error {
		t, err := render.Compile(&render.Definition{Kind: render.WorkflowStep, Name: "s", Template: "import \"list\"\nx: {#do: \"message\", $params: message: \"\\(" + spin + ")\"}"}, run)
		if err != nil {
			return err
		}
		_, err = t.Step(&render.StepRequest{})
		return err
	}, []string{"500ms of CPU", "256 MiB of memory"}},
	"a chart that doubles": {helm(`{{- $x := list "xxxxxxxxxxxxxxxx" }}{{ range until 40 }}{{ $x = list (printf "%s%s" (first $x) (first $x)) }}{{ end }}` +
		"\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: big}\ndata: {x: {{ first $x }}}"), []string{"256 MiB of memory", "500ms of CPU"}},
	"a chart that loops": {helm(`{{- range until 60000 }}{{ range until 60000 }}{{ end }}{{ end }}`), []string{"500ms of CPU", "256 MiB of memory"}},
	"a chart that calls itself": {helm(`{{- define "a" }}{{ include "b" . }}{{ end }}{{ define "b" }}{{ include "a" . }}{{ end }}{{ include "a" . }}`),
		[]string{"stack", "CPU", "memory", "rendering template has a nested reference"}},
}

// cue renders a component with that template.
func cue(template string) func(render.Run) error {
	return func(run render.Run) error {
		t, err := render.Compile(&render.Definition{Kind: render.Component, Name: "c", Template: template}, run)
		if err != nil {
			return err
		}
		_, err = render.Render(&render.Request{Component: render.Use{Template: t}, Run: run})
		return err
	}
}

// helm renders a chart with that template.
func helm(template string) func(render.Run) error {
	return func(run render.Run) error {
		c, err := chart.Open(run, charttest.Pack("bad", "1.0.0", map[string]string{"templates/a.yaml": template}))
		if err != nil {
			return err
		}
		_, err = c.Render(run, &chart.Request{Release: "r", Namespace: "ns", KubeVersion: "v1.36.3"})
		return err
	}
}

// TestHostileProgramsFailAlone checks that each hostile program fails with a message that names the
// limit, while programs of others are evaluated.
func TestHostileProgramsFailAlone(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector multiplies the memory and the CPU time that are limited here")
	}
	pool, err := sandbox.New(sandbox.Config{Limits: sandbox.Limits{CPU: 500 * time.Millisecond, OutputBytesMax: 256 << 10}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	as := func(tenant string) render.Run {
		return func(evaluator string, request []byte) ([]byte, error) {
			return pool.Do(t.Context(), tenant, evaluator, request)
		}
	}
	canary := func() time.Duration {
		t.Helper()
		begin := time.Now()
		if err := cue(configMap + `"y"}`)(as("canary")); err != nil {
			t.Error(err)
		}
		return time.Since(begin)
	}
	canary()
	for name, h := range hostile {
		t.Run(name, func(t *testing.T) {
			var end sync.WaitGroup
			done := make(chan struct{})
			end.Go(func() {
				defer close(done)
				err := h.run(as("hostile"))
				if err == nil || !slices.ContainsFunc(h.want, func(part string) bool { return strings.Contains(err.Error(), part) }) {
					t.Errorf("%.300v", err)
					return
				}
				t.Logf("%.200v", err)
			})
			n, most := 0, time.Duration(0)
			for running := true; running; n++ {
				most = max(most, canary())
				select {
				case <-done:
					running = false
				default:
				}
			}
			end.Wait()
			t.Logf("%d programs of others meanwhile, at most %s each", n, most)
		})
	}
}

func TestTheManagerHasItsEvaluators(t *testing.T) {
	table := manager.Evaluators()
	for _, name := range []string{"cue.compile", "cue.render", "cue.state", "cue.step", "cue.condition", "cue.value", "chart.open", "chart.render", "chart.values"} {
		if table[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
}

func BenchmarkARendering(b *testing.B) {
	pool, err := sandbox.New(sandbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(pool.Close)
	for name, run := range map[string]render.Run{
		"in this process": render.InProcess(),
		"in a child": func(evaluator string, request []byte) ([]byte, error) {
			return pool.Do(b.Context(), "ns", evaluator, request)
		},
	} {
		b.Run(name, func(b *testing.B) {
			t, err := render.Compile(builtIn(b, "component-webservice.cue"), run)
			if err != nil {
				b.Fatal(err)
			}
			req := &render.Request{Context: render.Context{Name: "web", AppName: "shop"}, Component: render.Use{Template: t, Properties: []byte(`{"image": "nginx", "ports": [{"port": 80}]}`)}}
			for b.Loop() {
				if _, err := render.Render(req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// builtIn returns a component's definition that comes with Lockstep.
func builtIn(t testing.TB, file string) *render.Definition {
	t.Helper()
	for _, d := range config.Definitions() {
		if d.File != file {
			continue
		}
		object, err := render.ParseFile(d.File, d.Source, config.DefinitionFragment)
		if err != nil {
			t.Fatal(err)
		}
		data, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var o oam.ComponentDefinition
		if err := json.Unmarshal(data, &o); err != nil {
			t.Fatal(err)
		}
		return render.OfComponent(&o)
	}
	t.Fatalf("there is no %s", file)
	return nil
}
