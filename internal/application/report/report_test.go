package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/application/deploy"
	"lockstep.dev/lockstep/internal/application/flow"
	"lockstep.dev/lockstep/internal/application/flow/flowtest"
	"lockstep.dev/lockstep/internal/application/plan"
	"lockstep.dev/lockstep/internal/application/records"
)

// statusWriter keeps the statuses that it is given. The test answers them. It answers writes of the
// ApplicationRevision itself, as a writer does: a create of one that exists and has the same owner
// returns the existing one.
type statusWriter struct {
	apiwriter.Writer
	written []*oam.Application
	done    func(apiwriter.Object, error)

	revision       *oam.ApplicationRevision // of the server
	revisionWrites int
	patches        int
	hold           bool // keeps the answers to creates for the test
	held           []func(apiwriter.Object, error)
}

func (w *statusWriter) Create(_ apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	w.revisionWrites++
	if w.hold {
		w.held = append(w.held, done)
		return
	}
	if w.revision == nil {
		w.revision = o.(*oam.ApplicationRevision)
		done(&metav1.PartialObjectMetadata{}, nil)
		return
	}
	done(w.revision, nil)
}

func (w *statusWriter) Patch(_ apiwriter.Meta, _ apiwriter.Object, _ types.PatchType, data []byte, done func(apiwriter.Object, error)) {
	w.revisionWrites++
	w.patches++
	patch, err := jsonpatch.DecodePatch(data)
	if err != nil {
		done(nil, err)
		return
	}
	before, _ := json.Marshal(w.revision)
	after, err := patch.Apply(before)
	got := &oam.ApplicationRevision{}
	if err = errors.Join(err, json.Unmarshal(after, got)); err == nil {
		w.revision = got
	}
	done(got, err)
}

func (w *statusWriter) Status(_ apiwriter.Meta, o apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	w.written, w.done = append(w.written, o.(*oam.Application)), done
}

func (w *statusWriter) Latency() time.Duration { return 0 }

// world is one Application of one component.
type world struct {
	*testing.T
	w     *statusWriter
	c     *Reporter
	a     *deploy.State
	r     State
	o     *oam.Application
	now   time.Time
	wakes []time.Duration
}

func newWorld(t *testing.T) *world {
	x := &world{T: t, w: &statusWriter{}, now: time.Unix(1_700_000_000, 0)}
	x.c = &Reporter{Writer: x.w, Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return x.now }, SettleAfter: time.Second}
	x.a = &deploy.State{Owner: &records.Owner{
		Key: types.NamespacedName{Namespace: "ns", Name: "shop"}, Post: func(do func()) { do() },
		WakeAfter: func(after time.Duration) { x.wakes = append(x.wakes, after) },
	}, Since: x.now}
	x.a.Tracker.Revisions = []records.Stored{{Name: "shop-v1", Number: 1, Hash: "h", Spec: &oam.ApplicationSpec{}}}
	x.a.SetPlan(&plan.Plan{Components: []plan.Component{{Name: "web", Workload: -1}}})
	x.o = &oam.Application{}
	x.o.Namespace, x.o.Name, x.o.ResourceVersion, x.o.Generation = "ns", "shop", "7", 1
	return x
}

// report reports the progress of the component, and returns the status if one was written.
func (x *world) report(finished, healthy bool) *oam.ApplicationStatus {
	before := len(x.w.written)
	p := deploy.Progress{Planned: true, Finished: finished, Settled: finished, Components: make([]deploy.ComponentState, 1)}
	p.Components[0].Healthy, p.Components[0].Applied = healthy, true
	x.turn(p)
	if len(x.w.written) == before {
		return nil
	}
	return &x.w.written[before].Status
}

// turn reports progress, once more after the answer to a write of the revision.
func (x *world) turn(p deploy.Progress) {
	before, creates := len(x.w.written), x.w.revisionWrites
	x.c.Report(x.a, &x.r, x.o, p)
	if x.w.revisionWrites > creates && len(x.w.written) == before && !x.w.hold {
		x.c.Report(x.a, &x.r, x.o, p)
	}
}

func (x *world) answer(version string, err error) {
	o := x.w.written[len(x.w.written)-1].DeepCopy()
	o.ResourceVersion = version
	x.w.done(o, err)
}

func TestAStatusIsWrittenOnceAChangeHasSettled(t *testing.T) {
	x := newWorld(t)
	if s := x.report(false, false); s != nil || len(x.wakes) != 1 || x.wakes[0] != time.Second {
		t.Fatalf("at once: %+v, wakes %v", s, x.wakes)
	}
	x.now = x.now.Add(time.Second)
	if s := x.report(false, false); s == nil || s.Phase != oam.PhaseRunningWorkflow {
		t.Fatalf("when it has settled: %+v", s)
	}
	x.answer("8", nil)
	if s := x.report(false, false); s != nil {
		t.Fatalf("the same again: %+v", s)
	}
	// The end is reported at once, on condition of the version after the last write.
	if s := x.report(true, true); s == nil || s.Phase != oam.PhaseRunning || s.Workflow.Phase != "succeeded" {
		t.Fatalf("at the end: %+v", s)
	}
	if got := x.w.written[1].ResourceVersion; got != "8" {
		t.Errorf("written on condition of version %s", got)
	}
	x.answer("9", nil)
	if s := x.report(true, false); s == nil || s.Phase != oam.PhaseUnhealthy {
		t.Fatalf("of a component that is unhealthy: %+v", s)
	}
}

func TestAfterAConflictAStatusWaitsForTheWatch(t *testing.T) {
	x := newWorld(t)
	x.report(true, true)
	x.answer("", apierrors.NewConflict(schema.GroupResource{Resource: "applications"}, "shop", errors.New("changed")))
	if s := x.report(true, true); s != nil {
		t.Fatalf("before the watch shows another version: %+v", s)
	}
	x.o.ResourceVersion = "8"
	if s := x.report(true, true); s == nil || x.w.written[1].ResourceVersion != "8" {
		t.Fatal("the status is not written again")
	}
}

func TestWhyThereIsNoPlanIsReported(t *testing.T) {
	for stage, failed := range map[plan.Stage]oam.ConditionType{
		plan.Parse: oam.ConditionParsed, plan.Policy: oam.ConditionPolicy, plan.Render: oam.ConditionRender,
	} {
		x := newWorld(t)
		x.a.SetPlan(nil)
		x.a.PlanErr = &plan.Error{Stage: stage, Err: errors.New("no such field")}
		x.c.Report(x.a, &x.r, x.o, deploy.Progress{})
		if len(x.w.written) != 1 {
			t.Fatalf("%v: %d statuses", stage, len(x.w.written))
		}
		for _, c := range x.w.written[0].Status.Conditions {
			if want := c.Type == failed || c.Type == oam.ConditionReady; want != (c.Message != "") {
				t.Errorf("%v: condition %s says %q", stage, c.Type, c.Message)
			}
		}
	}
}

// TestARevisionThatWasPublishedInVainIsReplaced checks a manager that ends before it has stored a
// revision that it has published. The spec changes, and the next manager gives its revision the
// same name.
func TestARevisionThatWasPublishedInVainIsReplaced(t *testing.T) {
	x := newWorld(t)
	publish := func(hash, version, component string) {
		t.Helper()
		x.a.Tracker.Revisions[0] = records.Stored{
			Name: "shop-v1", Number: 1, Hash: hash, PublishVersion: version,
			Spec: &oam.ApplicationSpec{Components: []oam.Component{{Name: component, Type: "worker"}}},
		}
		x.r = State{} // the next manager
		x.report(true, true)
		got := x.w.revision
		if got.Labels[oam.AppRevisionHashLabel] != hash || got.Annotations[oam.PublishVersionAnnotation] != version || !got.Status.Succeeded ||
			!strings.Contains(string(got.Spec.Application.Raw), component) {
			t.Errorf("published is %v %v %s %+v", got.Labels, got.Annotations, got.Spec.Application.Raw, got.Status)
		}
		if x.a.Writes.InFlight(publishing) {
			t.Error("the revision is still being published")
		}
	}
	publish("one", "", "web")
	publish("two", "", "db")
	publish("two", "stable", "db")
	before := x.w.revisionWrites
	publish("two", "stable", "db")
	if n := x.w.revisionWrites - before; n != 1 {
		t.Errorf("%d writes of a revision that is there; want the create that finds it", n)
	}
}

// TestARevisionTakesOneWrite checks that the revision of a deployment that settles at once is created
// with its outcome, and that otherwise it is created with the first status and written once more when
// its workflow ends.
func TestARevisionTakesOneWrite(t *testing.T) {
	x := newWorld(t)
	if s := x.report(true, true); s == nil || x.w.revisionWrites != 1 || !x.w.revision.Status.Succeeded || x.w.revision.Status.Workflow == nil {
		t.Fatalf("%d writes, %+v", x.w.revisionWrites, x.w.revision)
	}
	x.answer("8", nil)
	x.o.Status, x.o.ResourceVersion = x.w.written[0].Status, "8"
	x.report(true, false) // unhealthy
	x.r = State{}         // the next manager
	x.report(true, true)
	if x.w.revisionWrites != 1 {
		t.Errorf("%d writes while the revision stays the same", x.w.revisionWrites)
	}

	x.o.Status.Workflow.Finished = false // a workflow that the next manager ends; its revision says so already
	x.r = State{}
	if s := x.report(true, true); s == nil || x.w.revisionWrites != 2 || x.w.patches != 0 {
		t.Errorf("%d writes, %d patches of a revision whose outcome is there", x.w.revisionWrites, x.w.patches)
	}

	slow := newWorld(t)
	slow.report(false, false)
	if slow.w.revisionWrites != 0 {
		t.Errorf("the revision is written before the first status")
	}
	slow.now = slow.now.Add(time.Second)
	if s := slow.report(false, false); s == nil || slow.w.revisionWrites != 1 || slow.w.revision.Status.Succeeded {
		t.Fatalf("with the first status: %d writes, %+v", slow.w.revisionWrites, slow.w.revision)
	}
	slow.answer("8", nil)
	slow.report(true, true)
	if slow.w.revisionWrites != 2 || !slow.w.revision.Status.Succeeded || !slow.w.revision.Status.Workflow.Finished {
		t.Errorf("at the end: %d writes, %+v", slow.w.revisionWrites, slow.w.revision.Status)
	}
}

// TestAStatusIsWrittenAfterItsRevision checks that no status names a revision that clients cannot
// read yet, and that a revision that is refused does not hold the status back.
func TestAStatusIsWrittenAfterItsRevision(t *testing.T) {
	x := newWorld(t)
	x.w.hold = true
	if x.report(true, true); len(x.w.written) != 0 || len(x.w.held) != 1 {
		t.Fatalf("%d statuses, %d revisions under way", len(x.w.written), len(x.w.held))
	}
	if x.report(true, true); len(x.w.written) != 0 || len(x.w.held) != 1 {
		t.Fatalf("again: %d statuses, %d revisions under way", len(x.w.written), len(x.w.held))
	}
	x.w.held[0](nil, errors.New("refused"))
	if x.report(true, true); len(x.w.written) != 1 || len(x.w.held) != 1 {
		t.Errorf("after the answer: %d statuses, %d revisions under way", len(x.w.written), len(x.w.held))
	}
}

// TestAComponentThatFailsEndsTheWorkflow checks the status of an Application that is deployed at once
// while one of its components fails, by this manager and by the next one.
func TestAComponentThatFailsEndsTheWorkflow(t *testing.T) {
	x := newWorld(t)
	x.a.SetPlan(&plan.Plan{Components: []plan.Component{
		{Name: "web", Workload: -1}, {Name: "db", Workload: -1}, {Name: "late", Workload: -1, DependsOn: []string{"db"}}, {Name: "later", Workload: -1, DependsOn: []string{"late"}},
	}})
	state := func(finished bool, db deploy.ComponentState) *oam.ApplicationStatus {
		t.Helper()
		x.now = x.now.Add(2 * time.Second)
		before, good, waits := len(x.w.written), deploy.ComponentState{Applied: true, Healthy: true}, deploy.ComponentState{Waits: !db.Healthy, Applied: db.Healthy, Healthy: db.Healthy}
		p := deploy.Progress{Planned: true, Finished: finished, Components: []deploy.ComponentState{good, db, waits, waits}}
		if db.Problem != "" {
			p.Problems = []string{db.Problem}
		}
		x.turn(p)
		if len(x.w.written) == before {
			return nil
		}
		x.o.Status = x.w.written[before].Status
		x.answer("8", nil)
		return &x.o.Status
	}
	is := func(s *oam.ApplicationStatus, phase oam.ApplicationPhase, steps string) {
		t.Helper()
		if s == nil {
			t.Fatal("there is no status")
		}
		if got := flowtest.Steps(s.Workflow); s.Phase != phase || got != steps || s.Workflow.EndTime.IsZero() == s.Workflow.Finished {
			t.Errorf("it is %s, %s, %+v; want %s, %s", s.Phase, got, s.Workflow, phase, steps)
		}
	}
	refused := deploy.ComponentState{Problem: "no such port"}
	is(state(false, refused), oam.PhaseRunningWorkflow, "web=succeeded db=failed/Execute late=pending later=pending")
	if s := state(false, refused); s != nil {
		t.Errorf("the same is written again: %+v", s)
	}
	failed := refused
	failed.Failed = true
	s := state(false, failed)
	is(s, oam.PhaseWorkflowFailed, "web=succeeded db=failed/FailedAfterRetries late=skipped/Skip later=skipped/Skip")
	if w := s.Workflow; !w.Terminated || w.Message != "step db failed: no such port" || w.Steps[1].Message != "no such port" {
		t.Errorf("the workflow is %+v", w)
	}
	x.r = State{} // the next manager
	if s := state(false, refused); s != nil {
		t.Errorf("the next manager writes %+v", s)
	}
	is(state(false, deploy.ComponentState{Applied: true}), oam.PhaseRunningWorkflow, "web=succeeded db=running/Wait late=pending later=pending")
	is(state(true, deploy.ComponentState{Applied: true, Healthy: true}), oam.PhaseRunning, "web=succeeded db=succeeded late=succeeded later=succeeded")
}

// TestPlanningThatFailsEnds checks the phase of an Application that cannot be planned, also after a
// change of the Application and by the next manager.
func TestPlanningThatFailsEnds(t *testing.T) {
	x := newWorld(t)
	x.a.SetPlan(nil)
	x.a.PlanErr = &plan.Error{Stage: plan.Render, Err: errors.New("no such field")}
	phases := func(tries int) (written int) {
		before := len(x.w.written)
		for range tries {
			x.wakes = nil
			x.c.Report(x.a, &x.r, x.o, deploy.Progress{})
			if len(x.wakes) > 0 {
				x.now = x.now.Add(x.wakes[0])
			}
		}
		x.o.Status = x.w.written[len(x.w.written)-1].Status
		return len(x.w.written) - before
	}
	if n := phases(flow.TriesMax - 1); n != 1 || x.o.Status.Phase != oam.PhaseRendering {
		t.Errorf("while it is tried: %d statuses, %s", n, x.o.Status.Phase)
	}
	if n := phases(3); n != 1 || x.o.Status.Phase != oam.PhaseWorkflowFailed {
		t.Errorf("in the end: %d statuses, %s", n, x.o.Status.Phase)
	}
	x.r = State{}
	x.a.ForgetErrors()
	if n := phases(3); n != 0 {
		t.Errorf("the next manager writes %d statuses, %s", n, x.o.Status.Phase)
	}
	x.a.ForgetErrors()
	x.o.Generation++
	if n := phases(1); n != 1 || x.o.Status.Phase != oam.PhaseRendering {
		t.Errorf("after a change: %d statuses, %s", n, x.o.Status.Phase)
	}
}

// TestOnlyComponentsBehindAFailedOneAreSkipped has forty layers of two components, each of which
// depends on both of the layer before: no search may walk all of its 2^40 paths.
func TestOnlyComponentsBehindAFailedOneAreSkipped(t *testing.T) {
	const layers = 40
	for name, c := range map[string]struct {
		failed int // the index of the component that fails
		want   map[oam.WorkflowStepPhase]int
	}{
		"one beside the layers": {0, map[oam.WorkflowStepPhase]int{
			oam.StepFailed: 1, oam.StepRunning: 2, oam.StepPending: 2 * (layers - 1),
		}},
		"one of the first layer": {1, map[oam.WorkflowStepPhase]int{
			oam.StepFailed: 1, oam.StepRunning: 2, oam.StepSkipped: 2 * (layers - 1),
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x := newWorld(t)
			p := &plan.Plan{Components: []plan.Component{{Name: "alone", Workload: -1}}}
			progress := deploy.Progress{Planned: true, Components: make([]deploy.ComponentState, 1)}
			var before []string
			for layer := range layers {
				var names []string
				for _, side := range []string{"a", "b"} {
					name := fmt.Sprintf("%s%d", side, layer)
					names = append(names, name)
					p.Components = append(p.Components, plan.Component{Name: name, Workload: -1, DependsOn: before})
					progress.Components = append(progress.Components, deploy.ComponentState{Waits: layer > 0})
				}
				before = names
			}
			progress.Components[c.failed].Failed, progress.Components[c.failed].Problem = true, "no image"
			x.a.SetPlan(p)
			phases := map[oam.WorkflowStepPhase]int{}
			for _, s := range workflowStatus(x.a, nil, progress, metav1.NewTime(x.now)).Steps {
				phases[s.Phase]++
			}
			if !maps.Equal(phases, c.want) {
				t.Errorf("the steps are %v, want %v", phases, c.want)
			}
		})
	}
}
