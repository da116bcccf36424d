// Package fieldpath reads and writes values at paths in decoded JSON.
package fieldpath

import (
	"fmt"
	"strconv"
	"strings"
)

// split splits a path such as a.b[0]["c.d"] into its parts.
func split(path string) []string {
	var out []string
	for path != "" {
		switch path[0] {
		case '.':
			path = path[1:]
		case '[':
			end := strings.IndexByte(path, ']')
			if end < 0 {
				return append(out, path)
			}
			out = append(out, strings.Trim(path[1:end], `"'`))
			path = path[end+1:]
		case '"':
			end := strings.IndexByte(path[1:], '"')
			if end < 0 {
				return append(out, path)
			}
			out = append(out, path[1:end+1])
			path = path[end+2:]
		default:
			end := strings.IndexAny(path, ".[")
			if end < 0 {
				end = len(path)
			}
			out = append(out, path[:end])
			path = path[end:]
		}
	}
	return out
}

// Get returns the value at a path of v, or false if there is none.
func Get(v any, path string) (any, bool) {
	for _, part := range split(path) {
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

// Set returns v with value at a path. It changes v, creates missing maps, and creates and extends
// lists up to listMax items.
func Set(v any, path string, value any, listMax int) (any, error) {
	return set(v, split(path), value, listMax)
}

func set(v any, path []string, value any, listMax int) (any, error) {
	if len(path) == 0 {
		return value, nil
	}
	i, err := strconv.Atoi(path[0])
	if list, ok := v.([]any); err == nil && (ok || v == nil && listMax > 0) {
		if i < 0 || i >= max(len(list), listMax) {
			return nil, fmt.Errorf("index %d is out of range", i)
		}
		for len(list) <= i {
			list = append(list, nil)
		}
		item, err := set(list[i], path[1:], value, listMax)
		if err != nil {
			return nil, err
		}
		list[i] = item
		return list, nil
	}
	object, ok := v.(map[string]any)
	if !ok && v != nil {
		return nil, fmt.Errorf("%s is inside what is neither a struct nor a list", path[0])
	}
	if object == nil {
		object = map[string]any{}
	}
	item, err := set(object[path[0]], path[1:], value, listMax)
	if err != nil {
		return nil, err
	}
	object[path[0]] = item
	return object, nil
}
