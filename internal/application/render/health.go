package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"cuelang.org/go/cue"
)

// Live is the input of a definition's status section.
type Live struct {
	Context    Context
	Properties []byte
	// Output is the live workload, in JSON. Outputs has the live auxiliary objects by their names
	// in outputs. Objects that do not exist are missing.
	Output  []byte
	Outputs map[string][]byte
	// Run evaluates. If nil, the Run that compiled the definition is used.
	Run Run
}

// State is the state that a definition's status section reports.
type State struct {
	Healthy bool
	Message string
	Details map[string]string
}

// HasState reports whether the definition has a status section.
func (t *Template) HasState() bool { return t.hasState }

// State evaluates the definition's status section. Without a health policy, the state is healthy.
// If the section cannot be evaluated, which is usual before objects have a status, the state is not
// healthy and its message is empty; the error says why.
func (t *Template) State(live *Live) (State, error) {
	s := State{Healthy: true}
	if !t.HasState() {
		return s, nil
	}
	// Send only what the section reads: fields that differ between objects, such as names, are
	// rarely read.
	looked, err := t.states.reads.Context.live(live)
	if err != nil {
		return State{}, fmt.Errorf("a live object: %w", err)
	}
	var properties []byte
	if t.states.reads.Parameter {
		properties = live.Properties
	}
	request := &stateRequest{t.wire, looked, string(properties)}
	key := memoKey(exactly(looked), properties)
	if known, ok := t.states.get(key); ok {
		return known.state, known.err
	}
	run := live.Run
	if run == nil {
		run = t.run
	}
	var answer stateAnswer
	if err := ask(run, evaluatorState, request, &answer); err != nil {
		return State{}, err // an error of the evaluator, which may be temporary
	}
	err = answer.Problem.error()
	t.states.put(key, answer.State, err)
	return answer.State, err
}

// stateOf evaluates the status section.
func (t *evaluable) stateOf(values map[string]any, properties []byte) (State, error) {
	s := State{Healthy: true}
	inputs := map[string]any{"context": values}
	if len(properties) > 0 {
		inputs["parameter"] = properties
	}
	var failed error
	// Each part may use the results of earlier parts: health uses details, the message uses both.
	status := map[string]any{}
	values = maps.Clone(values)
	values["status"] = status
	inputs["context"] = values
	if t.details != nil {
		s.Details, status["details"], failed = t.evaluateDetails(inputs)
	}
	if t.health != nil {
		err := t.health.evaluate(inputs, func(_ *instance, v cue.Value) (err error) {
			s.Healthy, err = v.LookupPath(cue.ParsePath("isHealth")).Bool()
			return err
		})
		if err != nil {
			s.Healthy = false
			if failed == nil {
				failed = err
			}
		}
	}
	status["healthy"] = s.Healthy
	if t.message != nil {
		err := t.message.evaluate(inputs, func(_ *instance, v cue.Value) (err error) {
			s.Message, err = v.LookupPath(cue.ParsePath("message")).String()
			return err
		})
		if err != nil && failed == nil {
			failed = err
		}
	}
	return s, failed
}

// evaluateDetails returns the fields to show, and all fields, which the message may use. Fields are
// not shown if they begin with $, carry @local() or @private(), or have names of more than 32
// bytes.
func (t *evaluable) evaluateDetails(inputs map[string]any) (shown map[string]string, all map[string]any, _ error) {
	all = map[string]any{}
	err := t.details.evaluate(inputs, func(_ *instance, v cue.Value) error {
		fields, err := v.Fields()
		if err != nil {
			return err
		}
		for fields.Next() {
			name := fields.Selector().Unquoted()
			if name == "context" || name == "parameter" {
				continue
			}
			value, err := plain(fields.Value())
			if err != nil {
				continue // not known yet
			}
			all[name] = value
			if strings.HasPrefix(name, "$") || private(fields.Value()) || len(name) > 32 {
				continue
			}
			if shown == nil {
				shown = map[string]string{}
			}
			shown[name] = text(value)
		}
		return nil
	})
	return shown, all, err
}

// private reports whether a field has an attribute that hides it.
func private(v cue.Value) bool {
	for _, a := range v.Attributes(cue.FieldAttr) {
		if a.Name() == "local" || a.Name() == "private" {
			return true
		}
	}
	return false
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case map[string]any, []any:
		data, err := json.Marshal(v)
		if err != nil {
			return ""
		}
		return string(data)
	}
	return fmt.Sprint(v)
}
