package render

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"

	"cuelang.org/go/cue"
)

// Live is what a definition's status section looks at.
type Live struct {
	Context    Context
	Properties []byte
	// Output is the workload as it is in the cluster, in JSON; Outputs are the auxiliary objects by their names in outputs. What
	// does not exist is absent.
	Output  []byte
	Outputs map[string][]byte
	// Run evaluates; nil for the one that has compiled the definition.
	Run Run
}

// State is what a definition says of what it made.
type State struct {
	Healthy bool
	Message string
	Details map[string]string
}

// HasState says whether the definition has a status section.
func (t *Template) HasState() bool { return t.hasState }

// State evaluates the definition's status section. A definition that does not say what healthy is, is healthy. When the
// section cannot be evaluated, which is usual before objects have a status, the state is not healthy and the message
// is empty; the error says why.
func (t *Template) State(live *Live) (State, error) {
	s := State{Healthy: true}
	if !t.HasState() {
		return s, nil
	}
	// Only what the section looks at: what differs from one object to the next, as their names do, seldom matters.
	looked, err := t.states.reads.context.live(live)
	if err != nil {
		return State{}, fmt.Errorf("a live object: %w", err)
	}
	var properties []byte
	if t.states.reads.parameter {
		properties = live.Properties
	}
	request := &stateRequest{t.wire, exactly(looked), string(properties)}
	key := memoKey(request.Looked, properties)
	if known, ok := t.states.get(key); ok {
		return known.state, known.err
	}
	run := live.Run
	if run == nil {
		run = t.run
	}
	var answer stateAnswer
	if err := ask(run, evaluatorState, request, &answer); err != nil {
		return State{}, err // the evaluators', and perhaps not for long
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
	// Each may use what those before it have found: the health the details, and the message both.
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

// evaluateDetails returns the fields that are shown, and those that the message may use: fields that begin with $, or
// carry @local() or @private(), are not shown.
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
