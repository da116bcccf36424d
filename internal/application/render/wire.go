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
)

// The following types encode requests to evaluators and their answers. Users' values are JSON that
// keeps the difference between 1 and 1.0, because CUE distinguishes them: see exactMap.
type (
	compileRequest struct{ Definition json.RawMessage }

	compileAnswer struct {
		Main     *facts `json:",omitempty"`
		HasState bool
		State    inputUse // of the status section
	}

	wireUse struct {
		Definition json.RawMessage
		Properties string
	}

	renderRequest struct {
		Context Context
		// Uses are the component and its traits.
		Uses    []wireUse
		Live    json.RawMessage `json:",omitempty"`
		Answers []wireAnswer    `json:",omitempty"`
	}

	// wireAnswer is the answer to a trait's request, or the error that was returned instead.
	wireAnswer struct {
		Request HTTPRequest
		Value   exactMap
		Failed  string `json:",omitempty"`
	}

	renderAnswer struct {
		Rendered
		// Missing is a request that must be answered first.
		Missing *HTTPRequest `json:",omitempty"`
	}

	stateRequest struct {
		Definition json.RawMessage
		Looked     exactMap
		Properties string
	}

	stateAnswer struct {
		State   State
		Problem *wireError `json:",omitempty"`
	}

	stepWire struct {
		Definition json.RawMessage
		Request    *StepRequest
	}

	expressionRequest struct {
		Expression string
		Values     exactMap
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
		out.Main = &t.main.facts
	}
	for _, p := range []*program{t.health, t.message, t.details} {
		if p != nil {
			out.HasState = true
			out.State.add(p.Reads)
		}
	}
	return out
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
		if a.Request.Chart != want.Chart || a.Request.Method != want.Method || a.Request.URL != want.URL || a.Request.Body != want.Body ||
			!maps.Equal(a.Request.Header, want.Header) {
			continue
		}
		if a.Failed != "" {
			return nil, &answerError{a.Failed}
		}
		return a.Value, nil
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
	return &renderAnswer{Rendered: *r}, nil
}

// exactMap is an object of decoded JSON. Its JSON keeps the difference between 1 and 1.0.
type exactMap map[string]any

// MarshalJSON encodes m by exactly.
func (m exactMap) MarshalJSON() ([]byte, error) { return exactly(m), nil }

// UnmarshalJSON decodes whole numbers as int64.
func (m *exactMap) UnmarshalJSON(data []byte) (err error) {
	*m, err = decodeMap(data)
	return err
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
func exactly(v map[string]any) []byte {
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
