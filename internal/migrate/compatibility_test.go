package migrate

import (
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	busv1alpha1 "lockstep.dev/lockstep/api/bus/v1alpha1"
	flowv1alpha1 "lockstep.dev/lockstep/api/flow/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/scheduler/config"
)

// compatibilityDoc is the page that TestCompatibility checks.
const compatibilityDoc = "../../docs/compatibility.md"

// The verdicts of the page, and those of package config.
var pageVerdicts = map[string]config.Verdict{
	"works": config.Works, "differs": config.Differs, "needless": config.Needless, "not": config.Missing,
}

// own are Lockstep's fields in Volcano's types.
var own = map[string]bool{
	"JobStatus.lastCommand": true, "JobCondition.type": true, "JobCondition.reason": true, "JobCondition.message": true,
	"CronJobStatus.conditions": true, "QueueStatus.conditions": true, "QueueStatus.usage": true, "Condition.reason": true, "Condition.message": true,
}

// compatibilityRow is one row of the page.
type compatibilityRow struct {
	part, verdict string
	names         []string
	shown         string
}

func compatibilityRows(t *testing.T) (rows []compatibilityRow) {
	t.Helper()
	data, err := os.ReadFile(compatibilityDoc)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), " | ")
		if !strings.HasPrefix(line, "| ") || len(cells) != 4 || strings.TrimSpace(cells[0]) == "part" {
			continue
		}
		rows = append(rows, compatibilityRow{
			strings.TrimSpace(cells[0]), cells[1], strings.Split(strings.ReplaceAll(cells[2], "`", ""), ", "), strings.TrimSpace(cells[3]),
		})
	}
	return rows
}

// volcanoTypes returns the structs of Volcano's API whose fields the page decides, by their names on
// the page.
func volcanoTypes() map[string]reflect.Type {
	packages := map[string]bool{}
	for _, kind := range []reflect.Type{
		reflect.TypeFor[batchv1alpha1.Job](), reflect.TypeFor[flowv1alpha1.JobFlow](), reflect.TypeFor[schedulingv1beta1.Queue](),
	} {
		packages[kind.PkgPath()] = true
	}
	found := map[string]reflect.Type{}
	var visit func(kind reflect.Type)
	visit = func(kind reflect.Type) {
		for slices.Contains([]reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map}, kind.Kind()) {
			kind = kind.Elem()
		}
		if kind.Kind() != reflect.Struct || !packages[kind.PkgPath()] {
			return
		}
		name := kind.Name()
		if before, taken := found[name]; taken && before != kind {
			name = "flow." + name
		}
		if found[name] == kind {
			return
		}
		found[name] = kind
		for i := range kind.NumField() {
			visit(kind.Field(i).Type)
		}
	}
	for _, kind := range []reflect.Type{
		reflect.TypeFor[batchv1alpha1.JobSpec](), reflect.TypeFor[batchv1alpha1.JobStatus](),
		reflect.TypeFor[batchv1alpha1.CronJobSpec](), reflect.TypeFor[batchv1alpha1.CronJobStatus](),
		reflect.TypeFor[schedulingv1beta1.PodGroupSpec](), reflect.TypeFor[schedulingv1beta1.PodGroupStatus](),
		reflect.TypeFor[schedulingv1beta1.QueueSpec](), reflect.TypeFor[schedulingv1beta1.QueueStatus](),
		reflect.TypeFor[flowv1alpha1.JobFlowSpec](), reflect.TypeFor[flowv1alpha1.JobFlowStatus](),
		reflect.TypeFor[flowv1alpha1.JobTemplateStatus](),
	} {
		visit(kind)
	}
	found["Command"] = reflect.TypeFor[busv1alpha1.Command]()
	return found
}

// fieldsOf returns the JSON names of a struct's fields.
func fieldsOf(kind reflect.Type) (names []string) {
	for _, f := range reflect.VisibleFields(kind) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name != "" && name != "-" && len(f.Index) == 1 && (name != "metadata" || kind.Name() == "JobTemplateSpec") {
			names = append(names, name)
		}
	}
	return names
}

// TestCompatibility checks docs/compatibility.md: every field, event, action, plugin, annotation and
// kind has one row; tests that it names exist and use an API server; what it says of scheduler
// configurations is what package config says; and migrate check names each field that is not acted on.
func TestCompatibility(t *testing.T) {
	rows := compatibilityRows(t)
	types := volcanoTypes()
	tests := serverTests(t)
	decided := map[string]string{}
	served := servedKinds(t)
	for _, row := range rows {
		verdict, known := pageVerdicts[row.verdict]
		if !known {
			t.Errorf("%s: %q is no verdict", row.part, row.verdict)
			continue
		}
		kind, isType := types[row.part]
		for _, name := range row.names {
			key := row.part + "." + name
			if before := decided[key]; before != "" {
				t.Errorf("%s is decided twice", key)
			}
			decided[key] = row.verdict
			if isType && !slices.Contains(fieldsOf(kind), name) {
				t.Errorf("there is no field %s", key)
			}
		}
		if verdict == config.Works {
			for name := range strings.SplitSeq(row.shown, ", ") {
				if !tests[name] {
					t.Errorf("%s %s: there is no test %q with an API server", row.part, row.names, name)
				}
			}
		}
		switch {
		case verdict == config.Missing && (isType || strings.HasPrefix(row.part, "annotation")):
			t.Run(row.part+"."+row.names[0], func(t *testing.T) { checkNamesIt(t, row) })
		case row.part == "scheduler action":
			agrees(t, verdict, row.names, func(name string) string { return "actions: " + name })
		case row.part == "scheduler plugin":
			agrees(t, verdict, row.names, func(name string) string { return "tiers: [{plugins: [{name: " + name + "}]}]" })
		case row.part == "kind":
			for _, name := range row.names {
				group, kind, _ := strings.Cut(name, " ")
				if served[schema.GroupKind{Group: group, Kind: kind}] != (verdict == config.Works) {
					t.Errorf("%s: the page says %s", name, row.verdict)
				}
			}
		}
	}
	for name, kind := range types {
		for _, field := range fieldsOf(kind) {
			key := name + "." + field
			if decided[key] == "" && !own[key] && !reachedOnlyByReaders(name) {
				t.Errorf("the page does not say what becomes of %s", key)
			}
		}
	}
	for part, names := range map[string][]string{
		"event": eventsOf(t), "action": actionsOf(t), "scheduler action": config.Actions(), "scheduler plugin": config.Plugins(),
	} {
		for _, name := range names {
			if decided[part+"."+name] == "" {
				t.Errorf("the page does not say what becomes of the %s %s", part, name)
			}
		}
	}
	all := map[string]bool{}
	for _, row := range rows {
		for _, name := range row.names {
			all[name] = true
		}
	}
	for _, name := range annotations(t) {
		if !all[name] {
			t.Errorf("the page does not say what becomes of the annotation or label %s", name)
		}
	}
}

// reachedOnlyByReaders reports types inside of a status, or of a field that is not acted on as a
// whole.
func reachedOnlyByReaders(name string) bool {
	return slices.Contains([]string{
		"Cluster", "Reservation", "QueueUsage",
		"TopologyAffinitySpec", "PodGroupAntiAffinity", "PodGroupAffinityTerm", "SubGroupAffinity", "SubGroupAffinityTerm",
		"JobRunningHistory", "Condition", "flow.JobStatus",
	}, name)
}

// agrees checks that package config has the verdict of the page.
func agrees(t *testing.T, want config.Verdict, names []string, text func(name string) string) {
	t.Helper()
	for _, name := range names {
		_, findings, err := config.Parse([]byte(text(name)))
		if err != nil || len(findings) != 1 || findings[0].Verdict != want {
			t.Errorf("%s: the page says %s; the manager says %v, %v", name, want, findings, err)
		}
	}
}

// checkNamesIt checks that migrate check names the field of a row whose manifest uses it.
func checkNamesIt(t *testing.T, row compatibilityRow) {
	fragment, field, found := strings.Cut(row.shown, "` → ")
	if !found {
		t.Fatalf("no manifest and field in %q", row.shown)
	}
	var object map[string]map[string]any
	if err := yaml.Unmarshal([]byte(strings.TrimPrefix(fragment, "`")), &object); err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{
		"Job": "batch.volcano.sh/v1alpha1", "Queue": "scheduling.volcano.sh/v1beta1", "PodGroup": "scheduling.volcano.sh/v1beta1",
	}
	for kind, content := range object {
		u := &unstructured.Unstructured{Object: content}
		u.SetAPIVersion(versions[kind])
		u.SetKind(kind)
		u.SetName("x")
		results := Check([]Object{{Unstructured: u}}, Options{Served: map[schema.GroupKind]bool{u.GroupVersionKind().GroupKind(): true}})
		if len(results) != 1 || !slices.ContainsFunc(results[0].Parts, func(p Part) bool {
			return p.Verdict == config.Missing && p.Field == field
		}) {
			t.Errorf("migrate check says %+v; want %s", results, field)
		}
	}
}

// serverTests returns the names of the tests in packages that use the embedded API server.
func serverTests(t *testing.T) map[string]bool {
	t.Helper()
	functions := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	byFolder, uses := map[string][]string{}, map[string]bool{}
	for _, root := range []string{"../../internal", "../../test"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			data, err := os.ReadFile(path)
			folder := filepath.Dir(path)
			for _, m := range functions.FindAllStringSubmatch(string(data), -1) {
				byFolder[folder] = append(byFolder[folder], m[1])
			}
			uses[folder] = uses[folder] || strings.Contains(string(data), "internal/localcluster")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	names := map[string]bool{}
	for folder, list := range byFolder {
		for _, name := range list {
			names[name] = names[name] || uses[folder]
		}
	}
	return names
}

// servedKinds returns the kinds of the CRDs.
func servedKinds(t *testing.T) map[schema.GroupKind]bool {
	t.Helper()
	var crds []*unstructured.Unstructured
	for _, crd := range files(t, "../../config/crd/*.yaml") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(crd, &u.Object); err != nil {
			t.Fatal(err)
		}
		crds = append(crds, u)
	}
	return ServedBy(crds)
}

func files(t *testing.T, pattern string) (contents [][]byte) {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatal(pattern, err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, data)
	}
	return contents
}

// enum returns the values that the CRD of Jobs allows in a field of policies.
func enum(t *testing.T, field string) (values []string) {
	t.Helper()
	var crd map[string]any
	if err := yaml.Unmarshal(files(t, "../../config/crd/batch.volcano.sh_jobs.yaml")[0], &crd); err != nil {
		t.Fatal(err)
	}
	versions, _, _ := unstructured.NestedSlice(crd, "spec", "versions")
	version, _ := versions[0].(map[string]any)
	list, found, err := unstructured.NestedStringSlice(version, "schema", "openAPIV3Schema", "properties", "spec", "properties", "policies",
		"items", "properties", field, "enum")
	if !found || err != nil {
		t.Fatalf("no enum of %s: %v", field, err)
	}
	return list
}

func eventsOf(t *testing.T) []string  { t.Helper(); return enum(t, "event") }
func actionsOf(t *testing.T) []string { t.Helper(); return enum(t, "action") }

// annotations returns the keys of Volcano's annotations and labels that the API packages name.
func annotations(t *testing.T) (names []string) {
	t.Helper()
	key := regexp.MustCompile(`(?m)^\t\w+ += "((?:[a-z.]*volcano\.sh|scheduling\.k8s\.io)/[a-z-]+)"`)
	for _, pattern := range []string{"../../api/batch/v1alpha1/labels.go", "../../api/scheduling/v1beta1/labels.go"} {
		for _, m := range key.FindAllStringSubmatch(string(files(t, pattern)[0]), -1) {
			names = append(names, m[1])
		}
	}
	if len(names) < 20 {
		t.Fatalf("found only %d annotations and labels", len(names))
	}
	return names
}
