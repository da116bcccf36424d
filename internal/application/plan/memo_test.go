package plan_test

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/render"
)

// builtinCases returns components that use every built-in definition.
func builtinCases(t *testing.T) []oam.Component {
	t.Helper()
	files, err := filepath.Glob("../render/testdata/builtins/*.yaml")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d cases: %v", len(files), err)
	}
	var out []oam.Component
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source, _, _ := strings.Cut(string(data), "\n---\n")
		var c oam.Component
		if err := yaml.UnmarshalStrict([]byte(source), &c); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		out = append(out, c)
	}
	return out
}

// strange has names that templates and properties may contain, or that are cut, escaped or ordered
// in special ways.
var strange = []string{
	"a", "1", "0", "10", "web", "name", "data", "configmap-a", "secret", "image", "true", "e", "aa", "aaa", "app", "port-80", "nginx",
	"spec", "metadata", "paused", "replicas", "z", "web-1", "web-17", "n0026", "u0001", strings.Repeat("a", 63), strings.Repeat("ab-", 20) + "a",
}

// usual has two choices of places for names; see named.
var usual = []uint64{math.MaxUint64 - 1, 0x9e3779b97f4a7c15}

func TestWhatIsRememberedIsWhatIsWorkedOut(t *testing.T) {
	defs, cases := loadBuiltin(t), builtinCases(t)
	memo, filled := &plan.Memo{}, map[string]int{}
	name := rapid.OneOf(rapid.SampledFrom(strange), rapid.StringMatching(`[a-z]([-a-z0-9]{0,8}[a-z0-9])?`), rapid.StringMatching(`app-[0-9]{2}`))
	same := func(t rapid.TB, which int, app string, places uint64) {
		c := named(cases[which], app, places)
		before := memo.Filled()
		got, errGot := makeOne(app, c, defs, memo)
		want, errWant := makeOne(app, c, defs, nil)
		if fmt.Sprint(errGot) != fmt.Sprint(errWant) {
			t.Fatalf("%v, without a memo %v", errGot, errWant)
		}
		if errWant != nil {
			return
		}
		if diff := cmp.Diff(want.Resources, got.Resources); diff != "" {
			t.Fatalf("%s as worked out and as remembered:\n%s", app, diff)
		}
		filled[c.Type] += int(memo.Filled() - before)
		for _, trait := range c.Traits {
			filled[trait.Type] += int(memo.Filled() - before)
		}
	}
	for which := range cases {
		for _, places := range usual {
			for n := range 3 {
				same(t, which, fmt.Sprint("app-", n), places)
			}
		}
	}
	// The shapes are cached by now. Names in new places are rendered first.
	rapid.Check(t, func(rt *rapid.T) {
		which, places := rapid.IntRange(0, len(cases)-1).Draw(rt, "case"), rapid.SampledFrom(usual).Draw(rt, "usual")
		for range rapid.IntRange(1, 3).Draw(rt, "names") {
			if rapid.IntRange(0, 9).Draw(rt, "elsewhere") == 0 {
				places = rapid.Uint64().Draw(rt, "places")
			}
			same(rt, which, name.Draw(rt, "name"), places)
		}
	})
	for _, common := range []string{"webservice", "worker", "task", "scaler", "storage", "env", "labels", "k8s-objects"} {
		if filled[common] == 0 {
			t.Errorf("nothing of %s was filled in", common)
		}
	}
}

func makeOne(app string, c oam.Component, defs plan.Definitions, memo *plan.Memo) (*plan.Plan, error) {
	return plan.Make(&plan.Input{
		Namespace: "prod", Name: app, Revision: app + "-v1", RevisionNum: 1, Spec: &oam.ApplicationSpec{Components: []oam.Component{c}},
		Clusters: plan.Local{Kinds: everyKind{}}, Memo: memo,
	}, defs)
}

// named returns a component with an Application's name in its own name and in strings of its
// properties. The bits of places choose the strings.
func named(c oam.Component, app string, places uint64) oam.Component {
	put := func(raw *runtime.RawExtension) *runtime.RawExtension {
		if raw == nil {
			return nil
		}
		var v any
		if err := json.Unmarshal(raw.Raw, &v); err != nil {
			panic(err)
		}
		var walk func(v any) any
		walk = func(v any) any {
			switch v := v.(type) {
			case map[string]any:
				for k, item := range v {
					v[k] = walk(item)
				}
			case []any:
				for i, item := range v {
					v[i] = walk(item)
				}
			case string:
				// The string itself decides where its name stands, because the order of fields is
				// not fixed.
				at := len(v) * 7
				for _, c := range v {
					at += int(c)
				}
				switch places >> (at % 60) & 7 {
				case 0:
					return app
				case 1:
					return app + "-" + v
				case 2:
					return v + app
				}
			}
			return v
		}
		data, err := json.Marshal(walk(v))
		if err != nil {
			panic(err)
		}
		return &runtime.RawExtension{Raw: data}
	}
	c.Properties = put(c.Properties)
	traits := make([]oam.Trait, len(c.Traits))
	for i, trait := range c.Traits {
		traits[i] = oam.Trait{Type: trait.Type, Properties: put(trait.Properties)}
	}
	c.Traits = traits
	if places%3 > 0 {
		c.Name = app
	}
	if places%3 == 2 {
		c.Name += "-x"
	}
	return c
}

// TestTemplatesThatLookIntoNames checks templates whose results depend on the name in more ways
// than by containing it, which Memo must render each time.
func TestTemplatesThatLookIntoNames(t *testing.T) {
	object := func(fields string) string {
		return "import \"strings\"\noutput: {apiVersion: \"v1\", kind: \"ConfigMap\", data: {" + fields + "}}\nparameter: {...}\n"
	}
	for about, c := range map[string]struct {
		template, properties string
		names                []string
	}{
		"compares with a word":             {object(`x: [if context.name == "app-03" {"yes"}, "no"][0]`), `{}`, nil},
		"compares with what it has made":   {object(`x: [if context.name == "app-\(parameter.n)" {"yes"}, "no"][0]`), `{"n": "03"}`, nil},
		"compares with a number":           {object(`x: [if context.name == "app-0\(parameter.n)" {"yes"}, "no"][0]`), `{"n": 3}`, nil},
		"compares with a negative number":  {object(`x: [if context.name == "app\(parameter.n)" {"yes"}, "no"][0]`), `{"n": -3}`, []string{"app-1", "app-2", "app-3", "app-4"}},
		"looks a name up":                  {object(`x: [if parameter.of[context.name] != _|_ {"yes"}, "no"][0]`), `{"of": {"app-03": 1}}`, nil},
		"unifies with a word":              {object(`x: context.name & ("app-03" | *string)`), `{}`, nil},
		"matches an expression":            {object(`x: [if context.name =~ "3$" {"yes"}, "no"][0]`), `{}`, nil},
		"asks for the order":               {object(`x: [if context.name < "app-03" {"yes"}, "no"][0]`), `{}`, nil},
		"asks for the end":                 {object(`x: [if strings.HasSuffix(context.name, "3") {"yes"}, "no"][0]`), `{}`, nil},
		"takes it apart":                   {object(`x: strings.Split(context.name, "-")[1]`), `{}`, nil},
		"puts it into another case":        {object(`x: strings.ToUpper(context.name)`), `{}`, nil},
		"takes its length":                 {object(`x: [if len(context.name) > 6 {"long"}, "short"][0]`), `{}`, []string{"app-1", "app-2", "app-3", "app-100", "app-4"}},
		"a field of two names":             {object(`"app-03": "there", "\(context.name)": "there"`), `{}`, nil},
		"fields in their order":            {object(`for i, n in [for n, _ in _f {n}] {"\(i)": n}`) + "_f: {for n in [\"app-03x\", context.name, \"app-02x\"] {\"\\(n)\": n}}\n", `{}`, nil},
		"overlaps":                         {object(`x: [if "a\(context.name)" == "\(context.name)a" {"yes"}, "no"][0]`), `{}`, []string{"ab", "bb", "cb", "aa", "db"}},
		"a secret, whose values are coded": {"output: {apiVersion: \"v1\", kind: \"Secret\", stringData: x: context.name}\nparameter: {...}\n", `{}`, nil},
		"a field that only some have":      {"output: {apiVersion: \"apps/v1\", kind: \"Deployment\", spec: \"\\(context.name)\": true}\nparameter: {...}\n", `{}`, []string{"pausea", "pauseb", "pausec", "paused", "pausee"}},
		"a name that is cut": {"output: {apiVersion: \"v1\", kind: \"ConfigMap\"}\noutputs: \"\\(context.name)\": {apiVersion: \"v1\", kind: \"Secret\"}\nparameter: {...}\n", `{}`, []string{
			strings.Repeat("a", 66), strings.Repeat("b", 66), strings.Repeat("c", 66), strings.Repeat("d", 62) + "-ddd", strings.Repeat("e", 66)}},
	} {
		t.Run(about, func(t *testing.T) {
			template, err := render.Compile(&render.Definition{Kind: render.Component, Name: "x", Template: c.template}, render.InProcess())
			if err != nil {
				t.Fatal(err)
			}
			defs, memo := builtin{"component-x": template}, &plan.Memo{}
			names := c.names
			if names == nil {
				names = []string{"app-01", "app-02", "app-00", "app-03", "app-04", "app-03"}
			}
			for _, app := range names {
				comp := oam.Component{Name: app, Type: "x", Properties: &runtime.RawExtension{Raw: []byte(c.properties)}}
				got, err := makeOne(app, comp, defs, memo)
				if err != nil {
					t.Fatal(err)
				}
				want, err := makeOne(app, comp, defs, nil)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want.Resources, got.Resources); diff != "" {
					t.Errorf("%s as worked out and as remembered:\n%s", app, diff)
				}
			}
		})
	}
}
