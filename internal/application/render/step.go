package render

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Bounds on steps.
const (
	actionsMax     = 512
	actionDepthMax = 16
)

// Action is an action that the caller carries out for a step.
type Action struct {
	// Key identifies the action in the step.
	Key string
	// Do is the operation: apply, read, list, delete, patch, do (an HTTP request), send (an
	// e-mail), component-apply, deploy, ...
	Do string
	// Params are the action's parameters, as decoded JSON.
	Params exactMap
}

// Answer is the result of an action.
type Answer struct {
	// Returns has the values for $returns, by name.
	Returns exactMap
	// Wait is set if the step continues later. Message is the step's message.
	Wait    bool
	Message string
}

// StepRequest is the input of Template.Step.
type StepRequest struct {
	Properties []byte
	Context    StepContext
	// Answers has the answers to the actions carried out so far, by key.
	Answers map[string]Answer
	// Resumed is set if the step's suspensions so far are over.
	Resumed bool
	Outputs []oam.StepOutput
	// Debug asks for StepState.Shown.
	Debug bool
	// Run evaluates. If nil, the Run that compiled the definition is used.
	Run Run `json:"-"`
}

// StepOutcome is the state that a step has reached.
type StepOutcome int

// Values of StepOutcome.
const (
	// StepActs means that Action must be carried out.
	StepActs StepOutcome = iota
	StepDone
	StepWaits
	StepSuspends
	StepFails
	// StepBreaks means that the workflow ends with this step.
	StepBreaks
)

// StepState is the result of evaluating a step.
type StepState struct {
	Outcome StepOutcome
	Action  Action
	Message string
	// Duration is how long a step suspends; zero means until it is resumed.
	Duration time.Duration
	// Logs are the lines that the step logs. LogSource says where else its logs are, as the step gives
	// it: an address, or pods.
	Logs      []string
	LogSource json.RawMessage
	// Shown has the step's values, as JSON, if the request asks for it.
	Shown string
	// Outputs are the values of the step's outputs, if the step is done.
	Outputs map[string]json.RawMessage
}

// Step evaluates a step's template as far as the answers permit. The result depends only on the
// request: each call evaluates the step from the start, with the answers at hand, up to the first
// action without an answer. Errors of the definition and its properties are *Error.
func (t *Template) Step(req *StepRequest) (*StepState, error) {
	run := req.Run
	if run == nil {
		run = t.run
	}
	state := &StepState{}
	if err := ask(run, evaluatorStep, &stepWire{t.wire, req}, state); err != nil {
		return nil, err
	}
	return state, nil
}

// step evaluates a step's template.
func (t *evaluable) step(req *StepRequest) (*StepState, error) {
	if t.main == nil {
		return nil, t.def.withoutTemplate()
	}
	out := &StepState{}
	err := t.run(req.Properties, req.Context.Values(), nil, nil, func(i *instance, v cue.Value) error {
		r := &stepRun{t: t, i: i, v: v, req: req, out: out, done: map[string]bool{}, vars: map[string]any{}}
		err := r.run()
		if err == nil && req.Debug && out.Outcome != StepActs {
			out.Shown = r.shown()
		}
		return err
	})
	return out, err
}

// stepRun is one evaluation of a step.
type stepRun struct {
	t    *evaluable
	i    *instance
	v    cue.Value // includes what actions have returned
	req  *StepRequest
	out  *StepState
	done map[string]bool
	vars map[string]any
	// unread says what a step could not read, and why.
	unread string
}

func (r *stepRun) run() error {
	for range actionsMax {
		path, action, found := r.next(nil, r.v, 0)
		if !found {
			r.out.Outcome = StepDone
			r.outputs()
			return nil
		}
		key := cue.MakePath(path...).String()
		r.done[key] = true
		goesOn, err := r.do(path, key, action)
		if err != nil && r.unread != "" { // the cause of values that are missing
			return fmt.Errorf("%s: %s", key, r.unread)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", key, err)
		}
		if !goesOn {
			return nil
		}
	}
	return fmt.Errorf("a step with more than %d actions", actionsMax)
}

// next returns the first action, in the template's order, that has not been done.
func (r *stepRun) next(path []cue.Selector, v cue.Value, depth int) ([]cue.Selector, cue.Value, bool) {
	if depth > actionDepthMax {
		return nil, v, false
	}
	if depth > 0 && verb(v) != "" && verb(v) != "steps" {
		return path, v, !r.done[cue.MakePath(path...).String()]
	}
	type field struct {
		sel   cue.Selector
		v     cue.Value
		order int
	}
	var fields []field
	switch v.IncompleteKind() {
	// A struct whose fields depend on unknown values is a bottom.
	case cue.StructKind, cue.BottomKind:
		all, err := v.Fields()
		if err != nil {
			return nil, v, false
		}
		for all.Next() {
			name := all.Selector().Unquoted()
			if depth == 0 && (name == "parameter" || name == "context") || strings.HasPrefix(name, "$") {
				continue
			}
			fields = append(fields, field{all.Selector(), all.Value(), orderOf(all.Value())})
		}
		slices.SortStableFunc(fields, func(a, b field) int { return a.order - b.order })
	case cue.ListKind:
		items, err := v.List()
		if err != nil {
			return nil, v, false
		}
		for n := 0; items.Next(); n++ {
			fields = append(fields, field{cue.Index(n), items.Value(), n})
		}
	}
	for _, f := range fields {
		if p, action, ok := r.next(append(slices.Clone(path), f.sel), f.v, depth+1); ok {
			return p, action, true
		}
	}
	return nil, v, false
}

// orderOf returns the position of a field in its template. See numberFields.
func orderOf(v cue.Value) int {
	n := 1 << 30
	for _, a := range v.Attributes(cue.FieldAttr) {
		if a.Name() == orderAttribute {
			if at, err := strconv.Atoi(a.Contents()); err == nil {
				n = min(n, at)
			}
		}
	}
	return n
}

// orderAttribute is the attribute that numbers the fields of step templates. Evaluation moves
// fields that depend on conditions to the end, but actions are carried out in the order of the
// source.
const orderAttribute = "lockstepOrder"

// numberFields gives each field its number.
func numberFields(f *ast.File) {
	n := 0
	ast.Walk(f, func(node ast.Node) bool {
		if field, ok := node.(*ast.Field); ok {
			n++
			field.Attrs = append(field.Attrs, &ast.Attribute{Text: fmt.Sprintf("@%s(%d)", orderAttribute, n)})
		}
		return true
	}, nil)
}

// verb returns the operation of an action, or "" if v is not an action.
func verb(v cue.Value) string {
	if k := v.IncompleteKind(); k != cue.StructKind && k != cue.BottomKind {
		return ""
	}
	do, err := v.LookupPath(cue.MakePath(cue.Def("#do"))).String()
	if err != nil {
		return ""
	}
	return do
}

// outputs evaluates the step's outputs. An output without a value is null, and the message says why.
func (r *stepRun) outputs() {
	for _, o := range r.req.Outputs {
		value, err := valueFrom(r.i.ctx, r.v, o.ValueFrom)
		if err != nil { // the step is done all the same
			value, r.out.Message = json.RawMessage("null"), fmt.Sprintf("output %s is null: %s", o.Name, firstProblem(err))
		}
		if r.out.Outputs == nil {
			r.out.Outputs = map[string]json.RawMessage{}
		}
		r.out.Outputs[o.Name] = value
	}
}
