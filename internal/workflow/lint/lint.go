// Package lint checks manifests before they reach a cluster, and reports the lines of errors.
//
//	files ──▶ documents ──▶ every field against the Go types: unknown, duplicate, of the wrong type
//	                   └──▶ Options.Check on all objects together; fields become lines
//
// The package is pure: its results depend only on the text.
package lint

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/spelling"
)

const (
	// maxBytes and maxDocuments bound a file, maxDepth bounds the nesting of its values, and
	// maxFindings bounds the number of findings.
	maxBytes     = 16 << 20
	maxDocuments = 10_000
	maxDepth     = 200
	maxFindings  = 100
)

// Finding is one error or warning.
type Finding struct {
	File string
	// Line counts from 1; 0 stands for the whole file.
	Line    int
	Message string
	// Warning is true if the manifest may be intended.
	Warning bool
	order   int // index of the file
}

func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s", f.File, f.Message)
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Message)
}

// File is a manifest to check.
type File struct {
	Name string
	Data []byte
}

// Problem is a semantic error in an object.
type Problem struct {
	Object runtime.Object // one of those checked
	// Field is a path such as spec.templates[0].steps[1][0].when, whose line Lint finds in the
	// document.
	Field   string
	Message string
	Warning bool
}

// Options configures the checks.
type Options struct {
	// Kinds are the kinds to check; empty means all supported kinds. Objects of other kinds are
	// skipped.
	Kinds []string
	// Check returns the semantic errors of the objects whose fields are valid, checked together. If
	// it is nil, there is no such check.
	Check func([]runtime.Object) []Problem
}

// kinds are the kinds that can be checked.
var kinds = map[string]func() runtime.Object{
	"Workflow":                func() runtime.Object { return &wf.Workflow{} },
	"WorkflowTemplate":        func() runtime.Object { return &wf.WorkflowTemplate{} },
	"ClusterWorkflowTemplate": func() runtime.Object { return &wf.ClusterWorkflowTemplate{} },
	"CronWorkflow":            func() runtime.Object { return &wf.CronWorkflow{} },
}

// Kinds returns the kinds that Lint checks.
func Kinds() []string {
	return []string{"Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"}
}

// Lint checks the documents of files. It returns the number of checked objects, and the findings in
// the order of files and lines.
func Lint(files []File, o Options) (checked int, findings []Finding) {
	l := &linter{options: &o, lists: map[*yaml.Node]bool{}}
	for i := range files {
		l.read(files[i], i)
	}
	if o.Check != nil {
		var list []runtime.Object
		for i := range l.objects {
			list = append(list, l.objects[i].object)
		}
		for _, p := range o.Check(list) {
			l.problem(p)
		}
	}
	slices.SortStableFunc(l.findings, func(a, b Finding) int { return cmp.Or(a.order-b.order, a.Line-b.Line) })
	if more := len(l.findings) - maxFindings; more > 0 {
		l.findings = append(l.findings[:maxFindings], Finding{File: "...", Message: fmt.Sprintf("and %d more", more)})
	}
	return l.checked, l.findings
}

func (l *linter) read(f File, order int) {
	l.file, l.order = f.Name, order
	if len(f.Data) > maxBytes {
		l.add(0, "is larger than %d bytes", maxBytes)
		return
	}
	decoder := yaml.NewDecoder(bytes.NewReader(f.Data))
	for n := 0; ; n++ {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			l.syntax(err)
			return
		}
		if n == maxDocuments {
			l.add(doc.Line, "more than %d documents", maxDocuments)
			return
		}
		if len(doc.Content) == 1 {
			l.document(doc.Content[0])
		}
	}
}

// problem reports a problem at its line in the object's document.
func (l *linter) problem(p Problem) {
	for i := range l.objects {
		if o := &l.objects[i]; o.object == p.Object {
			l.findings = append(l.findings, Finding{File: o.file, order: o.order, Line: locate(o.root, p.Field), Message: p.Message, Warning: p.Warning})
		}
	}
}

// object is an object whose fields are valid.
type object struct {
	object runtime.Object
	root   *yaml.Node
	file   string
	order  int
}

type linter struct {
	file     string
	order    int
	options  *Options
	findings []Finding
	objects  []object
	checked  int
	lists    map[*yaml.Node]bool // the items of Lists that have been checked
}

func (l *linter) add(line int, format string, args ...any) {
	l.findings = append(l.findings, Finding{File: l.file, order: l.order, Line: line, Message: fmt.Sprintf(format, args...)})
}

var syntaxLine = regexp.MustCompile(`line (\d+): (.*)`)

func (l *linter) syntax(err error) {
	if m := syntaxLine.FindStringSubmatch(err.Error()); m != nil {
		line, _ := strconv.Atoi(m[1])
		l.add(line, "%s", m[2])
		return
	}
	l.add(0, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
}

// document checks one document. The items of a List are checked like documents.
func (l *linter) document(root *yaml.Node) {
	if root.Kind != yaml.MappingNode {
		if root.Tag != "!!null" {
			l.add(root.Line, "is no object: it has no apiVersion and kind")
		}
		return
	}
	kind := scalar(child(root, "kind"))
	if kind == "List" {
		// An alias may make the items of a List the items of one of them.
		if items := child(root, "items"); items != nil && !l.lists[items] {
			l.lists[items] = true
			for _, item := range items.Content {
				l.document(item)
			}
		}
		return
	}
	group := scalar(child(root, "apiVersion"))
	make, known := kinds[kind]
	switch {
	case kind == "" || group == "":
		l.add(root.Line, "has no apiVersion or no kind: want apiVersion: %s and kind: %s", wf.GroupVersion, strings.Join(Kinds(), ", "))
		return
	case !strings.HasPrefix(group, wf.GroupVersion.Group+"/"):
		return
	case group != wf.GroupVersion.String():
		l.add(child(root, "apiVersion").Line, "apiVersion: %s is not known; there is %s", group, wf.GroupVersion)
		return
	case !known, len(l.options.Kinds) > 0 && !slices.Contains(l.options.Kinds, kind):
		return
	}
	l.checked++
	o := object{object: make(), root: root, file: l.file, order: l.order}
	before := len(l.findings)
	l.fields(root, reflect.TypeOf(o.object).Elem(), "", 0)
	if len(l.findings) > before {
		return
	}
	if err := decode(root, o.object); err != nil {
		l.add(root.Line, "%s", err)
		return
	}
	if child(root, "spec") == nil {
		l.add(root.Line, "spec: is required")
		return
	}
	meta := o.object.(metav1.Object)
	if cmp.Or(meta.GetName(), meta.GetGenerateName()) == "" {
		l.add(root.Line, "metadata.name or metadata.generateName: is required")
		return
	}
	l.objects = append(l.objects, o)
}

// decode decodes a node into an object as the API server does: through JSON.
func decode(n *yaml.Node, object any) error {
	var value any
	if err := n.Decode(&value); err != nil {
		return err
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, object)
}

// locate returns the line of a path, or of its longest part that exists in the document.
func locate(n *yaml.Node, path string) int {
	line := n.Line
	for path != "" {
		next, rest, ok := step(n, path)
		if !ok {
			break
		}
		n, path, line = next, rest, next.Line
	}
	return line
}

// step follows the first element of a path, a field or an index, and returns the rest of the path.
func step(n *yaml.Node, path string) (next *yaml.Node, rest string, ok bool) {
	n = target(n)
	path = strings.TrimPrefix(path, ".")
	if strings.HasPrefix(path, "[") {
		index, rest, found := strings.Cut(path[1:], "]")
		i, err := strconv.Atoi(index)
		switch {
		case !found || err != nil:
			return nil, "", false
		case n.Kind == yaml.MappingNode && i == 0: // a single step in place of a list of one
			return n, rest, true
		case n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content):
			return nil, "", false
		}
		return n.Content[i], rest, true
	}
	if n.Kind != yaml.MappingNode {
		return nil, "", false
	}
	// Take the longest matching key: keys may contain dots.
	var key, value *yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		k := n.Content[i]
		fits := strings.HasPrefix(path, k.Value) && (len(path) == len(k.Value) || strings.ContainsAny(path[len(k.Value):len(k.Value)+1], ".["))
		if fits && (key == nil || len(k.Value) > len(key.Value)) {
			key, value = k, n.Content[i+1]
		}
	}
	if key == nil {
		return nil, "", false
	}
	at := *target(value)
	at.Line = key.Line // a block value begins on the next line
	return &at, path[len(key.Value):], true
}

func target(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// child returns the value of a field, or nil.
func child(n *yaml.Node, name string) *yaml.Node {
	if n = target(n); n == nil || n.Kind != yaml.MappingNode {
		return nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return target(n.Content[i+1])
		}
	}
	return nil
}

func scalar(n *yaml.Node) string {
	if n == nil || n.Kind != yaml.ScalarNode {
		return ""
	}
	return n.Value
}

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
