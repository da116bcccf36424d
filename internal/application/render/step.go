package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"cuelang.org/go/cue"
	"cuelang.org/go/cue/ast"
	"cuelang.org/go/cue/cuecontext"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// Bounds on steps.
const (
	actionsMax     = 512
	actionDepthMax = 16
)

// StepContext is the context of a step's template.
type StepContext struct {
	Context
	// StepName and SessionID are the step's name and ID.
	StepName, SessionID string
	// Application is the Application as decoded JSON, for steps that read its components and
	// policies.
	Application map[string]any
}

// Values returns the context as steps, conditions and inputs see it.
func (c *StepContext) Values() map[string]any {
	v := c.Context.values(true)
	if c.StepName != "" {
		v["stepName"], v["stepSessionID"], v["spanID"] = c.StepName, c.SessionID, c.SessionID
	}
	return v
}

// Action is an action that the caller carries out for a step.
type Action struct {
	// Key identifies the action in the step.
	Key string
	// Do is the operation: apply, read, list, delete, patch, do (an HTTP request), send (an
	// e-mail), component-apply, deploy, ...
	Do string
	// Params are the action's parameters, as decoded JSON.
	Params map[string]any
}

// Answer is the result of an action.
type Answer struct {
	// Returns has the values for $returns, by name.
	Returns map[string]any
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
	// Logs are the lines that the step logs.
	Logs []string
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
	var answer stepAnswer
	if err := ask(run, evaluatorStep, newStepWire(t.wire, req), &answer); err != nil {
		return nil, err
	}
	return answer.state()
}

// step evaluates a step's template.
func (t *evaluable) step(req *StepRequest) (*StepState, error) {
	if t.main == nil {
		return nil, &Error{Definition: t.def.String(), Section: "schematic",
			Problems: []Problem{{Message: "it has no CUE template"}}}
	}
	out := &StepState{}
	err := t.run(req.Properties, req.Context.Values(), nil, nil, func(i *instance, v cue.Value) error {
		r := &stepRun{t: t, i: i, v: v, req: req, out: out, done: map[string]bool{}, vars: map[string]any{}}
		return r.run()
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
}

func (r *stepRun) run() error {
	for range actionsMax {
		path, action, found := r.next(nil, r.v, 0)
		if !found {
			r.out.Outcome = StepDone
			return r.outputs()
		}
		key := cue.MakePath(path...).String()
		r.done[key] = true
		goesOn, err := r.do(path, key, action)
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

// do carries out one action, or sets the state in which the step must stop for it. It reports
// whether the step continues.
func (r *stepRun) do(path []cue.Selector, key string, action cue.Value) (bool, error) {
	do := verb(action)
	params, legacy := action, true
	if p := action.LookupPath(cue.MakePath(cue.Str("$params"))); p.Exists() {
		params, legacy = p, false
	} else if provider, _ := action.LookupPath(cue.MakePath(cue.Def("#provider"))).String(); provider != "op" &&
		provider != "" {
		params, legacy = r.i.ctx.CompileString("{}"), false
	}
	text := func(name string) string {
		s, _ := params.LookupPath(cue.MakePath(cue.Str(name))).String()
		return s
	}
	before := r.out.Message
	if m := text("message"); m != "" {
		r.out.Message = m
	}
	switch do {
	case "message":
		return true, nil
	case "log":
		if data := params.LookupPath(cue.MakePath(cue.Str("data"))); data.Exists() {
			if value, err := plain(data); err == nil {
				r.out.Logs = append(r.out.Logs, fmt.Sprint(value))
			}
		}
		return true, nil
	case "wait":
		goesOn, err := params.LookupPath(cue.MakePath(cue.Str("continue"))).Bool()
		// The condition's value may not be known yet.
		if err == nil && goesOn {
			r.out.Message = before
			return true, nil
		}
		r.out.Outcome = StepWaits
		return false, nil
	case "suspend":
		if r.req.Resumed {
			r.out.Message = before
			return true, nil
		}
		r.out.Outcome = StepSuspends
		if d := text("duration"); d != "" {
			duration, err := time.ParseDuration(d)
			if err != nil {
				return false, fmt.Errorf("duration %q is not a duration such as 30s", d)
			}
			r.out.Duration = duration
		}
		return false, nil
	case "fail":
		r.out.Outcome = StepFails
		return false, nil
	case "break":
		r.out.Outcome = StepBreaks
		return false, nil
	case "var":
		return true, r.variable(path, params, legacy)
	case "string":
		data, err := params.LookupPath(cue.MakePath(cue.Str("bt"))).Bytes()
		if err != nil {
			return false, err
		}
		return true, r.fill(path, legacy, map[string]any{"str": string(data)})
	case "timestamp", "date":
		return true, r.date(do, path, params, legacy)
	case "patch-k8s-object":
		patched, err := r.patched(params)
		if err != nil {
			return false, err
		}
		return true, r.fill(path, legacy, map[string]any{"result": patched})
	case "load", "load-comps-in-order", "load-policies":
		return true, r.fill(path, legacy, map[string]any{"value": r.loaded(do)})
	}
	return r.outside(path, key, do, params, legacy)
}

// outside handles an action that the caller carries out.
func (r *stepRun) outside(path []cue.Selector, key, do string, params cue.Value, legacy bool) (bool, error) {
	var in map[string]any
	switch {
	case do == "patch":
		// The object is read first, to check that the patch can be applied.
		target, err := objectOf(params.LookupPath(cue.MakePath(cue.Str("value"))))
		if err != nil {
			return false, err
		}
		cluster, _ := params.LookupPath(cue.MakePath(cue.Str("cluster"))).String()
		read, ok := r.req.Answers[key+"#read"]
		if !ok {
			return r.ask(Action{Key: key + "#read", Do: "read", Params: map[string]any{"value": target, "cluster": cluster}})
		}
		if err, failed := read.Returns["err"]; failed {
			return false, fmt.Errorf("%v", err)
		}
		base, _ := read.Returns["value"].(map[string]any)
		patch := params.LookupPath(cue.MakePath(cue.Str("patch")))
		m := &merger{ctx: r.i.ctx}
		if _, err := m.patch(base, patch); err != nil {
			return false, err
		}
		change, err := plain(patch)
		if err != nil {
			return false, err
		}
		in = map[string]any{"value": target, "patch": change, "cluster": cluster}
	default:
		var err error
		if in, err = r.params(params, do, legacy); err != nil {
			return false, err
		}
	}
	answer, ok := r.req.Answers[key]
	if !ok {
		return r.ask(Action{Key: key, Do: do, Params: in})
	}
	if answer.Message != "" {
		r.out.Message = answer.Message
	}
	if answer.Wait {
		r.out.Outcome = StepWaits
		return false, nil
	}
	returns := maps.Clone(answer.Returns)
	if legacy {
		switch do {
		case "do":
			returns = map[string]any{"response": returns}
		case "list":
			if values, ok := returns["values"]; ok {
				delete(returns, "values")
				returns["list"] = values
			}
		case "patch":
			returns = map[string]any{"result": returns["value"]}
		case "apply", "read", "apply-in-parallel":
			// The template's values win: the server may have stored them in another form.
			if value, ok := returns["value"]; ok {
				returns["value"] = agreed(value, in["value"])
			}
		}
	}
	return true, r.fill(path, legacy, returns)
}

func (r *stepRun) ask(a Action) (bool, error) {
	r.out.Outcome, r.out.Action = StepActs, a
	return false, nil
}

// params returns an action's parameters as decoded JSON, with its patch applied.
func (r *stepRun) params(params cue.Value, do string, legacy bool) (map[string]any, error) {
	out := map[string]any{}
	fields, err := params.Fields()
	if err != nil {
		return nil, err
	}
	for fields.Next() {
		name := fields.Selector().Unquoted()
		if strings.HasPrefix(name, "$") || name == "patch" {
			continue
		}
		value, err := plain(fields.Value())
		if err != nil {
			return nil, err
		}
		out[name] = value
	}
	if patch := params.LookupPath(cue.MakePath(cue.Str("patch"))); patch.Exists() &&
		(do == "apply" || do == "component-apply") {
		if do == "apply" {
			if out["value"], err = r.patched(params); err != nil {
				return nil, err
			}
			return out, nil
		}
		if out["patch"], err = plain(patch); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// patched returns params.value with params.patch applied.
func (r *stepRun) patched(params cue.Value) (map[string]any, error) {
	base, err := objectOf(params.LookupPath(cue.MakePath(cue.Str("value"))))
	if err != nil {
		return nil, err
	}
	m := &merger{ctx: r.i.ctx}
	return m.patch(base, params.LookupPath(cue.MakePath(cue.Str("patch"))))
}

// fill writes what an action returned into the step's value.
func (r *stepRun) fill(path []cue.Selector, legacy bool, returns map[string]any) error {
	if len(returns) == 0 {
		return nil
	}
	if !legacy {
		path = append(slices.Clone(path), cue.Str("$returns"))
	}
	for _, name := range slices.Sorted(maps.Keys(returns)) {
		at := cue.MakePath(append(slices.Clone(path), cue.Str(name))...)
		r.v = r.v.FillPath(at, r.i.ctx.BuildExpr(exprOf(returns[name])))
	}
	return r.v.LookupPath(cue.MakePath(path...)).Err()
}

// agreed returns live, with the values of declared where the two differ.
func agreed(live, declared any) any {
	switch d := declared.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		if !ok {
			return declared
		}
		out := maps.Clone(l)
		for k, v := range d {
			if there, ok := l[k]; ok {
				out[k] = agreed(there, v)
			} else {
				out[k] = v
			}
		}
		return out
	case []any:
		l, ok := live.([]any)
		if !ok || len(l) != len(d) {
			return declared
		}
		out := make([]any, len(d))
		for i := range d {
			out[i] = agreed(l[i], d[i])
		}
		return out
	case nil:
		return live
	}
	return declared
}

func (r *stepRun) variable(path []cue.Selector, params cue.Value, legacy bool) error {
	method, _ := params.LookupPath(cue.MakePath(cue.Str("method"))).String()
	name, err := params.LookupPath(cue.MakePath(cue.Str("path"))).String()
	if err != nil {
		return err
	}
	if method == "Put" {
		value, err := plain(params.LookupPath(cue.MakePath(cue.Str("value"))))
		if err != nil {
			return err
		}
		r.vars[name] = value
		return nil
	}
	value, ok := r.vars[name]
	if !ok {
		return fmt.Errorf("no value has been put under %s", name)
	}
	return r.fill(path, legacy, map[string]any{"value": value})
}

func (r *stepRun) date(do string, path []cue.Selector, params cue.Value, legacy bool) error {
	layout, _ := params.LookupPath(cue.MakePath(cue.Str("layout"))).String()
	if layout == "" {
		layout = time.RFC3339
	}
	if do == "timestamp" {
		date, err := params.LookupPath(cue.MakePath(cue.Str("date"))).String()
		if err != nil {
			return err
		}
		at, err := time.Parse(layout, date)
		if err != nil {
			return err
		}
		return r.fill(path, legacy, map[string]any{"timestamp": at.Unix()})
	}
	seconds, err := params.LookupPath(cue.MakePath(cue.Str("timestamp"))).Int64()
	if err != nil {
		return err
	}
	return r.fill(path, legacy, map[string]any{"date": time.Unix(seconds, 0).UTC().Format(layout)})
}

// loaded returns the Application's components or policies: a list in order, or a struct by name.
func (r *stepRun) loaded(do string) any {
	spec, _ := r.req.Context.Application["spec"].(map[string]any)
	field := "components"
	if do == "load-policies" {
		field = "policies"
	}
	list, _ := spec[field].([]any)
	if do == "load-comps-in-order" {
		return list
	}
	byName := map[string]any{}
	for _, item := range list {
		if m, ok := item.(map[string]any); ok {
			byName[fmt.Sprint(m["name"])] = m
		}
	}
	return byName
}

// outputs evaluates the step's outputs.
func (r *stepRun) outputs() error {
	for _, o := range r.req.Outputs {
		value, err := valueFrom(r.i.ctx, r.v, o.ValueFrom)
		if err != nil {
			return fmt.Errorf("output %s: %w", o.Name, err)
		}
		if r.out.Outputs == nil {
			r.out.Outputs = map[string]json.RawMessage{}
		}
		r.out.Outputs[o.Name] = value
	}
	return nil
}

// valueFromMax bounds the length of an expression, in bytes.
const valueFromMax = 16 << 10

// valueFrom returns the value of a path or an expression over the fields of v, as JSON.
func valueFrom(ctx *cue.Context, v cue.Value, expression string) (json.RawMessage, error) {
	if len(expression) > valueFromMax {
		return nil, fmt.Errorf("an expression of more than %d bytes", valueFromMax)
	}
	if path := cue.ParsePath(expression); path.Err() == nil {
		if at := v.LookupPath(path); at.Exists() {
			return at.MarshalJSON()
		}
	}
	got := ctx.CompileString(expression, cue.Scope(v), cue.InferBuiltins(true))
	if err := got.Err(); err != nil {
		return nil, err
	}
	return got.MarshalJSON()
}

// ValueFrom evaluates an expression, such as a component's output, over values by their top-level
// names.
func ValueFrom(run Run, expression string, values map[string]any) (json.RawMessage, error) {
	var answer json.RawMessage
	return answer, ask(run, evaluatorValue, &expressionRequest{expression, exactly(values)}, &answer)
}

func evaluateValue(expression string, values map[string]any) (json.RawMessage, error) {
	ctx := cuecontext.New()
	out, err := valueFrom(ctx, ctx.BuildExpr(exprOf(values)), expression)
	if err != nil {
		return nil, fmt.Errorf("%s: %s", expression, firstProblem(err))
	}
	return out, nil
}

// conditionMax bounds the length of a condition, in bytes.
const conditionMax = 4 << 10

// Condition evaluates a condition over values by their top-level names.
func Condition(run Run, condition string, values map[string]any) (bool, error) {
	var answer bool
	return answer, ask(run, evaluatorCondition, &expressionRequest{condition, exactly(values)}, &answer)
}

func evaluateCondition(condition string, values map[string]any) (bool, error) {
	if len(condition) > conditionMax {
		return false, fmt.Errorf("a condition of more than %d bytes", conditionMax)
	}
	ctx := cuecontext.New()
	scope := ctx.BuildExpr(exprOf(values))
	v := ctx.CompileString(condition, cue.Scope(scope), cue.InferBuiltins(true))
	yes, err := v.Bool()
	if err != nil {
		return false, errors.New(firstProblem(err))
	}
	return yes, nil
}

func firstProblem(err error) string {
	if problems := problemsOf(err, ""); len(problems) > 0 {
		return problems[0].String()
	}
	return err.Error()
}
