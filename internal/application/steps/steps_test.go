package steps

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/definitions"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/evaluation"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/objects"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
	"lockstep.dev/lockstep/internal/application/render"
	"lockstep.dev/lockstep/internal/sandbox"
)

func TestCommandsOfUsers(t *testing.T) {
	suspended := func() *oam.WorkflowStatus {
		return &oam.WorkflowStatus{Suspend: true, Steps: []oam.WorkflowStepStatus{
			{StepStatus: oam.StepStatus{Name: "one", Type: "suspend", Phase: oam.StepSuspending}},
			{StepStatus: oam.StepStatus{Name: "two", Type: "suspend", Phase: oam.StepSuspending}},
		}}
	}
	for name, c := range map[string]struct {
		annotation, last string
		status, theirs   *oam.WorkflowStatus
		want             bool
		suspended        bool
		resumed          []string
		terminated       bool
	}{
		"no command":                          {status: &oam.WorkflowStatus{}},
		"a command":                           {annotation: "suspend@1", status: &oam.WorkflowStatus{}, want: true, suspended: true},
		"a command that was carried out":      {annotation: "suspend@1", last: "suspend@1", status: &oam.WorkflowStatus{}},
		"the same command, repeated":          {annotation: "suspend@2", last: "suspend@1", status: &oam.WorkflowStatus{}, want: true, suspended: true},
		"all steps are resumed":               {annotation: "resume@1", status: suspended(), want: true, resumed: []string{"one", "two"}},
		"one step is resumed":                 {annotation: "resume/two@1", status: suspended(), want: true, resumed: []string{"two"}},
		"the workflow is terminated":          {annotation: "terminate@1", status: suspended(), want: true, terminated: true},
		"a workflow that is over":             {annotation: "suspend@1", status: &oam.WorkflowStatus{Finished: true}, want: true},
		"another client suspends in a status": {status: &oam.WorkflowStatus{}, theirs: &oam.WorkflowStatus{Suspend: true}, want: true, suspended: true},
		"another client resumes in a status":  {status: suspended(), theirs: &oam.WorkflowStatus{}, want: true, resumed: []string{"one", "two"}},
		"another client changes nothing":      {status: suspended(), theirs: suspended()},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Runner{Planner: &deploy.Planner{Now: func() time.Time { return time.Unix(1000, 0) }}}
			a, w := &deploy.State{}, &Run{status: c.status}
			a.Tracker.Flow = &records.Flow{Command: c.last}
			got := r.obey(a, w, Command{Annotation: c.annotation, Theirs: func() *oam.WorkflowStatus { return c.theirs }})
			var resumed []string
			for step := range a.Tracker.Flow.Resumed {
				resumed = append(resumed, step)
			}
			slices.Sort(resumed)
			if got != c.want || a.Tracker.Flow.Suspended != c.suspended || !slices.Equal(resumed, c.resumed) || w.status.Terminated != c.terminated {
				t.Errorf("obeyed %t: %+v, terminated %t", got, a.Tracker.Flow, w.status.Terminated)
			}
		})
	}
}

func TestComponentsWaitForTheirInputs(t *testing.T) {
	input := func(from string) []oam.StepInput { return []oam.StepInput{{From: from, ParameterKey: "image"}} }
	components := []oam.Component{
		{Name: "free"}, {Name: "fed", Inputs: input("given")}, {Name: "waits", Inputs: input("missing")}, {Name: "after", DependsOn: []string{"waits"}},
	}
	f := &records.Flow{Outputs: map[string]json.RawMessage{"given": json.RawMessage(`"nginx"`)}}
	ready, waits, err := withInputs(components, valuesAt(f, map[string]any{}, components, plan.Placement{}, false))
	if err != nil || len(ready) != 2 || ready[0].Name != "free" || !slices.Equal(waits, []string{"missing"}) {
		t.Fatalf("ready %v, waits for %q: %v", ready, waits, err)
	}
	if fed := ready[1]; fed.Name != "fed" || len(fed.Inputs) != 0 || string(fed.Properties.Raw) != `{"image":"nginx"}` {
		t.Errorf("%+v", fed)
	}
}

// TestInputsOfPlaces checks which of the values that a component gives at several places an input
// takes.
func TestInputsOfPlaces(t *testing.T) {
	gives := func(replica string) []oam.Component {
		return []oam.Component{{Name: "giver", ReplicaKey: replica, Outputs: []oam.StepOutput{{Name: "x"}}}}
	}
	given := func(v string) map[string]json.RawMessage { return map[string]json.RawMessage{"x": json.RawMessage(v)} }
	placed := map[string]map[string]json.RawMessage{"a/n": given(`{"y":"in a"}`), "b/n": given(`"in b"`), "a/n#r": given(`"r in a"`)}
	for name, c := range map[string]struct {
		placed     map[string]map[string]json.RawMessage
		components []oam.Component
		at         plan.Placement
		several    bool
		replica    string
		from       string
		want       any
	}{
		"of its place":                                {placed, gives(""), plan.Placement{Cluster: "b", Namespace: "n"}, true, "", "x", "in b"},
		"a part of it":                                {placed, gives(""), plan.Placement{Cluster: "a", Namespace: "n"}, true, "", "x.y", "in a"},
		"of its replica":                              {placed, gives("r"), plan.Placement{Cluster: "a", Namespace: "n"}, false, "r", "x", "r in a"},
		"not given at its place yet":                  {placed, gives(""), plan.Placement{Cluster: "c", Namespace: "n"}, true, "", "x", nil},
		"not given by its replica yet":                {nil, gives("s"), plan.Placement{Cluster: "a", Namespace: "n"}, false, "s", "x", nil},
		"not given at its place, but not by its unit": {placed, nil, plan.Placement{Cluster: "c", Namespace: "n"}, true, "", "x", "first"},
		"of a unit at one place":                      {nil, gives(""), plan.Placement{Namespace: "n"}, false, "", "x", "first"},
		"of the context":                              {placed, gives(""), plan.Placement{Cluster: "b"}, true, "", "context.cluster", "b"},
	} {
		f := &records.Flow{Outputs: given(`"first"`), Placed: c.placed}
		if got, _ := valuesAt(f, map[string]any{"cluster": "local"}, c.components, c.at, c.several)(c.replica, c.from); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// TestAStepWithAnInputOfTheContextIsResumed checks that a starting manager finds out what a step
// has deployed whose inputs are parts of the context.
func TestAStepWithAnInputOfTheContextIsResumed(t *testing.T) {
	for name, step := range map[string]oam.WorkflowStepBase{
		"its parameter":    {Type: stepApplyComponent, Inputs: []oam.StepInput{{From: "context.name", ParameterKey: "component"}}},
		"of its component": {Type: stepApplyComponent, Inputs: []oam.StepInput{{From: "context.namespace"}}, Properties: &runtime.RawExtension{Raw: []byte(`{"component":"shop"}`)}},
	} {
		t.Run(name, func(t *testing.T) {
			r := &Runner{Planner: &deploy.Planner{Now: time.Now, Observe: func(float64) {}}}
			a, w := &deploy.State{Owner: &records.Owner{}}, &Run{}
			a.Tracker.Flow = &records.Flow{}
			w.input = plan.Input{Namespace: "ns", Name: "shop", Spec: &oam.ApplicationSpec{Components: []oam.Component{{Name: "shop", Type: "x"}}}}
			step.Name = "one"
			r.resumeStep(a, w, &flow.Step{WorkflowStepBase: step}, true)
			if len(w.parts) != 1 || !slices.Equal(w.parts[0].unit.Only, []string{"shop"}) {
				t.Errorf("it has deployed %+v", w.parts[0])
			}
		})
	}
}

// brokenPool evaluates nothing.
type brokenPool struct{}

func (brokenPool) Do(context.Context, string, string, []byte) ([]byte, error) {
	return nil, &sandbox.Failed{Message: "a syntax error"}
}

// TestAStepWithABadDefinitionStillFollowsDefinitions checks that an Application that follows
// changes of definitions still does when a step's definition becomes invalid in the middle of a
// turn.
func TestAStepWithABadDefinitionStillFollowsDefinitions(t *testing.T) {
	bad := &oam.WorkflowStepDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "greet"}}
	bad.Spec.Schematic = &oam.Schematic{CUE: &oam.CUE{Template: "{"}}
	r := &Runner{Planner: &deploy.Planner{
		Definitions: definitions.NewFake(bad), Now: time.Now,
		Evaluators: evaluation.New(brokenPool{}, slog.New(slog.DiscardHandler), clocktesting.NewFakeClock(time.Unix(1000, 0)), t.Context, func(types.NamespacedName, time.Duration) {}),
	}}
	for _, c := range []struct {
		stepType      string
		follows, want bool
	}{{"greet", true, true}, {"greet", false, false}, {"nosuch", false, true}} {
		a, w := &deploy.State{Owner: &records.Owner{}, Follows: c.follows}, &Run{input: plan.Input{Namespace: "ns"}}
		step := &flow.Step{WorkflowStepBase: oam.WorkflowStepBase{Name: "one", Type: c.stepType}}
		if got := r.runTemplate(a, w, nil, flow.Call{Step: step}, "id"); got.Outcome != flow.Failed || a.Follows != c.want {
			t.Errorf("step %s of an application that follows definitions (%t): %+v, follows %t", c.stepType, c.follows, got, a.Follows)
		}
	}
}

// TestTheOrderOfUnitsIsStoredIfOneChangesWhatAnotherMade checks that a starting manager applies an
// object as the later of two units wants it.
func TestTheOrderOfUnitsIsStoredIfOneChangesWhatAnotherMade(t *testing.T) {
	unit := func(key, hash string) *deployedUnit {
		return &deployedUnit{key: key, plan: &plan.Plan{Resources: []plan.Resource{{Ref: plan.Ref{Name: "web"}, Hash: hash}}}}
	}
	f := &records.Flow{}
	w := &Run{parts: []*deployedUnit{unit("first", "a"), unit("second", "a")}}
	if w.keepOrder(f) || f.Parts != nil {
		t.Errorf("stored %q though both want the same", f.Parts)
	}
	w.parts = append(w.parts, unit("third", "b"))
	if !w.keepOrder(f) || !slices.Equal(f.Parts, []string{"first", "second", "third"}) {
		t.Errorf("stored %q", f.Parts)
	}
	if w.keepOrder(f) {
		t.Error("stored again")
	}
}

func TestAnActionIsCarriedOutOnce(t *testing.T) {
	now := time.Unix(1000, 0)
	posted := make(chan func(), 10)
	r := &Runner{Planner: &deploy.Planner{Now: func() time.Time { return now }, Outside: deploy.NewOutside()}}
	var wakes []time.Duration
	a := &deploy.State{Owner: &records.Owner{
		Post: func(do func()) { posted <- do }, WakeAfter: func(d time.Duration) { wakes = append(wakes, d) },
	}}
	w := &Run{answers: map[string]deploy.Answers{}}
	x := &action{Action: &render.Action{Key: "read"}, r: r, a: a, w: w, step: "one"}
	times := 0
	do := func() (bool, error) {
		_, ready, err := x.once(func() (render.Answer, error) { times++; return render.Answer{}, errors.New("refused") })
		return ready, err
	}
	for range 2 {
		if ready, err := do(); ready || err != nil {
			t.Fatalf("ready %t before an answer: %v", ready, err)
		}
	}
	(<-posted)()
	for range 2 {
		if ready, err := do(); !ready || err == nil || times != 1 {
			t.Fatalf("ready %t, %v, after %d times", ready, err, times)
		}
	}
	// While the step waits, the action is repeated with backoff.
	for _, backoff := range []time.Duration{2 * time.Second, 4 * time.Second} {
		r.repeat(a, w, "one")
		if got := wakes[len(wakes)-1]; got != backoff {
			t.Fatalf("repeated after %s, want %s", got, backoff)
		}
		now = now.Add(backoff)
		if ready, _ := do(); ready {
			t.Fatal("the old answer is taken for the new one")
		}
		(<-posted)()
	}
	if times != 3 {
		t.Errorf("carried out %d times", times)
	}
}

// writer answers each write at once and keeps the identities that writes were made with.
type writer struct {
	apiwriter.Writer
	as chan string
}

func (w *writer) Patch(m apiwriter.Meta, _ apiwriter.Object, _ types.PatchType, _ []byte, done func(apiwriter.Object, error)) {
	w.as <- m.As.User
	done(nil, nil)
}

func (w *writer) Delete(m apiwriter.Meta, _ apiwriter.Object, _ apiwriter.DeleteOptions, done func(error)) {
	w.as <- m.As.User
	done(nil)
}

// TestAnActionHasTheRightsOfTheAuthorWhoseTurnBeganIt checks actions that begin just before another
// author changes the Application.
func TestAnActionHasTheRightsOfTheAuthorWhoseTurnBeganIt(t *testing.T) {
	configMap := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	w := &writer{as: make(chan string, 1)}
	r := &Runner{Planner: &deploy.Planner{
		Access:  deploy.Access{Targets: objects.NewFakeTargets(objects.NewFake("", w, configMap)), Ctx: t.Context},
		Outside: deploy.NewOutside(), Now: time.Now,
	}}
	for _, do := range []string{"patch", "delete"} {
		for range 100 { // whether the action or the other author is first is left to the Go scheduler
			posted := make(chan func(), 1)
			a := &deploy.State{Owner: &records.Owner{
				Key: types.NamespacedName{Namespace: "ns", Name: "shop"}, Post: func(do func()) { posted <- do },
			}}
			a.ActAs(&apiwriter.Identity{User: "first"})
			params := map[string]any{"patch": map[string]any{}, "value": map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": "config"},
			}}
			x := &action{&render.Action{Key: "it", Do: do, Params: params}, r, a, &Run{answers: map[string]deploy.Answers{}}, nil, "one"}
			if _, ready, err := x.act(); ready || err != nil {
				t.Fatalf("%s: ready %t, %v", do, ready, err)
			}
			a.ActAs(&apiwriter.Identity{User: "second"})
			if as := <-w.as; as != "first" {
				t.Fatalf("%s with the rights of the %s author", do, as)
			}
			(<-posted)()
		}
	}
}

func TestAListThatIsCutShortIsAnError(t *testing.T) {
	list := &unstructured.UnstructuredList{Items: []unstructured.Unstructured{{Object: map[string]any{"kind": "ConfigMap"}}}}
	answer, err := listed(list, "configmaps")
	if items, _, _ := unstructured.NestedSlice(answer.Returns, "values", "items"); err != nil || len(items) != 1 {
		t.Errorf("a list of one has %v (%v)", items, err)
	}
	list.SetContinue("more")
	if _, err := listed(list, "configmaps"); err == nil || !strings.Contains(err.Error(), "more than 500 configmaps") {
		t.Errorf("a list that is cut short: %v", err)
	}
}
