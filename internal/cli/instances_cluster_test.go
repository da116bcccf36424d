package cli_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/install"
	"lockstep.dev/lockstep/internal/localcluster/localtest"
)

// TestInstancesOfTheController submits workflows and crons for an instance of the controller, and selects
// by it.
func TestInstancesOfTheController(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("ARGO_INSTANCEID", "")
	c := localtest.Shared(t)
	if err := install.Apply(t.Context(), c.RESTConfig()); err != nil {
		t.Fatal(err)
	}
	file := func(text string) string {
		path := filepath.Join(t.TempDir(), "m.yaml")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	must := func(args ...string) string {
		t.Helper()
		code, out, errOut := run(c, args...)
		if code != 0 {
			t.Fatalf("%v: exit code %d: %s", args, code, errOut)
		}
		return strings.Join(strings.Fields(out), " ")
	}
	manifest := func(name string) string {
		return file("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {name: instance-" + name + "}\n" +
			"spec: {entrypoint: main, templates: [{name: main, suspend: {}}]}\n")
	}
	must("submit", manifest("none"))
	must("submit", manifest("blue"), "--instanceid", "blue")
	must("submit", file("apiVersion: argoproj.io/v1alpha1\nkind: CronWorkflow\nmetadata: {name: instance-cron}\n"+
		"spec: {schedules: ['@yearly'], workflowSpec: {entrypoint: main, templates: [{name: main, suspend: {}}]}}\n"), "--instanceid", "blue")
	if got := must("list", "--prefix", "instance-", "-o", "name"); got != "workflow.argoproj.io/instance-blue workflow.argoproj.io/instance-none" &&
		got != "workflow.argoproj.io/instance-none workflow.argoproj.io/instance-blue" {
		t.Errorf("without an instance: %s", got)
	}
	if got := must("list", "--prefix", "instance-", "--instanceid", "blue", "-o", "name"); got != "workflow.argoproj.io/instance-blue" {
		t.Errorf("of an instance: %s", got)
	}
	if got := must("cron", "get", "instance-cron", "-o", "yaml"); !strings.Contains(got, "workflows.argoproj.io/controller-instanceid: blue") {
		t.Errorf("the cron is %s", got)
	}
	t.Setenv("ARGO_INSTANCEID", "blue")
	if got := must("list", "--prefix", "instance-", "-o", "name"); got != "workflow.argoproj.io/instance-blue" {
		t.Errorf("of the variable's instance: %s", got)
	}
	for _, args := range [][]string{{"get", "wf", "instance-none"}, {"stop", "instance-none"}} {
		if code, _, errOut := run(c, args...); code != 1 || !strings.Contains(errOut, `belongs to instance "" of the controller, not to "blue"`) {
			t.Errorf("%v: exit code %d: %s", args, code, errOut)
		}
	}
	if code, _, errOut := run(c, "submit", manifest("bad"), "--instanceid", "a b"); code != 2 {
		t.Errorf("exit code %d: %s", code, errOut)
	}
}
