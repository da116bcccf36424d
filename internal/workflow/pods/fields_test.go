package pods

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// root is the directory of the repository.
const root = "../../../"

// decision is one row of docs/workflow-fields.md.
type decision struct {
	kind   string // a type of the API
	what   string
	fields []string
	shown  string
}

func decisions(t *testing.T) (rows []decision) {
	t.Helper()
	for line := range strings.Lines(repositoryFile(t, "docs/workflow-fields.md")) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) < 3 || strings.TrimSpace(cells[0]) == "type" {
			continue
		}
		row := decision{kind: strings.TrimSpace(cells[0]), what: cells[1], fields: strings.Split(cells[2], ", ")}
		if len(cells) > 3 {
			row.shown = strings.TrimSpace(cells[3])
		}
		rows = append(rows, row)
	}
	return rows
}

func repositoryFile(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(root + path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// jsonFields returns the fields of a struct by their JSON names; embedded structs are left out.
func jsonFields(kind reflect.Type) map[string]reflect.StructField {
	fields := map[string]reflect.StructField{}
	for _, f := range reflect.VisibleFields(kind) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" && len(f.Index) == 1 {
			fields[name] = f
		}
	}
	return fields
}

// elem returns the type of the values that a field holds.
func elem(kind reflect.Type) reflect.Type {
	for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, kind.Kind()) {
		kind = kind.Elem()
	}
	return kind
}

// own reports whether a type is a struct of the API of workflows.
func own(kind reflect.Type) bool {
	return kind.Kind() == reflect.Struct && kind.PkgPath() == reflect.TypeFor[wf.Workflow]().PkgPath()
}

// types adds a type, and the types of its fields, to found.
func types(kind reflect.Type, found map[string]reflect.Type) {
	if kind = elem(kind); !own(kind) || found[kind.Name()] != nil {
		return
	}
	found[kind.Name()] = kind
	for i := range kind.NumField() {
		types(kind.Field(i).Type, found)
	}
}

// unread are fields that code acts on without reading them: a marker, and a field with a method that
// reads it.
var unread = map[string]bool{"ValueFrom.supplied": true, "CronWorkflowSpec.schedules": true}

// TestEveryFieldIsDecided checks docs/workflow-fields.md: each field of the types and of the CRDs
// has one decision, and each decision is true as far as a test can tell.
func TestEveryFieldIsDecided(t *testing.T) {
	found := map[string]reflect.Type{}
	types(reflect.TypeFor[wf.WorkflowSpec](), found)
	types(reflect.TypeFor[wf.CronWorkflowSpec](), found)
	decided := map[string]string{}
	code, tests := sources(t)
	for _, row := range decisions(t) {
		kind := found[row.kind]
		if kind == nil {
			t.Errorf("%s is not a type of the API", row.kind)
			continue
		}
		fields := jsonFields(kind)
		for _, name := range row.fields {
			field, known := fields[name]
			key := row.kind + "." + name
			switch {
			case !known:
				t.Errorf("there is no field %s", key)
			case decided[key] != "":
				t.Errorf("%s is decided twice", key)
			default:
				decided[key] = row.what
			}
			if row.what == "acted on" && !regexp.MustCompile(`\.`+field.Name+`\b`).MatchString(code) && !unread[key] {
				t.Errorf("no code reads %s.%s", row.kind, field.Name)
			}
		}
		switch row.what {
		case "acted on":
			for test := range strings.SplitSeq(row.shown, ", ") {
				if !tests(test) {
					t.Errorf("%s: there is no test %q", row.kind, test)
				}
			}
		case "refused", "condition":
			t.Run(row.kind+"."+strings.Join(row.fields, ","), func(t *testing.T) { try(t, row) })
		case "for readers":
		default:
			t.Errorf("%s: %q is not a decision", row.kind, row.what)
		}
	}
	for name, kind := range found {
		for field := range jsonFields(kind) {
			if decided[name+"."+field] == "" {
				t.Errorf("docs/workflow-fields.md does not say what becomes of %s.%s", name, field)
			}
		}
	}
	for file, kind := range map[string]reflect.Type{
		"workflows": reflect.TypeFor[wf.WorkflowSpec](), "workflowtemplates": reflect.TypeFor[wf.WorkflowSpec](),
		"clusterworkflowtemplates": reflect.TypeFor[wf.WorkflowSpec](), "cronworkflows": reflect.TypeFor[wf.CronWorkflowSpec](),
	} {
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal([]byte(repositoryFile(t, "config/crd/argoproj.io_"+file+".yaml")), &crd); err != nil {
			t.Fatal(err)
		}
		spec := crd.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
		inSchema(t, file+" spec", &spec, kind)
	}
}

// inSchema checks that a schema has the fields of a type and no others, as far as it names fields.
func inSchema(t *testing.T, path string, schema *apiextensionsv1.JSONSchemaProps, kind reflect.Type) {
	t.Helper()
	for schema.Items != nil && schema.Items.Schema != nil || schema.AdditionalProperties != nil && schema.AdditionalProperties.Schema != nil {
		if schema.Items != nil {
			schema = schema.Items.Schema
		} else {
			schema = schema.AdditionalProperties.Schema
		}
	}
	if kind = elem(kind); !own(kind) || len(schema.Properties) == 0 {
		return
	}
	visible := map[string]reflect.Type{}
	for _, f := range reflect.VisibleFields(kind) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			visible[name] = f.Type
		}
	}
	for name, property := range schema.Properties {
		of, known := visible[name]
		if !known {
			t.Errorf("%s.%s is in the CRD and not in the types", path, name)
			continue
		}
		inSchema(t, path+"."+name, &property, of)
	}
	if ptr.Deref(schema.XPreserveUnknownFields, false) {
		return // hack/crd leaves out what would make the CRD large
	}
	for name := range visible {
		if _, known := schema.Properties[name]; !known {
			t.Errorf("%s.%s is in the types and not in the CRD", path, name)
		}
	}
}

// sources returns the code that may act on fields, and a function that reports whether a test of
// the given name exists.
func sources(t *testing.T) (code string, exists func(string) bool) {
	t.Helper()
	var text, funcs, cases strings.Builder
	err := filepath.WalkDir(root+"internal/workflow", func(path string, _ os.DirEntry, err error) error {
		switch {
		case err != nil || !strings.HasSuffix(path, ".go"):
			return err
		case strings.HasSuffix(path, "_test.go"):
			funcs.WriteString(repositoryFile(t, strings.TrimPrefix(path, root)))
		default:
			text.WriteString(repositoryFile(t, strings.TrimPrefix(path, root)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(root + "test/workflows/testdata/*.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		cases.WriteString("\n" + repositoryFile(t, strings.TrimPrefix(file, root)))
	}
	there := func(path string) bool { _, err := os.Stat(root + path); return err == nil }
	return text.String(), func(name string) bool {
		if script, is := strings.CutPrefix(name, "script "); is {
			return there("internal/workflow/engine/testdata/" + script + ".txt")
		}
		if pod, is := strings.CutPrefix(name, "pods "); is {
			return there("internal/workflow/pods/testdata/" + pod + ".yaml")
		}
		return strings.Contains(funcs.String(), "\nfunc "+name+"(") || strings.Contains(cases.String(), "\n=== "+name+": ") ||
			strings.Contains(name, "/") && there(name)
	}
}

// try runs the manifest of a row: the workflow must be refused, or have a condition, with the
// message of the row.
func try(t *testing.T, row decision) {
	fragment, message, found := strings.Cut(row.shown, "` → ")
	if !found {
		t.Fatalf("no manifest and message in %q", row.shown)
	}
	var fields map[string]any
	if err := yaml.Unmarshal([]byte(strings.TrimPrefix(fragment, "`")), &fields); err != nil {
		t.Fatal(err)
	}
	spec, _ := fields["spec"].(map[string]any)
	delete(fields, "spec")
	if spec == nil {
		spec = map[string]any{}
	}
	fields["name"] = "main"
	if fields["data"] == nil && fields["plugin"] == nil {
		fields["container"] = map[string]any{"image": "i", "command": []string{"c"}}
	}
	spec["entrypoint"], spec["templates"] = "main", []any{fields}
	text, err := yaml.Marshal(map[string]any{"metadata": map[string]any{"name": "w", "namespace": "default"}, "spec": spec})
	if err != nil {
		t.Fatal(err)
	}
	w := &wf.Workflow{}
	if err := yaml.UnmarshalStrict(text, w); err != nil {
		t.Fatal(err)
	}
	result := engine.New(w, engine.Config{Evaluate: template.InProcess()}).Step(time.Unix(0, 0))
	var messages []string
	if row.what == "condition" {
		for _, c := range w.Status.Conditions {
			if c.Type == wf.ConditionSpecWarning {
				messages = append(messages, c.Message)
			}
		}
	} else {
		messages = append(messages, w.Status.Message)
		for _, create := range result.Create {
			if _, err := Build(w, create, Options{}); err != nil {
				messages = append(messages, err.Error())
			}
		}
	}
	if all := strings.Join(messages, "\n"); !strings.Contains(all, message) {
		t.Errorf("%s\n%s, %q; want %q", text, w.Status.Phase, all, message)
	}
}
