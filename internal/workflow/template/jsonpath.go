package template

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/theory/jsonpath"
	"github.com/theory/jsonpath/spec"
)

// pathStepsMax bounds the steps of a path, and so the recursion over them.
const pathStepsMax = 256

// pathStep is one step of a JSON path.
type pathStep struct {
	descend   bool // "..": the selectors apply to the value and to everything below it
	selectors []spec.Selector
}

// jsonPath returns the values at a path in a JSON text: one value for a path of names and indices, a
// list for a path with "..", *, a slice, a union or a filter. An index after a slice, a union or a
// filter picks one value of their list.
//
// What is in brackets is parsed and evaluated as RFC 9535 says, by a library. The walk is here,
// because the library visits maps in random order and knows neither names with dashes nor such an
// index.
func jsonPath(args []any) (any, error) {
	s, err := strs(args, 2, 2)
	if err != nil {
		return nil, err
	}
	var root any
	if err := json.Unmarshal([]byte(s[0]), &root); err != nil {
		return nil, err
	}
	steps, err := parsePath(s[1])
	if err != nil {
		return nil, err
	}
	found := find(steps, root, root)
	if findsMany(steps) {
		return append([]any{}, found...), nil
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("path %.100q finds nothing", s[1])
	}
	return found[0], nil
}

// pathName is a step that is not in brackets: .name, .*, ..name or ..*
var pathName = regexp.MustCompile(`^(\.\.?)(\*|[^.\[\]]+)`)

func parsePath(path string) ([]pathStep, error) {
	rest, ok := strings.CutPrefix(path, "$")
	if !ok {
		return nil, fmt.Errorf("path %.100q does not start with $", path)
	}
	var steps []pathStep
	for rest != "" {
		if len(steps) == pathStepsMax {
			return nil, fmt.Errorf("path %.100q has more than %d steps", path, pathStepsMax)
		}
		if m := pathName.FindStringSubmatch(rest); m != nil {
			rest = rest[len(m[0]):]
			selector := spec.Selector(spec.Name(m[2]))
			if m[2] == "*" {
				selector = spec.Wildcard()
			}
			steps = append(steps, pathStep{m[1] == "..", []spec.Selector{selector}})
			continue
		}
		dots := len(rest) - len(strings.TrimLeft(rest, "."))
		end := dots + bracketBytes(rest[dots:])
		if dots > 2 || end == dots {
			return nil, fmt.Errorf("path %.100q: %.100q is not understood", path, rest)
		}
		parsed, err := jsonpath.Parse("$" + rest[dots:end])
		if err != nil {
			return nil, fmt.Errorf("path %.100q: %.100q: %w", path, rest[dots:end], err)
		}
		selectors := slices.Clone(parsed.Query().Segments()[0].Selectors())
		steps = append(steps, pathStep{dots == 2, inOrder(selectors)})
		rest = rest[end:]
	}
	return steps, nil
}

// bracketBytes returns the length of the brackets that text begins with, or 0 if there are none.
func bracketBytes(text string) int {
	if !strings.HasPrefix(text, "[") {
		return 0
	}
	depth := 0
	for i, c := range unquoted(text) {
		switch c {
		case '[':
			depth++
		case ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// inOrder sorts the names of a union that consists of names: their values come in the order of the
// names, each once, as in Argo.
func inOrder(selectors []spec.Selector) []spec.Selector {
	for _, s := range selectors {
		if _, is := s.(spec.Name); !is {
			return selectors
		}
	}
	slices.SortFunc(selectors, func(a, b spec.Selector) int {
		return strings.Compare(string(a.(spec.Name)), string(b.(spec.Name)))
	})
	return slices.Compact(selectors)
}

// find returns the values that the steps select from a value.
func find(steps []pathStep, value, root any) []any {
	if len(steps) == 0 {
		return []any{value}
	}
	selected, rest := steps[0].from(value, root), steps[1:]
	if picksOne(steps) {
		selected, rest = rest[0].from(selected, root), rest[1:]
	}
	var found []any
	for _, v := range selected {
		found = append(found, find(rest, v, root)...)
	}
	return found
}

// findsMany reports whether the steps select a list.
func findsMany(steps []pathStep) bool {
	for ; len(steps) > 0; steps = steps[1:] {
		switch {
		case picksOne(steps):
			steps = steps[1:]
		case !steps[0].single():
			return true
		}
	}
	return false
}

// picksOne reports whether the second step is an index into the list that the first one gives.
func picksOne(steps []pathStep) bool {
	if len(steps) < 2 || steps[0].descend || !steps[1].single() {
		return false
	}
	_, isIndex := steps[1].selectors[0].(spec.Index)
	_, isWildcard := steps[0].selectors[0].(spec.WildcardSelector)
	return isIndex && !steps[0].single() && (!isWildcard || len(steps[0].selectors) > 1)
}

// single reports whether a step selects one value at most.
func (s pathStep) single() bool {
	if s.descend || len(s.selectors) > 1 {
		return false
	}
	switch s.selectors[0].(type) {
	case spec.Name, spec.Index:
		return true
	}
	return false
}

func (s pathStep) from(value, root any) []any {
	values := []any{value}
	for i := 0; s.descend && i < len(values); i++ { // grows by the children of each value
		values = append(values, children(values[i])...)
	}
	var out []any
	for _, v := range values {
		for _, selector := range s.selectors {
			out = append(out, choose(selector, v, root)...)
		}
	}
	return out
}

// choose returns the children of a value that a selector selects.
func choose(selector spec.Selector, value, root any) []any {
	switch s := selector.(type) {
	case spec.Name:
		return child(value, string(s))
	case spec.Index:
		return child(value, strconv.Itoa(int(s)))
	case spec.WildcardSelector:
		return children(value)
	case *spec.FilterSelector:
		var out []any
		for _, c := range children(value) {
			if s.Eval(c, root) {
				out = append(out, c)
			}
		}
		return out
	}
	return selector.Select(value, root)
}

// children returns the elements of a list, or the values of a map in the order of their keys.
func children(v any) []any {
	switch v := v.(type) {
	case []any:
		return v
	case map[string]any:
		out := make([]any, 0, len(v))
		for _, key := range slices.Sorted(maps.Keys(v)) {
			out = append(out, v[key])
		}
		return out
	}
	return nil
}

// child returns the value of a map or the element of a list, if it exists.
func child(v any, key string) []any {
	switch v := v.(type) {
	case map[string]any:
		if c, ok := v[key]; ok {
			return []any{c}
		}
	case []any:
		i, err := strconv.Atoi(key)
		if i < 0 {
			i += len(v)
		}
		if err == nil && i >= 0 && i < len(v) {
			return []any{v[i]}
		}
	}
	return nil
}
