package engine

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// TestALoopOfLongTextsIsBounded runs workflows smaller than the maximum object size that would make
// 20,000 nodes of long texts, a gigabyte or more. They end with a message that says so, before they
// use that memory.
func TestALoopOfLongTextsIsBounded(t *testing.T) {
	const loop = "withSequence: {count: 20000}"
	const long = "{{workflow.parameters.long}}"
	leaf := "{name: leaf, inputs: {parameters: [{name: p}]}, container: {image: a}}"
	for name, templates := range map[string]string{
		"arguments":                     "{name: main, steps: [[{name: a, template: leaf, " + loop + ", arguments: {parameters: [{name: p, value: '" + long + "-{{item}}'}]}}]]}, " + leaf,
		"arguments of steps that wait":  "{name: main, parallelism: 1, steps: [[{name: a, template: leaf, " + loop + ", arguments: {parameters: [{name: p, value: '" + long + "-{{item}}'}]}}]]}, " + leaf,
		"tasks":                         "{name: main, dag: {tasks: [{name: a, template: leaf, " + loop + ", arguments: {parameters: [{name: p, value: '" + long + "-{{item}}'}]}}]}}, " + leaf,
		"defaults":                      "{name: main, steps: [[{name: a, template: leaf, " + loop + "}]]}, {name: leaf, inputs: {parameters: [{name: p, default: '" + long + "'}]}, container: {image: a}}",
		"raw artifacts":                 "{name: main, steps: [[{name: a, template: leaf, " + loop + ", arguments: {artifacts: [{name: p, raw: {data: '" + long + "-{{item}}'}}]}}]]}, {name: leaf, inputs: {artifacts: [{name: p, path: /p}]}, container: {image: a}}",
		"outputs that wait for a user":  "{name: main, steps: [[{name: a, template: leaf, " + loop + "}]]}, {name: leaf, suspend: {}, outputs: {parameters: [{name: o, value: '" + long + "-{{pod.name}}'}]}}",
		"outputs of templates of steps": "{name: main, steps: [[{name: a, template: inner, " + loop + "}]]}, {name: inner, steps: [[{name: b, template: leaf, when: 'false'}]], outputs: {parameters: [{name: o, value: '" + long + "-{{node.name}}'}]}}, {name: leaf, container: {image: a}}",
	} {
		t.Run(name, func(t *testing.T) {
			w := &wf.Workflow{}
			w.Name = "w"
			spec := "entrypoint: main\narguments: {parameters: [{name: long, value: " + strings.Repeat("x", 50_000) + "}]}\ntemplates: [" + templates + "]"
			if err := yaml.UnmarshalStrict([]byte(spec), &w.Spec); err != nil {
				t.Fatal(err)
			}
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			run := New(w, Config{Evaluate: template.InProcess()})
			run.Step(time.Unix(0, 0))
			runtime.GC()
			runtime.ReadMemStats(&after)
			if w.Status.Phase != wf.WorkflowError || !strings.Contains(w.Status.Message, "names, inputs, outputs and messages") {
				t.Errorf("the workflow is %s with %d nodes: %.300s", w.Status.Phase, len(w.Status.Nodes), w.Status.Message)
			}
			held := (int64(after.HeapAlloc) - int64(before.HeapAlloc)) >> 20
			t.Logf("%d nodes, %d MiB", len(w.Status.Nodes), held)
			if held > 160 {
				t.Errorf("it takes %d MiB", held)
			}
			runtime.KeepAlive(run)
		})
	}
}

// TestLongTextsAreCountedOnceAfterARestart checks that a workflow with nearly as many texts as
// allowed can be loaded again.
func TestLongTextsAreCountedOnceAfterARestart(t *testing.T) {
	w := &wf.Workflow{}
	w.Name = "w"
	spec := "entrypoint: main\narguments: {parameters: [{name: long, value: " + strings.Repeat("x", 50_000) + "}]}\ntemplates: [" +
		"{name: main, steps: [[{name: a, template: leaf, withSequence: {count: 10}, arguments: {parameters: [{name: p, value: '{{workflow.parameters.long}}-{{item}}'}]}}]]}, " +
		"{name: leaf, inputs: {parameters: [{name: p}]}, suspend: {}, outputs: {parameters: [{name: o, value: '{{inputs.parameters.p}}'}]}}]"
	if err := yaml.UnmarshalStrict([]byte(spec), &w.Spec); err != nil {
		t.Fatal(err)
	}
	config := Config{MaxTexts: 1_010_000, Evaluate: template.InProcess()} // of 20 texts
	for i := range 3 {
		New(w, config).Step(time.Unix(int64(i), 0))
		if w.Status.Phase != wf.WorkflowRunning {
			t.Fatalf("start %d: %s, %s", i, w.Status.Phase, w.Status.Message)
		}
	}
	config.MaxTexts = 990_000
	again := *w
	New(&again, config).Step(time.Unix(9, 0))
	if again.Status.Phase != wf.WorkflowError {
		t.Errorf("with less room: %s", fmt.Sprint(again.Status.Phase))
	}
}
