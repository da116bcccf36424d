package render

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// The following types encode requests to evaluators and their answers. Users' values are JSON that
// keeps the difference between 1 and 1.0, because CUE distinguishes them: see exactly.
type (
	compileRequest struct{ Definition json.RawMessage }

	compileAnswer struct {
		Main     *wireFacts `json:",omitempty"`
		HasState bool
		State    *wireReads `json:",omitempty"`
	}

	wireFacts struct {
		Reads      wireReads
		Parametric bool
		Words      []string
		Signed     bool
		Processes  bool
	}

	wireReads struct {
		Parameter           bool
		Parameters, Context fieldUse
	}

	wireUse struct {
		Definition json.RawMessage
		Properties string
	}

	renderRequest struct {
		Context Context
		// Uses are the component and its traits.
		Uses    []wireUse
		Answers []wireAnswer `json:",omitempty"`
	}

	// wireAnswer is the answer to a trait's request, or the error that was returned instead.
	wireAnswer struct {
		Request HTTPRequest
		Value   json.RawMessage `json:",omitempty"`
		Failed  string          `json:",omitempty"`
	}

	renderAnswer struct {
		Workload    *wireObject  `json:",omitempty"`
		Auxiliaries []wireObject `json:",omitempty"`
		// Missing is a request that must be answered first.
		Missing *HTTPRequest `json:",omitempty"`
	}

	wireObject struct {
		Object           json.RawMessage
		Name, Trait      string
		TraitIndex       int
		Stage            oam.StageType
		ControlPlaneOnly bool
	}

	stateRequest struct {
		Definition json.RawMessage
		Looked     json.RawMessage
		Properties string
	}

	stateAnswer struct {
		State   State
		Problem *wireError `json:",omitempty"`
	}

	stepWire struct {
		Definition  json.RawMessage
		Properties  string
		Context     Context
		Step, ID    string
		Application json.RawMessage
		Answers     map[string]wireReturns
		Resumed     bool
		Outputs     []oam.StepOutput
	}

	wireReturns struct {
		Returns json.RawMessage
		Wait    bool
		Message string
	}

	stepAnswer struct {
		Outcome  StepOutcome
		Key, Do  string          `json:",omitempty"`
		Params   json.RawMessage `json:",omitempty"`
		Message  string
		Duration time.Duration
		Logs     []string                   `json:",omitempty"`
		Outputs  map[string]json.RawMessage `json:",omitempty"`
		Problem  *wireError                 `json:",omitempty"`
	}

	expressionRequest struct {
		Expression string
		Values     json.RawMessage
	}

	// envelope is the form of every answer: a value, or an error of the user's input.
	envelope struct {
		Value json.RawMessage `json:",omitempty"`
		Error *wireError      `json:",omitempty"`
	}

	wireError struct {
		Definition, Section string    `json:",omitempty"`
		Problems            []Problem `json:",omitempty"`
		// Cause is the cause of an *Error, or the message of another error.
		Cause string `json:",omitempty"`
		// Fetch is set if the cause is an error in the answer to a trait's request.
		Fetch bool `json:",omitempty"`
	}
)

// ask sends a request to an evaluator and decodes the answer.
func ask(run Run, name string, request, value any) error {
	data, err := json.Marshal(request)
	if err != nil {
		return err
	}
	if data, err = run(name, data); err != nil {
		return err
	}
	var answer envelope
	if err := json.Unmarshal(data, &answer); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if answer.Error != nil {
		return answer.Error.error()
	}
	return json.Unmarshal(answer.Value, value)
}

// evaluator returns the function that answers the requests of ask.
func evaluator[Request, Answer any](f func(*Request) (Answer, error)) func(context.Context, []byte) ([]byte, error) {
	return func(_ context.Context, data []byte) ([]byte, error) {
		request := new(Request)
		if err := json.Unmarshal(data, request); err != nil {
			return nil, err
		}
		value, err := f(request)
		if err != nil {
			return json.Marshal(&envelope{Error: newWireError(err)})
		}
		out, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		return json.Marshal(&envelope{Value: out})
	}
}

// errFetch stands for the error of a request, which the caller of Render knows.
var errFetch = errors.New("a request was not answered")

func newWireError(err error) *wireError {
	if err == nil {
		return nil
	}
	out := &wireError{Cause: err.Error(), Fetch: errors.Is(err, errFetch)}
	if e := (*Error)(nil); errors.As(err, &e) {
		out.Definition, out.Section, out.Problems, out.Cause = e.Definition, e.Section, e.Problems, ""
		if e.Cause != nil {
			out.Cause = e.Cause.Error()
		}
	}
	return out
}

func (e *wireError) error() error {
	if e == nil {
		return nil
	}
	if e.Section == "" && e.Problems == nil {
		return errors.New(e.Cause)
	}
	out := &Error{Definition: e.Definition, Section: e.Section, Problems: e.Problems}
	switch {
	case e.Fetch:
		out.Cause = errFetch
	case e.Cause != "":
		out.Cause = errors.New(e.Cause)
	}
	return out
}

func newCompileAnswer(t *evaluable) *compileAnswer {
	out := &compileAnswer{}
	if t.main != nil {
		out.Main = &wireFacts{*t.main.reads.wire(), t.main.wording.parametric, t.main.wording.words, t.main.wording.signed,
			t.main.processes}
	}
	state := inputUse{}
	for _, p := range []*program{t.health, t.message, t.details} {
		if p != nil {
			out.HasState = true
			state.add(p.reads)
		}
	}
	if out.HasState {
		out.State = state.wire()
	}
	return out
}

func (w *wireFacts) facts() (*facts, error) {
	if w == nil {
		return nil, nil
	}
	return &facts{w.Reads.reads(), stringUse{w.Parametric, w.Words, w.Signed}, w.Processes}, nil
}

func (r *inputUse) wire() *wireReads { return &wireReads{r.parameter, r.parameters, r.context} }

func (w *wireReads) reads() *inputUse {
	return &inputUse{parameter: w.Parameter, parameters: w.Parameters, context: w.Context}
}

// MarshalJSON encodes true for everything, or the fields.
func (l fieldUse) MarshalJSON() ([]byte, error) {
	if l.all {
		return []byte("true"), nil
	}
	return json.Marshal(l.fields)
}

// UnmarshalJSON decodes what MarshalJSON encodes.
func (l *fieldUse) UnmarshalJSON(data []byte) error {
	if l.all = string(data) == "true"; l.all {
		return nil
	}
	return json.Unmarshal(data, &l.fields)
}

// fetch implements Fetch with the answers that the request contains.
func (r *renderRequest) fetch(want *HTTPRequest) (map[string]any, error) {
	for _, a := range r.Answers {
		if a.Request.Method != want.Method || a.Request.URL != want.URL || a.Request.Body != want.Body ||
			!maps.Equal(a.Request.Header, want.Header) {
			continue
		}
		if a.Failed != "" {
			return nil, &answerError{a.Failed}
		}
		return decodeMap(a.Value)
	}
	return nil, &missingError{want}
}

// answerError is the error that was the answer to a request.
type answerError struct{ text string }

func (e *answerError) Error() string        { return e.text }
func (e *answerError) Is(target error) bool { return target == errFetch }

// missingError means that a request has no answer yet.
type missingError struct{ request *HTTPRequest }

func (e *missingError) Error() string { return "a request has not been answered" }

func newRenderAnswer(r *Rendered, err error) (*renderAnswer, error) {
	if missing := (*missingError)(nil); errors.As(err, &missing) {
		return &renderAnswer{Missing: missing.request}, nil
	}
	if err != nil {
		return nil, err
	}
	out := &renderAnswer{}
	if r.Workload != nil {
		out.Workload = newWireObject(r.Workload)
	}
	for i := range r.Auxiliaries {
		out.Auxiliaries = append(out.Auxiliaries, *newWireObject(&r.Auxiliaries[i]))
	}
	return out, nil
}

func newWireObject(o *Object) *wireObject {
	return &wireObject{exactly(o.Object), o.Name, o.Trait, o.TraitIndex, o.Stage, o.ControlPlaneOnly}
}

func (o *wireObject) object() (Object, error) {
	m, err := decodeMap(o.Object)
	return Object{m, o.Name, o.Trait, o.TraitIndex, o.Stage, o.ControlPlaneOnly}, err
}

func (a *renderAnswer) rendered() (*Rendered, error) {
	out := &Rendered{}
	if a.Workload != nil {
		o, err := a.Workload.object()
		if err != nil {
			return nil, err
		}
		out.Workload = &o
	}
	for i := range a.Auxiliaries {
		o, err := a.Auxiliaries[i].object()
		if err != nil {
			return nil, err
		}
		out.Auxiliaries = append(out.Auxiliaries, o)
	}
	return out, nil
}

func newStepWire(definition json.RawMessage, req *StepRequest) *stepWire {
	out := &stepWire{
		Definition: definition, Properties: string(req.Properties), Context: req.Context.Context, Step: req.Context.StepName,
		ID:          req.Context.SessionID,
		Application: exactly(req.Context.Application), Resumed: req.Resumed, Outputs: req.Outputs,
		Answers: map[string]wireReturns{},
	}
	for key, a := range req.Answers {
		out.Answers[key] = wireReturns{exactly(a.Returns), a.Wait, a.Message}
	}
	return out
}

func (w *stepWire) request() (*StepRequest, error) {
	out := &StepRequest{
		Properties: []byte(w.Properties), Context: StepContext{Context: w.Context, StepName: w.Step, SessionID: w.ID},
		Answers: map[string]Answer{}, Resumed: w.Resumed, Outputs: w.Outputs,
	}
	var err error
	if out.Context.Application, err = decodeMap(w.Application); err != nil {
		return nil, err
	}
	for key, a := range w.Answers {
		returns, err := decodeMap(a.Returns)
		if err != nil {
			return nil, err
		}
		out.Answers[key] = Answer{returns, a.Wait, a.Message}
	}
	return out, nil
}

func newStepAnswer(s *StepState, err error) *stepAnswer {
	if s == nil {
		s = &StepState{}
	}
	out := &stepAnswer{
		Outcome: s.Outcome, Key: s.Action.Key, Do: s.Action.Do, Message: s.Message, Duration: s.Duration, Logs: s.Logs,
		Outputs: s.Outputs,
		Problem: newWireError(err),
	}
	if s.Action.Params != nil {
		out.Params = exactly(s.Action.Params)
	}
	return out
}

func (a *stepAnswer) state() (*StepState, error) {
	out := &StepState{
		Outcome: a.Outcome, Action: Action{Key: a.Key, Do: a.Do}, Message: a.Message, Duration: a.Duration, Logs: a.Logs,
		Outputs: a.Outputs,
	}
	var err error
	if len(a.Params) > 0 {
		if out.Action.Params, err = decodeMap(a.Params); err != nil {
			return nil, err
		}
	}
	return out, a.Problem.error()
}

func decodeMap(data []byte) (map[string]any, error) {
	v, err := decode(data)
	if err != nil {
		return nil, err
	}
	m, _ := v.(map[string]any)
	return m, nil
}

// exactly encodes a value as JSON in which floating-point numbers have a point or an exponent.
func exactly(v any) json.RawMessage {
	var b bytes.Buffer
	writeExactly(&b, v)
	return b.Bytes()
}

func writeExactly(b *bytes.Buffer, v any) {
	switch v := v.(type) {
	case map[string]any:
		if v == nil {
			b.WriteString("null")
			return
		}
		b.WriteByte('{')
		for i, k := range slices.Sorted(maps.Keys(v)) {
			if i > 0 {
				b.WriteByte(',')
			}
			writeText(b, k)
			b.WriteByte(':')
			writeExactly(b, v[k])
		}
		b.WriteByte('}')
	case []any:
		b.WriteByte('[')
		for i, item := range v {
			if i > 0 {
				b.WriteByte(',')
			}
			writeExactly(b, item)
		}
		b.WriteByte(']')
	case string:
		writeText(b, v)
	case float64:
		text := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(text, ".e") {
			text += ".0"
		}
		b.WriteString(text)
	default:
		data, err := json.Marshal(v)
		if err != nil {
			data = []byte("null") // a value that JSON does not have
		}
		b.Write(data)
	}
}

func writeText(b *bytes.Buffer, s string) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= 0x7f {
			data, _ := json.Marshal(s) // cannot fail for a string
			b.Write(data)
			return
		}
	}
	b.WriteByte('"')
	b.WriteString(s)
	b.WriteByte('"')
}
