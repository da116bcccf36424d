package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

// stepTemplates are templates whose pods run for a moment and then succeed or fail.
const stepTemplates = `
- name: quick
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms}}
  container: {image: a, command: [c]}
- name: hello
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"result":"hello"}'}}
  container: {image: a, command: [c]}
- name: say
  inputs: {parameters: [{name: text}]}
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-message: '{"lockstep":1,"result":"{{inputs.parameters.text}}"}'}}
  container: {image: a, command: [c]}
- name: fail
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-exit-code: "3"}}
  container: {image: a, command: [c]}
- name: forever
  container: {image: a, command: [c]}
- name: pause
  suspend: {}
`

func running(node string) func(*wf.Workflow) error {
	return func(w *wf.Workflow) error {
		for _, n := range w.Status.Nodes {
			if n.DisplayName == node && n.Phase == wf.PhaseRunning {
				return nil
			}
		}
		return fmt.Errorf("%s does not run", node)
	}
}

func TestHelloWorldAndItsContract(t *testing.T) {
	e := start(t)
	e.submit("hi", "entrypoint: hello\npodGC: {strategy: OnPodSuccess, deleteDelayDuration: 0s}\ntemplates:"+stepTemplates)
	w := e.until("hi", inPhase(wf.WorkflowSucceeded))
	e.expect(w, "W Pod Succeeded result=hello")
	for key, want := range map[string]string{wf.LabelPhase: "Succeeded", wf.LabelCompleted: "true"} {
		if got := w.Labels[key]; got != want {
			t.Errorf("label %s is %q, want %q", key, got, want)
		}
	}
	if w.Annotations[wf.AnnotationPodNameFormat] != "v2" || w.Status.Progress != "1/1" || w.Status.FinishedAt.IsZero() || w.Status.StartedAt.IsZero() {
		t.Errorf("annotations %v, status %+v", w.Annotations, w.Status)
	}
	conditions := map[wf.ConditionType]metav1.ConditionStatus{}
	for _, c := range w.Status.Conditions {
		conditions[c.Type] = c.Status
	}
	if want := map[wf.ConditionType]metav1.ConditionStatus{"PodRunning": "False", "Completed": "True"}; !maps.Equal(conditions, want) {
		t.Errorf("conditions %v, want %v", conditions, want)
	}
	e.noPods("hi")
	e.calls(map[string]int{"writes": 4, "reads": 0})
}

// noPods waits until the workflow has no pods.
func (e *env) noPods(workflow string) {
	e.Helper()
	e.eventually("the pods are gone", func() error {
		if left := e.pods(workflow); len(left) > 0 {
			return fmt.Errorf("%d pods are left", len(left))
		}
		return nil
	})
}

// calls checks the manager's requests to the server in this namespace.
func (e *env) calls(most map[string]int) {
	e.Helper()
	calls := managerCalls(e, e.c, e.ns)
	if n := sum(calls, writeVerbs...); n > most["writes"] {
		e.Errorf("%d writes, want at most %d: %v", n, most["writes"], calls)
	}
	if n := sum(calls, "get", "list", "watch"); n > most["reads"] {
		e.Errorf("%d reads, want at most %d: %v", n, most["reads"], calls)
	}
}

func TestAChainOfFiveWritesLittle(t *testing.T) {
	e := start(t)
	spec := "entrypoint: main\npodGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}\ntemplates:\n- name: main\n  steps:\n"
	for i := range 5 {
		spec += fmt.Sprintf("  - - {name: s%d, template: say, arguments: {parameters: [{name: text, value: t%d}]}}\n", i, i)
	}
	e.submit("chain", spec+strings.TrimPrefix(stepTemplates, "\n"))
	w := e.until("chain", inPhase(wf.WorkflowSucceeded))
	if len(w.Status.Nodes) != 11 || w.Status.Progress != "5/5" {
		t.Errorf("%d nodes, progress %s", len(w.Status.Nodes), w.Status.Progress)
	}
	e.noPods("chain")
	e.calls(map[string]int{"writes": 14})
}

func TestFanOutAndItsResults(t *testing.T) {
	e := start(t)
	e.submit("fan", `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: each, template: say, withSequence: {count: "30"}, arguments: {parameters: [{name: text, value: "n{{item}}"}]}}
  - - {name: all, template: say, arguments: {parameters: [{name: text, value: "{{=len(fromJSON(steps.each.outputs.result))}}"}]}}
`+strings.TrimPrefix(stepTemplates, "\n"))
	w := e.until("fan", inPhase(wf.WorkflowSucceeded))
	for _, n := range w.Status.Nodes {
		if n.DisplayName == "all" && (n.Outputs == nil || n.Outputs.Result == nil || *n.Outputs.Result != "30") {
			t.Errorf("the results of the loop are %+v, want 30 of them", n.Outputs)
		}
	}
	e.calls(map[string]int{"writes": 31 + 6})
}

// TestAFanOutOfAThousandWritesLittle checks that every pod is created once and deleted once, with
// few statuses, at full width.
func TestAFanOutOfAThousandWritesLittle(t *testing.T) {
	e := start(t)
	e.submit("wide", `
entrypoint: main
podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}
templates:
- name: main
  steps:
  - - {name: each, template: second, withSequence: {count: "1000"}}
- name: second
  metadata: {annotations: {lockstep.dev/sim-duration: 1s}}
  container: {image: a, command: [c]}
`)
	w := e.until("wide", inPhase(wf.WorkflowSucceeded))
	if len(w.Status.Nodes) != 1002 || w.Status.Progress != "1000/1000" {
		t.Errorf("%d nodes, progress %s", len(w.Status.Nodes), w.Status.Progress)
	}
	e.noPods("wide")
	calls := managerCalls(t, e.c, e.ns)
	if calls["pods create"] != 1000 || calls["pods delete"] != 1000 {
		t.Errorf("%d pods were created, %d deletes sent", calls["pods create"], calls["pods delete"])
	}
	e.calls(map[string]int{"writes": 2010, "reads": 0})
}

func TestDAG(t *testing.T) {
	e := start(t)
	e.submit("dag", `
entrypoint: main
templates:
- name: main
  dag:
    failFast: false
    tasks:
    - {name: a, template: hello}
    - {name: b, template: fail, depends: a}
    - {name: c, template: quick, depends: a}
    - {name: d, template: quick, depends: "b.Failed && c"}
    - {name: e, template: quick, depends: b}
`+strings.TrimPrefix(stepTemplates, "\n"))
	w := e.until("dag", inPhase(wf.WorkflowFailed))
	e.expect(w, `
	W DAG Failed
	W.a Pod Succeeded result=hello
	W.b Pod Failed: main: Error (exit code 3)
	W.c Pod Succeeded
	W.d Pod Succeeded
	W.e Skipped Omitted: omitted: depends condition not met`)
}

func TestRetriesOfAStep(t *testing.T) {
	e := start(t)
	e.submit("again", `
entrypoint: main
templates:
- name: main
  retryStrategy: {limit: "2", backoff: {duration: 100ms}}
  metadata: {annotations: {lockstep.dev/sim-duration: 50ms, lockstep.dev/sim-exit-code: "{{=retries == '2' ? '0' : '1'}}"}}
  container: {image: a, command: [c]}
`)
	w := e.until("again", inPhase(wf.WorkflowSucceeded))
	e.expect(w, `
	W Retry Succeeded
	W(0) Pod Failed: main: Error (exit code 1)
	W(1) Pod Failed: main: Error (exit code 1)
	W(2) Pod Succeeded`)
}

const pausing = `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: one, template: quick}
  - - {name: wait, template: pause}
  - - {name: two, template: quick}
`

// TestAPauseEndsAsTheCommandLineEndsIt ends a pause as clients do: by a patch of the node in the
// status.
func TestAPauseEndsAsTheCommandLineEndsIt(t *testing.T) {
	t.Parallel()
	e := start(t)
	e.submit("p", pausing+strings.TrimPrefix(stepTemplates, "\n"))
	w := e.until("p", running("wait"))
	for id, n := range w.Status.Nodes {
		if n.DisplayName == "wait" {
			e.patch("p", fmt.Sprintf(`{"status":{"nodes":{%q:{"phase":"Succeeded","message":"by hand"}}}}`, id))
		}
	}
	w = e.until("p", inPhase(wf.WorkflowSucceeded))
	e.expect(w, `
	W Steps Succeeded
	W[0] StepGroup Succeeded
	W[0].one Pod Succeeded
	W[1] StepGroup Succeeded
	W[1].wait Suspend Succeeded: by hand
	W[2] StepGroup Succeeded
	W[2].two Pod Succeeded`)
}

func TestASuspendedWorkflowWaits(t *testing.T) {
	e := start(t)
	e.submit("s", "suspend: true\nentrypoint: quick\ntemplates:"+stepTemplates)
	e.submit("other", "entrypoint: quick\ntemplates:"+stepTemplates)
	e.until("other", inPhase(wf.WorkflowSucceeded)) // by now the first workflow would have begun
	if pods := e.pods("s"); len(pods) > 0 {
		t.Fatalf("%d pods of a suspended workflow", len(pods))
	}
	e.patch("s", `{"spec":{"suspend":null}}`)
	e.until("s", inPhase(wf.WorkflowSucceeded))
}

func TestStopAndTerminate(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		shutdown string
		onExit   bool
	}{{"Stop", true}, {"Terminate", false}} {
		t.Run(c.shutdown, func(t *testing.T) {
			e := start(t)
			e.submit("s", "entrypoint: forever\nonExit: quick\ntemplates:"+stepTemplates)
			e.until("s", running("s"))
			e.patch("s", fmt.Sprintf(`{"spec":{"shutdown":%q}}`, c.shutdown))
			w := e.until("s", inPhase(wf.WorkflowFailed))
			if want := "Stopped with strategy '" + c.shutdown + "'"; w.Status.Message != want {
				t.Errorf("message %q, want %q", w.Status.Message, want)
			}
			if _, ran := w.Status.Nodes[wf.NodeID("s", "s.onExit")]; ran != c.onExit {
				t.Errorf("the exit handler ran: %t, want %t", ran, c.onExit)
			}
			e.eventually("the pod is gone", func() error {
				for _, p := range e.pods("s") {
					if p.Status.Phase == corev1.PodRunning {
						return errors.New("a pod runs")
					}
				}
				return nil
			})
		})
	}
}

func TestTheDeadlineOfAWorkflow(t *testing.T) {
	e := start(t)
	e.submit("late", "activeDeadlineSeconds: 1\nentrypoint: forever\ntemplates:"+stepTemplates)
	w := e.until("late", inPhase(wf.WorkflowFailed))
	if !strings.Contains(table(w), "exceeded its deadline") {
		t.Errorf("the nodes are\n%s", table(w))
	}
}

func TestPodGC(t *testing.T) {
	for _, c := range []struct {
		gc   string
		left int
	}{
		{"{strategy: OnPodCompletion, deleteDelayDuration: 0s}", 0},
		{"{strategy: OnPodSuccess, deleteDelayDuration: 0s}", 1},
		{"{strategy: OnWorkflowCompletion, deleteDelayDuration: 0s}", 0},
		{"{strategy: OnWorkflowSuccess, deleteDelayDuration: 0s}", 2},
		{"{strategy: OnPodCompletion, deleteDelayDuration: 0s, labelSelector: {matchLabels: {go: away}}}", 2},
		{"{strategy: OnWorkflowCompletion, deleteDelayDuration: 0s, labelSelector: {matchLabels: {workflows.argoproj.io/workflow: g}}}", 0},
	} {
		t.Run(c.gc, func(t *testing.T) {
			e := start(t)
			e.submit("g", "podGC: "+c.gc+`
entrypoint: main
templates:
- name: main
  steps:
  - - {name: one, template: quick}
  - - {name: two, template: fail}
`+strings.TrimPrefix(stepTemplates, "\n"))
			e.until("g", inPhase(wf.WorkflowFailed))
			// Another workflow that ends and is collected after this workflow's turn.
			e.submit("after", "podGC: {strategy: OnPodCompletion, deleteDelayDuration: 0s}\nentrypoint: quick\ntemplates:"+stepTemplates)
			e.until("after", inPhase(wf.WorkflowSucceeded))
			e.noPods("after")
			e.eventually("the pods that are to go are gone", func() error {
				if n := len(e.pods("g")); n != c.left {
					return fmt.Errorf("%d pods are left, want %d", n, c.left)
				}
				return nil
			})
		})
	}
}

func TestTTL(t *testing.T) {
	e := start(t)
	e.submit("short", "ttlStrategy: {secondsAfterCompletion: 1000, secondsAfterSuccess: 1}\nentrypoint: quick\ntemplates:"+stepTemplates)
	e.submit("fails", "ttlStrategy: {secondsAfterCompletion: 1000, secondsAfterFailure: 0}\nentrypoint: fail\ntemplates:"+stepTemplates)
	e.submit("long", "ttlStrategy: {secondsAfterCompletion: 1000}\nentrypoint: quick\ntemplates:"+stepTemplates)
	for _, name := range []string{"short", "fails"} {
		e.eventually(name+" is deleted", func() error {
			if _, err := e.get(name); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is there: %v", err)
			}
			return nil
		})
	}
	e.until("long", inPhase(wf.WorkflowSucceeded))
}

// TestRetryAsTheCommandLineDoesIt retries as clients do: it removes failed nodes from the status
// and deletes their pods.
func TestRetryAsTheCommandLineDoesIt(t *testing.T) {
	e := start(t)
	e.submit("r", `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: one, template: hello}
  - - {name: two, template: fail}
`+strings.TrimPrefix(stepTemplates, "\n"))
	e.until("r", inPhase(wf.WorkflowFailed))
	first := e.pods("r")
	two := wf.NodeID("r", "r[1].two")
	for _, p := range first {
		if p.Annotations[wf.AnnotationNodeID] == two {
			if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}
	e.patch("r", fmt.Sprintf(`{"metadata":{"labels":{%q:null,%q:"Running"}},"spec":{"shutdown":null},"status":{"phase":"","message":null,
		"startedAt":"2030-01-01T00:00:00Z","finishedAt":null,"nodes":{%q:null,%q:{"phase":"Running","message":null,"finishedAt":null},%q:{"phase":"Running","message":null,"finishedAt":null}}}}`,
		wf.LabelCompleted, wf.LabelPhase, two, "r", wf.NodeID("r", "r[1]")))
	e.until("r", func(now *wf.Workflow) error {
		for _, p := range e.pods("r") {
			if p.Annotations[wf.AnnotationNodeID] == two && now.Status.Phase == wf.WorkflowFailed {
				return nil
			}
		}
		return errors.New("it was not taken up again")
	})
	again := map[string]types.UID{}
	for _, p := range e.pods("r") {
		again[p.Annotations[wf.AnnotationNodeID]] = p.UID
	}
	for _, p := range first {
		id := p.Annotations[wf.AnnotationNodeID]
		if same := again[id] == p.UID; same != (id != two) {
			t.Errorf("pod %s is the same: %t", p.Name, same)
		}
	}
}

func TestAPodThatIsDeletedIsAnError(t *testing.T) {
	e := start(t)
	e.submit("d", "entrypoint: forever\ntemplates:"+stepTemplates)
	e.until("d", running("d"))
	if err := e.core.CoreV1().Pods(e.ns).Delete(t.Context(), "d", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	e.expect(e.until("d", inPhase(wf.WorkflowError)), "W Pod Error: pod deleted")
}

// TestAPodThatItsNodeRefuses checks that a pod that its node did not accept is created again, and that
// its node of the workflow does not fail.
func TestAPodThatItsNodeRefuses(t *testing.T) {
	e := start(t)
	e.submit("d", "entrypoint: forever\ntemplates:"+stepTemplates)
	e.until("d", running("d"))
	pods := e.core.CoreV1().Pods(e.ns)
	refused, err := pods.Get(t.Context(), "d", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	refused.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfcpu"}
	if _, err := pods.UpdateStatus(t.Context(), refused, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.eventually("another pod runs", func() error {
		p, err := pods.Get(t.Context(), "d", metav1.GetOptions{})
		if err == nil && (p.UID == refused.UID || p.Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("pod %s is %s", p.UID, p.Status.Phase)
		}
		return err
	})
	e.expect(e.until("d", running("d")), "W Pod Running")
}

func TestABadWorkflowSaysWhatIsWrong(t *testing.T) {
	e := start(t)
	e.submit("bad", "entrypoint: nowhere\ntemplates:"+stepTemplates)
	w := e.until("bad", inPhase(wf.WorkflowError))
	if !strings.Contains(w.Status.Message, "nowhere") {
		t.Errorf("message %q", w.Status.Message)
	}
	e.submit("mount", `
entrypoint: main
templates:
- name: main
  container: {image: a, command: [c], volumeMounts: [{name: none, mountPath: /x}]}
`)
	w = e.until("mount", inPhase(wf.WorkflowError))
	if !strings.Contains(w.Status.Message, "volume 'none'") {
		t.Errorf("message %q", w.Status.Message)
	}
	e.submit("invalid", `
entrypoint: main
templates:
- name: main
  container: {image: a, command: [c], env: [{name: "a=b"}]}
`)
	w = e.until("invalid", inPhase(wf.WorkflowError))
	if !strings.Contains(w.Status.Message, "env[0].name") {
		t.Errorf("message %q", w.Status.Message)
	}
}

func TestMutex(t *testing.T) {
	e := start(t)
	const spec = `
synchronization: {mutexes: [{name: only}]}
entrypoint: quick
templates:`
	pods := e.watchPods()
	for i := range 4 {
		e.submit(fmt.Sprint("m", i), spec+stepTemplates)
	}
	for i := range 4 {
		w := e.until(fmt.Sprint("m", i), inPhase(wf.WorkflowSucceeded))
		if s := w.Status.Synchronization; s != nil && s.Mutex != nil && len(s.Mutex.Holding) > 0 {
			t.Errorf("a workflow that is over holds %+v", s.Mutex.Holding)
		}
	}
	if most := pods.stop(); most != 1 {
		t.Errorf("%d pods were under one mutex at the same time", most)
	}
}

// watched counts pods that have not ended.
type watched struct {
	stop func() int // ends the watch and returns the maximum number of concurrent pods
}

func (e *env) watchPods() *watched {
	e.Helper()
	w, err := e.core.CoreV1().Pods(e.ns).Watch(e.Context(), metav1.ListOptions{})
	if err != nil {
		e.Fatal(err)
	}
	most := make(chan int)
	go func() {
		open, n := map[types.UID]bool{}, 0
		for event := range w.ResultChan() {
			p, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if open[p.UID] = true; event.Type == watch.Deleted || p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
				delete(open, p.UID)
			}
			n = max(n, len(open))
		}
		most <- n
	}()
	return &watched{stop: func() int { w.Stop(); return <-most }}
}

func TestSemaphoreWhoseLimitGrows(t *testing.T) {
	t.Parallel()
	e := start(t)
	limit := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Data: map[string]string{"max": "1"}}
	if _, err := e.core.CoreV1().ConfigMaps(e.ns).Create(t.Context(), limit, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const spec = `
synchronization: {semaphores: [{configMapKeyRef: {name: limits, key: max}}]}
entrypoint: forever
templates:`
	e.submit("a", spec+stepTemplates)
	e.until("a", running("a"))
	e.submit("b", spec+stepTemplates)
	e.until("b", func(w *wf.Workflow) error {
		if !strings.Contains(w.Status.Message, "Waiting for") {
			return errors.New("it does not wait")
		}
		return nil
	})
	limit.Data["max"] = "2"
	if _, err := e.core.CoreV1().ConfigMaps(e.ns).Update(t.Context(), limit, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	e.until("b", running("b"))
	for _, name := range []string{"a", "b"} {
		e.patch(name, `{"spec":{"shutdown":"Terminate"}}`)
		e.until(name, inPhase(wf.WorkflowFailed))
	}
}

func TestWorkflowTemplate(t *testing.T) {
	e := start(t)
	e.create("workflowtemplates", "lib", "spec:\n  entrypoint: hello\n  templates:"+strings.ReplaceAll(stepTemplates, "\n", "\n  "))
	e.submit("w", "workflowTemplateRef: {name: lib}")
	w := e.until("w", inPhase(wf.WorkflowSucceeded))
	if w.Status.StoredWorkflowTemplateSpec == nil || w.Labels[wf.LabelWorkflowTemplate] != "lib" {
		t.Errorf("labels %v, stored %v", w.Labels, w.Status.StoredWorkflowTemplateSpec)
	}
}

// TestALargeWorkflowIsCompressed runs ten thousand nodes, whose JSON is several times the maximum
// size of an object. The nodes are pauses, which need no pods.
func TestALargeWorkflowIsCompressed(t *testing.T) {
	e := start(t)
	e.submit("large", `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: each-of-many-with-a-name-that-takes-room, template: moment, withSequence: {count: "10000"}}
  - - {name: last, template: quick}
- name: moment
  suspend: {duration: 500ms}
`+strings.TrimPrefix(stepTemplates, "\n"))
	w := e.until("large", inPhase(wf.WorkflowSucceeded))
	if len(w.Status.Nodes) != 10_004 {
		t.Errorf("%d nodes", len(w.Status.Nodes))
	}
	if w.Status.CompressedNodes == "" {
		t.Error("the nodes are not compressed")
	}
	e.calls(map[string]int{"writes": 1 + 6})
}

// TestWhatCouldNotBeReadAgainIsNotStored runs a workflow whose nodes are small enough when
// compressed and too large when unpacked: each < takes six bytes in JSON.
func TestWhatCouldNotBeReadAgainIsNotStored(t *testing.T) {
	e := start(t)
	e.submit("long", `
entrypoint: main
arguments: {parameters: [{name: long, value: '`+strings.Repeat("<", 80_000)+`'}]}
templates:
- name: main
  steps:
  - - name: a
      template: moment
      withSequence: {count: "100"}
      arguments: {parameters: [{name: p, value: "{{workflow.parameters.long}}{{item}}"}]}
- name: moment
  inputs: {parameters: [{name: p}]}
  suspend: {duration: 1h}
`)
	w := e.until("long", inPhase(wf.WorkflowError))
	if !strings.Contains(w.Status.Message, "too large") || !strings.Contains(w.Status.Message, "in JSON") {
		t.Errorf("it says %.300s", w.Status.Message)
	}
}

// TestAPauseOfACompressedWorkflowIsEndedAsClientsDo ends a pause as clients do: they unpack the
// nodes, change one, and write all of them back, compressed only above the client's own limit.
func TestAPauseOfACompressedWorkflowIsEndedAsClientsDo(t *testing.T) {
	e := start(t)
	e.submit("w", `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: each, template: moment, withSequence: {count: "800"}}
  - - {name: wait, template: pause}
- name: moment
  suspend: {duration: 10ms}
`+strings.TrimPrefix(stepTemplates, "\n"))
	e.until("w", running("wait"))
	for {
		w := &wf.Workflow{}
		if err := e.argo.Get().Namespace(e.ns).Resource("workflows").Name("w").Do(t.Context()).Into(w); err != nil {
			t.Fatal(err)
		}
		if w.Status.CompressedNodes == "" || len(w.Status.Nodes) > 0 {
			t.Fatalf("%d nodes are not compressed", len(w.Status.Nodes))
		}
		nodes, err := compress.Nodes(&w.Status)
		if err != nil {
			t.Fatal(err)
		}
		for id, n := range nodes {
			if n.DisplayName == "wait" {
				n.Phase, n.FinishedAt = wf.PhaseSucceeded, metav1.Now()
				nodes[id] = n
			}
		}
		w.Status.Nodes, w.Status.CompressedNodes = nodes, ""
		err = e.argo.Put().Namespace(e.ns).Resource("workflows").Name("w").Body(w).Do(t.Context()).Error()
		if err == nil {
			break
		}
		if !apierrors.IsConflict(err) {
			t.Fatal(err)
		}
	}
	if w := e.until("w", inPhase(wf.WorkflowSucceeded)); len(w.Status.Nodes) != 804 {
		t.Errorf("%d nodes", len(w.Status.Nodes))
	}
}

// TestAWorkflowsPodsAreInItsQueue uses a queue with capacity for one pod at a time, and a step in
// another queue.
func TestAWorkflowsPodsAreInItsQueue(t *testing.T) {
	e := start(t)
	name := e.ns + "-small"
	client, err := kubeclient.ForGroupVersion(e.c.RESTConfig(), nil, scheduling.GroupVersion, scheme.Scheme)
	if err != nil {
		t.Fatal(err)
	}
	queue := &scheduling.Queue{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: scheduling.QueueSpec{Weight: 1,
		Capability: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}
	if err := client.Post().Resource("queues").Body(queue).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Delete().Resource("queues").Name(name).Do(context.Background()) })
	manifest := fmt.Sprintf(`
metadata: {labels: {lockstep.dev/queue: %s}}
spec:
  entrypoint: main
  templates:
  - name: main
    steps:
    - - {name: each, template: one, withItems: [a, b]}
      - {name: aside, template: other}
  - name: one
    container: {image: a, command: [c], resources: {requests: {cpu: "1"}}}
  - name: other
    metadata: {labels: {lockstep.dev/queue: default}}
    container: {image: a, command: [c], resources: {requests: {cpu: "1"}}}
`, name)
	e.create("workflows", "w", manifest)
	e.until("w", func(w *wf.Workflow) error {
		if !strings.Contains(table(w), "Pod Pending: ") { // the node says why the pod waits
			return errors.New("no pod waits")
		}
		return running("aside")(w)
	})
	if pods := e.pods("w"); len(pods) != 2 {
		t.Errorf("%d pods, want one of the queue's and the one aside", len(pods))
	}
	e.patch("w", `{"spec":{"shutdown":"Terminate"}}`)
	e.until("w", inPhase(wf.WorkflowFailed))
}

// TestAGangIsPlacedTogether submits a gang that exceeds the free capacity, then adds capacity.
func TestAGangIsPlacedTogether(t *testing.T) {
	e := start(t)
	const spec = `
entrypoint: main
templates:
- name: main
  steps:
  - - {name: each, template: big, withSequence: {count: "%d"}}
- name: big
  metadata: {annotations: {lockstep.dev/sim-duration: 200ms, lockstep.dev/gang: all}}
  container: {image: a, command: [c], resources: {requests: {cpu: "20"}}}
`
	e.submit("fits", fmt.Sprintf(spec, 8))
	e.submit("never", fmt.Sprintf(spec, 9))
	e.until("fits", inPhase(wf.WorkflowSucceeded))
	w := e.until("never", func(w *wf.Workflow) error {
		if !strings.Contains(table(w), "NotEnoughResources") {
			return errors.New("it does not say why it waits")
		}
		return nil
	})
	if pods := e.pods("never"); len(pods) > 0 {
		t.Errorf("%d pods of a gang that does not fit", len(pods))
	}
	e.patch(w.Name, `{"spec":{"shutdown":"Terminate"}}`)
	e.until("never", inPhase(wf.WorkflowFailed))
}
