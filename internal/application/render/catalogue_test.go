package render_test

import (
	"encoding/json"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/application/render"
)

// TestWhatPublicDefinitionsUse checks, one by one, the constructs that definitions of public
// catalogues use. docs/applications-catalogue.md says which definitions were tried.
func TestWhatPublicDefinitionsUse(t *testing.T) {
	for name, c := range map[string]struct {
		kind     render.Kind
		template string
		props    string
		want     string // part of the resulting JSON
	}{
		"a hidden struct that is embedded, and empty at times": {render.Component, `
_auth: {if parameter.secret != _|_ {secretRef: name: parameter.secret}}
output: {apiVersion: "v1", kind: "X", spec: {url: "u", _auth}}
parameter: secret?: string`, `{"secret": "s"}`, `"spec":{"secretRef":{"name":"s"},"url":"u"}`},
		"the same without its parameter": {render.Component, `
_auth: {if parameter.secret != _|_ {secretRef: name: parameter.secret}}
output: {apiVersion: "v1", kind: "X", spec: {url: "u", _auth}}
parameter: secret?: string`, `{}`, `"spec":{"url":"u"}`},
		"a parameter that is reached by an index": {render.Component, `
output: {apiVersion: "v1", kind: "X", spec: {if parameter["files"] != _|_ {files: parameter["files"]}}}
parameter: files?: [...string]`, `{"files": ["a"]}`, `"spec":{"files":["a"]}`},
		"a struct inside of a struct in a comprehension": {render.Component, `
output: {apiVersion: "v1", kind: "X", spec: list: [for v in parameter.list {{name: v.name, if v.key != _|_ {key: v.key}}}]}
parameter: list: [...{name: string, key?: string}]`, `{"list": [{"name": "a"}, {"name": "b", "key": "k"}]}`, `"list":[{"name":"a"},{"key":"k","name":"b"}]`},
		"an open definition as a parameter's type": {render.Component, `
#map: {...}
output: {apiVersion: "v1", kind: "X", spec: values: parameter.values}
parameter: values?: #map`, `{"values": {"a": {"b": 1}}}`, `"values":{"a":{"b":1}}`},
		"a kind that conditions choose": {render.Component, `
outputs: repo: {
	metadata: name: context.name
	if parameter.type == "git" {apiVersion: "git/v1", kind: "Git"}
	if parameter.type == "helm" || parameter.type == "oci" {apiVersion: "helm/v1", kind: "Helm"}
}
parameter: type: *"helm" | "git" | "oci"`, `{}`, `"kind":"Helm"`},
		"an object out of a text of JSON": {render.Component, `
import "encoding/json"
output: {apiVersion: "v1", kind: "X", spec: json.Unmarshal(parameter.data)}
parameter: data: string`, `{"data": "{\"a\": [1]}"}`, `"spec":{"a":[1]}`},
		"labels under names that a loop gives": {render.Trait, `
patch: metadata: labels: {
	"name": context.appName
	for k, v in parameter.labels {(k): v}
}
parameter: labels: [string]: string`, `{"labels": {"a": "b"}}`, `"labels":{"a":"b","name":"shop"}`},
		"what the workload is": {render.Trait, `
outputs: x: {apiVersion: "v1", kind: "X", spec: {
	if parameter.mode == "batch" {batch: true}
	name: context.output.metadata.name
	kind: context.output.kind
}}
parameter: mode: *"canary" | "batch"`, `{}`, `"spec":{"kind":"Y","name":"own"}`},
		"a name that is the workload's, if it has one": {render.Trait, `
source: context.output.metadata.generateName
outputs: x: {apiVersion: "v1", kind: "X", spec: {
	if source != _|_ {name: source}
	if source == _|_ {name: context.name}
}}
parameter: {}`, `{}`, `"spec":{"name":"web"}`},
		"an index of a loop that decides": {render.Trait, `
outputs: x: {apiVersion: "v1", kind: "X", spec: steps: [for i, s in parameter.steps {
	if s.weight != _|_ {weight: s.weight}
	pause: {
		if parameter.upTo != _|_ {if i <= parameter.upTo-1 {duration: 0}}
		if !parameter.auto && s.duration != _|_ && parameter.upTo == _|_ {duration: s.duration}
	}
}]}
#Step: {weight?: int, duration?: int}
parameter: {auto: *false | bool, upTo?: int, steps: [...#Step]}`, `{"steps": [{"weight": 20}, {"duration": 5}]}`, `"steps":[{"pause":{},"weight":20},{"pause":{"duration":5}}]`},
		"a condition about what is optional, and not there": {render.Trait, `
outputs: x: {apiVersion: "v1", kind: "X", spec: {
	if parameter.mode == "batch" {batch: true}
	if parameter.route != _|_ && parameter.route.host != "" {host: parameter.route.host}
	if !parameter["quiet"] {loud: true}
	hosts: [for h in parameter.hosts {h}]
	name: "x"
}}
if len(parameter.env) > 0 {outputs: y: {apiVersion: "v1", kind: "Y"}}
parameter: {mode?: *"canary" | "batch", route?: host: string, quiet?: bool, hosts?: [...string], env?: [...string]}`, `{}`, `"Object":{"apiVersion":"v1","kind":"X","spec":{"hosts":[],"name":"x"}},"Name":"x","Trait":"d","TraitIndex":0,"Stage":"","ControlPlaneOnly":false}]`},
		"the same when it is there": {render.Trait, `
outputs: x: {apiVersion: "v1", kind: "X", spec: {
	if parameter.mode == "batch" {batch: true}
	if parameter.route != _|_ && parameter.route.host != "" {host: parameter.route.host}
	if !parameter["quiet"] {loud: true}
	hosts: [for h in parameter.hosts {h}]
}}
if len(parameter.env) > 0 {outputs: y: {apiVersion: "v1", kind: "Y"}}
parameter: {mode?: *"canary" | "batch", route?: host: string, quiet?: bool, hosts?: [...string], env?: [...string]}`,
			`{"mode": "batch", "route": {"host": "h"}, "quiet": false, "hosts": ["a"], "env": ["A"]}`,
			`"spec":{"batch":true,"host":"h","hosts":["a"],"loud":true}},"Name":"x","Trait":"d","TraitIndex":0,"Stage":"","ControlPlaneOnly":false},{"Object":{"apiVersion":"v1","kind":"Y"}`},
		"a patch that gives a list": {render.Trait, `
patch: spec: renderers: [{kustomize: patches: [{name: parameter.name}]}]
parameter: name: *context.name | string`, `{}`, `"renderers":[{"kustomize":{"patches":[{"name":"web"}]}}]`},
	} {
		t.Run(name, func(t *testing.T) {
			tmpl, err := render.Compile(&render.Definition{Kind: c.kind, Name: "d", Template: c.template}, render.InProcess())
			if err != nil {
				t.Fatal(err)
			}
			req := &render.Request{Context: render.Context{Name: "web", Namespace: "prod", AppName: "shop"}, Component: render.Use{Template: tmpl, Properties: []byte(c.props)}}
			if c.kind == render.Trait {
				under, err := render.Compile(&render.Definition{Kind: render.Component, Name: "c", Template: `output: {apiVersion: "v1", kind: "Y", metadata: name: "own"}`}, render.InProcess())
				if err != nil {
					t.Fatal(err)
				}
				req.Component, req.Traits = render.Use{Template: under}, []render.Use{req.Component}
			}
			got, err := render.Render(req)
			if err != nil {
				t.Fatal(err)
			}
			if data, err := json.Marshal(got); err != nil || !strings.Contains(string(data), c.want) {
				t.Errorf("%s lacks %s (%v)", data, c.want, err)
			}
		})
	}
}
