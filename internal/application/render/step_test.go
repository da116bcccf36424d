package render_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/render"
)

func compileStep(t *testing.T, template string) *render.Template {
	t.Helper()
	tmpl, err := render.Compile(&render.Definition{Kind: render.WorkflowStep, Name: "s", Template: template}, render.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	return tmpl
}

// play runs a step with the answers in world until the step asks for no more actions.
func play(t *testing.T, template, properties string, world map[string]render.Answer, outputs ...oam.StepOutput) (*render.StepState, []render.Action) {
	t.Helper()
	return playTemplate(t, compileStep(t, template), properties, world, outputs...)
}

func playTemplate(t *testing.T, tmpl *render.Template, properties string, world map[string]render.Answer, outputs ...oam.StepOutput) (*render.StepState, []render.Action) {
	t.Helper()
	req := &render.StepRequest{
		Properties: []byte(properties), Answers: map[string]render.Answer{}, Outputs: outputs,
		Context: render.StepContext{Context: render.Context{Name: "shop", Namespace: "default", AppName: "shop"}, StepName: "one", Application: map[string]any{
			"spec": map[string]any{"components": []any{map[string]any{"name": "web", "type": "worker"}, map[string]any{"name": "db", "type": "worker"}}},
		}},
	}
	var asked []render.Action
	for range 20 {
		s, err := tmpl.Step(req)
		if err != nil {
			t.Fatal(err)
		}
		if s.Outcome != render.StepActs {
			return s, asked
		}
		asked = append(asked, s.Action)
		answer, ok := world[s.Action.Key]
		if !ok {
			t.Fatalf("the step asks for %s: %+v", s.Action.Key, s.Action)
		}
		req.Answers[s.Action.Key] = answer
	}
	t.Fatal("no end")
	return nil, nil
}

func TestAStepWaitsForWhatItApplied(t *testing.T) {
	const template = `
import "vela/op"
apply: op.#Apply & {value: parameter.value, cluster: parameter.cluster}
wait: op.#ConditionalWait & {continue: apply.value.status.ready == true, message: "not ready"}
if parameter.notify {
	tell: op.#HTTPPost & {url: "http://x", request: body: apply.value.metadata.name}
}
parameter: {value: {...}, cluster: *"" | string, notify: *false | bool}
`
	properties := `{"notify": true, "value": {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}, "data": {"k": "1"}}}`
	object := map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "a", "uid": "u"}, "data": map[string]any{"k": "changed by the server"}}
	s, asked := play(t, template, properties, map[string]render.Answer{"apply": {Returns: map[string]any{"value": object}}})
	if s.Outcome != render.StepWaits || s.Message != "not ready" || len(asked) != 1 || asked[0].Do != "apply" {
		t.Fatalf("%+v %+v", s, asked)
	}
	object["status"] = map[string]any{"ready": true}
	s, asked = play(t, template, properties, map[string]render.Answer{
		"apply": {Returns: map[string]any{"value": object}},
		"tell":  {Returns: map[string]any{"statusCode": int64(200), "body": "thanks"}},
	}, oam.StepOutput{Name: "uid", ValueFrom: "apply.value.metadata.uid"}, oam.StepOutput{Name: "said", ValueFrom: `"it said " + tell.response.body`})
	if s.Outcome != render.StepDone || len(asked) != 2 {
		t.Fatalf("%+v %+v", s, asked)
	}
	if body := asked[1].Params["request"].(map[string]any)["body"]; body != "a" {
		t.Errorf("the body is %v", body)
	}
	if string(s.Outputs["uid"]) != `"u"` || string(s.Outputs["said"]) != `"it said thanks"` {
		t.Errorf("outputs %s %s", s.Outputs["uid"], s.Outputs["said"])
	}
}

func TestActionsAreDoneInTheOrderOfTheText(t *testing.T) {
	const template = `
import ("vela/kube", "vela/builtin", "vela/http")
if parameter.first {
	a: kube.#Read & {$params: value: {apiVersion: "v1", kind: "Secret", metadata: name: "s"}}
}
b: http.#HTTPDo & {$params: {method: "POST", url: "http://x"}}
c: builtin.#Steps & {
	for i, n in parameter.names {
		"n\(i)": kube.#Apply & {$params: value: {apiVersion: "v1", kind: "ConfigMap", metadata: name: n}}
	}
}
m: builtin.#Message & {$params: message: "done \(b.$returns.statusCode)"}
parameter: {first: *true | bool, names: [...string]}
`
	s, asked := play(t, template, `{"names": ["x", "y"]}`, map[string]render.Answer{
		"a":    {Returns: map[string]any{"value": map[string]any{"data": map[string]any{"k": "dg=="}}}},
		"b":    {Returns: map[string]any{"statusCode": int64(201)}},
		"c.n0": {}, "c.n1": {},
	})
	var order []string
	for _, a := range asked {
		order = append(order, a.Key)
	}
	if got := strings.Join(order, " "); got != "a b c.n0 c.n1" || s.Message != "done 201" {
		t.Errorf("%s: %+v", got, s)
	}
}

func TestStepsThatUseWhatIsNotThereYetWait(t *testing.T) {
	const template = `
import "vela/op"
read: op.#Read & {value: {apiVersion: "v1", kind: "ConfigMap", metadata: name: "c"}}
if read.err != _|_ {
	failed: op.#Fail & {message: "it is not there: \(read.err)"}
}
if read.value.data.go == "yes" {
	done: op.#Message & {message: "gone"}
}
parameter: {}
`
	s, _ := play(t, template, "{}", map[string]render.Answer{"read": {Returns: map[string]any{"err": "no"}}})
	if s.Outcome != render.StepFails || s.Message != "it is not there: no" {
		t.Errorf("%+v", s)
	}
	s, _ = play(t, template, "{}", map[string]render.Answer{"read": {Returns: map[string]any{"value": map[string]any{"data": map[string]any{"go": "yes"}}}}})
	if s.Outcome != render.StepDone || s.Message != "gone" {
		t.Errorf("%+v", s)
	}
}

func TestPauseAndPatch(t *testing.T) {
	const template = `
import "vela/op"
pause: op.#Suspend & {duration: "3s", message: "a moment"}
change: op.#PatchK8sObject & {
	value: {kind: "Pod", spec: containers: [{name: "a", image: "x"}, {name: "b", image: "y"}]}
	patch: {
		// +patchKey=name
		spec: containers: [{name: "b", command: ["z"]}]
	}
}
tell: op.#Message & {message: change.result.spec.containers[1].command[0]}
parameter: {}
`
	s, _ := play(t, template, "{}", nil)
	if s.Outcome != render.StepSuspends || s.Duration.Seconds() != 3 || s.Message != "a moment" {
		t.Fatalf("%+v", s)
	}
	s, err := compileStep(t, template).Step(&render.StepRequest{Resumed: true})
	if err != nil || s.Outcome != render.StepDone || s.Message != "z" {
		t.Errorf("%+v %v", s, err)
	}
}

func TestConditions(t *testing.T) {
	values := map[string]any{
		"status": map[string]any{"step-1": map[string]any{"phase": "failed", "failed": true}, "two": map[string]any{"succeeded": false}},
		"inputs": map[string]any{"n": int64(3)}, "context": map[string]any{"name": "shop"},
	}
	for condition, want := range map[string]bool{
		`status["step-1"].failed`: true, `status["step-1"].phase == "failed" && inputs.n > 2`: true, `!status.two.succeeded`: true,
		`strings.HasPrefix(context.name, "x")`: false, `inputs.n == 4 || status.two.succeeded`: false,
	} {
		got, err := render.Condition(render.InProcess(), condition, values)
		if err != nil || got != want {
			t.Errorf("%s: %v %v", condition, got, err)
		}
	}
	for _, bad := range []string{"status.none.failed", "1 +", `"text"`, "inputs.n"} {
		if _, err := render.Condition(render.InProcess(), bad, values); err == nil {
			t.Errorf("%s is taken", bad)
		}
	}
	got, err := render.ValueFrom(render.InProcess(), "output.status.ip", map[string]any{"output": map[string]any{"status": map[string]any{"ip": "1.2.3.4"}}})
	if err != nil || string(got) != `"1.2.3.4"` {
		t.Errorf("%s %v", got, err)
	}
	if !json.Valid(got) {
		t.Error("not JSON")
	}
}

// TestTheOldQueryPackage checks steps of addons that look up endpoints with the old name of the
// package query, and convert the result to strings.
func TestTheOldQueryPackage(t *testing.T) {
	tmpl, err := render.Compile(&render.Definition{Kind: render.WorkflowStep, Name: "find", Template: `
import (
	"vela/op"
	"vela/ql"
	"strconv"
)
found: ql.#CollectServiceEndpoints & {app: {name: parameter.name, namespace: context.namespace, filter: {}}} @step(1)
status: {
	addresses: *[] | [...string]
	if found.err == _|_ && found.list != _|_ {
		addresses: [for e in found.list if e.endpoint.port == parameter.port {"http://\(e.endpoint.host):" + strconv.FormatInt(e.endpoint.port, 10)}]
	}
}
apply: op.#Apply & {value: {apiVersion: "v1", kind: "ConfigMap", metadata: name: "found", data: first: status.addresses[0]}} @step(2)
parameter: {name: string, port: *80 | int}`}, render.InProcess())
	if err != nil {
		t.Fatal(err)
	}
	list := []any{map[string]any{"endpoint": map[string]any{"host": "a", "port": int64(80)}}}
	s, asked := playTemplate(t, tmpl, `{"name": "web"}`, map[string]render.Answer{"found": {Returns: map[string]any{"list": list}}, "apply": {}})
	if s.Outcome != render.StepDone || len(asked) != 2 || fmt.Sprint(asked[1].Params["value"]) != "map[apiVersion:v1 data:map[first:http://a:80] kind:ConfigMap metadata:map[name:found]]" {
		t.Errorf("%+v, %+v", s, asked)
	}
}
