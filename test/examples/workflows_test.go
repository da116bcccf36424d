package examples

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/cli"
)

func workflow(name string) string { return filepath.Join("../../examples/workflows", name) }

func TestTheWorkflowExamplesSucceed(t *testing.T) {
	var found, problems bytes.Buffer
	if code := cli.Run([]string{"lint", "../../examples/workflows"}, strings.NewReader(""), &found, &problems); code != 0 {
		t.Fatalf("lint: exit code %d\n%s%s", code, found.String(), problems.String())
	}
	args := []string{"submit", "--wait", "--timeout", "2m"}
	for _, name := range []string{"hello", "steps", "diamond", "loop", "exit-handler", "approval", "template", "cleanup", "nightly"} {
		args = append(args, "-f", workflow(name+".yaml"))
	}
	if code, out, errOut := lockstep(t, args...); code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, out, errOut)
	}
	_, out, _ := lockstep(t, "get", "wf", "steps")
	for _, want := range []string{"Succeeded", "├───✔ prepare", "├─┬─✔ left", "○ never", "when 'world == nobody' evaluated false", "└───✔ done"} {
		if !strings.Contains(out, want) {
			t.Errorf("get wf steps has no %q:\n%s", want, out)
		}
	}
	if code, out, errOut := lockstep(t, "submit", "--from", "workflowtemplate/greet", "-p", "who=you", "--watch"); code != 0 || !strings.Contains(out, "you") {
		t.Errorf("--from: exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, errOut := lockstep(t, "cron", "trigger", "nightly", "--wait"); code != 0 {
		t.Errorf("cron trigger: exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, _ := lockstep(t, "cron", "list"); code != 0 || !strings.Contains(out, "nightly") {
		t.Errorf("cron list:\n%s", out)
	}
	if code, out, _ := lockstep(t, "list", "--completed", "--status", "Succeeded", "-o", "name"); code != 0 || strings.Count(out, "workflow.argoproj.io/") < 9 {
		t.Errorf("list:\n%s", out)
	}
}

func TestTheFailingWorkflowFailsAndIsRetried(t *testing.T) {
	code, out, errOut := lockstep(t, "submit", "--watch", workflow("failing.yaml"))
	if code != 1 || !strings.Contains(out, "✖ bad(1)") {
		t.Errorf("exit code %d\n%s%s", code, out, errOut)
	}
	if code, out, errOut := lockstep(t, "retry", "failing-workflow", "--wait"); code != 1 || !strings.Contains(out, "retried") {
		t.Errorf("retry: exit code %d\n%s%s", code, out, errOut)
	}
	if code, _, errOut := lockstep(t, "stop", "failing-workflow"); code != 1 || !strings.Contains(errOut, "completed") {
		t.Errorf("stop: exit code %d\n%s", code, errOut)
	}
	if code, out, errOut := lockstep(t, "delete", "failing-workflow"); code != 0 {
		t.Errorf("delete: exit code %d\n%s%s", code, out, errOut)
	}
	if code, _, errOut := lockstep(t, "get", "wf", "failing-workflow"); code != 1 || !strings.Contains(errOut, "not found") {
		t.Errorf("get: exit code %d\n%s", code, errOut)
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{
		{"submit"}, {"submit", "x.yaml", "--from", "cron/x"}, {"submit", "--from", "pod/x"}, {"submit", "x", "--dry-run=maybe"},
		{"watch"}, {"stop"}, {"node", "set", "x"}, {"delete", "x", "--all"}, {"get", "jobs", "--status", "Failed"}, {"retry", "x", "--restart-successful"},
	} {
		if code, out, errOut := lockstep(t, args...); code != 2 {
			t.Errorf("%q: exit code %d\n%s%s", args, code, out, errOut)
		}
	}
}
