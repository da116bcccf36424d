package applications

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// parts lists the parts of KubeVela's API that users need or commonly use.
var parts = strings.Fields(`
components[].name components[].type components[].properties components[].traits components[].dependsOn components[].inputs components[].outputs
type@v3 type@1.2 policies workflow.steps workflow.mode workflow.ref steps[].name steps[].type steps[].properties steps[].if steps[].timeout
steps[].dependsOn steps[].inputs steps[].outputs steps[].subSteps steps[].mode steps[].meta
app.oam.dev/publishVersion app.oam.dev/restart-workflow app.oam.dev/autoUpdate app.oam.dev/reconcile-interval controller.core.oam.dev/pause
controller.core.oam.dev/scheduled-shard-id app.oam.dev/service-account-name app.oam.dev/username app.oam.dev/group
app.oam.dev/resource-tracker-finalizer app.oam.dev/orphan-resource
status.status status.conditions status.services status.workflow status.latestRevision status.appliedResources status.observedGeneration
ApplicationRevision ResourceTracker DefinitionRevision Policy Workflow
workload.type workload.definition schematic.cue customStatus healthPolicy details version appliesToWorkloads podDisruptive stage controlPlaneOnly
parameter output outputs patch patchOutputs patchKey patchStrategy errs processing context PolicyDefinition WorkflowStepDefinition
webservice worker task cron-task daemon statefulset k8s-objects ref-objects helmchart
scaler gateway expose env storage labels annotations resource sidecar init-container command container-image container-ports cpuscaler hpa
hostalias lifecycle startup-probe securitycontext podsecuritycontext service-account affinity topologyspreadconstraints k8s-update-strategy
json-patch json-merge-patch
topology override apply-once garbage-collect shared-resource take-over read-only resource-update
deploy apply-component suspend step-group apply-object read-object notification webhook request depends-on-app export2config export2secret
export-data export-service collect-service-endpoints print-message-in-status
`)

// cases returns the names of all cases.
func cases(t *testing.T) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	for name := range files(t) {
		names[name] = true
	}
	all, err := filepath.Glob(builtins + "/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		names[strings.TrimSuffix(filepath.Base(file), ".yaml")] = true
	}
	return names
}

func reference(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/applications-reference.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestEveryCaseIsInTheDocument checks that docs/applications-reference.md, which lists the cases
// for each part of the API, names every case.
func TestEveryCaseIsInTheDocument(t *testing.T) {
	words := map[string]bool{}
	for _, word := range regexp.MustCompile(`[a-z0-9][a-z0-9-]*`).FindAllString(reference(t), -1) {
		words[word] = true
	}
	names := cases(t)
	if len(names) < 120 {
		t.Errorf("%d cases", len(names))
	}
	for name := range names {
		if !words[name] {
			t.Errorf("case %s is not in docs/applications-reference.md", name)
		}
	}
}

// row is a row of a table of the document whose last column has cases.
type row struct {
	part, here string
	cases      []string // cases and Go tests
}

// rows returns the rows about parts of the API. What is in brackets beside a case says something about
// it.
func rows(t *testing.T) []row {
	t.Helper()
	var out []row
	inTable := false
	between, brackets := regexp.MustCompile(`([^\\])\|`), regexp.MustCompile(`\([^)]*\)`)
	for line := range strings.Lines(reference(t)) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			inTable = false
			continue
		case strings.HasSuffix(line, "| cases |"):
			inTable = true
			continue
		case !inTable || strings.HasPrefix(line, "|---"):
			continue
		}
		cells := strings.Split(between.ReplaceAllString(strings.Trim(line, "|"), "$1\x00"), "\x00")
		if len(cells) != 4 {
			t.Errorf("%.80s... has %d cells", line, len(cells))
			continue
		}
		r := row{part: strings.TrimSpace(cells[0]), here: strings.TrimSpace(cells[2])}
		names := strings.ReplaceAll(brackets.ReplaceAllString(cells[3], ""), "`:", "`,") // a test and its cases
		for name := range strings.SplitSeq(names, ",") {
			if name = strings.Trim(strings.TrimSpace(name), "`"); name != "" {
				r.cases = append(r.cases, name)
			}
		}
		out = append(out, r)
	}
	return out
}

// without are the beginnings of what the document says of parts of which nothing is done, so that they
// have no case.
var without = []string{"accepted, no effect", "[left out]", "not tried", "needs nothing of Lockstep", "pods restart once", "stays as it is"}

// TestStatementsNameTheirTests checks that each row about a part of the API names cases and tests that
// exist, and at least one unless it says that the part does nothing.
func TestStatementsNameTheirTests(t *testing.T) {
	names := cases(t)
	for _, pattern := range []string{"testdata/migration/*.yaml", strings.TrimSuffix(builtins, "builtins") + "parameters/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("%s: %v, %v", pattern, found, err)
		}
		for _, file := range found {
			names[strings.TrimSuffix(filepath.Base(file), ".yaml")] = true
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range regexp.MustCompile(`(?m)^- name: ([a-z0-9-]+)$`).FindAllSubmatch(text, -1) {
				names[string(name[1])] = true
			}
		}
	}
	addGoTests(t, names)
	all := rows(t)
	if len(all) < 140 {
		t.Errorf("%d rows were found", len(all))
	}
	for _, r := range all {
		if len(r.cases) == 0 && !slices.ContainsFunc(without, func(begin string) bool { return strings.HasPrefix(r.here, begin) }) {
			t.Errorf("%s: no case shows that it is %q", r.part, r.here)
		}
		for _, name := range r.cases {
			if !names[name] {
				t.Errorf("%s: there is no case or test %q", r.part, name)
			}
		}
	}
}

// addGoTests adds the names of the Go tests of the packages that have to do with applications.
func addGoTests(t *testing.T, names map[string]bool) {
	t.Helper()
	sources, err := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go", `^func Test\w+`,
		"../../internal/application", "../../internal/cli", "../../internal/install", "../../internal/manager", "../../internal/submit", "../../test").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(sources)) {
		names[name] = true
	}
}

// TestEveryPartHasItsCase checks that each part of the API that users need is in a table of the
// document whose last column names an existing case.
func TestEveryPartHasItsCase(t *testing.T) {
	names := cases(t)
	addGoTests(t, names)
	quoted := regexp.MustCompile("`([^`]+)`")
	shown := map[string]bool{}
	for _, r := range rows(t) {
		there := slices.ContainsFunc(r.cases, func(name string) bool { return names[name] })
		for _, part := range quoted.FindAllStringSubmatch(r.part, -1) {
			shown[part[1]] = shown[part[1]] || there
		}
	}
	for _, part := range parts {
		if !shown[part] {
			t.Errorf("docs/applications-reference.md names no case for %s", part)
		}
	}
}
