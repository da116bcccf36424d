package flow

import (
	"encoding/json"
	"fmt"
	"iter"
	"strings"

	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	"lockstep.dev/lockstep/internal/application/fieldpath"
)

// listMax bounds the length up to which a parameter key extends a list.
const listMax = 1025

// Input returns the value of an input: an output of a step or a part of it, or a part of the
// context.
func Input(outputs map[string]json.RawMessage, context map[string]any, from string) (any, bool) {
	if path, ok := strings.CutPrefix(from, "context."); ok {
		return fieldpath.Get(context, path)
	}
	return output(outputs, from)
}

// output returns an output, or a part of one: from is NAME or NAME.PATH.
func output(outputs map[string]json.RawMessage, from string) (any, bool) {
	for name, rest := range namesIn(from) {
		data, ok := outputs[name]
		if !ok {
			continue
		}
		var v any
		if kjson.Unmarshal(data, &v) != nil {
			return nil, false
		}
		if rest == "" {
			return v, true
		}
		return fieldpath.Get(v, rest)
	}
	return nil, false
}

// namesIn yields the ways to read from as NAME or NAME.PATH, the longest name first: the name of an
// output may contain dots.
func namesIn(from string) iter.Seq2[string, string] {
	return func(yield func(name, rest string) bool) {
		for name, rest := from, ""; yield(name, rest); {
			dot := strings.LastIndexByte(name, '.')
			if dot < 0 {
				return
			}
			name, rest = name[:dot], from[dot+1:]
		}
	}
}

// WithInputs returns properties with the values of inputs set. An input without a parameterKey is
// used in conditions only.
func WithInputs(properties []byte, inputs []oam.StepInput, value func(from string) (any, bool)) ([]byte, error) {
	var root any
	for _, in := range inputs {
		v, ok := value(in.From)
		if !ok {
			return nil, fmt.Errorf("input %s: nothing has given it", in.From)
		}
		if in.ParameterKey == "" {
			continue
		}
		if root == nil {
			root = map[string]any{}
			if len(properties) > 0 {
				if err := kjson.Unmarshal(properties, &root); err != nil {
					return nil, fmt.Errorf("properties: %w", err)
				}
			}
		}
		var err error
		if root, err = fieldpath.Set(root, in.ParameterKey, v, listMax); err != nil {
			return nil, fmt.Errorf("input %s: parameterKey %s: %w", in.From, in.ParameterKey, err)
		}
	}
	if root == nil {
		return properties, nil
	}
	return json.Marshal(root)
}
