package template

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/expr-lang/expr"
	"github.com/expr-lang/expr/vm"
)

// Run sends a request to the evaluator of that name and returns its answer. The evaluator runs in a
// separate process, or in this one (InProcess).
type Run = func(evaluator string, request []byte) ([]byte, error)

// Runner is the name under which a scope holds, as a Typed value, the Run for expressions that are
// not cheap. Without a Run such an expression is an error.
const Runner = "run()"

// Names of the evaluators.
const (
	evaluatorExpression = "workflow.expression"
	evaluatorCondition  = "workflow.condition"
)

// RunnerOf returns the Run that a scope holds, or nil.
func RunnerOf(scope Scope) Run {
	v, _ := scope.Lookup(Runner)
	run, _ := v.Typed.(Run)
	return run
}

var errNoRunner = errors.New("it cannot be evaluated here")

// InProcess returns a Run that evaluates in this process, without limits. It is for programs that
// evaluate only the expressions of the user who runs them.
func InProcess() Run {
	table := Evaluators()
	return func(evaluator string, request []byte) ([]byte, error) {
		f := table[evaluator]
		if f == nil {
			return nil, fmt.Errorf("there is no evaluator %s", evaluator)
		}
		return f(context.Background(), request)
	}
}

// Evaluators returns the evaluators by name.
func Evaluators() map[string]func(context.Context, []byte) ([]byte, error) {
	e := &evaluator{programs: map[string]*vm.Program{}}
	return map[string]func(context.Context, []byte) ([]byte, error){
		evaluatorExpression: func(_ context.Context, request []byte) ([]byte, error) {
			var q question
			if err := json.Unmarshal(request, &q); err != nil {
				return nil, err
			}
			answer, err := e.answer(&q)
			return []byte(answer), err
		},
		evaluatorCondition: func(_ context.Context, request []byte) ([]byte, error) {
			proceed, err := decide(string(request))
			return strconv.AppendBool(nil, proceed), err
		},
	}
}

// Values of question.As.
const (
	asText  = "text"
	asBool  = "bool"
	asCheck = "check" // check only whether the expression compiles
)

// question is a request to evaluate an expression.
type question struct {
	Source string          `json:"source"`
	As     string          `json:"as"`
	Vars   json.RawMessage `json:"vars,omitempty"` // encoded by appendValue
	Calls  []string        `json:"calls,omitempty"`
	Now    *time.Time      `json:"now,omitempty"`
	Seed   string          `json:"seed,omitempty"`
}

// evaluator evaluates any expression. It caches compiled programs.
type evaluator struct {
	mu       sync.Mutex
	programs map[string]*vm.Program
}

// programsMax bounds the cache of an evaluator.
const programsMax = 256

func (e *evaluator) answer(q *question) (string, error) {
	program, err := e.program(q.Source)
	if err != nil || q.As == asCheck {
		return "", err
	}
	vars, err := readValue(q.Vars)
	if err != nil {
		return "", err
	}
	env, ok := vars.(map[string]any)
	if !ok {
		return "", fmt.Errorf("the variables are a %T", vars)
	}
	var m *moment
	if q.Now != nil {
		m = newMoment(*q.Now, q.Seed, q.Source)
	}
	return runProgram(program, q.Source, q.As, env, q.Calls, m)
}

func (e *evaluator) program(source string) (*vm.Program, error) {
	e.mu.Lock()
	program := e.programs[source]
	e.mu.Unlock()
	if program != nil {
		return program, nil
	}
	program, err := compileProgram(source)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.programs) >= programsMax {
		clear(e.programs)
	}
	e.programs[source] = program
	return program, nil
}

// disabled are the built-in functions that read a clock or that ownFuncs replaces.
var disabled = []string{"now", "repeat", "replace", "join", "uniq"}

func compileProgram(source string) (*vm.Program, error) {
	options := []expr.Option{
		expr.Env(map[string]any{}), expr.AllowUndefinedVariables(),
		expr.Optimize(false), // optimizing would evaluate parts of the expression
	}
	for _, name := range disabled {
		options = append(options, expr.DisableBuiltin(name))
	}
	program, err := expr.Compile(source, options...)
	if err != nil {
		return nil, errors.New(firstLine(err))
	}
	return program, nil
}

// runProgram runs a program with the variables env, to which it adds the called functions. As text, a
// value that is not a string is written as JSON.
func runProgram(program *vm.Program, source, as string, env map[string]any, calls []string, m *moment) (string, error) {
	bindFunctions(env, calls, m)
	value, err := vm.Run(program, env)
	if err != nil {
		return "", errors.New(firstLine(err))
	}
	if as == asBool {
		result, ok := value.(bool)
		if !ok {
			return "", fmt.Errorf("expression %q gives %T, not a boolean", source, value)
		}
		return strconv.FormatBool(result), nil
	}
	switch v := value.(type) {
	case nil:
		return "", errors.New("expression has no value")
	case string:
		return v, nil
	}
	out, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("expression gives a %T: %w", value, err)
	}
	var text string
	if json.Unmarshal(out, &text) == nil { // a time
		return text, nil
	}
	return string(out), nil
}

// Bounds of the variables passed to one expression.
const (
	varsBytesMax = 8 << 20
	valueDepth   = 500
)

var errVars = fmt.Errorf("the variables of an expression are over %d bytes, or nested deeper than %d", varsBytesMax,
	valueDepth)

// appendValue appends a value as JSON that preserves types: an integer is a number, a float is
// {"float": text}, a time is {"time": text}, and the keys of maps have a dot as prefix.
func appendValue(out []byte, value any, depth int) ([]byte, error) {
	if depth > valueDepth || len(out) > varsBytesMax {
		return nil, errVars
	}
	switch v := value.(type) {
	case nil:
		return append(out, "null"...), nil
	case bool:
		return strconv.AppendBool(out, v), nil
	case string:
		return appendText(out, v), nil
	case int:
		return strconv.AppendInt(out, int64(v), 10), nil
	case int32:
		return strconv.AppendInt(out, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(out, v, 10), nil
	case float64:
		return fmt.Appendf(out, `{"float":%q}`, strconv.FormatFloat(v, 'g', -1, 64)), nil
	case time.Time:
		return fmt.Appendf(out, `{"time":%q}`, v.Format(time.RFC3339Nano)), nil
	case []any:
		out = append(out, '[')
		for i, item := range v {
			if i > 0 {
				out = append(out, ',')
			}
			var err error
			if out, err = appendValue(out, item, depth+1); err != nil {
				return nil, err
			}
		}
		return append(out, ']'), nil
	case map[string]any:
		out = append(out, '{')
		for key, item := range v {
			if out[len(out)-1] != '{' {
				out = append(out, ',')
			}
			out = append(appendText(out, "."+key), ':')
			var err error
			if out, err = appendValue(out, item, depth+1); err != nil {
				return nil, err
			}
		}
		return append(out, '}'), nil
	case map[string]string:
		whole := make(map[string]any, len(v))
		for key, item := range v {
			whole[key] = item
		}
		return appendValue(out, whole, depth)
	}
	return nil, fmt.Errorf("a %T cannot be a variable of an expression", value)
}

func appendText(out []byte, text string) []byte {
	quoted, _ := json.Marshal(text)
	return append(out, quoted...)
}

// readValue decodes the output of appendValue.
func readValue(data json.RawMessage) (any, error) {
	from := json.NewDecoder(bytes.NewReader(data))
	from.UseNumber()
	var value any
	if err := from.Decode(&value); err != nil {
		return nil, err
	}
	return typedValue(value)
}

func typedValue(value any) (any, error) {
	switch v := value.(type) {
	case json.Number:
		n, err := v.Int64()
		return int(n), err
	case []any:
		for i := range v {
			var err error
			if v[i], err = typedValue(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		if text, is := v["float"].(string); is {
			return strconv.ParseFloat(text, 64)
		}
		if text, is := v["time"].(string); is {
			return time.Parse(time.RFC3339Nano, text)
		}
		out := make(map[string]any, len(v))
		for key, item := range v {
			typed, err := typedValue(item)
			if err != nil {
				return nil, err
			}
			out[key[1:]] = typed
		}
		return out, nil
	}
	return value, nil
}
