package rerun

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

var start = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// play runs a workflow to its end; pods of the nodes in fail fail. It returns the names of the
// nodes whose pods were created.
func play(t *testing.T, w *wf.Workflow, now time.Time, fail ...string) []string {
	t.Helper()
	run := engine.New(w, engine.Config{Evaluate: template.InProcess()})
	var made []string
	one := "1"
	result := run.Step(now)
	for turn := 0; turn < 100; turn++ {
		var events []engine.Event
		for _, c := range result.Create {
			name := strings.TrimPrefix(c.NodeName, w.Name)
			made = append(made, name)
			switch {
			case slices.Contains(fail, name):
				events = append(events, engine.PodState{NodeID: c.NodeID, Phase: corev1.PodFailed, ExitCode: new(int32)})
			case c.Template.Daemon != nil:
				events = append(events, engine.PodState{NodeID: c.NodeID, Phase: corev1.PodRunning, Ready: true, PodIP: "10.0.0.1"})
			default:
				events = append(events, engine.PodState{NodeID: c.NodeID, Phase: corev1.PodSucceeded, Outputs: &wf.Outputs{Result: &one}})
			}
		}
		for id, n := range w.Status.Nodes {
			if n.Type == wf.NodeSuspend && !n.Phase.Fulfilled() {
				events = append(events, engine.Resume{NodeID: id, Phase: map[bool]wf.NodePhase{true: wf.PhaseFailed}[slices.Contains(fail, strings.TrimPrefix(n.Name, w.Name))]})
			}
		}
		if len(events) == 0 {
			break
		}
		result = run.Step(now, events...)
	}
	slices.Sort(made)
	return made
}

func load(t *testing.T, spec string) *wf.Workflow {
	t.Helper()
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns", UID: "u"}}
	text := "entrypoint: main\ntemplates:\n" + spec + "\n- {name: leaf, inputs: {parameters: [{name: p, default: x}]}, container: {image: a}}\n- {name: pause, suspend: {}}"
	if err := yaml.UnmarshalStrict([]byte(text), &w.Spec); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestRetry(t *testing.T) {
	chain := "- {name: main, steps: [[{name: a, template: leaf}], [{name: b, template: leaf}, {name: c, template: leaf}], [{name: d, template: leaf}]]}"
	diamond := `- name: main
  dag:
    failFast: false
    tasks:
    - {name: a, template: leaf}
    - {name: b, template: leaf, depends: a}
    - {name: c, template: leaf, depends: a}
    - {name: d, template: leaf, depends: b && c}`
	nested := `- {name: main, steps: [[{name: x, template: inner}, {name: v, template: leaf}], [{name: z, template: leaf}]]}
- {name: inner, dag: {tasks: [{name: a, template: leaf}, {name: b, template: leaf, depends: a}]}}`
	for name, test := range map[string]struct {
		spec    string
		fail    []string
		restart string // selector: the end of names; restarts successful ones
		want    string // nodes whose pods are made by the retry
	}{
		"a pod alone":                  {"- {name: main, container: {image: a}}", []string{""}, "", ""},
		"the step that failed":         {chain, []string{"[1].b"}, "", "[1].b [2].d"},
		"the first step":               {chain, []string{"[0].a"}, "", "[0].a [1].b [1].c [2].d"},
		"a chosen step and all after":  {chain, nil, "[0].a", "[0].a [1].b [1].c [2].d"},
		"a chosen step beside others":  {chain, nil, "[1].c", "[1].c [2].d"},
		"a chosen one and a failed":    {chain, []string{"[2].d"}, "[1].c", "[1].c [2].d"},
		"a task":                       {diamond, []string{".b"}, "", ".b .d"},
		"a chosen task":                {diamond, nil, ".c", ".c .d"},
		"the first task":               {diamond, nil, ".a", ".a .b .c .d"},
		"inside of a dag in a step":    {nested, []string{"[0].x.b"}, "", "[0].x.b [1].z"},
		"a chosen one inside":          {nested, nil, "[0].x.a", "[0].x.a [0].x.b [1].z"},
		"a chosen dag":                 {nested, nil, "[0].x", "[0].x.a [0].x.b [1].z"},
		"an item of a loop":            {"- {name: main, dag: {tasks: [{name: l, template: leaf, withItems: [1, 2, 3]}, {name: e, template: leaf, depends: l}]}}", []string{".l(1:2)"}, "", ".e .l(1:2)"},
		"a chosen item of a loop":      {"- {name: main, dag: {tasks: [{name: l, template: leaf, withItems: [1, 2, 3]}, {name: e, template: leaf, depends: l}]}}", nil, ".l(2:3)", ".e .l(2:3)"},
		"an item of a step's loop":     {"- {name: main, steps: [[{name: l, template: leaf, withItems: [1, 2]}], [{name: e, template: leaf}]]}", []string{"[0].l(1:2)"}, "", "[0].l(1:2) [1].e"},
		"attempts":                     {"- {name: main, steps: [[{name: r, template: again}, {name: s, template: leaf}]]}\n- {name: again, retryStrategy: {limit: 1}, container: {image: a}}", []string{"[0].r(0)", "[0].r(1)"}, "", "[0].r(0)"},
		"a chosen attempt":             {"- {name: main, steps: [[{name: r, template: again}, {name: s, template: leaf}]]}\n- {name: again, retryStrategy: {limit: 1}, container: {image: a}}", nil, "[0].r(0)", "[0].r(0)"},
		"an absorbed failure":          {"- {name: main, steps: [[{name: a, template: leaf, continueOn: {failed: true}}], [{name: b, template: leaf}]]}", []string{"[0].a", "[1].b"}, "", "[1].b"},
		"a daemon":                     {"- {name: main, steps: [[{name: d, template: daemon}], [{name: b, template: leaf}]]}\n- {name: daemon, daemon: true, container: {image: a}}", []string{"[1].b"}, "", "[0].d [1].b"},
		"omitted tasks":                {"- {name: main, dag: {tasks: [{name: a, template: leaf}, {name: b, template: leaf, depends: a.Succeeded}]}}", []string{".a"}, "", ".a .b"},
		"hooks":                        {"- {name: main, steps: [[{name: a, template: leaf, onExit: leaf}, {name: b, template: leaf, onExit: leaf}]]}", []string{"[0].a"}, "", "[0].a [0].a.onExit"},
		"a pause that was refused":     {"- {name: main, steps: [[{name: p, template: pause}], [{name: b, template: leaf}]]}", []string{"[0].p"}, "", "[1].b"},
		"a dag that lacks an argument": {"- {name: main, dag: {tasks: [{name: a, template: needs}]}}\n- {name: needs, inputs: {parameters: [{name: q}]}, container: {image: a}}", nil, "", "-"},
	} {
		t.Run(name, func(t *testing.T) {
			w := load(t, test.spec)
			play(t, w, start, test.fail...)
			if !w.Status.Phase.Completed() {
				t.Fatalf("is %s", w.Status.Phase)
			}
			before := w.DeepCopy()
			o := RetryOptions{Now: start.Add(time.Hour)}
			if test.restart != "" {
				o.RestartSuccessful = true
				o.Select = func(n *wf.NodeStatus) bool { return n.Name == "w"+test.restart }
			}
			plan, err := Retry(w, o)
			if err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(w, before) {
				t.Error("the workflow was changed")
			}
			out := plan.Workflow
			if out.Status.Phase != wf.WorkflowRunning || !out.Status.FinishedAt.IsZero() || out.Labels[wf.LabelCompleted] != "false" {
				t.Errorf("status %+v, labels %v", out.Status, out.Labels)
			}
			kept := len(out.Status.Nodes)
			made := play(t, out, o.Now)
			if test.want == "-" {
				if out.Status.Phase != wf.WorkflowError {
					t.Errorf("the same error comes again, the workflow is %s", out.Status.Phase)
				}
				return
			}
			if got := strings.Join(made, " "); got != test.want {
				t.Errorf("runs again: %s, want %s (of %v, %d nodes kept)", got, test.want, plan.Restart, kept)
			}
			if out.Status.Phase != wf.WorkflowSucceeded {
				t.Errorf("ends %s: %s", out.Status.Phase, out.Status.Message)
			}
			for _, name := range made {
				if n := wf.PodName("w", "w"+name, podTemplate(out, "w"+name)); slices.Contains(podNames(before), n) && !slices.Contains(plan.Pods, n) {
					t.Errorf("pod %s is made again and not deleted: %v", n, plan.Pods)
				}
			}
			for _, n := range out.Status.Nodes {
				for _, id := range append(append([]string{n.BoundaryID}, n.Children...), n.OutboundNodes...) {
					if _, found := out.Status.Nodes[id]; id != "" && !found {
						t.Errorf("node %s refers to %s", n.Name, id)
					}
				}
			}
			counted := len(podNames(out))
			for _, n := range out.Status.Nodes {
				if n.Type == wf.NodeSuspend || n.Type == wf.NodeContainer {
					counted++
				}
			}
			if want := fmt.Sprintf("%d/%d", counted, counted); out.Status.Progress != want {
				t.Errorf("progress %s, want %s", out.Status.Progress, want)
			}
		})
	}
}

func podTemplate(w *wf.Workflow, name string) string {
	n := w.Status.Nodes[wf.NodeID(w.Name, name)]
	if n.TemplateRef != nil {
		return n.TemplateRef.Template
	}
	return n.TemplateName
}

func podNames(w *wf.Workflow) []string {
	var names []string
	for _, n := range w.Status.Nodes {
		if n.Type == wf.NodePod {
			names = append(names, n.PodName(w.Name))
		}
	}
	return names
}

func TestRetryGivesOtherValues(t *testing.T) {
	w := load(t, "- {name: main, container: {image: a, args: ['{{workflow.parameters.p}}']}}")
	w.Spec.Arguments.Parameters = []wf.Parameter{{Name: "p", Value: wf.Any("old")}}
	w.Spec.Shutdown = wf.ShutdownTerminate
	play(t, w, start, "")
	plan, err := Retry(w, RetryOptions{Parameters: map[string]string{"p": "new", "q": "more"}, Now: start})
	if err != nil {
		t.Fatal(err)
	}
	run := engine.New(plan.Workflow, engine.Config{Evaluate: template.InProcess()})
	if c := run.Step(start).Create; len(c) != 1 || c[0].Template.Container.Args[0] != "new" {
		t.Errorf("%+v", c)
	}
	if s := plan.Workflow.Spec; s.Shutdown != wf.ShutdownNone || len(s.Arguments.Parameters) != 2 {
		t.Errorf("%+v", s)
	}
}

func TestRetryRefuses(t *testing.T) {
	one := load(t, "- {name: main, container: {image: a}}")
	all := func(*wf.NodeStatus) bool { return true }
	if _, err := Retry(one, RetryOptions{}); err == nil || !strings.Contains(err.Error(), "is not finished") {
		t.Errorf("not started: %v", err)
	}
	play(t, one, start)
	if _, err := Retry(one, RetryOptions{}); err == nil || !strings.Contains(err.Error(), "has succeeded") {
		t.Errorf("succeeded: %v", err)
	}
	if _, err := Retry(one, RetryOptions{RestartSuccessful: true, Select: func(*wf.NodeStatus) bool { return false }}); err == nil {
		t.Error("nothing chosen")
	}
	one.Status.Phase = wf.WorkflowFailed
	if _, err := Retry(one, RetryOptions{Select: all}); err == nil {
		t.Error("chosen without restarting successful ones")
	}
	one.Status.Nodes, one.Status.CompressedNodes = nil, "x"
	if _, err := Retry(one, RetryOptions{}); err == nil {
		t.Error("compressed")
	}
}

func TestRetryRunsTheExitHandlerAgain(t *testing.T) {
	w := load(t, "- {name: main, steps: [[{name: a, template: leaf}, {name: b, template: leaf}]]}")
	w.Spec.OnExit = "leaf"
	w.Spec.Hooks = wf.LifecycleHooks{"failed": {Template: "leaf", Expression: `workflow.status == "Failed"`}, "running": {Template: "leaf", Expression: `workflow.status == "Running"`}}
	play(t, w, start, "[0].a")
	plan, err := Retry(w, RetryOptions{Now: start})
	if err != nil {
		t.Fatal(err)
	}
	if made := play(t, plan.Workflow, start); !slices.Equal(made, []string{".hooks.running", ".onExit", "[0].a"}) {
		t.Errorf("%q", made)
	}
}

func TestResubmit(t *testing.T) {
	w := load(t, "- {name: main, steps: [[{name: a, template: leaf}], [{name: b, template: leaf, arguments: {parameters: [{name: p, value: '{{steps.a.outputs.result}}'}]}}]]}")
	w.Labels = map[string]string{"own": "1", wf.LabelPhase: "Failed", wf.LabelCompleted: "true", wf.LabelArchivingStatus: "Archived"}
	w.Annotations = map[string]string{"note": "x", wf.AnnotationPodNameFormat: "v2"}
	w.Spec.Arguments.Parameters = []wf.Parameter{{Name: "p", Value: wf.Any("old")}}
	play(t, w, start, "[1].b")
	priority := int32(7)
	out, err := Resubmit(w, ResubmitOptions{Parameters: map[string]string{"p": "new"}, Priority: &priority})
	if err != nil {
		t.Fatal(err)
	}
	if out.Name != "" || out.GenerateName != "w-" || out.Namespace != "ns" || out.UID != "" || len(out.Status.Nodes) > 0 || *out.Spec.Priority != 7 {
		t.Errorf("%+v", out)
	}
	if want := map[string]string{"own": "1", wf.LabelPreviousWorkflow: "w"}; !maps.Equal(out.Labels, want) {
		t.Errorf("labels %v, want %v", out.Labels, want)
	}
	if !maps.Equal(out.Annotations, map[string]string{"note": "x"}) || *out.Spec.Arguments.Parameters[0].Value != "new" {
		t.Errorf("%v %v", out.Annotations, out.Spec.Arguments)
	}
	if _, err := Resubmit(w, ResubmitOptions{Memoized: true}); err == nil {
		t.Error("memoized without a name")
	}
	again, err := Resubmit(w, ResubmitOptions{Memoized: true, Name: "v"})
	if err != nil {
		t.Fatal(err)
	}
	if made := play(t, again, start); !slices.Equal(made, []string{"[1].b"}) || again.Status.Phase != wf.WorkflowSucceeded {
		t.Errorf("%q, %s %s", made, again.Status.Phase, again.Status.Message)
	}
	a := again.Status.Nodes[wf.NodeID("v", "v[0].a")]
	if a.Message != "original pod: "+wf.PodName("w", "w[0].a", "leaf") || a.Phase != wf.PhaseSucceeded || a.TemplateScope != "local/v" {
		t.Errorf("%+v", a)
	}
	if b := again.Status.Nodes[wf.NodeID("v", "v[1].b")]; b.Inputs == nil || *b.Inputs.Parameters[0].Value != "1" {
		t.Errorf("%+v", b)
	}
}

func TestAWorkflowWithoutItsArtifactsIsNotRetried(t *testing.T) {
	w := &wf.Workflow{}
	w.Name, w.Status.Phase = "w", wf.WorkflowFailed
	w.Status.ArtifactGCStatus = &wf.ArtifactGCStatus{StrategiesProcessed: map[string]bool{wf.ArtifactGCOnCompletion: true}}
	outputs := func(deleted bool) *wf.Outputs {
		return &wf.Outputs{Artifacts: []wf.Artifact{{Name: "a", Deleted: deleted}}}
	}
	w.Status.Nodes = wf.Nodes{"w": {ID: "w", Name: "w", Type: wf.NodePod, Phase: wf.PhaseFailed, Outputs: outputs(true)}}
	if _, err := Retry(w, RetryOptions{}); err == nil || !strings.Contains(err.Error(), "submitted again") {
		t.Errorf("got %v", err)
	}
	w.Status.Nodes["w"] = wf.NodeStatus{ID: "w", Name: "w", Type: wf.NodePod, Phase: wf.PhaseFailed, Outputs: outputs(false)}
	if plan, err := Retry(w, RetryOptions{}); err != nil || plan.Workflow.Status.ArtifactGCStatus != nil {
		t.Errorf("nothing was deleted: %v", err)
	}
}
