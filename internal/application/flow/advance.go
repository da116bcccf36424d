package flow

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/fieldpath"
)

// Bounds on retries.
const (
	// TriesMax is the number of times that a step is run if it ends in an error each time.
	TriesMax = 10
	// retryFirst is the first delay between two tries.
	retryFirst = time.Second
	// retryMax is the longest one. Clients wait two minutes for the end of what fails: all tries
	// together take less.
	retryMax = 30 * time.Second
	// forgetAfter is how long after the delay that follows an error the errors are forgotten. It is
	// longer than a request may take.
	forgetAfter = 10 * time.Minute
)

// Outcome is the state of a step after it was run.
type Outcome int

// Values of Outcome.
const (
	// Running means that the step continues when something changes.
	Running Outcome = iota
	// Acting means that the step waits for the answer to something that it has begun.
	Acting
	Succeeded
	// Erred means that the step is tried again.
	Erred
	// Failed means that the step has failed permanently.
	Failed
	// Suspending means that the step continues when it is resumed, or after Pause.Duration.
	Suspending
)

// Pause says why and for how long a step suspends.
type Pause struct {
	Message string
	// Duration is how long the step suspends; zero means until it is resumed.
	Duration time.Duration
}

// Result is the result of running a step.
type Result struct {
	Outcome Outcome
	// Reason is one of the reasons of package oam. If empty, the usual reason for the outcome is
	// used.
	Reason  string
	Message string
	// Outputs has the values of the step's outputs, if it succeeded.
	Outputs map[string]json.RawMessage
	Pause   Pause
}

// Try is the number of errors of a step or component, and when it is tried again. The zero value
// has no errors.
type Try struct {
	Count int
	Next  time.Time
}

// Erred counts an error at now, and reports whether it was the last try. A success in between does
// not reset the count; only forgetAfter without an error does.
func (t Try) Erred(now time.Time) (_ Try, last bool) {
	if now.Sub(t.Next) > forgetAfter {
		t.Count = 0
	}
	t.Count++
	t.Next = now.Add(Delay(t.Count))
	return t, t.Count >= TriesMax
}

// Request is the input of Advance. Advance does not change it.
type Request struct {
	Program *Program
	// Status is nil on the first call.
	Status *oam.WorkflowStatus
	// Outputs has the values that steps have produced so far, as JSON.
	Outputs map[string]json.RawMessage
	// Results has, by name, the results of the steps that were run for this call.
	Results map[string]Result
	Tries   map[string]Try
	// Resumed has the steps that were resumed after they suspended.
	Resumed map[string]bool
	// Held is set while a user has suspended the whole workflow: no step runs until it is resumed.
	Held bool
	// Paused has the steps that a user has suspended. They run no further, and what depends on them
	// waits.
	Paused map[string]bool
	// Context is the context that conditions and inputs see.
	Context map[string]any
	Now     time.Time
	// ID returns the ID of a step.
	ID func(step string) string
	// Decide evaluates a condition over values by their top-level names.
	Decide func(condition string, values map[string]any) (bool, error)
}

// Call is a step to run.
type Call struct {
	Step *Step
	// Properties are the step's properties as JSON, with its inputs set.
	Properties []byte
	// Resumed is set if the step's suspension is over.
	Resumed bool
}

// Decision says how a workflow continues.
type Decision struct {
	Status  *oam.WorkflowStatus
	Outputs map[string]json.RawMessage
	Tries   map[string]Try
	Resumed map[string]bool
	// Run has the steps to run now. Their results are the input of the next call.
	Run []Call
	// Wake is when to call Advance again even if nothing has changed; zero means never.
	Wake time.Time
}

// advance is the state of one call of Advance.
type advance struct {
	*Request
	d       *Decision
	steps   map[string]*oam.StepStatus
	handled map[string]bool // steps handled in this call that have not ended
	now     metav1.Time
}

// ended returns the number of steps that have ended.
func (a *advance) ended() int {
	n := 0
	for _, st := range a.steps {
		if Ended(st) {
			n++
		}
	}
	return n
}

// Advance processes the results and decides what to do next. Calling Advance again with its own
// decision and without results changes nothing.
func Advance(in *Request) *Decision {
	now := metav1.NewTime(in.Now).Rfc3339Copy()
	s := in.Status.DeepCopy()
	if s == nil {
		s = &oam.WorkflowStatus{Mode: in.Program.ModeText(), StartTime: now}
	}
	a := &advance{Request: in, now: now, steps: map[string]*oam.StepStatus{}, handled: map[string]bool{}, d: &Decision{
		Status: s, Outputs: cloned(in.Outputs), Tries: cloned(in.Tries), Resumed: cloned(in.Resumed),
	}}
	if s.Finished {
		return a.d
	}
	// Make room for all steps now, so that pointers into the slices stay valid.
	s.Steps = slices.Grow(s.Steps, len(in.Program.Steps))
	for i := range s.Steps {
		if step := in.Program.Step(s.Steps[i].Name); step != nil {
			s.Steps[i].SubSteps = slices.Grow(s.Steps[i].SubSteps, len(step.Sub))
		}
	}
	for st := range StepsOf(s) {
		a.steps[st.Name] = st
	}
	// A step that ends may let earlier steps start.
	for before := -1; !in.Held && before != a.ended(); {
		before = a.ended()
		a.walk(in.Program.Steps, in.Program.Mode.Steps, nil)
	}
	a.conclude()
	return a.d
}

func cloned[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return maps.Clone(m)
}

// walk advances the steps of a workflow or a group, and reports whether all have ended.
func (a *advance) walk(steps []Step, mode oam.WorkflowMode, group *oam.StepStatus) bool {
	all, failed := true, false
	for i := range steps {
		s := &steps[i]
		st := a.steps[s.Name]
		if st != nil && Ended(st) {
			failed = failed || st.Phase == oam.StepFailed
			continue
		}
		if !a.step(s, group, mode == oam.WorkflowModeStep && failed) {
			all = false
			if mode == oam.WorkflowModeStep {
				return false
			}
			continue
		}
		failed = failed || a.steps[s.Name].Phase == oam.StepFailed
	}
	return all
}

// step advances a step that has not ended, and reports whether it has ended now. failed says that
// an earlier step failed.
func (a *advance) step(s *Step, group *oam.StepStatus, failed bool) bool {
	st := a.steps[s.Name]
	started := st != nil && st.Phase != oam.StepPending
	if !started {
		if on := a.waitsFor(s); on != "" {
			st = a.status(s, group)
			a.set(st, oam.StepPending, oam.StepReasonWait, "it waits for "+on)
			return false
		}
		run, err := a.runs(s, failed)
		st = a.status(s, group)
		if err != nil || !run {
			message := ""
			if err != nil {
				message = "if: " + err.Error()
			}
			a.set(st, oam.StepSkipped, oam.StepReasonSkip, message)
			for i := range s.Sub {
				a.set(a.status(&s.Sub[i], st), oam.StepSkipped, oam.StepReasonSkip, "")
			}
			return true
		}
	}
	if s.timeout > 0 {
		begun := st.FirstExecuteTime
		if begun.IsZero() {
			begun = a.now
		}
		end := begun.Add(s.timeout)
		if !a.Now.Before(end) {
			a.set(st, oam.StepFailed, oam.StepReasonTimeout, fmt.Sprintf("it took longer than %s", s.Timeout))
			a.endSub(s, oam.StepFailed, oam.StepReasonTimeout)
			return true
		}
		a.wake(end)
	}
	switch {
	case a.Paused[s.Name]:
		a.set(st, oam.StepSuspending, oam.StepReasonSuspend, "a user has suspended it")
		return false
	case s.Type == TypeGroup:
		return a.group(s, st)
	case s.Type == TypeSuspend:
		return a.suspend(s, st)
	}
	return a.run(s, st)
}

// pausing reports whether a step suspends the workflow. A user's suspension of the workflow does
// not count.
func (a *advance) pausing() bool {
	for _, st := range a.steps {
		if st.Phase == oam.StepSuspending {
			return true
		}
	}
	return false
}

// group advances a group that has started.
func (a *advance) group(s *Step, st *oam.StepStatus) bool {
	a.set(st, oam.StepRunning, "", "")
	if !a.walk(s.Sub, s.Mode, st) {
		return false
	}
	for i := range s.Sub {
		if sub := a.steps[s.Sub[i].Name]; sub.Phase == oam.StepFailed {
			a.set(st, oam.StepFailed, sub.Reason, fmt.Sprintf("step %s failed: %s", sub.Name, sub.Message))
			return true
		}
	}
	a.set(st, oam.StepSucceeded, "", "")
	return true
}

// suspend advances a suspend step, which waits until it is resumed or its duration has passed.
func (a *advance) suspend(s *Step, st *oam.StepStatus) bool {
	if a.Resumed[s.Name] {
		return a.finish(s, st, Result{Outcome: Succeeded, Outputs: a.suspendOutputs(s)})
	}
	properties, err := a.properties(s)
	if err != nil {
		a.set(st, oam.StepFailed, oam.StepReasonInput, err.Error())
		return true
	}
	pause, err := suspension(properties)
	if err != nil {
		a.set(st, oam.StepFailed, oam.StepReasonParameter, err.Error())
		return true
	}
	return a.finish(s, st, Result{Outcome: Suspending, Pause: pause, Outputs: a.suspendOutputs(s)})
}

// suspendOutputs returns the outputs of a suspend step. They can only be literal strings or values
// of the context.
func (a *advance) suspendOutputs(s *Step) map[string]json.RawMessage {
	out := map[string]json.RawMessage{}
	for _, o := range s.Outputs {
		var v any = strings.Trim(o.ValueFrom, `"`)
		if path, ok := strings.CutPrefix(o.ValueFrom, "context."); ok {
			v, _ = fieldpath.Get(a.Context, path)
		}
		if data, err := json.Marshal(v); err == nil {
			out[o.Name] = data
		}
	}
	return out
}

// run processes the step's result, or requests that the step be run.
func (a *advance) run(s *Step, st *oam.StepStatus) bool {
	if a.handled[s.Name] {
		return false
	}
	a.handled[s.Name] = true
	if try, ok := a.d.Tries[s.Name]; ok && a.Now.Before(try.Next) {
		a.wake(try.Next)
		return false
	}
	if r, ok := a.Results[s.Name]; ok {
		return a.finish(s, st, r)
	}
	properties, err := a.properties(s)
	if err != nil {
		a.set(st, oam.StepFailed, oam.StepReasonInput, err.Error())
		return true
	}
	if st.Phase == "" || st.Phase == oam.StepPending {
		a.set(st, oam.StepRunning, "", "")
	}
	a.d.Run = append(a.d.Run, Call{Step: s, Properties: properties, Resumed: a.Resumed[s.Name]})
	return false
}

// finish processes a result, and reports whether the step has ended.
func (a *advance) finish(s *Step, st *oam.StepStatus, r Result) bool {
	reason := func(usual string) string {
		if r.Reason != "" {
			return r.Reason
		}
		return usual
	}
	if r.Outcome == Succeeded || r.Outcome == Failed {
		delete(a.d.Tries, s.Name)
	}
	switch r.Outcome {
	case Acting:
		if erred := st.Phase == oam.StepFailed; erred || st.Message != "" {
			return false // what the step says holds until there is an answer
		}
		a.set(st, oam.StepRunning, reason(oam.StepReasonWait), r.Message)
		return false
	case Running:
		a.set(st, oam.StepRunning, reason(oam.StepReasonWait), r.Message)
		return false
	case Suspending:
		a.set(st, oam.StepSuspending, oam.StepReasonSuspend, r.Pause.Message)
		maps.Copy(a.d.Outputs, r.Outputs)
		if r.Pause.Duration == 0 {
			return false
		}
		end := st.FirstExecuteTime.Add(r.Pause.Duration)
		if a.Now.Before(end) {
			a.wake(end)
			return false
		}
		a.d.Resumed[s.Name] = true
		if s.Type != TypeSuspend {
			a.set(st, oam.StepRunning, "", "")
			a.wake(a.Now)
			return false
		}
		a.set(st, oam.StepSucceeded, "", r.Pause.Message)
		return true
	case Failed:
		a.set(st, oam.StepFailed, reason(oam.StepReasonAction), r.Message)
		return true
	case Erred:
		try, last := a.d.Tries[s.Name].Erred(a.Now)
		if last {
			delete(a.d.Tries, s.Name)
			a.set(st, oam.StepFailed, oam.StepReasonFailedAfterRetries, r.Message)
			return true
		}
		a.d.Tries[s.Name] = try
		a.set(st, oam.StepFailed, reason(oam.StepReasonExecute), r.Message)
		a.wake(try.Next)
		return false
	}
	for _, o := range s.Outputs {
		if _, ok := r.Outputs[o.Name]; !ok {
			a.set(st, oam.StepFailed, oam.StepReasonOutput, fmt.Sprintf("output %s: %s has no value", o.Name, o.ValueFrom))
			return true
		}
	}
	maps.Copy(a.d.Outputs, r.Outputs)
	// Resumed is kept, because the status that says that the step has ended may never be written;
	// the step would then suspend again.
	a.set(st, oam.StepSucceeded, "", r.Message)
	return true
}

// Delay returns how long after its nth error a step is run again: retryFirst after each of the
// first three errors, then twice the previous delay, up to retryMax. It is no controlloop.Backoff, which depends on
// when the failures happened: a decision of this package follows from the counted errors alone.
func Delay(n int) time.Duration { return min(retryFirst<<min(max(n-3, 0), 16), retryMax) }

// waitsFor returns what a step that has not started waits for, or "".
func (a *advance) waitsFor(s *Step) string {
	for _, d := range a.Program.needs(s) {
		if st := a.steps[d]; st == nil || !Ended(st) {
			return "step " + d
		}
	}
	return ""
}

// runs reports whether a step whose dependencies have ended runs. If not, it is skipped. failed
// says that an earlier step failed.
func (a *advance) runs(s *Step, failed bool) (bool, error) {
	switch s.If {
	case "always":
		return true, nil
	case "":
		if failed || a.d.Status.Terminated {
			return false, nil
		}
		return !a.failedBefore(s, map[string]bool{}), nil
	}
	status := map[string]any{}
	for name, st := range a.steps {
		status[name] = map[string]any{
			"id": st.ID, "name": st.Name, "type": st.Type, "phase": string(st.Phase), "message": st.Message, "reason": st.Reason,
			"failed": st.Phase == oam.StepFailed, "succeeded": st.Phase == oam.StepSucceeded,
			"skipped": st.Phase == oam.StepSkipped,
			"timeout": st.Reason == oam.StepReasonTimeout, "failedAfterRetries": st.Reason == oam.StepReasonFailedAfterRetries,
			"terminate": st.Reason == oam.StepReasonTerminate,
		}
	}
	inputs := map[string]any{}
	for _, in := range s.Inputs {
		if v, ok := a.value(in.From); ok {
			inputs[in.From] = v
		}
	}
	return a.Decide(s.If, map[string]any{"status": status, "inputs": inputs, "context": a.Context})
}

// failedBefore reports whether a direct or indirect dependency of a step has failed.
func (a *advance) failedBefore(s *Step, seen map[string]bool) bool {
	for _, d := range a.Program.needs(s) {
		if seen[d] {
			continue
		}
		seen[d] = true
		st := a.steps[d]
		if st != nil && st.Phase == oam.StepFailed || a.failedBefore(a.Program.Step(d), seen) {
			return true
		}
	}
	return false
}

// properties returns a step's properties with its inputs set.
func (a *advance) properties(s *Step) ([]byte, error) {
	return WithInputs(raw(s), s.Inputs, a.value)
}

// value returns the value of an input.
func (a *advance) value(from string) (any, bool) { return Input(a.d.Outputs, a.Context, from) }

// wake sets the time of the next call to t if that is earlier.
func (a *advance) wake(t time.Time) {
	if a.d.Wake.IsZero() || t.Before(a.d.Wake) {
		a.d.Wake = t
	}
}

func raw(s *Step) []byte {
	if s.Properties == nil {
		return nil
	}
	return s.Properties.Raw
}
