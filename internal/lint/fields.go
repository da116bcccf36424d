package lint

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/spelling"
)

var (
	parallelSteps = reflect.TypeFor[wf.ParallelSteps]()
	workflowStep  = reflect.TypeFor[wf.WorkflowStep]()
	objectMeta    = reflect.TypeFor[metav1.ObjectMeta]()
	container     = reflect.TypeFor[corev1.Container]()
	unmarshaler   = reflect.TypeFor[json.Unmarshaler]()
)

// fields reports the differences between a node and the type that it will be decoded into.
func (l *linter) fields(n *yaml.Node, t reflect.Type, path string, depth int) {
	n = target(n)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case n == nil || n.Tag == "!!null":
		return
	case depth > maxDepth:
		l.add(n.Line, "%s: is nested deeper than %d", path, maxDepth)
		return
	case t == parallelSteps: // a list of steps, or one step
		if n.Kind == yaml.SequenceNode {
			t = reflect.SliceOf(workflowStep)
		} else {
			t = workflowStep
		}
	case reflect.PointerTo(t).Implements(unmarshaler):
		return // the type reports errors when it is decoded
	}
	switch t.Kind() {
	case reflect.Struct:
		l.object(n, t, path, depth)
	case reflect.Slice, reflect.Array:
		if t.Elem().Kind() == reflect.Uint8 {
			return
		}
		if n.Kind != yaml.SequenceNode {
			l.add(n.Line, "%s: want a list, not %s", path, describe(n))
			return
		}
		for i, item := range n.Content {
			l.fields(item, t.Elem(), fmt.Sprintf("%s[%d]", path, i), depth+1)
		}
	case reflect.Map:
		if n.Kind != yaml.MappingNode {
			l.add(n.Line, "%s: want fields, not %s", path, describe(n))
			return
		}
		l.twice(n, path)
		for i := 0; i+1 < len(n.Content); i += 2 {
			l.fields(n.Content[i+1], t.Elem(), join(path, n.Content[i].Value), depth+1)
		}
	case reflect.String:
		if n.Kind != yaml.ScalarNode || n.Tag != "!!str" && n.Tag != "!!timestamp" {
			l.add(n.Line, "%s: want a string, not %s%s", path, describe(n), quoteHint(n))
		}
	case reflect.Bool:
		if n.Kind != yaml.ScalarNode || n.Tag != "!!bool" {
			l.add(n.Line, "%s: want true or false, not %s", path, describe(n))
		}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Float64:
		if n.Kind != yaml.ScalarNode || n.Tag != "!!int" && n.Tag != "!!float" {
			l.add(n.Line, "%s: want a number, not %s", path, describe(n))
		}
	}
}

func quoteHint(n *yaml.Node) string {
	if n.Kind == yaml.ScalarNode {
		return ": put it in quotes"
	}
	return ""
}

func (l *linter) object(n *yaml.Node, t reflect.Type, path string, depth int) {
	if n.Kind != yaml.MappingNode {
		l.add(n.Line, "%s: want fields, not %s", path, describe(n))
		return
	}
	l.twice(n, path)
	known := fieldsOf(t)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Tag == "!!merge" {
			continue
		}
		field, ok := known[key.Value]
		if !ok {
			l.add(key.Line, "%s: unknown field%s", join(path, key.Value), suggest(key.Value, known, t))
			continue
		}
		l.fields(n.Content[i+1], field, join(path, key.Value), depth+1)
	}
}

func (l *linter) twice(n *yaml.Node, path string) {
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if first, found := seen[key.Value]; found {
			l.add(key.Line, "%s: is given twice, first on line %d", join(path, key.Value), first)
			continue
		}
		seen[key.Value] = key.Line
	}
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// fieldsOf returns the fields of a type by JSON name.
func fieldsOf(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case f.Anonymous && (name == "" || strings.Contains(options, "inline")):
			inner := f.Type
			for inner.Kind() == reflect.Pointer {
				inner = inner.Elem()
			}
			if inner.Kind() == reflect.Struct {
				for k, v := range fieldsOf(inner) {
					if _, shadowed := out[k]; !shadowed {
						out[k] = v
					}
				}
			}
		case name != "":
			out[name] = f.Type
		}
	}
	return out
}

// manyFields is the number of fields above which a list of all allowed fields is no help.
const manyFields = 12

// suggest returns the end of a message: the field that was probably intended, or the allowed
// fields.
func suggest(wrong string, known map[string]reflect.Type, t reflect.Type) string {
	best, distance := "", 3
	names := slices.Sorted(maps.Keys(known))
	for _, name := range names {
		if d := spelling.Distance(strings.ToLower(wrong), strings.ToLower(name)); d < distance {
			best, distance = name, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %s?", best)
	case len(names) <= manyFields || t == container || t == objectMeta:
		return "; there are " + strings.Join(names, ", ")
	}
	return fmt.Sprintf("; there are %s and %d others", strings.Join(names[:manyFields], ", "), len(names)-manyFields)
}

func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.SequenceNode:
		return "a list"
	case yaml.MappingNode:
		return "fields"
	}
	switch n.Tag {
	case "!!int", "!!float":
		return "the number " + n.Value
	case "!!bool":
		return "the boolean " + n.Value
	case "!!str":
		return fmt.Sprintf("the text %q", n.Value)
	}
	return n.Value
}
