package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// TestRandomDAGs runs random graphs whose pods end in random order, with restarts in between: a
// task starts only after all tasks it depends on, no pod is created twice, every node ends once,
// and the phases are the same for every order.
func TestRandomDAGs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(1, 12).Draw(t, "tasks")
		no := false
		dag := &wf.DAGTemplate{FailFast: &no}
		fails := map[string]bool{}
		for i := range n {
			task := wf.DAGTask{Name: fmt.Sprintf("t%d", i), Template: "leaf"}
			if i > 0 {
				from := rapid.SliceOfNDistinct(rapid.IntRange(0, i-1), 0, min(i, 3), rapid.ID[int]).Draw(t, "dependencies")
				var terms []string
				for _, j := range from {
					suffix := rapid.SampledFrom([]string{"", "", ".Succeeded", ".Failed", ".Omitted"}).Draw(t, "result")
					terms = append(terms, fmt.Sprintf("t%d%s", j, suffix))
				}
				task.Depends = strings.Join(terms, rapid.SampledFrom([]string{" && ", " || "}).Draw(t, "operator"))
			}
			if rapid.IntRange(0, 4).Draw(t, "loop") == 0 {
				task.WithSequence = sequenceOf(rapid.IntRange(1, 3).Draw(t, "items"))
			}
			fails[task.Name] = rapid.IntRange(0, 3).Draw(t, "fails") == 0
			dag.Tasks = append(dag.Tasks, task)
		}
		first := playOut(t, dag, fails, "first")
		second := playOut(t, dag, fails, "second")
		for name, phase := range first {
			if second[name] != phase {
				t.Errorf("%s is %s in one order of events and %s in another", name, phase, second[name])
			}
		}
		if len(first) != len(second) {
			t.Errorf("%d nodes in one order of events, %d in another", len(first), len(second))
		}
	})
}

func playOut(t *rapid.T, dag *wf.DAGTemplate, fails map[string]bool, label string) map[string]wf.NodePhase {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: wf.WorkflowSpec{
		Entrypoint: "main", Templates: []wf.Template{{Name: "main", DAG: dag}, {Name: "leaf", Container: &corev1.Container{Image: "a"}}},
	}}
	run := New(w, Config{Evaluate: template.InProcess()})
	created, ended := map[string]bool{}, map[string]bool{}
	var pending []string
	take := func(result Result) {
		for _, c := range result.Create {
			if created[c.NodeID] {
				t.Fatalf("pod of %s is created twice", c.NodeName)
			}
			created[c.NodeID] = true
			pending = append(pending, c.NodeID)
			task := taskOf(dag, c.NodeName)
			for _, name := range dependencies(task.Depends) {
				if node, found := w.Status.Nodes[wf.NodeID("d", "d."+name)]; !found || !node.Phase.Fulfilled() {
					t.Fatalf("%s starts before %s is done", c.NodeName, name)
				}
			}
		}
		for _, id := range result.Changed {
			if w.Status.Nodes[id].Phase.Fulfilled() {
				ended[id] = true
			}
		}
	}
	take(run.Step(now))
	for len(pending) > 0 {
		if rapid.IntRange(0, 5).Draw(t, label+" restart") == 0 {
			run = New(w, Config{Evaluate: template.InProcess()})
			var states []Event
			for _, id := range pending {
				states = append(states, PodState{NodeID: id, Phase: corev1.PodPending})
			}
			take(run.Step(now, states...))
		}
		i := rapid.IntRange(0, len(pending)-1).Draw(t, label+" pod")
		id := pending[i]
		pending = append(pending[:i], pending[i+1:]...)
		phase := corev1.PodSucceeded
		if fails[taskOf(dag, w.Status.Nodes[id].Name).Name] {
			phase = corev1.PodFailed
		}
		now = now.Add(time.Second)
		take(run.Step(now, PodState{NodeID: id, Phase: phase}))
		// a late event changes nothing
		take(run.Step(now, PodState{NodeID: id, Phase: corev1.PodRunning}))
	}
	if !w.Status.Phase.Completed() {
		t.Fatalf("no pod is left and the workflow is %s", w.Status.Phase)
	}
	phases := map[string]wf.NodePhase{"": wf.NodePhase(w.Status.Phase)}
	for id, node := range w.Status.Nodes {
		if !ended[id] {
			t.Errorf("%s never ended: %s", node.Name, node.Phase)
		}
		phases[node.Name] = node.Phase
	}
	return phases
}

func taskOf(dag *wf.DAGTemplate, node string) *wf.DAGTask {
	name, _, _ := strings.Cut(strings.TrimPrefix(node, "d."), "(")
	for i := range dag.Tasks {
		if dag.Tasks[i].Name == name {
			return &dag.Tasks[i]
		}
	}
	return nil
}

func dependencies(depends string) []string {
	var names []string
	for _, term := range strings.Fields(depends) {
		if name, _, _ := strings.Cut(term, "."); strings.HasPrefix(name, "t") {
			names = append(names, name)
		}
	}
	return names
}

// BenchmarkEvent measures one event, in which one pod ends and another starts, in workflows that
// already have many finished nodes: a chain of steps, and a loop with bounded parallelism.
func BenchmarkEvent(b *testing.B) {
	for _, finished := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("fan-out/nodes=%d", finished), func(b *testing.B) {
			limit := int64(10)
			benchmark(b, finished, &wf.WorkflowSpec{
				Entrypoint: "main", Parallelism: &limit,
				Templates: []wf.Template{{Name: "main", Steps: []wf.ParallelSteps{{Steps: []wf.WorkflowStep{
					{Name: "s", Template: "leaf", WithSequence: sequenceOf(finished + 5000), Arguments: argument("{{item}}")},
				}}}}, leafTemplate()},
			})
		})
		b.Run(fmt.Sprintf("chain/nodes=%d", finished), func(b *testing.B) {
			main := wf.Template{Name: "main"}
			for i := range finished/2 + 1500 { // each step is two nodes
				value := "first"
				if i > 0 {
					value = fmt.Sprintf("{{steps.s%d.outputs.result}}", i-1)
				}
				main.Steps = append(main.Steps, wf.ParallelSteps{Steps: []wf.WorkflowStep{
					{Name: fmt.Sprintf("s%d", i), Template: "leaf", Arguments: argument(value)},
				}})
			}
			benchmark(b, finished, &wf.WorkflowSpec{Entrypoint: "main", Templates: []wf.Template{main, leafTemplate()}})
		})
	}
}

func leafTemplate() wf.Template {
	return wf.Template{
		Name: "leaf", Inputs: wf.Inputs{Parameters: []wf.Parameter{{Name: "p"}}},
		Container: &corev1.Container{Image: "a", Args: []string{"{{inputs.parameters.p}}"}},
	}
}

func argument(value string) wf.Arguments {
	return wf.Arguments{Parameters: []wf.Parameter{{Name: "p", Value: wf.Any(value)}}}
}

func benchmark(b *testing.B, finished int, spec *wf.WorkflowSpec) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: *spec}
	run := New(w, Config{Evaluate: template.InProcess()})
	result := run.Step(now)
	queue := result.Create
	one := "ok"
	step := func() {
		next := queue[0]
		queue = append(queue[1:], run.Step(now, PodState{NodeID: next.NodeID, Phase: corev1.PodSucceeded, Outputs: &wf.Outputs{Result: &one}}).Create...)
	}
	for len(w.Status.Nodes) < finished {
		step()
	}
	b.ResetTimer()
	for range b.N {
		if len(queue) == 0 {
			b.Skipf("the workflow is done: %s; -benchtime 1000x", w.Status.Message)
		}
		step()
	}
}

// BenchmarkHello measures a whole workflow of one pod: load, start, running, done.
func BenchmarkHello(b *testing.B) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	spec := wf.WorkflowSpec{Entrypoint: "leaf", Arguments: argument("hello {{workflow.name}}"), Templates: []wf.Template{leafTemplate()}}
	for b.Loop() {
		run := New(&wf.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: spec}, Config{Evaluate: template.InProcess()})
		run.Step(now)
		run.Step(now, PodState{NodeID: "d", Phase: corev1.PodRunning})
		run.Step(now, PodState{NodeID: "d", Phase: corev1.PodSucceeded})
		if run.Workflow.Status.Phase != wf.WorkflowSucceeded {
			b.Fatal(run.Workflow.Status.Message)
		}
	}
}
