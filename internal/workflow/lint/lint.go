// Package lint checks manifests before a cluster sees them, and says where in the file something is wrong.
//
//	file ──▶ documents ──▶ every field against the Go types: unknown, twice, of the wrong type
//	                  └──▶ what the engine refuses, with the place looked up in the document
//
// It is pure: what it says depends on the text alone.
package lint

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"

	yaml "go.yaml.in/yaml/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

const (
	// maxBytes and maxDocuments bound a file, maxDepth how deep its values are nested, maxFindings what is said about it.
	maxBytes     = 16 << 20
	maxDocuments = 10_000
	maxDepth     = 200
	maxFindings  = 100
)

// Finding is something that is wrong.
type Finding struct {
	File string
	// Line is counted from 1; 0 is the file as a whole.
	Line    int
	Message string
}

func (f Finding) String() string {
	if f.Line == 0 {
		return fmt.Sprintf("%s: %s", f.File, f.Message)
	}
	return fmt.Sprintf("%s:%d: %s", f.File, f.Line, f.Message)
}

// Options say what to check.
type Options struct {
	// Kinds are those to check, all of ours when empty. Other kinds are left alone.
	Kinds []string
	// Workflow says what is wrong with a workflow, a template or a cluster template, in errors that begin with a path such
	// as templates.main.steps[0].a; Cron the same for crons. Nil checks nothing beyond the fields.
	Workflow func(*wf.WorkflowSpec, string) error
	Cron     func(*wf.CronWorkflow) error
}

// kinds are the kinds that can be checked.
var kinds = map[string]func() any{
	"Workflow":                func() any { return &wf.Workflow{} },
	"WorkflowTemplate":        func() any { return &wf.WorkflowTemplate{} },
	"ClusterWorkflowTemplate": func() any { return &wf.ClusterWorkflowTemplate{} },
	"CronWorkflow":            func() any { return &wf.CronWorkflow{} },
}

// Kinds are the kinds that Lint checks.
func Kinds() []string {
	return []string{"Workflow", "WorkflowTemplate", "ClusterWorkflowTemplate", "CronWorkflow"}
}

// Lint checks the documents of a file and returns how many it checked, and what is wrong with them in the order of their lines.
func Lint(file string, data []byte, o Options) (checked int, findings []Finding) {
	l := &linter{file: file, options: &o}
	if len(data) > maxBytes {
		l.add(0, "is larger than %d bytes", maxBytes)
		return 0, l.findings
	}
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for n := 0; ; n++ {
		var doc yaml.Node
		err := decoder.Decode(&doc)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			l.syntax(err)
			break
		}
		if n == maxDocuments {
			l.add(doc.Line, "more than %d documents", maxDocuments)
			break
		}
		if len(doc.Content) == 1 && l.document(doc.Content[0]) {
			checked++
		}
	}
	slices.SortStableFunc(l.findings, func(a, b Finding) int { return a.Line - b.Line })
	if more := len(l.findings) - maxFindings; more > 0 {
		l.findings = append(l.findings[:maxFindings], Finding{File: file, Message: fmt.Sprintf("and %d more", more)})
	}
	return checked, l.findings
}

type linter struct {
	file     string
	options  *Options
	findings []Finding
}

func (l *linter) add(line int, format string, args ...any) {
	l.findings = append(l.findings, Finding{File: l.file, Line: line, Message: fmt.Sprintf(format, args...)})
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

// document checks one document, and says whether it was of a kind to check. The items of a List are documents.
func (l *linter) document(root *yaml.Node) (checked bool) {
	if root.Kind != yaml.MappingNode {
		if root.Tag != "!!null" {
			l.add(root.Line, "is no object: it has no apiVersion and kind")
		}
		return false
	}
	kind := scalar(child(root, "kind"))
	if kind == "List" {
		if items := child(root, "items"); items != nil {
			for _, item := range items.Content {
				checked = l.document(item) || checked
			}
		}
		return checked
	}
	group := scalar(child(root, "apiVersion"))
	make, known := kinds[kind]
	switch {
	case kind == "" || group == "":
		l.add(root.Line, "has no apiVersion or no kind: want apiVersion: %s and kind: %s", wf.GroupVersion, strings.Join(Kinds(), ", "))
		return true
	case !strings.HasPrefix(group, wf.GroupVersion.Group+"/"):
		return false
	case group != wf.GroupVersion.String():
		l.add(child(root, "apiVersion").Line, "apiVersion: %s is not known; there is %s", group, wf.GroupVersion)
		return true
	case !known:
		return false
	case len(l.options.Kinds) > 0 && !slices.Contains(l.options.Kinds, kind):
		return false
	}
	object := make()
	before := len(l.findings)
	l.fields(root, reflect.TypeOf(object).Elem(), "", 0)
	if len(l.findings) > before {
		return true
	}
	if err := decode(root, object); err != nil {
		l.add(root.Line, "%s", err)
		return true
	}
	l.semantics(root, object)
	return true
}

// decode reads a node into an object as the API server would: by JSON.
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

func (l *linter) semantics(root *yaml.Node, object any) {
	spec := child(root, "spec")
	if spec == nil {
		l.add(root.Line, "spec: is required")
		return
	}
	check := func(at *yaml.Node, s *wf.WorkflowSpec, kind string) {
		if l.options.Workflow != nil {
			l.place(at, l.options.Workflow(s, kind))
		}
	}
	switch o := object.(type) {
	case *wf.Workflow:
		if o.Name == "" && o.GenerateName == "" {
			l.add(root.Line, "metadata.name or metadata.generateName: is required")
		}
		check(spec, &o.Spec, "Workflow")
	case *wf.WorkflowTemplate:
		check(spec, &o.Spec, "WorkflowTemplate")
	case *wf.ClusterWorkflowTemplate:
		check(spec, &o.Spec, "ClusterWorkflowTemplate")
	case *wf.CronWorkflow:
		if l.options.Cron != nil {
			l.place(spec, l.options.Cron(o))
		}
		if inner := child(spec, "workflowSpec"); inner != nil {
			check(inner, &o.Spec.WorkflowSpec, "CronWorkflow")
		}
	}
}

// place reports an error, each of several on its own, at the place that it names.
func (l *linter) place(spec *yaml.Node, err error) {
	if err == nil {
		return
	}
	if several, ok := err.(interface{ Unwrap() []error }); ok {
		for _, one := range several.Unwrap() {
			l.place(spec, one)
		}
		return
	}
	l.add(locate(spec, err.Error()), "%s", err)
}

// locate follows the path that a message begins with, as far as the document has it, and returns the line.
func locate(n *yaml.Node, message string) int {
	path, _, _ := strings.Cut(message, " ")
	path = strings.TrimRight(strings.TrimPrefix(path, "spec."), ":,")
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

// step takes the first element of a path: a field, an index, or the name of an item of a list.
func step(n *yaml.Node, path string) (next *yaml.Node, rest string, ok bool) {
	n = target(n)
	path = strings.TrimPrefix(path, ".")
	switch {
	case strings.HasPrefix(path, "["):
		index, rest, found := strings.Cut(path[1:], "]")
		i, err := strconv.Atoi(index)
		if !found || err != nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
			return nil, "", false
		}
		return n.Content[i], rest, true
	case n.Kind == yaml.MappingNode:
		end := strings.IndexAny(path, ".[:")
		if end < 0 {
			end = len(path)
		}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == path[:end] {
				at := *n.Content[i+1]
				at.Line = n.Content[i].Line // the key's: the value of a block begins on the next
				return &at, strings.TrimPrefix(path[end:], ":"), true
			}
		}
	case n.Kind == yaml.SequenceNode:
		// The longest name that fits: names may hold dots.
		var best *yaml.Node
		name := ""
		for _, item := range n.Content {
			for _, one := range append([]*yaml.Node{item}, item.Content...) { // steps are lists of lists
				is := scalar(child(one, "name"))
				if is != "" && len(is) > len(name) && strings.HasPrefix(path, is) && (len(path) == len(is) || strings.ContainsAny(path[len(is):len(is)+1], ".[:")) {
					best, name = one, is
				}
			}
		}
		if best != nil {
			return best, strings.TrimPrefix(path[len(name):], ":"), true
		}
	}
	return nil, "", false
}

func target(n *yaml.Node) *yaml.Node {
	for n != nil && n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n
}

// child is the value of a field, or nil.
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

// fields compares a node with the type that it is to become.
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
		return // what it takes, it says when it is decoded
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

// fieldsOf are a type's fields by their names in JSON.
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

// manyFields is from where on a list of what is allowed is no help.
const manyFields = 12

// suggest says what was meant, or what is allowed.
func suggest(wrong string, known map[string]reflect.Type, t reflect.Type) string {
	best, distance := "", 3
	var names []string
	for name := range known {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if d := edits(strings.ToLower(wrong), strings.ToLower(name)); d < distance {
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

// edits is how many letters must be changed, added or taken out to make b of a.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
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
