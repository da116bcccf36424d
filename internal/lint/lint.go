// Package lint checks manifests before they reach a cluster, and reports the lines of errors.
//
//	files ──▶ documents ──▶ every field against the Go types: unknown, duplicate, of the wrong type
//	                   ├──▶ Options.Refused on each object: the rules of the API server
//	                   └──▶ Options.Check on all objects together
//
// Fields become lines of the files. The package is pure: its results depend only on the text.
package lint

import (
	"bytes"
	"cmp"
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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	oamv1alpha1 "lockstep.dev/lockstep/api/core.oam.dev/v1alpha1"
	oamv1beta1 "lockstep.dev/lockstep/api/core.oam.dev/v1beta1"
	flowv1alpha1 "lockstep.dev/lockstep/api/flow/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/api/scheme"
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

// Object is an object whose fields are valid.
type Object struct {
	Typed   runtime.Object
	Content *unstructured.Unstructured
}

// Problem is an error in an object beyond its fields' names and types.
type Problem struct {
	Object runtime.Object // the Typed of one of the objects
	// Field is a path such as spec.templates[0].steps[1][0].when, whose line Lint finds in the
	// document.
	Field string
	// Line is the line within the field's text, counted from 1; 0 stands for the whole field.
	Line    int
	Message string
	Warning bool
}

// Options configures the checks. What is nil is not checked.
type Options struct {
	// Kinds are the kinds to check; empty means all supported kinds. Objects of other kinds are
	// skipped.
	Kinds []string
	// Refused returns the reasons for which the API server refuses an object.
	Refused func(Object) []Problem
	// Check returns the problems of the objects, checked together.
	Check func([]Object) []Problem
}

// kinds are the kinds that can be checked: those that users write.
var kinds = []schema.GroupVersionKind{
	wf.GroupVersion.WithKind("Workflow"), wf.GroupVersion.WithKind("WorkflowTemplate"),
	wf.GroupVersion.WithKind("ClusterWorkflowTemplate"), wf.GroupVersion.WithKind("CronWorkflow"),
	wf.GroupVersion.WithKind("WorkflowEventBinding"),
	batchv1alpha1.GroupVersion.WithKind("Job"), batchv1alpha1.GroupVersion.WithKind("CronJob"),
	busv1alpha1.GroupVersion.WithKind("Command"),
	flowv1alpha1.GroupVersion.WithKind("JobFlow"), flowv1alpha1.GroupVersion.WithKind("JobTemplate"),
	schedulingv1beta1.GroupVersion.WithKind("PodGroup"), schedulingv1beta1.GroupVersion.WithKind("Queue"),
	oamv1beta1.GroupVersion.WithKind("Application"), oamv1beta1.GroupVersion.WithKind("ComponentDefinition"),
	oamv1beta1.GroupVersion.WithKind("PolicyDefinition"), oamv1beta1.GroupVersion.WithKind("TraitDefinition"),
	oamv1beta1.GroupVersion.WithKind("WorkflowStepDefinition"), oamv1alpha1.GroupVersion.WithKind("Policy"),
	oamv1alpha1.GroupVersion.WithKind("Workflow"),
}

// Kinds returns the names of the kinds that Lint checks.
func Kinds() []string {
	var out []string
	for _, k := range kinds {
		if !slices.Contains(out, k.Kind) {
			out = append(out, k.Kind)
		}
	}
	return out
}

// Lint checks the documents of files. It returns the number of checked objects, and the findings in
// the order of files and lines.
func Lint(files []File, o Options) (checked int, findings []Finding) {
	l := &linter{options: &o, lists: map[*yaml.Node]bool{}}
	for i := range files {
		l.read(files[i], i)
	}
	if o.Check != nil {
		list := make([]Object, len(l.objects))
		for i := range l.objects {
			list[i] = l.objects[i].Object
		}
		for _, p := range o.Check(list) {
			l.problem(p)
		}
	}
	if o.Refused != nil {
		for i := range l.objects {
			l.refused(&l.objects[i])
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
		if o := &l.objects[i]; o.Typed == p.Object {
			l.findings = append(l.findings, o.finding(p))
		}
	}
}

// refused reports the reasons for which the API server refuses an object, except on lines for which
// an error is reported already, which has the same cause.
func (l *linter) refused(o *object) {
	known := map[int]bool{}
	for _, f := range l.findings {
		if f.order == o.order && !f.Warning {
			known[f.Line] = true
		}
	}
	for _, p := range l.options.Refused(o.Object) {
		if f := o.finding(p); !known[f.Line] {
			l.findings = append(l.findings, f)
		}
	}
}

// object is an object whose fields are valid, and its place.
type object struct {
	Object
	root  *yaml.Node
	file  string
	order int
}

func (o *object) finding(p Problem) Finding {
	return Finding{File: o.file, order: o.order, Line: locate(o.root, p.Field, p.Line), Message: p.Message, Warning: p.Warning}
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
	version := scalar(child(root, "apiVersion"))
	if kind == "" || version == "" {
		l.add(root.Line, "has no apiVersion or no kind")
		return
	}
	gv, err := schema.ParseGroupVersion(version)
	if err != nil {
		l.add(child(root, "apiVersion").Line, "apiVersion: %s", err)
		return
	}
	gvk := gv.WithKind(kind)
	if !slices.Contains(kinds, gvk) {
		same := slices.IndexFunc(kinds, func(k schema.GroupVersionKind) bool { return k.GroupKind() == gvk.GroupKind() })
		if same >= 0 {
			l.add(child(root, "apiVersion").Line, "apiVersion: %s is not known; there is %s", gv, kinds[same].GroupVersion())
		}
		return
	}
	if len(l.options.Kinds) > 0 && !slices.Contains(l.options.Kinds, kind) {
		return
	}
	l.checked++
	before := len(l.findings)
	typed, err := scheme.Scheme.New(gvk)
	if err != nil {
		l.add(root.Line, "%s", err)
		return
	}
	l.fields(root, reflect.TypeOf(typed).Elem(), "", 0)
	if len(l.findings) > before {
		return
	}
	content := &unstructured.Unstructured{}
	if err := decode(root, typed, &content.Object); err != nil {
		l.add(root.Line, "%s", err)
		return
	}
	if gvk.Group == wf.GroupVersion.Group && child(root, "spec") == nil {
		l.add(root.Line, "spec: is required")
		return
	}
	if cmp.Or(content.GetName(), content.GetGenerateName()) == "" {
		l.add(root.Line, "metadata.name or metadata.generateName: is required")
		return
	}
	l.objects = append(l.objects, object{Object: Object{typed, content}, root: root, file: l.file, order: l.order})
}

// decode decodes a node into an object and its content as the API server does: through JSON.
func decode(n *yaml.Node, typed any, content *map[string]any) error {
	var value any
	if err := n.Decode(&value); err != nil {
		return err
	}
	data, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, typed); err != nil {
		return err
	}
	return utiljson.Unmarshal(data, content)
}
