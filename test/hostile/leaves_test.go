package hostile

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"lockstep.dev/lockstep/api/scheme"
)

// leaf is a place for a value in objects of a kind. A step of its path is the name of a field, []
// for the first item of a list, or {} for the entry "key" of a map.
type leaf struct {
	kind       schema.GroupVersionKind
	namespaced bool
	path       []string
}

func (l leaf) String() string { return l.kind.Kind + " " + strings.Join(l.path, ".") }

// crdSchemas returns the CRDs in config/crd.
func crdSchemas(t *testing.T) []apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	files, err := filepath.Glob("../../config/crd/*.yaml")
	if err != nil || len(files) < 15 {
		t.Fatalf("%d CRDs, %v", len(files), err)
	}
	var out []apiextensionsv1.CustomResourceDefinition
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(data, &crd); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		out = append(out, crd)
	}
	return out
}

// leaves returns all places in the schema of a CRD, and those that only the Go type has: the type
// describes the parts that the schema leaves open.
func leaves(t *testing.T, crd *apiextensionsv1.CustomResourceDefinition) (ofSchema, ofType []leaf) {
	t.Helper()
	version := crd.Spec.Versions[0]
	kind := schema.GroupVersionKind{Group: crd.Spec.Group, Version: version.Name, Kind: crd.Spec.Names.Kind}
	seen := map[string]bool{}
	note := func(into *[]leaf) func([]string) {
		return func(path []string) {
			if len(path) == 0 || path[0] == "metadata" || path[0] == "apiVersion" || path[0] == "kind" {
				return
			}
			if key := strings.Join(path, "."); !seen[key] {
				seen[key] = true
				*into = append(*into, leaf{kind, crd.Spec.Scope == apiextensionsv1.NamespaceScoped, slices.Clone(path)})
			}
		}
	}
	schemaLeaves(version.Schema.OpenAPIV3Schema, nil, note(&ofSchema))
	o, err := scheme.Scheme.New(kind)
	if err != nil {
		t.Fatal(err)
	}
	typeLeaves(reflect.TypeOf(o), nil, nil, note(&ofType))
	return ofSchema, ofType
}

func schemaLeaves(s *apiextensionsv1.JSONSchemaProps, path []string, note func([]string)) {
	note(path) // an object or a list can have a wrong value, and so can its parts
	for _, name := range sortedKeys(s.Properties) {
		p := s.Properties[name]
		schemaLeaves(&p, append(path, name), note)
	}
	if s.Items != nil && s.Items.Schema != nil {
		schemaLeaves(s.Items.Schema, append(path, "[]"), note)
	}
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		schemaLeaves(s.AdditionalProperties.Schema, append(path, "{}"), note)
	}
}

// depthMax bounds the depth of types that contain themselves.
const depthMax = 24

var decodesItself = reflect.TypeFor[json.Unmarshaler]()

func typeLeaves(t reflect.Type, path []string, in []reflect.Type, note func([]string)) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if slices.Contains(in, t) || len(path) > depthMax {
		return
	}
	note(path)
	// A type with a decoder of its own may still be a struct with one field, for example a list of
	// steps.
	if reflect.PointerTo(t).Implements(decodesItself) && (t.Kind() != reflect.Struct || t.NumField() != 1) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		for f := range t.Fields() {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			switch {
			case name == "-" || !f.IsExported():
			case name == "" && (f.Anonymous || strings.Contains(options, "inline")):
				typeLeaves(f.Type, path, in, note)
			case name == "":
			case reflect.PointerTo(t).Implements(decodesItself): // the list itself
				typeLeaves(f.Type, path, append(in, t), note)
			default:
				typeLeaves(f.Type, append(path, name), append(in, t), note)
			}
		}
	case reflect.Slice:
		if t.Elem().Kind() != reflect.Uint8 {
			typeLeaves(t.Elem(), append(path, "[]"), in, note)
		}
	case reflect.Map:
		typeLeaves(t.Elem(), append(path, "{}"), in, note)
	}
}

func sortedKeys[T any](m map[string]T) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// put sets the value at a path. It creates the objects and lists on the path, and gives fields that
// a schema requires there a valid value.
func put(object any, s *apiextensionsv1.JSONSchemaProps, path []string, value any) any {
	if len(path) == 0 {
		return value
	}
	step, rest := path[0], path[1:]
	var inner *apiextensionsv1.JSONSchemaProps
	if step == "[]" {
		list, _ := object.([]any)
		if s != nil && s.Items != nil {
			inner = s.Items.Schema
		}
		if len(list) == 0 {
			list = []any{nil}
		}
		list = slices.Clone(list)
		list[0] = put(list[0], inner, rest, value)
		return list
	}
	m, _ := object.(map[string]any)
	if m == nil {
		m, _ = sample(s).(map[string]any)
	}
	out := map[string]any{}
	for k, v := range m {
		out[k] = v
	}
	if step == "{}" {
		step = "key"
		if s != nil && s.AdditionalProperties != nil {
			inner = s.AdditionalProperties.Schema
		}
	} else if s != nil {
		if p, found := s.Properties[step]; found {
			inner = &p
		}
	}
	out[step] = put(out[step], inner, rest, value)
	return out
}

// sample returns a valid value for a schema, with only the required fields.
func sample(s *apiextensionsv1.JSONSchemaProps) any {
	if s == nil {
		return nil
	}
	switch {
	case len(s.Enum) > 0:
		var v any
		_ = json.Unmarshal(s.Enum[0].Raw, &v)
		return v
	case s.XIntOrString, s.Type == "integer", s.Type == "number":
		return int64(1)
	case s.Type == "boolean":
		return true
	case s.Type == "array":
		if s.MinItems != nil && *s.MinItems > 0 && s.Items != nil {
			return []any{sample(s.Items.Schema)}
		}
		return []any{}
	case s.Type == "object":
		out := map[string]any{}
		for _, name := range s.Required {
			p := s.Properties[name]
			out[name] = sample(&p)
		}
		return out
	}
	return "a"
}

// wrongValues are tried in each leaf. Most have a type other than the leaf's; the others are hard
// to parse.
var wrongValues = []string{
	`{}`, `{"a":{"b":[1]}}`, `[1,"a"]`, `[]`, `"abc"`, `"1e1.5"`, `"-5"`, `""`, `"\u2603\u202e \ud83d\ude00"`, `-5`, `2147483647`, `9007199254740993`, `1e300`, `0.5`,
	`true`, `null`,
}

// bases returns valid objects by kind, into which wrong values are put.
func bases(w *world) map[string]map[string]any {
	out := map[string]map[string]any{}
	for _, manifest := range []string{
		canaries[0].manifest, canaries[1].manifest, canaries[2].manifest,
		`{kind: WorkflowTemplate, spec: {entrypoint: main, templates: [{name: main, container: {image: busybox, command: [echo]}}]}}`,
		`{kind: ClusterWorkflowTemplate, spec: {entrypoint: main, templates: [{name: main, container: {image: busybox, command: [echo]}}]}}`,
		`{kind: CronWorkflow, spec: {schedules: ["0 0 1 1 *"], workflowSpec: {entrypoint: main, templates: [{name: main, container: {image: busybox, command: [echo]}}]}}}`,
		`{kind: CronJob, spec: {schedule: "0 0 1 1 *", jobTemplate: {spec: {tasks: [{replicas: 1, template: {spec: {containers: [{name: main, image: busybox}]}}}]}}}}`,
		`{kind: JobTemplate, spec: {tasks: [{replicas: 1, template: {spec: {containers: [{name: main, image: busybox}]}}}]}}`,
		`{kind: JobFlow, spec: {flows: [{name: none}, {name: other, dependsOn: {targets: [none], probe: {taskStatusList: [{taskName: a, phase: Running}]}}, patch: {jobSpec: {queue: q}}}]}}`,
		`{kind: Queue, spec: {weight: 1}}`, `{kind: PodGroup, spec: {minMember: 1}}`,
		`{kind: Command, action: AbortJob, target: {apiVersion: batch.volcano.sh/v1alpha1, kind: Job, name: none, uid: none}}`,
	} {
		u := w.parse(manifest)
		content := u.Object
		delete(content, "metadata")
		delete(content, "apiVersion")
		kind := fmt.Sprint(content["kind"])
		delete(content, "kind")
		out[kind] = content
	}
	return out
}
