package applications

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
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

// TestEveryPartHasItsCase checks that each part of the API is in a table of the document, and that
// the last column names an existing case.
func TestEveryPartHasItsCase(t *testing.T) {
	names := cases(t)
	sources, err := exec.CommandContext(t.Context(), "grep", "-rhoE", "--include=*_test.go", `^func Test\w+`, "../../internal/application", "../../internal/cli", "../../test").Output()
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.FieldsSeq(string(sources)) {
		names[name] = true
	}
	quoted, words := regexp.MustCompile("`([^`]+)`"), regexp.MustCompile(`[A-Za-z0-9][A-Za-z0-9-]*`)
	shown := map[string]bool{}
	for line := range strings.Lines(reference(t)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 4 {
			continue
		}
		there := false
		for _, word := range words.FindAllString(cells[len(cells)-1], -1) {
			there = there || names[word]
			if strings.HasPrefix(word, "Test") && !names[word] {
				t.Errorf("there is no %s", word)
			}
		}
		for _, part := range quoted.FindAllStringSubmatch(cells[0], -1) {
			shown[part[1]] = shown[part[1]] || there
		}
	}
	for _, part := range parts {
		if !shown[part] {
			t.Errorf("docs/applications-reference.md names no case for %s", part)
		}
	}
}
