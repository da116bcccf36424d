package render_test

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestMisspeltFieldsOfPropertiesAreNoticed checks which fields within properties are said to be unknown.
func TestMisspeltFieldsOfPropertiesAreNoticed(t *testing.T) {
	const template = `
#Probe: {path: string, more?: #Probe, either: {a: int} | {b: int}}
parameter: {
	list: [...{port: int, expose: *false | bool, inner?: {deep: string}}]
	probe?: #Probe & {extra?: string}
	any: {...}
	map: [string]: string
	free: _
	items?: [...]
	text: string
	both: *"x" | {url: string}
	if context.name == "x" {later: {when: string}}
}
parameter: second: {x: int}
output: {for p in parameter.list {passed: p.selected, also: p["indexed"]}}
`
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	own := compiled(t, render.Component, template, "")
	for properties, want := range map[string][]string{
		`{"list": [{"port": 1, "expos": true}, {"inner": {"dep": 1, "deep": 1}}]}`:          {"list[0].expos (expose?)", "list[1].inner.dep (deep?)"},
		`{"list": [{"selected": 1, "indexed": 1, "unlike": 1}]}`:                            {"list[0].unlike"},
		`{"probe": {"pth": 1, "extra": 1, "more": {"more": {"exta": 1}}}}`:                  {"probe.more.more.exta", "probe.pth (path?)"},
		`{"probe": {"either": {"a": 1, "b": 1, "c": 1}}}`:                                   {"probe.either.c"},
		`{"any": {"x": 1}, "map": {"x": "y"}, "free": {"x": {"y": 1}}}`:                     nil,
		`{"items": [{"x": 1}], "text": {"x": 1}, "unknown": {"x": 1}}`:                      nil,
		`{"both": {"ur": 1}, "later": {"when": 1, "wen": 1}, "second": {"x": 1, "yyy": 1}}`: {"both.ur (url?)", "later.wen (when?)", "second.yyy"},
	} {
		if d := cmp.Diff(want, own.Undeclared([]byte(properties))); d != "" {
			t.Errorf("%s (-want +got):\n%s", properties, d)
		}
	}
	for definition, c := range map[string]struct {
		properties string
		want       []string
	}{
		"ComponentDefinition webservice": {`{"image": "x", "ports": [{"port": 80, "expos": true}], "livenessProbe": {"httpGet": {"path": "/", "prt": 80}}}`, []string{"livenessProbe.httpGet.prt (port?)", "ports[0].expos (expose?)"}},
		"TraitDefinition storage":        {`{"configMap": [{"name": "a", "mountPth": "/"}]}`, []string{"configMap[0].mountPth (mountPath?)"}},
		"TraitDefinition hpa":            {`{"cpu": {"typ": "x"}}`, []string{"cpu.typ (type?)"}},
	} {
		if d := cmp.Diff(c.want, all[definition].Undeclared([]byte(c.properties))); d != "" {
			t.Errorf("%s (-want +got):\n%s", definition, d)
		}
	}
}

// TestPropertiesOfCasesAreDeclared checks that no case of the built-in definitions causes a warning.
func TestPropertiesOfCasesAreDeclared(t *testing.T) {
	all, err := builtins()
	if err != nil {
		t.Fatal(err)
	}
	check := func(definition string, properties []byte) {
		if found := all[definition].Undeclared(properties); len(found) > 0 && json.Valid(properties) {
			t.Errorf("%s: %q in %s", definition, found, properties)
		}
	}
	n := 0
	for _, c := range cases(t) {
		check("ComponentDefinition "+c.component.Type, raw(c.component.Properties))
		for _, trait := range c.component.Traits {
			check("TraitDefinition "+trait.Type, raw(trait.Properties))
		}
		n++
	}
	if n < 50 {
		t.Errorf("%d cases", n)
	}
}
