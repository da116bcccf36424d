package render

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"cuelang.org/go/cue/parser"
	"github.com/google/go-cmp/cmp"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/config"
)

func TestWhatAProgramLooksAt(t *testing.T) {
	values := map[string]any{
		"name": "web", "appName": "shop",
		"output": map[string]any{
			"metadata": map[string]any{"name": "web", "annotations": map[string]any{"a": "1"}},
			"spec":     map[string]any{"replicas": int64(1), "list": []any{map[string]any{"x": "y"}}},
			"status":   map[string]any{"ready": int64(1), "other": int64(2)},
		},
		"outputs": map[string]any{"svc": map[string]any{"kind": "Service"}, "cm": map[string]any{"kind": "ConfigMap"}},
	}
	type m = map[string]any
	output := values["output"].(m)
	for name, c := range map[string]struct {
		source    string
		want      any
		parameter bool
	}{
		"nothing":                             {`isHealth: true`, m{}, false},
		"a field":                             {`isHealth: context.output.status.ready == 1`, m{"output": m{"status": m{"ready": int64(1)}}}, false},
		"a field in quotes, an index by name": {`x: context.output["status"]."ready"`, m{"output": m{"status": m{"ready": int64(1)}}}, false},
		"a field that is not there":           {`x: context.output.status.none`, m{"output": m{"status": m{}}}, false},
		"within a list":                       {`x: context.output.spec.list[0].x`, m{"output": m{"spec": m{"list": output["spec"].(m)["list"]}}}, false},
		"by a name that is computed, which is looked at too": {`x: context.outputs[context.name]`, m{"name": "web", "outputs": values["outputs"]}, false},
		"by an interpolation":                                {`x: "\(context.name)-x"`, m{"name": "web"}, false},
		"a part and the whole of it":                         {"x: context.output.status.ready\ny: context.output.status", m{"output": m{"status": output["status"]}}, false},
		"all":                                                {`let c = context` + "\n" + `x: c.name`, values, false},
		"a loop over all":                                    {`for k, v in context {"\(k)": "x"}`, values, false},
		"a loop over some":                                   {`x: [for k, v in context.output.status {k}]`, m{"output": m{"status": output["status"]}}, false},
		"a condition":                                        {`if context.output.status.ready != _|_ {x: 1}`, m{"output": m{"status": m{"ready": int64(1)}}}, false},
		"a declared context":                                 {"context: {name: string}\nx: context.appName", values, false},
		"a declared context that says nothing":               {"context: _\nx: context.appName", m{"appName": "shop"}, false},
		"parameters":                                         {`x: parameter.image`, m{}, true},
		"a field that is called context is not the context": {`x: {context: 1}`, m{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parser.ParseFile("x", c.source)
			if err != nil {
				t.Fatal(err)
			}
			r := inputUseOf(f)
			if diff := cmp.Diff(c.want, r.Context.of(values)); diff != "" {
				t.Error(diff)
			}
			data, err := json.Marshal(values)
			if err != nil {
				t.Fatal(err)
			}
			decoded, err := r.Context.read(data)
			if diff := cmp.Diff(c.want, decoded); diff != "" || err != nil {
				t.Error(diff, err)
			}
			if r.Parameter != c.parameter {
				t.Errorf("parameter: %t", r.Parameter)
			}
		})
	}
}

// TestBuiltinsLookAtNoWholeStatus checks that no built-in status section reads a whole status.
// Statuses contain times and names, so that such a section would be evaluated again for each
// object.
func TestBuiltinsLookAtNoWholeStatus(t *testing.T) {
	sections := 0
	for _, d := range config.Definitions() {
		object, err := ParseFile(d.File, d.Source, config.DefinitionFragment)
		if err != nil {
			t.Fatal(err)
		}
		spec, _ := object["spec"].(map[string]any)
		status, _ := spec["status"].(map[string]any)
		for name, source := range status {
			text, ok := source.(string)
			if !ok {
				continue
			}
			f, err := parser.ParseFile(name, text)
			if err != nil {
				t.Fatalf("%s: %v", d.File, err)
			}
			sections++
			whole := map[string]any{"output": map[string]any{"status": map[string]any{"a field that nobody names": "x"}}}
			if strings.Contains(fmt.Sprint(inputUseOf(f).Context.of(whole)), "nobody names") {
				t.Errorf("%s: %s looks at all of the status", d.File, name)
			}
		}
	}
	if sections == 0 {
		t.Error("no definition has a status section")
	}
}

func TestAStateIsWorkedOutOnceForWhatItLooksAt(t *testing.T) {
	template, err := Compile(&Definition{Kind: Component, Name: "x", Template: "output: {}", Health: oam.DefinitionHealth{HealthPolicy: "isHealth: context.output.status.ready == context.output.spec.want"}}, InProcess())
	if err != nil {
		t.Fatal(err)
	}
	state := func(name string, ready, want int64) bool {
		output := fmt.Sprintf(`{"metadata":{"name":%q},"spec":{"want":%d},"status":{"ready":%d}}`, name, want, ready)
		s, err := template.State(&Live{Context: Context{Name: name}, Output: []byte(output)})
		if err != nil {
			t.Fatal(err)
		}
		return s.Healthy
	}
	for i, c := range []struct {
		name        string
		ready, want int64
		known       int
	}{{"a", 1, 1, 1}, {"b", 1, 1, 1}, {"a", 0, 1, 2}, {"c", 0, 1, 2}, {"c", 1, 1, 2}} {
		if got := state(c.name, c.ready, c.want); got != (c.ready == c.want) {
			t.Errorf("%d: healthy %t", i, got)
		}
		if n := len(template.states.known); n != c.known {
			t.Errorf("%d: %d states are known, not %d", i, n, c.known)
		}
	}
}

func TestUnusedProperties(t *testing.T) {
	for what, c := range map[string]struct{ template, properties, unused string }{
		"what is declared or looked at is used": {
			"parameter: {a: int, b?: {...}}\noutput: {x: parameter.c, y: parameter[\"d\"]}", `{"a": 1, "b": {"z": 1}, "c": 1, "d": 1, "e": 1, "f": 1}`, "[e f]",
		},
		"an ellipsis does not make use of anything":    {"parameter: {a: int, ...}\noutput: x: parameter.a", `{"a": 1, "b": 1}`, "[b]"},
		"a template that takes all takes all":          {"parameter: {a: int}\noutput: parameter", `{"a": 1, "b": 1}`, "[]"},
		"so does one that looks by names it works out": {"parameter: {a: int}\noutput: {for k in [context.name] {(k): parameter[k]}}", `{"b": 1}`, "[]"},
		"names in a loop over texts":                   {"parameter: {a: int}\noutput: {for k in [\"b\", \"c\"] {(k): parameter[k].x}}", `{"b": 1, "c": 1, "d": 1}`, "[d]"},
		"names in a loop over a table":                 {"parameter: {a: int}\noutput: {for to, k in {x: \"b\", y: \"c\"} {(to): parameter[k]}}", `{"b": 1, "c": 1, "x": 1}`, "[x]"},
		"a variable of two loops":                      {"parameter: {a: int}\noutput: {for k in [\"b\"] {(k): 1}, for k in parameter.a {(k): parameter[k]}}", `{"c": 1}`, "[]"},
		"all names of a kind":                          {"parameter: [string]: string\noutput: x: parameter.y", `{"b": "1"}`, "[]"},
		"a definition elsewhere":                       {"parameter: #P\n#P: {a: int, b: int}\noutput: x: parameter.a", `{"b": 1}`, "[]"},
	} {
		t.Run(what, func(t *testing.T) {
			template, err := Compile(&Definition{Kind: Component, Name: "x", Template: c.template}, InProcess())
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(template.Unused([]byte(c.properties))); got != c.unused {
				t.Errorf("unused: %s, not %s", got, c.unused)
			}
		})
	}
}
