package controller_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// These expressions far exceed their limits: one of memory, one of time, and a pattern with
// expensive matching.
const (
	greedy = `sprig.repeat(2000000000, "a")`
	slow   = `let a = 1..1000; count(a, count(a, count(a, true) > 0) > 0)`
)

// hostileWorkflows have a hostile expression in each place where expressions are allowed. Each ends
// with a message that says why.
var hostileWorkflows = map[string]string{
	"when":      `steps: [[{name: a, template: quick, when: "{{=len(` + greedyQuoted + `)}} > 1"}]]`,
	"condition": `steps: [[{name: a, template: quick, when: "'` + strings.Repeat("a", 100<<10) + `' =~ '((a?){30}){30}b'"}]]`,
	"argument":  `steps: [[{name: a, template: say, arguments: {parameters: [{name: text, value: '{{=` + slow + `}}'}]}}]]`,
	"loop":      `steps: [[{name: a, template: quick, withParam: '{{=` + greedy + `}}'}]]`,
	"template":  `container: {image: a, command: [c], args: ['{{=` + slow + `}}']}`,
	"output": `steps: [[{name: a, template: quick}]]
  outputs: {parameters: [{name: o, valueFrom: {expression: '` + greedy + `'}}]}`,
	"lock":  `synchronization: {mutexes: [{name: '{{=` + greedy + `}}'}]}` + "\n  suspend: {}",
	"cache": `memoize: {key: '{{=` + greedy + `}}', cache: {configMap: {name: c, key: k}}}` + "\n  container: {image: a, command: [c]}",
	"retry": `retryStrategy: {limit: 2, expression: '` + greedy + ` == "x"'}` + "\n  container: {image: a, command: [c]}" +
		"\n  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-exit-code: '3'}}",
	"pause": `suspend: {duration: '{{=` + slow + `}}'}`,
}

const greedyQuoted = `sprig.repeat(2000000000, 'a')`

func TestHostileExpressionsHarmNobodyElse(t *testing.T) {
	e, other := start(t), start(t)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for name, main := range hostileWorkflows {
		e.submit(name, "entrypoint: main\ntemplates:"+stepTemplates+"- name: main\n  "+main)
	}
	e.create("workflows", "label", `
spec:
  entrypoint: main
  workflowMetadata: {labelsFrom: {l: {expression: '`+greedy+`'}}}
  templates: [{name: main, suspend: {}}]`)
	for i := range 10 {
		other.submit(fmt.Sprintf("canary-%d", i), `entrypoint: main
templates:`+stepTemplates+`- name: main
  steps: [[{name: a, template: say, when: "'release-1' =~ '^release'", arguments: {parameters: [{name: text, value: '{{=sprig.upper("canary")}}'}]}}]]`)
	}
	for i := range 10 {
		w := other.until(fmt.Sprintf("canary-%d", i), inPhase(wf.WorkflowSucceeded))
		other.expect(w, "W Steps Succeeded\nW[0] StepGroup Succeeded\nW[0].a Pod Succeeded result=CANARY")
	}
	names := []string{"label"}
	for name := range hostileWorkflows {
		names = append(names, name)
	}
	for _, name := range names {
		e.until(name, func(w *wf.Workflow) error {
			if !w.Status.Phase.Completed() || w.Status.Phase == wf.WorkflowSucceeded {
				return fmt.Errorf("it has not failed")
			}
			if all := w.Status.Message + table(w); !strings.Contains(all, "evaluation took more than") {
				return fmt.Errorf("it does not say which limit was exceeded")
			}
			return nil
		})
	}
	runtime.ReadMemStats(&after)
	if grown := int64(after.Sys) - int64(before.Sys); grown > 256<<20 {
		t.Errorf("this process, which has the manager, has grown by %d MiB", grown>>20)
	}
}

// TestExpressionsInChildrenCostNoWrites checks that evaluating an expression in a child process
// costs no write.
func TestExpressionsInChildrenCostNoWrites(t *testing.T) {
	e := start(t)
	e.submit("hi", `entrypoint: main
arguments: {parameters: [{name: who, value: world}]}
podGC: {strategy: OnPodSuccess, deleteDelayDuration: 0s}
templates:
- name: main
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"result":"{{=sprig.upper(workflow.parameters.who)}}"}'}}
  container: {image: a, command: [c]}`)
	e.expect(e.until("hi", inPhase(wf.WorkflowSucceeded)), "W Pod Succeeded result=WORLD")
	e.noPods("hi")
	e.calls(map[string]int{"writes": 4, "reads": 0})
}
