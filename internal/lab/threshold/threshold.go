package threshold

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"
)

// Threshold is a condition under which a run fails.
type Threshold struct {
	// Figure is the path of the figure in the JSON of a run, with dots between names.
	Figure string
	// Op is <, <=, >, >=, == or !=.
	Op    string
	Bound float64
}

var form = regexp.MustCompile(`^\s*([^\s<>=!]+)\s*(<=|>=|==|!=|<|>)\s*(\S+)\s*$`)

// Parse parses FIGURE OP NUMBER.
func Parse(text string) (Threshold, error) {
	m := form.FindStringSubmatch(text)
	if m == nil {
		return Threshold{}, fmt.Errorf("%q: want a figure, one of < <= > >= == !=, and a number, for example ratioToFloor>1.2", text)
	}
	bound, err := strconv.ParseFloat(m[3], 64)
	if err != nil {
		return Threshold{}, fmt.Errorf("%q: %q is no number", text, m[3])
	}
	return Threshold{m[1], m[2], bound}, nil
}

func (t Threshold) String() string { return fmt.Sprintf("%s%s%v", t.Figure, t.Op, t.Bound) }

// Check returns an error if runs of a type have no such figure.
func (t Threshold) Check(run reflect.Type) error {
	kind, rest := run, t.Figure
	for rest != "" {
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if kind.Kind() == reflect.Map {
			return nil // its keys are not known before
		}
		name, after, _ := strings.Cut(rest, ".")
		fields := map[string]reflect.Type{}
		if kind.Kind() == reflect.Struct {
			collect(kind, fields)
		}
		next, ok := fields[name]
		if !ok {
			return fmt.Errorf("%s: there is no figure %q", t, t.Figure)
		}
		kind, rest = next, after
	}
	for kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	switch kind.Kind() {
	case reflect.Struct, reflect.String:
		return fmt.Errorf("%s: %q is no number", t, t.Figure)
	}
	return nil
}

// collect returns the fields of a struct, and of those that it embeds, by their names in JSON.
func collect(kind reflect.Type, into map[string]reflect.Type) {
	for i := range kind.NumField() {
		f := kind.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous && name == "" {
			collect(f.Type, into)
			continue
		}
		if name != "" && name != "-" {
			into[name] = f.Type
		}
	}
}

// Value returns a figure of a run by its name; ok is false if the run does not have it.
func Value(run any, figure string) (x float64, ok bool, err error) {
	data, err := json.Marshal(run)
	if err != nil {
		return 0, false, err
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		return 0, false, err
	}
	value, _ := find(object, figure)
	x, ok = number(value)
	return x, ok, nil
}

// Crossed returns why a run fails, or "". A figure that the run does not have fails it: a bound that
// cannot be checked does not hold. Of lists and objects the length counts.
func (t Threshold) Crossed(run any) (why string, err error) {
	data, err := json.Marshal(run)
	if err != nil {
		return "", err
	}
	var object map[string]any
	if err := json.Unmarshal(data, &object); err != nil {
		return "", err
	}
	value, found := find(object, t.Figure)
	x, ok := number(value)
	if !found || value == nil {
		x, ok = t.absent(reflect.TypeOf(run))
	}
	if !ok {
		return fmt.Sprintf("%s cannot be checked: the run has no %s", t, t.Figure), nil
	}
	if !t.holds(x) {
		return "", nil
	}
	return fmt.Sprintf("%s is %v: %s", t.Figure, x, t), nil
}

func (t Threshold) holds(x float64) bool {
	switch t.Op {
	case "<":
		return x < t.Bound
	case "<=":
		return x <= t.Bound
	case ">":
		return x > t.Bound
	case ">=":
		return x >= t.Bound
	case "==":
		return x == t.Bound
	}
	return x != t.Bound
}

// absent returns the value of a figure that the JSON leaves out or has as null. A list that is left
// out is empty, and so is a count in a map. A number may be left out because it was not measured.
func (t Threshold) absent(kind reflect.Type) (float64, bool) {
	for rest := t.Figure; rest != ""; {
		for kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if kind.Kind() != reflect.Struct {
			break
		}
		fields := map[string]reflect.Type{}
		collect(kind, fields)
		name, after, _ := strings.Cut(rest, ".")
		kind, rest = fields[name], after
		if kind == nil {
			return 0, false
		}
	}
	return 0, kind.Kind() == reflect.Map || kind.Kind() == reflect.Slice
}

// find returns the value under a path. Keys may have dots themselves.
func find(object map[string]any, path string) (any, bool) {
	if v, ok := object[path]; ok {
		return v, true
	}
	for i := range path {
		if path[i] != '.' {
			continue
		}
		if inner, ok := object[path[:i]].(map[string]any); ok {
			if v, ok := find(inner, path[i+1:]); ok {
				return v, true
			}
		}
	}
	return nil, false
}

func number(v any) (float64, bool) {
	switch v := v.(type) {
	case float64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case []any:
		return float64(len(v)), true
	case map[string]any:
		return float64(len(v)), true
	}
	return 0, false
}
