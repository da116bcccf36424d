package flow_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/flow/flowtest"
	"lockstep.dev/lockstep/internal/application/render"
)

// sim runs a workflow whose steps have the outcomes that the test sets.
type sim struct {
	t       testing.TB
	program *flow.Program
	now     time.Time
	held    bool
	paused  map[string]bool
	status  *oam.WorkflowStatus
	outputs map[string]json.RawMessage
	tries   map[string]flow.Try
	resumed map[string]bool
	results map[string]flow.Result // by step; used when the step is run
	calls   map[string]int
	given   map[string]string // properties of the last call
	wake    time.Time
}

func compile(t testing.TB, text string) (*flow.Program, error) {
	t.Helper()
	var spec oam.WorkflowSpec
	if err := yaml.Unmarshal([]byte(text), &spec); err != nil {
		t.Fatal(err)
	}
	return flow.Compile(&spec)
}

func start(t testing.TB, text string) *sim {
	t.Helper()
	p, err := compile(t, text)
	if err != nil {
		t.Fatal(err)
	}
	return &sim{t: t, program: p, now: time.Unix(1_000_000, 0), results: map[string]flow.Result{}, calls: map[string]int{}, given: map[string]string{}}
}

// look advances the workflow as far as possible and returns its state.
func (s *sim) look() string {
	results := map[string]flow.Result{}
	for range 100 {
		d := flow.Advance(&flow.Request{
			Program: s.program, Status: s.status, Outputs: s.outputs, Results: results, Tries: s.tries, Resumed: s.resumed, Held: s.held, Paused: s.paused,
			Context: map[string]any{"name": "shop"}, Now: s.now, ID: func(n string) string { return "id-" + n }, Decide: func(condition string, values map[string]any) (bool, error) {
				return render.Condition(render.InProcess(), condition, values)
			},
		})
		s.status, s.outputs, s.tries, s.resumed, s.wake = d.Status, d.Outputs, d.Tries, d.Resumed, d.Wake
		results = map[string]flow.Result{}
		if len(d.Run) == 0 {
			return s.String()
		}
		for _, c := range d.Run {
			if r, ok := s.results[c.Step.Name]; ok {
				results[c.Step.Name] = r
			} else {
				results[c.Step.Name] = flow.Result{Outcome: flow.Running}
			}
			s.calls[c.Step.Name]++
			s.given[c.Step.Name] = string(c.Properties)
		}
		if settled(results) {
			d = flow.Advance(&flow.Request{
				Program: s.program, Status: s.status, Outputs: s.outputs, Results: results, Tries: s.tries, Resumed: s.resumed, Held: s.held, Paused: s.paused,
				Context: map[string]any{"name": "shop"}, Now: s.now, ID: func(n string) string { return "id-" + n }, Decide: func(condition string, values map[string]any) (bool, error) {
					return render.Condition(render.InProcess(), condition, values)
				},
			})
			s.status, s.outputs, s.tries, s.resumed, s.wake = d.Status, d.Outputs, d.Tries, d.Resumed, d.Wake
			if len(d.Run) == 0 {
				return s.String()
			}
			results = map[string]flow.Result{}
		}
	}
	s.t.Fatal("it never comes to rest")
	return ""
}

// settled reports whether none of the results lets another step start.
func settled(results map[string]flow.Result) bool {
	for _, r := range results {
		if r.Outcome != flow.Running && r.Outcome != flow.Acting && r.Outcome != flow.Suspending && r.Outcome != flow.Erred {
			return false
		}
	}
	return true
}

func (s *sim) String() string {
	return s.status.Phase + ": " + flowtest.Steps(s.status)
}

func (s *sim) ends(outcome flow.Outcome, names ...string) {
	for _, n := range names {
		s.results[n] = flow.Result{Outcome: outcome, Message: "because"}
	}
}

func (s *sim) expect(want string) {
	s.t.Helper()
	if diff := cmp.Diff(want, s.look()); diff != "" {
		s.t.Errorf("-want +got\n%s", diff)
	}
	before := s.status.DeepCopy()
	if s.look(); !cmp.Equal(before, s.status) {
		s.t.Errorf("another look changes the status:\n%s", cmp.Diff(before, s.status))
	}
}

func TestStepsFollowOneAnother(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}, {type: x}, {name: c, type: x}]`)
	s.expect("executing: a=running/Wait")
	s.ends(flow.Succeeded, "a")
	s.expect("executing: a=succeeded step-2=running/Wait")
	s.ends(flow.Succeeded, "step-2", "c")
	s.expect("succeeded: a=succeeded step-2=succeeded c=succeeded")
	if !s.status.Finished || s.status.Terminated || s.status.Mode != "StepByStep-DAG" {
		t.Errorf("%+v", s.status)
	}
}

func TestAFailureSkipsWhatFollows(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}, {name: b, type: x}, {name: tidy, type: x, if: always}, {name: tell, type: x, if: status.a.failed}, {name: not, type: x, if: status.a.succeeded}]`)
	s.ends(flow.Failed, "a")
	s.ends(flow.Succeeded, "tidy", "tell")
	s.expect("failed: a=failed/Action b=skipped/Skip tidy=succeeded tell=succeeded not=skipped/Skip")
	if !s.status.Terminated || s.status.Message != "step a failed: because" {
		t.Errorf("%+v", s.status)
	}
}

func TestInADAGOnlyWhatDependsOnAFailureIsSkipped(t *testing.T) {
	s := start(t, `
mode: {steps: DAG}
steps: [{name: d, type: x, dependsOn: [b, c]}, {name: a, type: x}, {name: b, type: x, dependsOn: [a]}, {name: c, type: x}, {name: e, type: x, dependsOn: [d]}]`)
	s.ends(flow.Succeeded, "c", "d", "e")
	s.expect("executing: d=pending/Wait a=running/Wait b=pending/Wait c=succeeded e=pending/Wait")
	s.ends(flow.Failed, "a")
	s.expect("failed: d=skipped/Skip a=failed/Action b=skipped/Skip c=succeeded e=skipped/Skip")
}

func TestErrorsAreTriedAgainAndThenFail(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}, {name: b, type: x}]`)
	s.ends(flow.Erred, "a")
	for n := 1; n < flow.TriesMax; n++ {
		s.expect("executing: a=failed/Execute")
		if s.calls["a"] != n {
			t.Fatalf("%d tries, not %d", s.calls["a"], n)
		}
		if s.wake.Sub(s.now) != flow.Delay(n) {
			t.Errorf("the next try is in %s", s.wake.Sub(s.now))
		}
		s.now = s.wake
	}
	s.expect("failed: a=failed/FailedAfterRetries b=skipped/Skip")

	s = start(t, `steps: [{name: a, type: x}]`)
	s.ends(flow.Erred, "a")
	s.look()
	s.now = s.wake
	s.ends(flow.Succeeded, "a")
	s.expect("succeeded: a=succeeded")
}

func TestTimeouts(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x, timeout: 5s, outputs: []}, {name: g, type: step-group, if: always, timeout: 1m, subSteps: [{name: p, type: x}, {name: q, type: suspend}]}]`)
	s.expect("executing: a=running/Wait")
	if !s.wake.Equal(s.now.Add(5 * time.Second)) {
		t.Errorf("it wakes at %s", s.wake)
	}
	s.now = s.wake
	s.expect("suspending: a=failed/Timeout g=running g.p=running g.q=suspending")
	s.now = s.now.Add(time.Minute)
	s.expect("failed: a=failed/Timeout g=failed/Timeout g.p=failed g.q=failed")
}

func TestASuspendStepWaits(t *testing.T) {
	s := start(t, `steps: [{name: a, type: suspend, properties: {message: look}}, {name: b, type: suspend, properties: {duration: 10s}}, {name: c, type: x}]`)
	s.expect("suspending: a=suspending/Suspend")
	if !s.status.Suspend || s.status.Steps[0].Message != "look" {
		t.Errorf("%+v", s.status)
	}
	s.resumed = map[string]bool{"a": true}
	s.expect("suspending: a=succeeded b=suspending/Suspend")
	s.now = s.wake
	s.expect("executing: a=succeeded b=succeeded c=running/Wait")
	if s.status.Suspend {
		t.Error("it is still said to suspend")
	}
}

func TestAStepThatPausesGoesOnWhenItIsResumed(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}]`)
	s.results["a"] = flow.Result{Outcome: flow.Suspending, Pause: flow.Pause{Message: "look"}}
	s.expect("suspending: a=suspending/Suspend")
	s.resumed = map[string]bool{"a": true}
	s.ends(flow.Succeeded, "a")
	s.expect("succeeded: a=succeeded")
}

func TestAHeldWorkflowRunsNothing(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}, {name: b, type: x}]`)
	s.look()
	s.held = true
	s.ends(flow.Succeeded, "a", "b")
	s.expect("suspending: a=running/Wait")
	s.held = false
	s.expect("succeeded: a=succeeded b=succeeded")
}

// TestAPausedStepRunsNoFurther checks that other steps do, and that a pause of its own still waits
// for consent afterwards.
func TestAPausedStepRunsNoFurther(t *testing.T) {
	s := start(t, "mode: {steps: DAG}\nsteps: [{name: a, type: x}, {name: b, type: x}, {name: c, type: x, dependsOn: [a]}]")
	s.expect("executing: a=running/Wait b=running/Wait c=pending/Wait")
	s.paused = map[string]bool{"a": true}
	s.results["a"], s.results["b"] = flow.Result{Outcome: flow.Succeeded}, flow.Result{Outcome: flow.Succeeded}
	calls := s.calls["a"]
	s.expect("suspending: a=suspending/Suspend b=succeeded c=pending/Wait")
	if s.calls["a"] != calls || !s.status.Suspend {
		t.Errorf("the step was run %d times more; the workflow is %+v", s.calls["a"]-calls, s.status)
	}
	s.paused, s.results["a"] = nil, flow.Result{Outcome: flow.Suspending}
	s.expect("suspending: a=suspending/Suspend b=succeeded c=pending/Wait")
	if s.calls["a"] == calls {
		t.Error("the step was not run again")
	}
}

func TestTerminate(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}, {name: b, type: x}, {name: c, type: x, if: always}]`)
	s.look()
	s.ends(flow.Succeeded, "c")
	s.status = flow.Terminate(s.status, s.now)
	s.expect("terminated: a=failed/Terminate b=skipped/Skip c=succeeded")
}

// TestANameWithDotsGivesADependency checks that a step waits for an output whose name contains
// dots.
func TestANameWithDotsGivesADependency(t *testing.T) {
	for _, from := range []string{"my.out", "my.out.host"} {
		s := start(t, `
mode: {steps: DAG}
steps:
- {name: b, type: x, inputs: [{from: `+from+`, parameterKey: host}]}
- {name: a, type: x, outputs: [{name: my.out, valueFrom: v}]}`)
		s.expect("executing: b=pending/Wait a=running/Wait")
		s.results["a"] = flow.Result{Outcome: flow.Succeeded, Outputs: map[string]json.RawMessage{"my.out": json.RawMessage(`{"host":"h"}`)}}
		s.expect("executing: b=running/Wait a=succeeded")
		if got := s.given["b"]; !strings.Contains(got, `"h"`) {
			t.Errorf("%s: b was given %s", from, got)
		}
	}
}

func TestOutputsBecomeInputs(t *testing.T) {
	s := start(t, `
mode: {steps: DAG}
steps:
- {name: b, type: x, inputs: [{from: ip.host, parameterKey: "env[0].value"}, {from: context.name, parameterKey: app}], properties: {env: [{name: HOST}]}}
- {name: a, type: x, outputs: [{name: ip, valueFrom: output.ip}]}
- {name: g, type: step-group, subSteps: [{name: c, type: x, if: 'inputs.ip.host == "h"', inputs: [{from: ip}]}]}`)
	s.expect("executing: b=pending/Wait a=running/Wait g=running g.c=pending")
	s.results["a"] = flow.Result{Outcome: flow.Succeeded, Outputs: map[string]json.RawMessage{"ip": json.RawMessage(`{"host":"h"}`)}}
	s.expect("executing: b=running/Wait a=succeeded g=running g.c=running")
	if got := s.given["b"]; got != `{"app":"shop","env":[{"name":"HOST","value":"h"}]}` {
		t.Errorf("b was given %s", got)
	}
	s = start(t, `steps: [{name: a, type: x, outputs: [{name: ip, valueFrom: v}]}, {name: b, type: x}]`)
	s.ends(flow.Succeeded, "a")
	s.expect("failed: a=failed/Output b=skipped/Skip")
	s = start(t, `steps: [{name: b, type: x, inputs: [{from: none, parameterKey: k}]}]`)
	s.expect("failed: b=failed/Input")
}

func TestProgramsThatCannotRunAreRefused(t *testing.T) {
	for text, want := range map[string]string{
		`steps: [{name: a, type: x}, {name: a, type: x}]`:                                                                                       "two steps have the name a",
		`steps: [{name: a, type: x, dependsOn: [b]}]`:                                                                                           "depends on b, which does not exist",
		`steps: [{name: a, type: x, dependsOn: [b]}, {name: b, type: x, dependsOn: [a]}]`:                                                       "depends on itself",
		`steps: [{name: a, type: x, timeout: soon}]`:                                                                                            "timeout",
		`steps: [{name: a, type: suspend, properties: {duration: long}}]`:                                                                       "duration",
		`steps: [{name: a, type: step-group}]`:                                                                                                  "needs subSteps",
		`steps: [{name: a, type: x, subSteps: [{type: x}]}]`:                                                                                    "only a step of type step-group",
		`steps: [{name: a, type: step-group, subSteps: [{type: step-group}]}]`:                                                                  "cannot be in another",
		`steps: [{name: a, type: x, outputs: [{name: o}]}, {name: b, type: x, outputs: [{name: o}]}]`:                                           "output o",
		`steps: [{name: a, type: x, inputs: [{from: o}], outputs: [{name: p}]}, {name: b, type: x, inputs: [{from: p}], outputs: [{name: o}]}]`: "depends on itself",
	} {
		if _, err := compile(t, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestEveryWorkflowEnds checks that a workflow ends whatever the results of its steps, and that no
// step runs before its dependencies have ended.
func TestEveryWorkflowEnds(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(r, "steps")
		mode := rapid.SampledFrom([]string{"DAG", "StepByStep"}).Draw(r, "mode")
		text := "mode: {steps: " + mode + "}\nsteps:\n"
		needs := map[string][]string{}
		for i := range n {
			name := fmt.Sprintf("s%d", i)
			for j := range i {
				if rapid.IntRange(0, 3).Draw(r, "edge") == 0 {
					needs[name] = append(needs[name], fmt.Sprintf("s%d", j))
				}
			}
			condition := rapid.SampledFrom([]string{"", "always", "status.s0.failed"}).Draw(r, "if")
			text += fmt.Sprintf("- {name: %s, type: x, if: %q, dependsOn: [%s]}\n", name, condition, strings.Join(needs[name], ", "))
		}
		s := start(t, text)
		for i := range n {
			s.results[fmt.Sprintf("s%d", i)] = flow.Result{Outcome: rapid.SampledFrom([]flow.Outcome{flow.Succeeded, flow.Failed, flow.Erred, flow.Running}).Draw(r, "outcome")}
		}
		for range 200 {
			s.look()
			for _, st := range s.status.Steps {
				if st.Phase == oam.StepPending || st.Phase == oam.StepSkipped {
					continue
				}
				for _, d := range needs[st.Name] {
					if !strings.Contains(s.String(), d+"=") || strings.Contains(s.String(), d+"=running") {
						r.Fatalf("%s runs before %s has ended: %s", st.Name, d, s)
					}
				}
			}
			if s.status.Finished {
				return
			}
			if s.wake.IsZero() {
				for i := range n { // end steps that run forever
					name := fmt.Sprintf("s%d", i)
					if s.results[name].Outcome == flow.Running {
						s.ends(flow.Succeeded, name)
					}
				}
				continue
			}
			s.now = s.wake
		}
		r.Fatalf("it does not end: %s", s)
	})
}

// TestErrorsCountWhateverComesBetween checks that answers which are no errors do not make a step
// forget its errors, and that a step which is tried again keeps the status of its error.
func TestErrorsCountWhateverComesBetween(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}, {name: b, type: x}]`)
	for n := 1; n < flow.TriesMax; n++ {
		s.ends(flow.Acting, "a")
		if n == 1 {
			s.expect("executing: a=running/Wait")
		} else {
			s.expect("executing: a=failed/Execute")
		}
		if n%2 == 0 {
			s.ends(flow.Running, "a")
			s.expect("executing: a=running/Wait")
		}
		s.ends(flow.Erred, "a")
		s.expect("executing: a=failed/Execute")
		if s.wake.Sub(s.now) != flow.Delay(n) {
			t.Errorf("after %d errors the next try is in %s", n, s.wake.Sub(s.now))
		}
		s.now = s.wake
	}
	s.expect("failed: a=failed/FailedAfterRetries b=skipped/Skip")
}

// TestClientsSeeFailuresInTime checks that what always fails has failed before clients, which wait
// for two minutes, give up.
func TestClientsSeeFailuresInTime(t *testing.T) {
	var all time.Duration
	for n := 1; n < flow.TriesMax; n++ {
		all += flow.Delay(n)
	}
	if all < time.Minute || all > 100*time.Second {
		t.Errorf("the tries take %s", all)
	}
}

// TestErrorsOfLongAgoDoNotCount checks that a step that waits for days does not fail because of rare
// errors.
func TestErrorsOfLongAgoDoNotCount(t *testing.T) {
	s := start(t, `steps: [{name: a, type: x}]`)
	for range 2 * flow.TriesMax {
		s.ends(flow.Erred, "a")
		s.expect("executing: a=failed/Execute")
		s.now = s.wake
		s.ends(flow.Running, "a")
		s.expect("executing: a=running/Wait")
		s.now = s.now.Add(time.Hour)
	}
}

// TestAFailedStepIsRestarted checks which steps run again when a workflow is restarted at a step that
// has failed.
func TestAFailedStepIsRestarted(t *testing.T) {
	const twoGroups = "steps: [{name: one, type: x}, {name: g, type: step-group, subSteps: [{name: a, type: x}, {name: b, type: x}, {name: c, type: x, dependsOn: [b]}]}, {name: two, type: x}, {name: last, type: x, if: always}]"
	for name, c := range map[string]struct{ workflow, fails, step, failed, again string }{
		"steps that follow": {
			"steps: [{name: one, type: x}, {name: two, type: x}, {name: three, type: x}]", "two", "two",
			"failed: one=succeeded two=failed/Action three=skipped/Skip", "two three",
		},
		"steps that depend on it": {
			"{mode: {steps: DAG}, steps: [{name: one, type: x}, {name: two, type: x, dependsOn: [one]}, {name: three, type: x, inputs: [{from: o}]}, {name: four, type: x, dependsOn: [two], outputs: [{name: o}]}, {name: five, type: x, dependsOn: [one]}]}",
			"two", "two", "failed: one=succeeded two=failed/Action three=skipped/Skip four=skipped/Skip five=succeeded", "two three four",
		},
		"in a group": {
			twoGroups, "b", "b", "failed: one=succeeded g=failed/Action g.a=succeeded g.b=failed g.c=skipped two=skipped/Skip last=succeeded", "b c two last",
		},
		"a group": {
			twoGroups, "b", "g", "failed: one=succeeded g=failed/Action g.a=succeeded g.b=failed g.c=skipped two=skipped/Skip last=succeeded", "a b c two last",
		},
		"a step that has not failed":  {"steps: [{name: one, type: x}, {name: two, type: x}]", "two", "one", "failed: one=succeeded two=failed/Action", ""},
		"a step that does not exist":  {"steps: [{name: one, type: x}]", "one", "other", "failed: one=failed/Action", ""},
		"a step that has not started": {"steps: [{name: one, type: x}, {name: two, type: x}]", "one", "two", "failed: one=failed/Action two=skipped/Skip", ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := start(t, c.workflow)
			given := map[string]json.RawMessage{"o": json.RawMessage("1")}
			for _, step := range []string{"one", "two", "three", "four", "five", "a", "b", "c", "last"} {
				s.results[step] = flow.Result{Outcome: flow.Succeeded, Outputs: given}
			}
			s.results[c.fails] = flow.Result{Outcome: flow.Failed}
			if got := s.look(); got != c.failed {
				t.Fatalf("it is %s", got)
			}
			status, again := flow.Restart(s.program, s.status, c.step)
			if c.again == "" {
				if status != nil {
					t.Errorf("%v run again", again)
				}
				return
			}
			s.results[c.fails] = flow.Result{Outcome: flow.Succeeded, Outputs: given}
			s.status, s.calls = status, map[string]int{}
			if got := s.look(); !strings.HasPrefix(got, "succeeded: ") || strings.Contains(got, "failed") || strings.Contains(got, "skipped") {
				t.Errorf("after the restart it is %s", got)
			}
			want := map[string]int{}
			for step := range strings.FieldsSeq(c.again) {
				want[step] = 1
			}
			if diff := cmp.Diff(want, s.calls); diff != "" {
				t.Error(diff)
			}
		})
	}
}
