package template

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

type absent struct{ Map }

func (a absent) Lookup(name string) (Value, bool) {
	if name == "steps.skipped.outputs.result" {
		return Value{Absent: "node was skipped"}, true
	}
	return a.Map.Lookup(name)
}

var passes = []Scope{
	Map{"workflow.name": "hello", "workflow.parameters.tag": "{{inputs.parameters.a}}"},
	Map{"inputs.parameters.a": "one", "inputs.parameters.a-b": "two", "inputs.parameters.n": "7", "inputs.parameters.quote": "\"\n"},
	absent{Map{"steps.gen.outputs.result": "heads", "steps.gen.outputs.parameters.list": `[{"k":[1,2,3]}]`, "steps.gen.status": "Succeeded"}},
	Map{"item": "a", "item.k": "v"},
	Typed{Runner: InProcess()},
}

func TestResolve(t *testing.T) {
	for name, test := range map[string]struct{ text, want, err string }{
		"plain text stays":                         {text: "no tags }} {", want: "no tags }} {"},
		"a simple tag":                             {text: "<{{ workflow.name }}>", want: "<hello>"},
		"an unknown name stays":                    {text: "{{jinja}} {{ if x }}", want: "{{jinja}} {{ if x }}"},
		"an open tag stays":                        {text: "{{workflow.name", want: "{{workflow.name"},
		"an unknown name in a strict namespace":    {text: "{{steps.no.outputs.result}}", err: "failed to resolve {{steps.no.outputs.result}}"},
		"quotes and newlines are kept":             {text: "{{inputs.parameters.quote}}", want: "\"\n"},
		"a value with a tag meets later passes":    {text: "{{workflow.parameters.tag}}", want: "one"},
		"a tag within a tag":                       {text: "{{inputs.parameters.{{item}}}}", want: "one"},
		"an absent output":                         {text: "{{steps.skipped.outputs.result}}", err: "absent optional"},
		"an expression":                            {text: "{{=asInt(inputs.parameters.n) + 1}}", want: "8"},
		"a name with a dash":                       {text: "{{=inputs.parameters['a-b']}}", want: "two"},
		"an expression with an unknown name stays": {text: "{{=nobody.knows}}", want: "{{=nobody.knows}}"},
		"an unknown sibling in an expression":      {text: "{{=steps.no.outputs.result}}", err: "failed to resolve"},
		"an unknown sibling that is guarded":       {text: "{{=steps.no?.outputs?.result ?? 'none'}}", want: "none"},
		"an absent output that is guarded":         {text: "{{=steps.skipped.outputs.result ?? 'none'}}", want: "none"},
		"a conditional":                            {text: "{{=steps.gen.status == 'Succeeded' ? 'y' : 'n'}}", want: "y"},
		"a function of sprig":                      {text: "{{=sprig.upper(workflow.name) + sprig.trunc(2, 'xyz')}}", want: "HELLOxy"},
		"a path into JSON":                         {text: "{{=jsonpath(steps.gen.outputs.parameters.list, '$[0].k[*]')}}", want: "[1,2,3]"},
		"a list, a map, a number":                  {text: "{{=[1, 'a']}} {{=let m = {k: 2.5}; m}} {{=1.5e6 + 0.0}} {{=split('a', 'b')}}", want: `[1,"a"] {"k":2.5} 1500000 ["a"]`},
		"a value that is no JSON":                  {text: "{{=groupBy([1, 2], # % 2)}}", err: "unsupported type"},
		"a path that no run can follow":            {text: "{{=jsonpath(nobody.knows, '$.a[?(@.b')}}", err: "is not understood"},
		"a list made by a loop":                    {text: "{{=toJson(map([1, 2], # * 2))}}", want: "[2,4]"},
		"a variable of its own":                    {text: "{{=let x = 'a'; x + item.k}}", want: "av"},
		"all variables below a name":               {text: "{{=join(sort(keys(inputs.parameters)), ' ')}}", want: "a a-b n quote"},
		"the environment is not there":             {text: "{{=sprig.env('HOME')}}", err: "cannot"},
		"the clock is not there":                   {text: "{{=now()}}", err: "cannot"},
		"unlike operands":                          {text: "{{=1 + 'a'}}", err: "invalid operation"},
		"a bad expression":                         {text: "{{=1 +}}", err: "unexpected token"},
	} {
		t.Run(name, func(t *testing.T) {
			parsed, err := Parse(test.text)
			got := ""
			if err == nil {
				got, err = parsed.Resolve(passes, "steps.", "tasks.")
			}
			check(t, got, err, test.want, test.err)
		})
	}
}

func check(t *testing.T, got string, err error, want, wantErr string) {
	t.Helper()
	if wantErr != "" {
		if err == nil || !strings.Contains(err.Error(), wantErr) {
			t.Errorf("got %q and error %v, want an error with %q", got, err, wantErr)
		}
		return
	}
	if err != nil || got != want {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

func TestWhen(t *testing.T) {
	for condition, want := range map[string]string{
		"":                            "true",
		"heads == heads":              "true",
		"heads == tails":              "false",
		"1 < 2":                       "true",
		"10 > 9 && foo != bar":        "true",
		"!(a == a)":                   "false",
		"abc =~ '^a'":                 "true",
		"b in (a, b)":                 "true",
		`"x y" == 'x y'`:              "true",
		"true":                        "true",
		"false || true":               "true",
		"{{steps.a.outputs}} == true": "error",
		"heads":                       "error",
		"a == ":                       "error",
	} {
		proceed, err := When(condition, InProcess())
		got := map[bool]string{true: "true", false: "false"}[proceed]
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: got %s (%v), want %s", condition, got, err, want)
		}
	}
}

// TestFaultsOfConditionsBesideTheirTags checks that CheckWhen finds the faults that no value of a tag
// cures, and no others.
func TestFaultsOfConditionsBesideTheirTags(t *testing.T) {
	for condition, fault := range map[string]bool{
		"{{a}} ==":                               true,
		"== {{a}}":                               true,
		"{{a}} = 1":                              true,
		"({{a}} == 1":                            true,
		"{{a}} == 'b":                            true,
		"{{a}} && && {{b}}":                      true,
		"{{=a}} == 1 )":                          true,
		"{{a}}":                                  false,
		"{{a}} {{op}} {{b}}":                     false,
		"{{a}} == 1":                             false,
		"'{{a}}' =~ '^{{b}}$'":                   false,
		"{{a}} in ({{b}}, c)":                    false,
		"{{a}}.5 > 1 && !({{b}})":                false,
		"v{{a}} == v1":                           false,
		"{{a}}b != c":                            false,
		"{{a}} {{b}} {{c}} {{d}} {{e}} ==":       false, // too many to judge
		"{{inputs.parameters.{{a}}}} == 1":       false,
		"{{=a == 'b'}} || '{{c}}' == ''":         false,
		"{{a}} == true":                          false,
		"{{a}} > {{b}} || {{c}}":                 false,
		"\"{{a}}\" == \"b c\" && ( {{d}} != 3 )": false,
	} {
		text, err := Parse(condition)
		if err != nil {
			t.Fatal(err)
		}
		if err := text.CheckWhen(); (err != nil) != fault {
			t.Errorf("%s: %v", condition, err)
		}
	}
}

func TestApplyResolvesEveryString(t *testing.T) {
	source := wf.Template{
		Name:         "{{skipped}}",
		Container:    &corev1.Container{Args: []string{"{{item}}", "x"}, Env: []corev1.EnvVar{{Name: "A", Value: "{{inputs.parameters.quote}}"}}},
		NodeSelector: map[string]string{"{{item}}": "{{item.k}}"},
		Plugin:       nil,
		Steps:        []wf.ParallelSteps{{Steps: []wf.WorkflowStep{{WithItems: []wf.Item{{}}}}}},
	}
	source.Steps[0].Steps[0].WithItems[0].Raw = []byte(`{"q":"{{inputs.parameters.quote}}"}`)
	p, err := Compile(&source, "name")
	if err != nil {
		t.Fatal(err)
	}
	got := source.DeepCopy()
	if err := p.Apply(got, passes); err != nil {
		t.Fatal(err)
	}
	if got.Container.Args[0] != "a" || got.Container.Env[0].Value != "\"\n" || got.NodeSelector["a"] != "v" || len(got.NodeSelector) != 1 {
		t.Errorf("got %+v", got)
	}
	if raw := string(got.Steps[0].Steps[0].WithItems[0].Raw); raw != `{"q":"\"\n"}` {
		t.Errorf("got %s", raw)
	}
	if source.Container.Args[0] != "{{item}}" {
		t.Error("the source was changed")
	}
}

// TestExpressionsInRawJSON checks that expressions see variables as they are, and that what they
// give is quoted.
func TestExpressionsInRawJSON(t *testing.T) {
	scope := []Scope{Map{"quote": "\"\n", "list": `["a"]`, "nested": "{{quote}}"}, Typed{Runner: InProcess()}}
	for source, want := range map[string]string{
		`["{{quote}}", 1]`:                    `["\"\n", 1]`,
		`"{{=len(quote)}}"`:                   `"2"`,
		`{"k": "{{=toJson({'a': quote})}}"}`:  `{"k": "{\"a\":\"\\\"\\n\"}"}`,
		`"{{=quote + \"\\u0022\"}} {{list}}"`: `"\"\n\" [\"a\"]"`,
		`{"{{quote}}": "\\\"{{missing}}"}`:    `{"\"\n": "\\\"{{missing}}"}`,
		`["\\", "{{nested}}"]`:                `["\\", "\"\n"]`,
		`"no tag \u007b"`:                     `"no tag \u007b"`,
		`{"n": {{=len(quote)}}}`:              `{"n": 2}`, // a plain text
	} {
		item := wf.HTTPBodySource{Bytes: []byte(source)}
		p, err := Compile(&item)
		if err == nil {
			err = p.Apply(&item, scope)
		}
		if got := string(item.Bytes); err != nil || got != want {
			t.Errorf("%s gives %s, %v; want %s", source, got, err, want)
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("{{workflow.name}} {{=asInt(inputs.parameters.n)}}", "a == {{item}}")
	f.Add("{{inputs.parameters.{{item}}}}", "(1 < 2) && x =~ 'y'")
	f.Add("{{=sprig.repeat(3, 'x') ?? steps.a?.b}}", "!!a")
	f.Fuzz(func(t *testing.T, text, when string) {
		if parsed, err := Parse(text); err == nil {
			out, err := parsed.Resolve(passes, "steps.")
			if err == nil && len(out) > 2*MaxTextBytes {
				t.Errorf("%d bytes", len(out))
			}
		}
		_, _ = When(when, InProcess())
	})
}

func BenchmarkResolve(b *testing.B) {
	text, err := Parse("echo {{inputs.parameters.a}} of {{workflow.name}}")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := text.Resolve(passes); err != nil {
			b.Fatal(err)
		}
	}
}

// TestMoment checks that functions of time and randomness depend only on the scope, and repeat
// their results.
func TestMoment(t *testing.T) {
	scope := Typed{Clock: time.Date(2030, 2, 3, 23, 5, 6, 0, time.UTC), Seed: "a", Runner: InProcess()}
	other := Typed{Clock: scope[Clock], Seed: "b", Runner: InProcess()}
	evaluate := func(source string, in Scope) (string, error) {
		e, err := CompileExpr(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		return e.Text(in)
	}
	for source, want := range map[string]string{
		"now().Format('2006-01-02 15:04')":                                                                           "2030-02-03 23:05",
		"now().Add(duration('1h')).Unix()":                                                                           "1896393906",
		"sprig.date('20060102', sprig.now())":                                                                        "20300203",
		"sprig.date('2006-01-02', sprig.dateModify('-24h', sprig.now()))":                                            "2030-02-02",
		"sprig.dateInZone('2006-01-02', sprig.now(), 'Asia/Tokyo')":                                                  "2030-02-04",
		"sprig.date_in_zone('15h', 0, 'UTC')":                                                                        "00h",
		"sprig.htmlDate(now())":                                                                                      "2030-02-03",
		"sprig.htmlDateInZone(now(), 'Nowhere')":                                                                     "2030-02-03",
		"sprig.unixEpoch(sprig.now())":                                                                               "1896390306",
		"sprig.ago(sprig.dateModify('-90s', now()))":                                                                 "1m30s",
		"sprig.date('02.01.2006', sprig.toDate('2006-01-02', '2024-03-01'))":                                         "01.03.2024",
		"sprig.uuidv4() matches '^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$'":             "true",
		"sprig.uuidv4() != sprig.uuidv4()":                                                                           "true",
		"sprig.randAlphaNum(12) matches '^[0-9a-zA-Z]{12}$' && sprig.randAlpha(3) matches '^[a-zA-Z]{3}$'":           "true",
		"sprig.randNumeric(4) matches '^[0-9]{4}$' && sprig.randInt(5, 7) in [5, 6] && len(sprig.randAlpha(0)) == 0": "true",
	} {
		if got, err := evaluate(source, scope); err != nil || got != want {
			t.Errorf("%s: %q, %v; want %q", source, got, err, want)
		}
	}
	const drawn = "sprig.randAlphaNum(20) + sprig.uuidv4()"
	first, _ := evaluate(drawn, scope)
	again, _ := evaluate(drawn, scope)
	if elsewhere, _ := evaluate(drawn, other); first != again || first == elsewhere || first == "" {
		t.Errorf("%s, again %s, elsewhere %s", first, again, elsewhere)
	}
	for _, source := range []string{"sprig.randAlpha(1000000)", "sprig.randInt(5, 5)", "sprig.env('HOME')", "sprig.genCA('x', 1)"} {
		if got, err := evaluate(source, scope); err == nil {
			t.Errorf("%s: %s", source, got)
		}
	}
	if got, err := evaluate("sprig.uuidv4()", Typed{Runner: InProcess()}); err == nil {
		t.Errorf("without a moment: %s", got)
	}
}
