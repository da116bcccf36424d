package display

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
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

var rewrite = flag.Bool("rewrite", false, "write what testdata gives as what it should give")

// TestGolden draws workflows that the engine has run. A file in testdata is a manifest, "----" and
// the drawing. Annotations of the manifest control the run: test/rounds is the number of rounds, in
// each of which all running pods end, 3 s after the previous round; test/fail are the nodes whose
// pods fail; test/draw are options: wide, ascii, color.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			manifest, _, _ := strings.Cut(string(content), "\n----\n")
			manifest = strings.TrimSpace(manifest)
			w := &wf.Workflow{}
			if err := yaml.UnmarshalStrict([]byte(manifest), w); err != nil {
				t.Fatal(err)
			}
			now := play(w)
			how := w.Annotations["test/draw"]
			got := manifest + "\n----\n" + Workflow(w, Options{Now: now, Wide: strings.Contains(how, "wide"),
				ASCII: strings.Contains(how, "ascii"), Color: strings.Contains(how, "color")})
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != string(content) {
				t.Errorf("-rewrite to accept:\n%s", got)
			}
		})
	}
}

// play runs a workflow whose pods end as its annotations say, and returns the time at the end.
func play(w *wf.Workflow) time.Time {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	w.Namespace, w.UID, w.CreationTimestamp = "default", "0001", metav1.NewTime(now)
	rounds := 20
	fmt.Sscan(w.Annotations["test/rounds"], &rounds)
	fails := strings.Fields(w.Annotations["test/fail"])
	run := engine.New(w, engine.Config{Evaluate: template.InProcess()})
	running := run.Step(now).Create
	for range rounds {
		now = now.Add(3 * time.Second)
		var events []engine.Event
		for _, c := range running {
			code := int32(0)
			e := engine.PodState{NodeID: c.NodeID, Phase: corev1.PodSucceeded, ExitCode: &code, HostName: "node-1", Outputs: &wf.Outputs{}}
			name := strings.TrimPrefix(strings.TrimPrefix(w.Status.Nodes[c.NodeID].Name, w.Name), ".")
			if slices.Contains(fails, name) {
				code, e.Phase, e.Message = 1, corev1.PodFailed, "Error (exit code 1)"
			}
			result := "[1, 2]"
			e.Outputs.Result = &result
			for _, p := range c.Template.Outputs.Parameters {
				e.Outputs.Parameters = append(e.Outputs.Parameters, wf.Parameter{Name: p.Name, Value: wf.Any("value of " + p.Name)})
			}
			for _, a := range c.Template.Outputs.Artifacts {
				e.Outputs.Artifacts = append(e.Outputs.Artifacts, wf.Artifact{Name: a.Name})
			}
			events = append(events, e)
		}
		running = run.Step(now, events...).Create
	}
	return now.Add(2 * time.Second)
}

func TestList(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	five := int32(5)
	yes := true
	at := func(d time.Duration) metav1.Time { return metav1.NewTime(now.Add(-d)) }
	list := []wf.Workflow{
		{ObjectMeta: metav1.ObjectMeta{Name: "done", Namespace: "a", CreationTimestamp: at(time.Hour)},
			Status: wf.WorkflowStatus{Phase: wf.WorkflowFailed, StartedAt: at(time.Hour), FinishedAt: at(50 * time.Minute), Progress: "2/3",
				Message: "child 'done-1'\nfailed\x1b[31m"}},
		{ObjectMeta: metav1.ObjectMeta{Name: "new", Namespace: "b", CreationTimestamp: at(time.Second)},
			Spec: wf.WorkflowSpec{Priority: &five, Arguments: wf.Arguments{Parameters: []wf.Parameter{{Name: "p", Value: wf.Any("v")}, {Name: "q"}}}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "stopped", Namespace: "b", CreationTimestamp: at(time.Minute)}, Spec: wf.WorkflowSpec{Suspend: &yes},
			Status: wf.WorkflowStatus{Phase: wf.WorkflowRunning, StartedAt: at(time.Minute), Progress: "1/2", Nodes: wf.Nodes{
				"1": {Type: wf.NodePod, Phase: wf.PhasePending}, "2": {Type: wf.NodePod, Phase: wf.PhaseSucceeded}, "3": {Type: wf.NodeDAG, Phase: wf.PhaseRunning}}}},
	}
	const want = `
NAMESPACE  NAME     STATUS               AGE  DURATION  PROGRESS  PRIORITY  P/R/C  PARAMETERS  MESSAGE
a          done     Failed               60m  10m       2/3       0         0/0/0              child 'done-1' failed[31m
b          new      Pending              1s                       5         0/0/0  p=v
b          stopped  Running (Suspended)  60s  60s       1/2       0         1/0/1
`
	if got := List(list, true, true, Options{Now: now, Wide: true}); got != strings.TrimPrefix(want, "\n") {
		t.Errorf("wide:\n%s", got)
	}
	const short = `
done     Failed               60m  10m  2/3  child 'done-1' failed[31m
new      Pending              1s
stopped  Running (Suspended)  60s  60s  1/2
`
	if got := List(list, false, false, Options{Now: now}); got != strings.TrimPrefix(short, "\n") {
		t.Errorf("without heads:\n%s", got)
	}
}

// TestTextsOfUsersDoNotReachTheTerminal checks that no text of a workflow contains escape sequences
// or makes lines of its own.
func TestTextsOfUsersDoNotReachTheTerminal(t *testing.T) {
	bad := "a\x1b[2J\u009b1m\r\nFORGED"
	some := metav1.NewTime(time.Unix(1_900_000_000, 0))
	parameters := []wf.Parameter{{Name: bad, Value: wf.Any(bad)}, {Name: bad, Default: wf.Any(bad)}}
	durations := map[corev1.ResourceName]int64{corev1.ResourceName(bad): 1 << 60}
	outputs := &wf.Outputs{Parameters: parameters, Artifacts: []wf.Artifact{{Name: bad}}}
	w := wf.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "w", Namespace: "ns", CreationTimestamp: some}}
	w.Spec.Arguments.Parameters, w.Spec.Shutdown, w.Spec.ServiceAccountName = parameters, wf.ShutdownStrategy(bad), bad
	w.Status = wf.WorkflowStatus{Phase: wf.WorkflowPhase(bad), Message: bad, Progress: bad, StartedAt: some, Outputs: outputs, ResourcesDuration: durations}
	w.Status.Conditions = []wf.Condition{{Type: wf.ConditionType(bad), Message: bad}, {Type: wf.ConditionType(bad), Status: metav1.ConditionStatus(bad)}}
	w.Status.Nodes = wf.Nodes{
		"w": {ID: "w", Name: bad, DisplayName: bad, TemplateName: bad, Type: wf.NodePod, Phase: wf.NodePhase(bad), Message: bad, HostNodeName: bad,
			Outputs: outputs, ResourcesDuration: durations, StartedAt: some},
		"x": {ID: "x", Name: bad, TemplateRef: &wf.TemplateRef{Name: bad, Template: bad}, Type: wf.NodeType(bad), BoundaryID: "w"},
	}
	o := Options{Now: some.Add(time.Minute), Wide: true}
	for what, text := range map[string]string{
		"workflow": Workflow(&w, o), "list": List([]wf.Workflow{w}, true, true, o), "short list": List([]wf.Workflow{w}, false, false, Options{Now: o.Now}),
	} {
		if strings.ContainsAny(text, "\x1b\u009b\r") || strings.Contains(text, "\nFORGED") {
			t.Errorf("%s: %q", what, text)
		}
	}
}

// TestEveryNodeIsDrawnOnce draws arbitrary graphs of nodes, also graphs that no engine produces.
func TestEveryNodeIsDrawnOnce(t *testing.T) {
	w := &wf.Workflow{ObjectMeta: metav1.ObjectMeta{Name: "w"}}
	w.Status.Nodes = wf.Nodes{
		"w": {ID: "w", Name: "w", Type: wf.NodeDAG, Phase: wf.PhaseRunning, Children: []string{"a"}},
		"a": {ID: "a", Name: "w.a", Type: wf.NodePod, BoundaryID: "w", Children: []string{"b"}},
		// a cycle
		"b": {ID: "b", Name: "w.b", Type: wf.NodePod, BoundaryID: "w", Children: []string{"a"}},
		"c": {ID: "c", Name: "w.c", Type: wf.NodePod, BoundaryID: "gone"},
		// an item without its group
		"d":   {ID: "d", Name: "w.d(0:x)", Type: wf.NodePod, BoundaryID: "w"},
		"e":   {ID: "e", Name: "w.onExit", Type: wf.NodePod},
		"own": {ID: "own", Name: "w.own", Type: wf.NodePod, BoundaryID: "own"},
	}
	got := Tree(w, Options{})
	for _, name := range []string{"w.a", "w.b", "w.c", "w.d(0:x)", "w.onExit", "w.own"} {
		if strings.Count(got, name+" ")+strings.Count(got, name+"\n") != 1 {
			t.Errorf("%s is not drawn once:\n%s", name, got)
		}
	}
	filtered := Tree(w, Options{Match: func(n *wf.NodeStatus) bool { return n.Name == "w.b" }})
	if strings.Contains(filtered, "w.a") || !strings.Contains(filtered, "w.b") || !strings.Contains(filtered, " w") {
		t.Errorf("filtered:\n%s", filtered)
	}
}

func TestNatural(t *testing.T) {
	sorted := []string{"a", "a(2)", "a(10)", "a(10).b", "b2", "b02c", "b10"}
	for i := range sorted {
		for j := range sorted {
			got := natural(sorted[i], sorted[j])
			if (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("natural(%q, %q) = %d", sorted[i], sorted[j], got)
			}
		}
	}
}
