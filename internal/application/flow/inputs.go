package flow

import (
	"encoding/json"
	"fmt"
	"iter"
	"strconv"
	"strings"

	kjson "k8s.io/apimachinery/pkg/util/json"

	oam "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
)

// indexMax bounds list indexes in parameter keys, because a list is extended up to the index.
const indexMax = 1024

// Input returns the value of an input: an output of a step or a part of it, or a part of the
// context.
func Input(outputs map[string]json.RawMessage, context map[string]any, from string) (any, bool) {
	if path, ok := strings.CutPrefix(from, "context."); ok {
		return lookup(context, path)
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
		return lookup(v, rest)
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
		if root, err = put(root, path(in.ParameterKey), v); err != nil {
			return nil, fmt.Errorf("input %s: parameterKey %s: %w", in.From, in.ParameterKey, err)
		}
	}
	if root == nil {
		return properties, nil
	}
	return json.Marshal(root)
}

// path splits a.b[0]["c.d"] into its parts.
func path(s string) []string {
	var out []string
	for s != "" {
		switch s[0] {
		case '.':
			s = s[1:]
		case '[':
			end := strings.IndexByte(s, ']')
			if end < 0 {
				return append(out, s)
			}
			out = append(out, strings.Trim(s[1:end], `"'`))
			s = s[end+1:]
		case '"':
			end := strings.IndexByte(s[1:], '"')
			if end < 0 {
				return append(out, s)
			}
			out = append(out, s[1:end+1])
			s = s[end+2:]
		default:
			end := strings.IndexAny(s, ".[")
			if end < 0 {
				end = len(s)
			}
			out = append(out, s[:end])
			s = s[end:]
		}
	}
	return out
}

// lookup returns the value at a path of v, or false if there is none.
func lookup(v any, at string) (any, bool) {
	for _, part := range path(at) {
		switch x := v.(type) {
		case map[string]any:
			var ok bool
			if v, ok = x[part]; !ok {
				return nil, false
			}
		case []any:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(x) {
				return nil, false
			}
			v = x[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// put returns v with value at a path. It creates missing maps and lists.
func put(v any, at []string, value any) (any, error) {
	if len(at) == 0 {
		return value, nil
	}
	i, err := strconv.Atoi(at[0])
	if list, ok := v.([]any); err == nil && (ok || v == nil) {
		if i < 0 || i > indexMax {
			return nil, fmt.Errorf("index %d is out of range", i)
		}
		for len(list) <= i {
			list = append(list, nil)
		}
		list[i], err = put(list[i], at[1:], value)
		return list, err
	}
	object, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, fmt.Errorf("%s is inside what is neither a struct nor a list", at[0])
	}
	if object == nil {
		object = map[string]any{}
	}
	object[at[0]], err = put(object[at[0]], at[1:], value)
	return object, err
}
