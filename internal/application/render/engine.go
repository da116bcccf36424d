package render

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
)

// Run sends a request to the evaluator of that name, in another process or in this one (InProcess),
// and returns the evaluator's answer or an error.
type Run = func(evaluator string, request []byte) ([]byte, error)

// Names of the evaluators.
const (
	evaluatorCompile    = "cue.compile"
	evaluatorRender     = "cue.render"
	evaluatorState      = "cue.state"
	evaluatorStep       = "cue.step"
	evaluatorCondition  = "cue.condition"
	evaluatorValue      = "cue.value"
	evaluatorParameters = "cue.parameters"
)

// compiledMax is the number of compiled definitions that an engine caches.
const compiledMax = 256

// Engine evaluates CUE. It caches compiled definitions by their content. An Engine is safe for
// concurrent use.
type Engine struct {
	mu       sync.Mutex
	compiled map[string]*evaluable
}

// evaluable is a compiled definition.
type evaluable struct {
	def *Definition

	main, health, message, details *program
}

// evaluated is a compiled definition with the properties that a user gave for it.
type evaluated struct {
	template   *evaluable
	properties []byte
}

// NewEngine returns a new Engine.
func NewEngine() *Engine { return &Engine{compiled: map[string]*evaluable{}} }

// InProcess returns a Run that evaluates in this process, without limits. Use it only in programs
// whose users evaluate their own definitions.
func InProcess() Run {
	table := NewEngine().Evaluators()
	return func(evaluator string, request []byte) ([]byte, error) {
		f := table[evaluator]
		if f == nil {
			return nil, fmt.Errorf("there is no evaluator %s", evaluator)
		}
		return f(context.Background(), request)
	}
}

// Evaluators returns the engine's evaluators by the names that callers of Run use.
func (e *Engine) Evaluators() map[string]func(context.Context, []byte) ([]byte, error) {
	return map[string]func(context.Context, []byte) ([]byte, error){
		evaluatorCompile: evaluator(func(req *compileRequest) (*compileAnswer, error) {
			t, err := e.template(req.Definition)
			if err != nil {
				return nil, err
			}
			return newCompileAnswer(t), nil
		}),
		evaluatorRender: evaluator(func(req *renderRequest) (*renderAnswer, error) {
			out, err := e.render(req)
			return newRenderAnswer(out, err)
		}),
		evaluatorState: evaluator(func(req *stateRequest) (*stateAnswer, error) {
			t, err := e.template(req.Definition)
			if err != nil {
				return nil, err
			}
			state, err := t.stateOf(req.Looked, []byte(req.Properties))
			return &stateAnswer{state, newWireError(err)}, nil
		}),
		evaluatorStep: evaluator(func(req *stepWire) (*StepState, error) {
			t, err := e.template(req.Definition)
			if err != nil {
				return nil, err
			}
			return t.step(req.Request)
		}),
		evaluatorCondition: evaluator(func(req *expressionRequest) (bool, error) {
			return evaluateCondition(req.Expression, req.Values)
		}),
		evaluatorValue: evaluator(func(req *expressionRequest) (json.RawMessage, error) {
			return evaluateValue(req.Expression, req.Values)
		}),
		evaluatorParameters: evaluator(func(req *compileRequest) ([]Parameter, error) {
			t, err := e.template(req.Definition)
			if err != nil {
				return nil, err
			}
			return t.parameters()
		}),
		evaluatorFiles: evaluator(evaluateFiles),
		evaluatorFile: evaluator(func(req *Source) (map[string]any, error) {
			return ParseFile(req.Name, []byte(req.Text), nil)
		}),
	}
}

// template returns a compiled definition, from the cache if possible.
func (e *Engine) template(definition json.RawMessage) (*evaluable, error) {
	key := string(definition)
	e.mu.Lock()
	t := e.compiled[key]
	e.mu.Unlock()
	if t != nil {
		return t, nil
	}
	d := &Definition{}
	if err := json.Unmarshal(definition, d); err != nil {
		return nil, err
	}
	t, err := compile(d)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.compiled) >= compiledMax {
		clear(e.compiled)
	}
	e.compiled[key] = t
	return t, nil
}

// compile compiles a definition. Its errors are of type *Error.
func compile(d *Definition) (*evaluable, error) {
	t := &evaluable{def: d}
	for _, part := range []struct {
		section, source string
		into            **program
	}{
		{"template", d.Template, &t.main},
		{"healthPolicy", d.Health.HealthPolicy, &t.health},
		{"customStatus", d.Health.CustomStatus, &t.message},
		{"details", d.Health.Details, &t.details},
	} {
		if strings.TrimSpace(part.source) == "" {
			continue
		}
		p, err := compileProgram(d, part.section, part.source)
		if err != nil {
			return nil, err
		}
		*part.into = p
	}
	return t, nil
}
